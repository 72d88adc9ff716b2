//! A child of this process under a limit of memory that includes the page cache: a memory cgroup,
//! where one can be made.

use std::path::PathBuf;
use std::process::Command;

use datapipes::{Error, Result};

/// A memory cgroup for one child, removed with this value.
pub(super) struct Limit {
    folder: PathBuf,
    peak: &'static str,
}

impl Limit {
    /// Makes one, of version 1 or 2; why not, where neither can be made.
    pub(super) fn new(bytes: u64) -> std::result::Result<Limit, String> {
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.peak"),
        ];
        let mut why = String::from("there are no memory cgroups");
        for (root, most, peak) in versions {
            if !std::path::Path::new(root).exists() {
                continue;
            }
            let folder = PathBuf::from(root).join(format!("dpipe-fine-{}", std::process::id()));
            let made = std::fs::create_dir(&folder).map(|()| Limit { folder, peak });
            match made.and_then(|limit| std::fs::write(limit.folder.join(most), bytes.to_string()).map(|()| limit)) {
                Ok(limit) => return Ok(limit),
                Err(e) => why = format!("no memory cgroup can be made in {root}: {e}"),
            }
        }
        Err(why)
    }

    /// The command, which enters the cgroup before it becomes the program.
    pub(super) fn within(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }

    /// The most memory that was charged at once, in bytes.
    pub(super) fn peak_bytes(&self) -> Result<u64> {
        let path = self.folder.join(self.peak);
        let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &e, path.display().to_string()))?;
        Ok(text.trim().parse().unwrap_or(0))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // The child may be on its way out for a moment. A folder that stays is empty, and without
        // effect.
        for _ in 0..100 {
            match std::fs::remove_dir(&self.folder) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}
