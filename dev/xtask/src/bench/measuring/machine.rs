//! The facts of the machine that a result means nothing without.

use crate::steps;
use serde::Serialize;
use std::fs::read_to_string;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Serialize, Clone, Default)]
pub(in crate::bench) struct Machine {
    pub(in crate::bench) cpu: String,
    pub(in crate::bench) cores: usize,
    pub(in crate::bench) memory_gib: f64,
    pub(in crate::bench) kernel: String,
    pub(in crate::bench) system: String,
    pub(in crate::bench) hypervisor: bool,
    pub(in crate::bench) disk: String,
    pub(in crate::bench) filesystem: String,
    pub(in crate::bench) transparent_huge_pages: String,
    pub(in crate::bench) load_average_before: String,
    pub(in crate::bench) rustc: String,
    pub(in crate::bench) git_commit: String,
}

pub(in crate::bench) fn facts(dir: &Path) -> Machine {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let text = |path: &str| read_to_string(path).unwrap_or_default().trim().to_string();
    let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kib: f64 = field(&meminfo, "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0.0);
    let os_release = read_to_string("/etc/os-release").unwrap_or_default();
    let system = os_release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown");
    Machine {
        cpu: field(&cpuinfo, "model name"),
        cores: cores(),
        memory_gib: (memory_kib / 1024.0 / 1024.0 * 10.0).round() / 10.0,
        kernel: text("/proc/sys/kernel/osrelease"),
        system: system.trim_matches('"').to_string(),
        hypervisor: field(&cpuinfo, "flags").split(' ').any(|flag| flag == "hypervisor"),
        disk: disk(dir),
        filesystem: filesystem(dir),
        transparent_huge_pages: text("/sys/kernel/mm/transparent_hugepage/enabled"),
        load_average_before: text("/proc/loadavg"),
        rustc: steps::first_line(Command::new("rustc").arg("-V")).unwrap_or_default(),
        git_commit: git_commit(),
    }
}

pub(in crate::bench) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The value of the first `name : value` line.
fn field(text: &str, name: &str) -> String {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    let found = pairs.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name);
    found.map(|(_, value)| value.to_string()).unwrap_or_default()
}

/// Whether the tree has changes that are not committed. It counts as changed where git cannot tell.
pub(in crate::bench) fn tree_is_changed() -> bool {
    let status = Command::new("git").args(["status", "--porcelain"]).current_dir(steps::root()).output();
    !status.is_ok_and(|output| output.status.success() && output.stdout.is_empty())
}

/// The load average of the last minute.
pub(in crate::bench) fn load() -> f64 {
    let text = read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::INFINITY)
}

fn git_commit() -> String {
    let git = |args: &[&str]| steps::first_line(Command::new("git").args(args).current_dir(steps::root()));
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    if tree_is_changed() { format!("{commit} with uncommitted changes") } else { commit }
}

/// The device below the folder, from its number: name, kind, scheduler, write cache.
fn disk(dir: &Path) -> String {
    let Ok(metadata) = std::fs::metadata(dir) else {
        return "unknown".into();
    };
    let device = metadata.st_dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(mut node) = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize() else {
        return format!("no block device ({major}:{minor})");
    };
    let name = node.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if node.join("partition").exists() {
        node.pop(); // the queue belongs to the whole disk
    }
    let read = |file: &str| read_to_string(node.join(file)).map(|t| t.trim().to_string()).unwrap_or_default();
    let kind = if read("queue/rotational") == "1" { "says rotational" } else { "not rotational" };
    let model = read("device/model");
    let gb = read("size").parse::<f64>().unwrap_or(0.0) * 512.0 / 1e9;
    let (scheduler, cache) = (read("queue/scheduler"), read("queue/write_cache"));
    let sectors = read("queue/max_sectors_kb");
    format!("{name} {model} {gb:.0} GB, {kind}, scheduler {scheduler}, {cache}, max request {sectors} KiB")
        .replace("  ", " ")
}

/// Type and options of the mount that holds the folder: the longest mount point that is a prefix.
fn filesystem(dir: &Path) -> String {
    let mounts = read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|f| f.len() > 3);
    let holding = fields.filter(|f| dir.starts_with(f[1]));
    let mount = holding.max_by_key(|f| f[1].len());
    mount.map_or_else(|| "unknown".into(), |f| format!("{} on {} ({})", f[2], f[1], f[3]))
}

/// `2026-11-21 09:30:00 UTC`.
pub(in crate::bench) fn date_and_time() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = now.map_or(0, |d| d.as_secs());
    let (year, month, day) = civil(seconds / 86400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Days since 1970-01-01 to a date of the Gregorian calendar, by counting (this runs once a
/// record).
fn civil(mut days: u64) -> (u64, u64, u64) {
    let leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(19_783), (2024, 3, 1));
        assert_eq!(civil(20_453), (2025, 12, 31));
    }
}
