//! Control groups of a test's own, with little memory or few threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// A control group whose processes are limited; it is removed with this value, when they are gone.
#[derive(Debug)]
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// A group below that of this process (version 1), or beside it (version 2, where a group with
    /// processes has no groups below), whose processes may have so many bytes of memory.
    ///
    /// # Errors
    /// Why there can be none here, for a line that says that a test was skipped.
    pub fn of_memory(limit_bytes: u64) -> Result<ControlGroup, String> {
        let group = ControlGroup::below(&parent("memory")?)?;
        group.set(&["memory.max", "memory.limit_in_bytes"], &limit_bytes.to_string())?;
        Ok(group)
    }

    /// The same without a limit on memory: threads can be refused to its processes.
    ///
    /// # Errors
    /// As [`of_memory`](Self::of_memory).
    pub fn of_threads() -> Result<ControlGroup, String> {
        let group = ControlGroup::below(&parent("pids")?)?;
        group.refuse_threads(false)?;
        Ok(group)
    }

    /// Says whether its processes get another thread or process.
    ///
    /// # Errors
    /// Why it cannot be said.
    pub fn refuse_threads(&self, refuse: bool) -> Result<(), String> {
        self.set(&["pids.max"], if refuse { "1" } else { "max" })
    }

    fn below(parent: &Path) -> Result<ControlGroup, String> {
        let name = format!("datapipes-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let group = ControlGroup(parent.join(name));
        fs::create_dir(&group.0).map_err(|e| format!("{}: {e}", group.0.display()))?;
        Ok(group)
    }

    /// Sets the first of these that there is.
    fn set(&self, names: &[&str], value: &str) -> Result<(), String> {
        let found = names.iter().map(|name| self.0.join(name)).find(|file| file.exists());
        let file = found.ok_or_else(|| format!("the group has no {}", names[0]))?;
        fs::write(&file, value).map_err(|e| format!("{}: {e}", file.display()))
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
fn parent(controller: &str) -> Result<PathBuf, String> {
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
        if controllers.split(',').any(|c| c == controller)
            && let Some(mount) = mounted("cgroup", controller)
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
            if enabled.split_whitespace().any(|c| c == controller) {
                return Ok(beside);
            }
        }
    }
    Err(format!("no control group with the controller {controller} is to be had"))
}

impl Drop for ControlGroup {
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
