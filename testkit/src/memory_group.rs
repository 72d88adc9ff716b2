//! A control group of a test's own with little memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A control group whose processes may have so much memory; it is removed with this value, when they are gone.
#[derive(Debug)]
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// A group below that of this process (version 1), or beside it (version 2, where a group with processes has no groups
    /// below), with a limit in bytes.
    ///
    /// # Errors
    /// Why there can be none here, for a line that says that a test was skipped.
    pub fn with(limit_bytes: u64) -> Result<MemoryGroup, String> {
        let name = format!("datapipes-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let group = MemoryGroup(parent()?.join(name));
        fs::create_dir(&group.0).map_err(|e| format!("{}: {e}", group.0.display()))?;
        let file = ["memory.max", "memory.limit_in_bytes"].map(|file| group.0.join(file));
        let file = file.iter().find(|file| file.exists()).ok_or("the group has no memory controller")?;
        fs::write(file, limit_bytes.to_string()).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(group)
    }

    /// The program, to be run in the group.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("sh");
        // The shell enters the group and becomes the program.
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.0.join("cgroup.procs")).arg(program.as_ref());
        command
    }
}

/// Where a group can be made.
fn parent() -> Result<PathBuf, String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    let (groups, mounts) = (read("/proc/self/cgroup")?, read("/proc/self/mountinfo")?);
    let mounted = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let (fs_type, options) = (after.split(' ').next()?, after.split(' ').nth(2)?);
            let fits = fs_type == kind && (option.is_empty() || options.split(',').any(|o| o == option));
            fits.then(|| PathBuf::from(before.split(' ').nth(4).unwrap_or("/")))
        })
    };
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let relative = path.trim_start_matches('/');
        if controllers.split(',').any(|c| c == "memory")
            && let Some(mount) = mounted("cgroup", "memory")
        {
            let own = mount.join(relative);
            // In a container the path may be one of the host's.
            return Ok(if own.is_dir() { own } else { mount });
        }
        if controllers.is_empty()
            && let Some(mount) = mounted("cgroup2", "")
        {
            let own = mount.join(relative);
            let beside = if own.is_dir() { own.parent().unwrap_or(&mount).to_path_buf() } else { mount };
            let enabled = fs::read_to_string(beside.join("cgroup.subtree_control")).unwrap_or_default();
            if enabled.split_whitespace().any(|c| c == "memory") {
                return Ok(beside);
            }
        }
    }
    Err("no control group with a memory controller is to be had".into())
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A process that has ended may be counted for a moment.
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
