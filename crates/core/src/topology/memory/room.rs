//! The memory that this process can take at this moment. A few small files are read, in some 50
//! microseconds.

use std::path::Path;

use super::cgroup::{self, CgroupLimit};
use crate::topology::tree::{Tree, meminfo_bytes};

/// Memory that this process can take now, without swapping and without being killed for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryHeadroom {
    /// The memory in bytes.
    pub bytes: u64,
    /// The bytes that there would be if nothing were used.
    pub of_bytes: u64,
    /// What limits it: the machine, a node, or the file of a control group's limit.
    pub limited_by: String,
}

impl MemoryHeadroom {
    /// Asks the kernel what is available, and what the limits of control groups (versions 1 and 2,
    /// from the process's own upwards) leave. With a NUMA node, it also asks what is free there or
    /// holds a file's pages. Returns `None` where nothing is reported.
    pub fn now(node: Option<u32>) -> Option<MemoryHeadroom> {
        MemoryHeadroom::under(Path::new("/"), node)
    }

    pub(in crate::topology) fn under(root: &Path, node: Option<u32>) -> Option<MemoryHeadroom> {
        let tree = Tree::at(root);
        let meminfo = tree.text("proc/meminfo").unwrap_or_default();
        let total = meminfo_bytes(&meminfo, "MemTotal");
        let machine = meminfo_bytes(&meminfo, "MemAvailable").map(|bytes| MemoryHeadroom {
            bytes,
            of_bytes: total.unwrap_or(bytes),
            limited_by: "the machine's available memory".to_owned(),
        });
        let groups = cgroup::discover(&tree, total);
        let group = groups.iter().min_by_key(|limit| limit.headroom_bytes()).map(of_group);
        let node = node.and_then(|node| of_node(&tree, node));
        [machine, group, node].into_iter().flatten().min_by_key(|room| room.bytes)
    }
}

fn of_group(limit: &CgroupLimit) -> MemoryHeadroom {
    let of = format!("a limit of {} bytes ({})", limit.limit_bytes, limit.source);
    MemoryHeadroom { bytes: limit.headroom_bytes(), of_bytes: limit.limit_bytes, limited_by: of }
}

fn of_node(tree: &Tree, node: u32) -> Option<MemoryHeadroom> {
    let text = tree.text(&format!("sys/devices/system/node/node{node}/meminfo"))?;
    let of = |key| meminfo_bytes(&text, key).unwrap_or(0);
    let bytes =
        meminfo_bytes(&text, "MemFree")?.saturating_add(of("Active(file)")).saturating_add(of("Inactive(file)"));
    let of_bytes = meminfo_bytes(&text, "MemTotal").unwrap_or(bytes);
    Some(MemoryHeadroom { bytes, of_bytes, limited_by: format!("the free memory of NUMA node {node}") })
}
