//! The time for which the kernel kept threads of the own control groups off the cores, because a
//! quota of processor time was used up: limits of containers. Such a thread waits in the queue for
//! a core.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The statistics of the own group and of those above it that can be seen here.
#[derive(Debug, Default)]
pub(crate) struct QuotaClock(Vec<OwnedFd>);

impl QuotaClock {
    /// Those of this process. Where no group has a quota they stand still.
    pub(crate) fn of_this_process() -> QuotaClock {
        let read = |path: &str| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let folders = folders(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let files = folders.iter().filter_map(|folder| File::open(folder.join("cpu.stat")).ok());
        QuotaClock(files.map(OwnedFd::from).collect())
    }

    /// Seconds so far, added up over the cores; of all threads of the groups, not of this process
    /// alone.
    pub(crate) fn seconds(&self) -> f64 {
        let mut text = [0; 4096];
        let ns = self.0.iter().map(|file| {
            let len = rustix::io::pread(file, &mut text[..], 0).unwrap_or(0);
            throttled_ns(std::str::from_utf8(text.get(..len).unwrap_or_default()).unwrap_or(""))
        });
        ns.sum::<u64>() as f64 / 1e9
    }
}

/// The time in a `cpu.stat` of version 2 (`throttled_usec`) or 1 (`throttled_time`, nanoseconds).
fn throttled_ns(text: &str) -> u64 {
    let of = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        let value = value.trim().parse::<u64>().ok()?;
        match name {
            "throttled_usec" => Some(value.saturating_mul(1000)),
            "throttled_time" => Some(value),
            _ => None,
        }
    };
    text.lines().find_map(of).unwrap_or(0)
}

/// The folders of the own group and of those above it, from `/proc/self/cgroup` and
/// `/proc/self/mountinfo`.
fn folders(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let is_second = controllers.is_empty();
        if !is_second && !controllers.split(',').any(|name| name == "cpu") {
            continue;
        }
        let Some((root, point)) = mounts.lines().find_map(|line| mount(line, is_second)) else { continue };
        // A part of the hierarchy may be mounted here, and the group may lie above it.
        let below = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
        let own = Path::new(point).join(below);
        folders.extend(own.ancestors().take_while(|folder| folder.starts_with(point)).map(Path::to_path_buf));
    }
    folders
}

/// The root and the mount point of a line of `mountinfo`, if groups with processor time are there.
fn mount(line: &str, is_second: bool) -> Option<(&str, &str)> {
    let (before, behind) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, point) = (before.next()?, before.next()?);
    let mut behind = behind.split(' ');
    let (kind, options) = (behind.next()?, behind.nth(1)?);
    let is_it = match is_second {
        true => kind == "cgroup2",
        false => kind == "cgroup" && options.split(',').any(|option| option == "cpu"),
    };
    is_it.then_some((root, point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions_are_found_up_to_their_mounts() {
        let mounts = "\
            30 25 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n\
            31 30 0:27 /pod/a /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            33 30 0:29 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let found = folders("4:memory:/x\n3:cpu,cpuacct:/pod/a/job\n0::/user/me\n", mounts);
        let wanted = [
            "/sys/fs/cgroup/cpu,cpuacct/job",
            "/sys/fs/cgroup/cpu,cpuacct",
            "/sys/fs/cgroup/unified/user/me",
            "/sys/fs/cgroup/unified/user",
            "/sys/fs/cgroup/unified",
        ];
        assert_eq!(found, wanted.map(PathBuf::from));
        assert!(folders("3:cpu:/\n", "").is_empty() && folders("odd", mounts).is_empty());
    }

    #[test]
    fn the_time_of_both_versions_is_read() {
        assert_eq!(throttled_ns("usage_usec 5\nnr_throttled 3\nthrottled_usec 1500\n"), 1_500_000);
        assert_eq!(throttled_ns("nr_periods 4\nnr_throttled 3\nthrottled_time 8260000000\n"), 8_260_000_000);
        assert_eq!(throttled_ns("usage_usec 5\nthrottled_usec x\n"), 0);
    }
}
