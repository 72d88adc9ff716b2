//! Control groups of a test's own, with little memory or few threads.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes_core::control_group::{Controller, GroupParent, LimitGroup};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A control group whose processes are limited; it is removed with this value, when they are gone.
#[derive(Debug)]
pub struct ControlGroup(LimitGroup);

impl ControlGroup {
    /// A group below that of this process (version 1), or beside it (version 2, where a group with
    /// processes has no groups below), whose processes may have so many bytes of memory.
    ///
    /// # Errors
    /// Why there can be none here, for a line that says that a test was skipped.
    pub fn of_memory(limit_bytes: u64) -> Result<ControlGroup, String> {
        ControlGroup::with(Controller::MEMORY, limit_bytes)
    }

    /// The same without a limit on memory: threads can be refused to its processes.
    ///
    /// # Errors
    /// As [`of_memory`](Self::of_memory).
    pub fn of_threads() -> Result<ControlGroup, String> {
        let group = ControlGroup::with(Controller::PIDS, 1)?;
        group.refuse_threads(false)?;
        Ok(group)
    }

    fn with(controller: Controller, limit: u64) -> Result<ControlGroup, String> {
        let name = format!("datapipes-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let parent = GroupParent::find(controller).ok_or("no control group with such a limit is to be had")?;
        parent.make(&name, limit).map(ControlGroup)
    }

    /// Says whether its processes get another thread or process.
    ///
    /// # Errors
    /// Why it cannot be said.
    pub fn refuse_threads(&self, refuse: bool) -> Result<(), String> {
        let limit = if refuse { "1" } else { "max" };
        self.0.set(Controller::PIDS, limit).map_err(|e| format!("{}: {e}", self.0.folder().display()))
    }

    /// The program, to be run in the group.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        self.0.command(program.as_ref())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        self.0.remove_soon();
    }
}
