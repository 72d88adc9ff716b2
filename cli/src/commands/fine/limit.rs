//! A child of this process under a limit of memory that includes the page cache: a memory cgroup,
//! where one can be made.

use std::process::Command;

use datapipes::control_group::{Controller, GroupParent, LimitGroup};
use datapipes::{Error, ErrorKind, Result};

/// A memory cgroup for one child, removed with this value.
pub(super) struct Limit(LimitGroup);

impl Limit {
    /// Makes one, of version 1 or 2; why not, where neither can be made.
    pub(super) fn new(bytes: u64) -> std::result::Result<Limit, String> {
        let parent = GroupParent::find(Controller::MEMORY).ok_or("there are no memory cgroups")?;
        let made = parent.make(&format!("dpipe-fine-{}", std::process::id()), bytes);
        made.map(Limit).map_err(|why| format!("no memory cgroup can be made: {why}"))
    }

    /// The command, which enters the cgroup before it becomes the program.
    pub(super) fn within(&self, command: &Command) -> Command {
        let mut inside = self.0.command(command.get_program());
        inside.args(command.get_args());
        inside
    }

    /// The most memory that was charged at once, in bytes.
    pub(super) fn peak_bytes(&self) -> Result<u64> {
        let unknown = || Error::new(ErrorKind::System, "read", format!("the peak of the memory of {}", self.0));
        self.0.peak_memory_bytes().ok_or_else(unknown)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // The child may be on its way out for a moment.
        self.0.remove_soon();
    }
}
