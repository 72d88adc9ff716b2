//! The control groups of devices, one for each device and controller
//! ([`control_group`](datapipes_core::control_group)): `fabric-<controller>-<device>`.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fmt, io};

use datapipes_core::control_group::{Controller, GroupParent, LimitGroup};

use crate::control::limits::DeviceLimits;

/// The prefix of group names. The controller's process and the device follow.
const PREFIX: &str = "fabric-";

/// The folders where this process can make groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    memory: Option<GroupParent>,
    pids: Option<GroupParent>,
    /// Groups of ended devices that could not be removed at once.
    left: Vec<LimitGroup>,
}

/// The groups of one device: one folder, or one for each controller.
#[derive(Debug)]
pub(crate) struct Group {
    memory: LimitGroup,
    pids: Option<LimitGroup>,
}

/// Removes the groups of controllers that are gone, as [`Groups::find`] does, and waits for their
/// last devices up to a limit. The group of a device that waits for a disk for longer stays until
/// the next controller is started.
pub(in crate::control) fn remove_those_of_the_gone(limit: Duration) {
    let (groups, began) = (Groups::find_in(Path::new("/")), Instant::now());
    while !groups.remove_orphans() && began.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Groups {
    /// Finds where groups can be made, and removes those of controllers that are gone.
    pub(crate) fn find() -> Groups {
        let groups = Groups::find_in(Path::new("/"));
        groups.remove_orphans();
        groups
    }

    fn find_in(root: &Path) -> Groups {
        let parent = |controller| GroupParent::find_in(root, controller);
        Groups { memory: parent(Controller::MEMORY), pids: parent(Controller::PIDS), left: Vec::new() }
    }

    /// Makes a group for a device.
    ///
    /// # Errors
    /// The reason why none can be made, for display.
    pub(crate) fn make(&self, device: &str, limits: &DeviceLimits) -> Result<Group, String> {
        let name = format!("{PREFIX}{}-{device}", std::process::id());
        let memory = self.memory.as_ref().ok_or("no control group of memory is to be found")?;
        let memory = memory.make(&name, limits.memory_bytes)?;
        // The limit on memory includes swap.
        memory.set_swap(0);
        let pids = self.pids.as_ref().and_then(|pids| pids.make(&name, limits.threads.into()).ok());
        Ok(Group { memory, pids })
    }

    /// Removes the group of a device that has ended.
    pub(crate) fn remove(&mut self, group: Group) {
        self.left.extend(group.folders().cloned());
        self.left.retain(|group| group.remove().is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY)));
    }

    /// Removes groups of controllers that were ended before they could do so. Returns whether none
    /// is left that has processes.
    fn remove_orphans(&self) -> bool {
        let mut all = true;
        for parent in self.memory.iter().chain(&self.pids) {
            let Ok(entries) = std::fs::read_dir(parent.folder()) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let pid =
                    name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
                if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                    // A group with processes is not removed.
                    let busy = |e: &io::Error| e.raw_os_error() == Some(libc::EBUSY);
                    all &= !std::fs::remove_dir(entry.path()).is_err_and(|e| busy(&e));
                }
            }
        }
        all
    }
}

impl Group {
    /// # Errors
    /// The reason why it cannot be done, for display.
    pub(crate) fn take_in(&self, pid: u32) -> Result<(), String> {
        self.folders().try_for_each(|group| group.take_in(pid))
    }

    /// Its groups, each with a folder of its own.
    fn folders(&self) -> impl Iterator<Item = &LimitGroup> {
        [&self.memory].into_iter().chain(self.pids.iter().filter(|pids| **pids != self.memory))
    }

    pub(crate) fn has_threads(&self) -> bool {
        self.pids.is_some()
    }

    /// Changes the limit on memory. A limit below the present use may be refused, and then the old
    /// one stays.
    pub(crate) fn set_memory(&self, bytes: u64) {
        self.memory.set_memory(bytes);
    }

    /// The memory charged to it, in bytes.
    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.memory.memory_bytes()
    }

    /// Whether the kernel has killed a process in it for its memory.
    pub(crate) fn was_out_of_memory(&self) -> bool {
        self.memory.was_out_of_memory()
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)?;
        if self.has_threads() { Ok(()) } else { f.write_str(" (memory only)") }
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    const LIMITS: DeviceLimits = DeviceLimits { memory_bytes: 1 << 20, threads: 5 };

    struct Tree(datapipes_testkit::TempFolder);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Tree {
            let root = datapipes_testkit::TempFolder::new().unwrap();
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }

    #[test]
    fn of_version_2_a_group_is_a_neighbour_of_the_own_one() {
        let tree = Tree::new(&[
            ("proc/self/cgroup", "0::/app.slice/own.scope\n"),
            ("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/app.slice/cgroup.subtree_control", "cpu memory pids\n"),
            ("sys/fs/cgroup/app.slice/own.scope/cgroup.procs", "1\n"),
        ]);
        let groups = Groups::find_in(&tree.0);
        let group = groups.make("7", &LIMITS).unwrap();
        let folder = tree.0.join(format!("sys/fs/cgroup/app.slice/fabric-{}-7", std::process::id()));
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!((text("memory.max").as_str(), text("pids.max").as_str()), ("1048576", "5"));
        group.take_in(4711).unwrap();
        assert_eq!(text("cgroup.procs"), "4711");
        std::fs::write(folder.join("memory.events"), "low 0\nmax 3\noom 1\noom_kill 1\n").unwrap();
        std::fs::write(folder.join("memory.current"), "4096\n").unwrap();
        assert!(group.was_out_of_memory() && group.has_threads());
        assert_eq!((group.memory_bytes(), group.folders().count()), (Some(4096), 1));
        group.set_memory(2 << 20);
        assert_eq!(text("memory.max"), "2097152");
    }

    #[test]
    fn of_version_1_there_is_a_group_in_each_hierarchy_below_the_own_one() {
        let tree = Tree::new(&[
            ("proc/self/cgroup", "8:pids:/\n4:cpu,memory:/docker/ab/job\n0::/\n"),
            (
                "proc/self/mountinfo",
                "30 20 0:26 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                     31 20 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
            ),
            ("sys/fs/cgroup/memory/job/tasks", ""),
            ("sys/fs/cgroup/pids/tasks", ""),
        ]);
        let group = Groups::find_in(&tree.0).make("7", &LIMITS).unwrap();
        let name = format!("fabric-{}-7", std::process::id());
        let text = |path: &str| std::fs::read_to_string(tree.0.join("sys/fs/cgroup").join(path)).unwrap();
        assert_eq!(text(&format!("memory/job/{name}/memory.limit_in_bytes")), "1048576");
        assert_eq!(text(&format!("pids/{name}/pids.max")), "5");
        assert_eq!(group.folders().count(), 2);
    }

    #[test]
    fn where_none_can_be_made_it_is_said_why() {
        let tree = Tree::new(&[
            ("proc/self/cgroup", "0::/own\n"),
            ("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/cgroup.subtree_control", "cpu\n"),
            ("sys/fs/cgroup/own/cgroup.procs", ""),
        ]);
        assert!(Groups::find_in(&tree.0).make("7", &LIMITS).unwrap_err().contains("no control group"));
    }
}
