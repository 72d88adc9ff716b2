//! Memory limits of containers: control groups of version 2 and 1, from the process's own group
//! upwards.
//!
//! A limit of any ancestor applies, and a process may see both versions mounted at once:
//! ```text
//! /proc/self/cgroup       4:memory:/docker/ab/job           the group, for each hierarchy
//! /proc/self/mountinfo    ... /docker/ab /sys/fs/cgroup/memory ... cgroup cgroup rw,memory
//!                             ^ the part of the hierarchy that is mounted here
//! walk                    /sys/fs/cgroup/memory/job, then /sys/fs/cgroup/memory
//! ```

use serde::{Deserialize, Serialize};

use crate::topology::mounts::{self, Mount};
use crate::topology::tree::Tree;

/// One control group with a memory limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CgroupLimit {
    /// The file that states the limit.
    pub source: String,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Present usage of the group, including its page cache; 0 where it could not be read.
    pub usage_bytes: u64,
    /// The part of the usage that the kernel drops under pressure (`inactive_file`).
    pub reclaimable_bytes: u64,
}

impl CgroupLimit {
    /// The bytes left until the limit is reached.
    pub fn headroom_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.usage_bytes.saturating_sub(self.reclaimable_bytes))
    }
}

/// The files of one version of control groups.
struct Version {
    /// Files with a limit. `memory.high` does not kill but slows a process to a crawl, so it counts
    /// as well.
    limits: &'static [&'static str],
    usage: &'static str,
    inactive: &'static str,
}

const V2: Version =
    Version { limits: &["memory.max", "memory.high"], usage: "memory.current", inactive: "inactive_file" };
const V1: Version =
    Version { limits: &["memory.limit_in_bytes"], usage: "memory.usage_in_bytes", inactive: "total_inactive_file" };

/// Returns all limits on this process. A limit at or above the machine's memory does not count.
pub(in crate::topology) fn discover(tree: &Tree, total_bytes: Option<u64>) -> Vec<CgroupLimit> {
    let Some(groups) = tree.required("proc/self/cgroup", "container limits") else { return Vec::new() };
    let mounts = mounts::read(tree);
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let v1 = controllers.split(',').any(|controller| controller == "memory");
        let (version, fs_type) = match (controllers.is_empty(), v1) {
            (true, _) => (&V2, "cgroup2"),
            (_, true) => (&V1, "cgroup"),
            _ => continue,
        };
        let is_ours = |mount: &&Mount| {
            mount.fs_type == fs_type && (!v1 || mount.super_options.split(',').any(|option| option == "memory"))
        };
        match mounts.iter().find(is_ours) {
            Some(mount) => walk(tree, version, mount, group, total_bytes, &mut limits),
            None if v1 => tree.unknown(format!("container limits: group {group} has no mount of type {fs_type}")),
            // Hosts with version 1 list an empty version 2 that is mounted nowhere, which is no
            // problem to report.
            None => {}
        }
    }
    limits
}

/// Reads the limits of the group and of each ancestor that the mount shows.
fn walk(
    tree: &Tree,
    version: &Version,
    mount: &Mount,
    group: &str,
    total_bytes: Option<u64>,
    limits: &mut Vec<CgroupLimit>,
) {
    // For a group outside the mounted part (a namespace shows `/..`), only the mount point itself
    // can be read.
    let inside = match mount.root.as_str() {
        "/" => Some(group),
        root => group.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/')),
    };
    let mut inside = match inside {
        Some(inside) if !inside.split('/').any(|part| part == "..") => inside.trim_matches('/').to_owned(),
        _ => String::new(),
    };
    loop {
        let at = format!("{}/{inside}", mount.mount_point.trim_end_matches('/'));
        let at = at.trim_end_matches('/');
        limits.extend(read(tree, version, at, total_bytes));
        if inside.is_empty() {
            return;
        }
        inside.truncate(inside.rfind('/').unwrap_or(0));
    }
}

/// The limits of one group.
fn read<'a>(
    tree: &'a Tree,
    version: &'a Version,
    at: &'a str,
    total_bytes: Option<u64>,
) -> impl Iterator<Item = CgroupLimit> + 'a {
    let stat = tree.text(&format!("{at}/memory.stat")).unwrap_or_default();
    let figure = move |name: &str| {
        stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
    };
    let usage_bytes = tree.number(&format!("{at}/{}", version.usage)).unwrap_or(0);
    let reclaimable_bytes = figure(version.inactive).unwrap_or(0);
    let stated = version.limits.iter().map(move |file| {
        let path = format!("{at}/{file}");
        let limit = tree.number::<u64>(&path);
        (path, limit)
    });
    // Ancestors that a container's mount hides still apply, and version 1 reports them in this
    // line.
    let hidden = (format!("{at}/memory.stat: hierarchical_memory_limit"), figure("hierarchical_memory_limit"));
    let mut seen = None;
    stated.chain([hidden]).filter_map(move |(source, limit)| {
        let limit_bytes = limit.filter(|limit| total_bytes.is_none_or(|total| *limit < total))?;
        // Version 1 without a limit says about 2^63 rounded to pages; that may exceed an unknown
        // total.
        if limit_bytes >= 1 << 62 || seen == Some(limit_bytes) {
            return None;
        }
        seen = Some(limit_bytes);
        Some(CgroupLimit { source, limit_bytes, usage_bytes, reclaimable_bytes })
    })
}
