//! The time for which the kernel kept threads of the own control groups off the cores, because a
//! quota of processor time was used up: limits of containers. Such a thread waits in the queue for
//! a core.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The statistics of the own group and of those above it that can be seen here.
#[derive(Debug, Default)]
pub(crate) struct QuotaClock(Vec<GroupClock>);

#[derive(Debug)]
struct GroupClock {
    stat: OwnedFd,
    /// How long the group waits in a period whose quota is used up, in nanoseconds, if it computes
    /// from the begin of the period on.
    wait_ns: u64,
    /// What was counted when the clock was made.
    before: Throttled,
}

/// What the kernel counted of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Throttled {
    ns: u64,
    /// Periods whose quota was used up.
    periods: u64,
}

impl QuotaClock {
    /// Those of this process. Where no group has a quota they stand still.
    pub(crate) fn of_this_process() -> QuotaClock {
        let read = |path: &str| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        let folders = folders(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let groups = folders.iter().filter_map(|folder| {
            let stat = OwnedFd::from(File::open(folder.join("cpu.stat")).ok()?);
            let file = |name: &str| read(&folder.join(name).to_string_lossy());
            let [max, quota, period] = ["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"].map(file);
            let limit = if max.is_empty() { format!("{quota} {period}") } else { max };
            let before = counted(&stat);
            Some(GroupClock { stat, wait_ns: wait_ns(&limit), before })
        });
        QuotaClock(groups.collect())
    }

    /// Seconds since the clock was made, added up over the cores; of all threads of the groups, not
    /// of this process alone.
    pub(crate) fn seconds(&self) -> f64 {
        let ns = self.0.iter().map(|group| counted(&group.stat).since(group.before, group.wait_ns));
        ns.sum::<u64>() as f64 / 1e9
    }
}

impl Throttled {
    /// The time since then. Kernels count less of it than a group waits, so it is not less than
    /// what the periods tell whose quota was used up.
    fn since(self, before: Throttled, wait_ns: u64) -> u64 {
        let by_periods = self.periods.saturating_sub(before.periods).saturating_mul(wait_ns);
        self.ns.saturating_sub(before.ns).max(by_periods)
    }
}

fn counted(stat: &OwnedFd) -> Throttled {
    let mut text = [0; 4096];
    let len = rustix::io::pread(stat, &mut text[..], 0).unwrap_or(0);
    throttled(std::str::from_utf8(text.get(..len).unwrap_or_default()).unwrap_or(""))
}

/// How long a group waits in a period whose quota is used up, from the quota and the period in
/// microseconds: as if as many cores as it needs at least used it up from the begin on. 0 without a
/// quota (`max`, or -1).
fn wait_ns(limit: &str) -> u64 {
    let mut numbers = limit.split_whitespace().map(|number| number.parse::<u64>().ok().filter(|n| *n > 0));
    let (Some(Some(quota)), Some(Some(period))) = (numbers.next(), numbers.next()) else { return 0 };
    let in_use = quota / quota.div_ceil(period);
    period.saturating_sub(in_use).saturating_mul(1000)
}

/// What a `cpu.stat` of version 2 (`throttled_usec`) or 1 (`throttled_time`, nanoseconds) has.
fn throttled(text: &str) -> Throttled {
    let mut throttled = Throttled::default();
    for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        let value = value.trim().parse::<u64>().unwrap_or(0);
        match name {
            "throttled_usec" => throttled.ns = value.saturating_mul(1000),
            "throttled_time" => throttled.ns = value,
            "nr_throttled" => throttled.periods = value,
            _ => {}
        }
    }
    throttled
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
        let read = |text: &str| (throttled(text).ns, throttled(text).periods);
        assert_eq!(read("usage_usec 5\nnr_throttled 3\nthrottled_usec 1500\n"), (1_500_000, 3));
        assert_eq!(read("nr_periods 4\nnr_throttled 3\nthrottled_time 8260000000\n"), (8_260_000_000, 3));
        assert_eq!(read("usage_usec 5\nthrottled_usec x\n"), (0, 0));
        // A fifth of a core, as the kernel counted it: in 11 of 13 periods of a tenth of a second.
        let wait = wait_ns("20000 100000");
        let before = Throttled { ns: 9_000_000_000, periods: 20 };
        assert_eq!(Throttled { ns: 9_630_000_000, periods: 31 }.since(before, wait), 880_000_000);
        assert_eq!(Throttled { ns: 9_950_000_000, periods: 31 }.since(before, wait), 950_000_000);
        // Three halves of a core are used up by two cores at the earliest.
        assert_eq!(["150000 100000", "max 100000", "-1\n100000\n", ""].map(wait_ns), [25_000_000, 0, 0, 0]);
    }
}
