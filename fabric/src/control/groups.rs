//! Control groups of devices, of version 1 and 2, one for each device.
//!
//! ```text
//! version 1    /sys/fs/cgroup/memory/<own group>/fabric-<controller>-<device>/memory.limit_in_bytes, and the same under pids
//! version 2    <own group's parent>/fabric-<controller>-<device>/memory.max, pids.max
//! ```
//! Of version 2 it is a neighbour of the own group, not a child: a group with processes passes no
//! controllers on to children.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::quota::DeviceLimits;

/// Names of groups start with this, then come the controller's process and the device.
const PREFIX: &str = "fabric-";

/// What a controller of the kernel is called, and the files of its two versions.
struct Resource {
    name: &'static str,
    limit: [&'static str; 2],
}

const MEMORY: Resource = Resource { name: "memory", limit: ["memory.limit_in_bytes", "memory.max"] };
const PIDS: Resource = Resource { name: "pids", limit: ["pids.max", "pids.max"] };

/// Where groups can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parent {
    folder: PathBuf,
    /// 0 for version 1, 1 for version 2.
    version: usize,
}

/// Where this process can make groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    memory: Option<Parent>,
    pids: Option<Parent>,
    /// Those of devices that have ended which could not be removed at once.
    left: Vec<PathBuf>,
}

/// The groups of one device: one folder, or one a resource.
#[derive(Debug)]
pub(super) struct Group {
    memory: (PathBuf, usize),
    pids: Option<(PathBuf, usize)>,
}

impl Groups {
    /// Looks where groups can be made, and removes those of controllers that are gone.
    pub(super) fn find() -> Groups {
        let groups = Groups::find_in(Path::new("/"));
        groups.remove_orphans();
        groups
    }

    fn find_in(root: &Path) -> Groups {
        // Names of groups and of mounts can be any bytes.
        let bytes = |path: &str| std::fs::read(root.join(path)).unwrap_or_default();
        let read = |path: &str| String::from_utf8_lossy(&bytes(path)).into_owned();
        let (own, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
        let parent = |resource: &Resource| {
            own.lines()
                .find_map(|line| parent_of(root, resource, line, &mounts))
                .filter(|parent| parent.folder.is_dir())
        };
        Groups { memory: parent(&MEMORY), pids: parent(&PIDS), left: Vec::new() }
    }

    /// A group for a device.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub(super) fn make(&self, device: &str, limits: &DeviceLimits) -> Result<Group, String> {
        let name = format!("{PREFIX}{}-{device}", std::process::id());
        let memory = self.memory.as_ref().ok_or("no control group of memory is to be found")?;
        let make = |parent: &Parent, resource: &Resource, limit: u64| -> Result<(PathBuf, usize), String> {
            let folder = parent.folder.join(&name);
            let told = |e: io::Error| format!("{}: {e}", folder.display());
            match std::fs::create_dir(&folder) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(told(e)),
                _ => {}
            }
            let written = std::fs::write(folder.join(resource.limit[parent.version]), limit.to_string());
            if let Err(e) = written {
                let _ = std::fs::remove_dir(&folder);
                return Err(told(e));
            }
            Ok((folder, parent.version))
        };
        let group = Group { memory: make(memory, &MEMORY, limits.memory_bytes)?, pids: None };
        // Memory in swap is memory.
        group.set_swap(0);
        let pids = self.pids.as_ref().and_then(|pids| make(pids, &PIDS, limits.threads.into()).ok());
        Ok(Group { pids, ..group })
    }

    /// Removes the group of a device that has ended.
    pub(super) fn remove(&mut self, group: Group) {
        self.left.extend(group.folders());
        self.left.retain(|folder| match std::fs::remove_dir(folder) {
            Err(e) => e.raw_os_error() == Some(libc::EBUSY),
            Ok(()) => false,
        });
    }

    /// Groups of controllers that were ended before they could remove them.
    fn remove_orphans(&self) {
        for parent in self.memory.iter().chain(&self.pids) {
            let Ok(entries) = std::fs::read_dir(&parent.folder) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let pid =
                    name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
                if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                    // It goes only if nobody is in it.
                    let _ = std::fs::remove_dir(entry.path());
                }
            }
        }
    }
}

/// Where a line of `/proc/self/cgroup` says that groups for a resource can be.
fn parent_of(root: &Path, resource: &Resource, line: &str, mounts: &str) -> Option<Parent> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, own) = (parts.next()?, parts.next()?);
    let is_second = controllers.is_empty();
    if !is_second && !controllers.split(',').any(|c| c == resource.name) {
        return None;
    }
    let (at, below) = mounts.lines().find_map(|mount| mounted(mount, is_second, resource))?;
    // What of the hierarchy is mounted there.
    let inside = if below == "/" { own } else { own.strip_prefix(below)? };
    let inside = inside.trim_matches('/');
    if inside.split('/').any(|part| part == "..") {
        return None;
    }
    let folder = root.join(at.trim_start_matches('/')).join(inside);
    if !is_second {
        return Some(Parent { folder, version: 0 });
    }
    let parent = if inside.is_empty() { folder } else { folder.parent()?.to_path_buf() };
    let passed_on = std::fs::read_to_string(parent.join("cgroup.subtree_control")).ok()?;
    let passes = passed_on.split_ascii_whitespace().any(|c| c == resource.name);
    passes.then_some(Parent { folder: parent, version: 1 })
}

/// Mount point and root of a line of `/proc/self/mountinfo`, if it is of that kind.
fn mounted<'a>(line: &'a str, is_second: bool, resource: &Resource) -> Option<(&'a str, &'a str)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let (fs_type, options) = (kind.next()?, kind.nth(1)?);
    let is_it = if is_second {
        fs_type == "cgroup2"
    } else {
        fs_type == "cgroup" && options.split(',').any(|option| option == resource.name)
    };
    let mut words = mount.split(' ').skip(3);
    let (below, at) = (words.next()?, words.next()?);
    is_it.then_some((at, below))
}

impl Group {
    /// # Errors
    /// Why it cannot be, for people.
    pub(super) fn take_in(&self, pid: u32) -> Result<(), String> {
        for folder in self.folders() {
            let procs = folder.join("cgroup.procs");
            std::fs::write(&procs, pid.to_string()).map_err(|e| format!("{}: {e}", procs.display()))?;
        }
        Ok(())
    }

    fn folders(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.memory.0.clone()];
        folders.extend(self.pids.iter().map(|(folder, _)| folder.clone()).filter(|pids| *pids != self.memory.0));
        folders
    }

    pub(super) fn has_threads(&self) -> bool {
        self.pids.is_some()
    }

    /// Changes the limit on memory. To less than is in use it may be refused: then it stays as it
    /// is.
    pub(super) fn set_memory(&self, bytes: u64) {
        let (folder, version) = &self.memory;
        if *version == 0 {
            // This one must never be below the other, so it makes way first.
            let _ = std::fs::write(folder.join("memory.memsw.limit_in_bytes"), "-1");
        }
        let _ = std::fs::write(folder.join(MEMORY.limit[*version]), bytes.to_string());
        self.set_swap(0);
    }

    /// Where the kernel counts swap.
    fn set_swap(&self, bytes: u64) {
        let (folder, version) = &self.memory;
        if *version == 1 {
            let _ = write_if_there(&folder.join("memory.swap.max"), &bytes.to_string());
        } else if let Some(limit) = number(&folder.join(MEMORY.limit[0])) {
            let _ =
                write_if_there(&folder.join("memory.memsw.limit_in_bytes"), &limit.saturating_add(bytes).to_string());
        }
    }

    /// What is charged to it, in bytes.
    pub(super) fn memory_bytes(&self) -> Option<u64> {
        let (folder, version) = &self.memory;
        number(&folder.join(["memory.usage_in_bytes", "memory.current"][*version]))
    }

    /// Whether the kernel has killed for memory in it.
    pub(super) fn was_out_of_memory(&self) -> bool {
        let (folder, version) = &self.memory;
        let events = std::fs::read_to_string(folder.join(["memory.oom_control", "memory.events"][*version]));
        let killed = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok();
        events.is_ok_and(|text| text.lines().find_map(killed).is_some_and(|count| count > 0))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (folder, version) = &self.memory;
        write!(f, "control group of version {}, {}", version + 1, folder.display())?;
        if self.has_threads() { Ok(()) } else { f.write_str(" (memory only)") }
    }
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn write_if_there(path: &Path, text: &str) -> io::Result<()> {
    if path.exists() { std::fs::write(path, text) } else { Ok(()) }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    const LIMITS: DeviceLimits = DeviceLimits { memory_bytes: 1 << 20, threads: 5 };

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("fabric-groups-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn of_version_2_a_group_is_a_neighbour_of_the_own_one() {
        let tree = Tree::new(
            "two",
            &[
                ("proc/self/cgroup", "0::/app.slice/own.scope\n"),
                ("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"),
                ("sys/fs/cgroup/app.slice/cgroup.subtree_control", "cpu memory pids\n"),
                ("sys/fs/cgroup/app.slice/own.scope/cgroup.procs", "1\n"),
            ],
        );
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
        assert_eq!((group.memory_bytes(), group.folders().len()), (Some(4096), 1));
        group.set_memory(2 << 20);
        assert_eq!(text("memory.max"), "2097152");
    }

    #[test]
    fn of_version_1_there_is_a_group_in_each_hierarchy_below_the_own_one() {
        let tree = Tree::new(
            "one",
            &[
                ("proc/self/cgroup", "8:pids:/\n4:cpu,memory:/docker/ab/job\n0::/\n"),
                (
                    "proc/self/mountinfo",
                    "30 20 0:26 /docker/ab /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                     31 20 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
                ),
                ("sys/fs/cgroup/memory/job/tasks", ""),
                ("sys/fs/cgroup/pids/tasks", ""),
            ],
        );
        let group = Groups::find_in(&tree.0).make("7", &LIMITS).unwrap();
        let name = format!("fabric-{}-7", std::process::id());
        let text = |path: &str| std::fs::read_to_string(tree.0.join("sys/fs/cgroup").join(path)).unwrap();
        assert_eq!(text(&format!("memory/job/{name}/memory.limit_in_bytes")), "1048576");
        assert_eq!(text(&format!("pids/{name}/pids.max")), "5");
        assert_eq!(group.folders().len(), 2);
    }

    #[test]
    fn where_none_can_be_made_it_is_said_why() {
        let tree = Tree::new(
            "none",
            &[
                ("proc/self/cgroup", "0::/own\n"),
                ("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
                ("sys/fs/cgroup/cgroup.subtree_control", "cpu\n"),
                ("sys/fs/cgroup/own/cgroup.procs", ""),
            ],
        );
        assert!(Groups::find_in(&tree.0).make("7", &LIMITS).unwrap_err().contains("no control group"));
    }
}
