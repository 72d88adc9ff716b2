//! Control groups that limit processes, of version 1 and 2: where this process can make some, and
//! one of them.
//!
//! ```text
//! version 1    /sys/fs/cgroup/memory/<own group>/<name>/memory.limit_in_bytes, likewise under pids
//! version 2    <own group's parent>/<name>/memory.max, pids.max
//! ```
//! In version 2 it is a sibling of the own group, not a child: a group with processes passes no
//! controllers on to children. [`topology`](crate::topology) tells the limits on this process.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A controller of the kernel: its name, and the file of its limit in the two versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controller {
    name: &'static str,
    limit: [&'static str; 2],
}

impl Controller {
    /// Limits memory, in bytes.
    pub const MEMORY: Controller = Controller { name: "memory", limit: ["memory.limit_in_bytes", "memory.max"] };
    /// Limits threads.
    pub const PIDS: Controller = Controller { name: "pids", limit: ["pids.max", "pids.max"] };
}

/// A folder where groups with a controller can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupParent {
    folder: PathBuf,
    /// 0 for version 1, 1 for version 2.
    version: usize,
    controller: Controller,
}

impl GroupParent {
    /// Finds it; `None` where there is none.
    pub fn find(controller: Controller) -> Option<GroupParent> {
        GroupParent::find_in(Path::new("/"), controller)
    }

    /// The same in a recorded tree of files.
    pub fn find_in(root: &Path, controller: Controller) -> Option<GroupParent> {
        // Names of groups and of mounts can have any bytes.
        let bytes = |path: &str| std::fs::read(root.join(path)).unwrap_or_default();
        let read = |path: &str| String::from_utf8_lossy(&bytes(path)).into_owned();
        let (own, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
        let found = own.lines().find_map(|line| parent_of(root, controller, line, &mounts));
        found.filter(|parent| parent.folder.is_dir())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes a group of this name with this limit, or sets the limit of the one that there is.
    ///
    /// # Errors
    /// The reason why none can be made, for display.
    pub fn make(&self, name: &str, limit: u64) -> Result<LimitGroup, String> {
        let group = LimitGroup { folder: self.folder.join(name), version: self.version };
        let told = |e: io::Error| format!("{}: {e}", group.folder.display());
        match std::fs::create_dir(&group.folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(told(e)),
            _ => {}
        }
        if let Err(e) = group.set(self.controller, &limit.to_string()) {
            let _ = group.remove();
            return Err(told(e));
        }
        Ok(group)
    }
}

/// The folder for groups of a controller, according to a line of `/proc/self/cgroup`.
fn parent_of(root: &Path, controller: Controller, line: &str, mounts: &str) -> Option<GroupParent> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, own) = (parts.next()?, parts.next()?);
    let is_second = controllers.is_empty();
    if !is_second && !controllers.split(',').any(|c| c == controller.name) {
        return None;
    }
    let (at, below) = mounts.lines().find_map(|mount| mounted(mount, is_second, controller))?;
    // This is the part of the hierarchy that is mounted there.
    let inside = if below == "/" { own } else { own.strip_prefix(below)? };
    let inside = inside.trim_matches('/');
    if inside.split('/').any(|part| part == "..") {
        return None;
    }
    let folder = root.join(at.trim_start_matches('/')).join(inside);
    if !is_second {
        return Some(GroupParent { folder, version: 0, controller });
    }
    let parent = if inside.is_empty() { folder } else { folder.parent()?.to_path_buf() };
    let passed_on = std::fs::read_to_string(parent.join("cgroup.subtree_control")).ok()?;
    let passes = passed_on.split_ascii_whitespace().any(|c| c == controller.name);
    passes.then_some(GroupParent { folder: parent, version: 1, controller })
}

/// The mount point and the root in a line of `/proc/self/mountinfo`, if its kind matches.
fn mounted(line: &str, is_second: bool, controller: Controller) -> Option<(&str, &str)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (fs_type, options) = (kind.next()?, kind.nth(1)?);
    let is_it = if is_second {
        fs_type == "cgroup2"
    } else {
        fs_type == "cgroup" && options.split(',').any(|option| option == controller.name)
    };
    let mut words = mount.split(' ').skip(3);
    let (below, at) = (words.next()?, words.next()?);
    is_it.then_some((at, below))
}

/// A control group that this process made. It stays until it is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitGroup {
    folder: PathBuf,
    /// 0 for version 1, 1 for version 2.
    version: usize,
}

impl LimitGroup {
    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sets a limit: a number, or `max` for none.
    ///
    /// # Errors
    /// The kernel's: it may refuse a limit below the present use.
    pub fn set(&self, controller: Controller, limit: &str) -> io::Result<()> {
        std::fs::write(self.folder.join(controller.limit[self.version]), limit)
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// The reason why it cannot be done, for display.
    pub fn take_in(&self, pid: u32) -> Result<(), String> {
        let processes = self.processes();
        std::fs::write(&processes, pid.to_string()).map_err(|e| format!("{}: {e}", processes.display()))
    }

    /// The program, to be run in the group: a shell enters the group and becomes the program.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.processes()).arg(program);
        command
    }

    fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Changes the limit on memory. A limit below the present use may be refused, and then the old
    /// one stays.
    pub fn set_memory(&self, bytes: u64) {
        if self.version == 0 {
            // The limit with swap must never be below the other one, so it is raised first.
            let _ = std::fs::write(self.folder.join("memory.memsw.limit_in_bytes"), "-1");
        }
        let _ = self.set(Controller::MEMORY, &bytes.to_string());
        self.set_swap(0);
    }

    /// Limits swap, where the kernel counts it.
    pub fn set_swap(&self, bytes: u64) {
        if self.version == 1 {
            let _ = write_if_there(&self.folder.join("memory.swap.max"), &bytes.to_string());
        } else if let Some(limit) = self.number(Controller::MEMORY.limit) {
            let with_swap = limit.saturating_add(bytes).to_string();
            let _ = write_if_there(&self.folder.join("memory.memsw.limit_in_bytes"), &with_swap);
        }
    }

    /// The memory charged to it, in bytes.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.number(["memory.usage_in_bytes", "memory.current"])
    }

    /// The most memory that was charged to it at once, in bytes.
    pub fn peak_memory_bytes(&self) -> Option<u64> {
        self.number(["memory.max_usage_in_bytes", "memory.peak"])
    }

    /// Whether the kernel has killed a process in it for its memory.
    pub fn was_out_of_memory(&self) -> bool {
        let events = std::fs::read_to_string(self.folder.join(["memory.oom_control", "memory.events"][self.version]));
        let killed = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok();
        events.is_ok_and(|text| text.lines().find_map(killed).is_some_and(|count| count > 0))
    }

    fn number(&self, files: [&str; 2]) -> Option<u64> {
        std::fs::read_to_string(self.folder.join(files[self.version])).ok()?.trim().parse().ok()
    }

    /// Removes it.
    ///
    /// # Errors
    /// The kernel's; `EBUSY` while it has processes.
    pub fn remove(&self) -> io::Result<()> {
        std::fs::remove_dir(&self.folder)
    }

    /// Removes it, and waits up to 2 seconds for processes that are about to end. An empty group
    /// that stays has no effect.
    pub fn remove_soon(&self) {
        for _ in 0..200 {
            match self.remove() {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(Duration::from_millis(10)),
                _ => return,
            }
        }
    }
}

impl fmt::Display for LimitGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "control group of version {}, {}", self.version + 1, self.folder.display())
    }
}

fn write_if_there(path: &Path, text: &str) -> io::Result<()> {
    if path.exists() { std::fs::write(path, text) } else { Ok(()) }
}
