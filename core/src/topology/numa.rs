//! NUMA nodes: who is near whom, and what the firmware's HMAT says about reaching them.

use serde::{Deserialize, Serialize};

use super::text::Size;
use super::tree::{Tree, meminfo_bytes};

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// The kernel's number, the one that `mbind` takes.
    pub index: usize,
    /// Its logical processors.
    pub cpus: Vec<usize>,
    /// Memory without processors: CXL expanders, PMem in system-RAM mode, GPU memory.
    pub cpu_less: bool,
    /// Relative distance to each node (10 is itself); the pairs name the node.
    pub distances: Vec<NodeDistance>,
    /// Memory of the node in bytes.
    pub total_bytes: Option<u64>,
    /// Unused memory of the node in bytes (without caches that could be dropped).
    pub free_bytes: Option<u64>,
    /// Memory tier (smaller is faster), where the kernel has tiers.
    pub memory_tier: Option<u32>,
    /// What HMAT says about this node as a target, seen from its nearest initiators.
    pub access: Option<NodePerformance>,
}

/// The distance to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDistance {
    /// The other node.
    pub node: usize,
    /// ACPI SLIT units: 10 is local, 20 is twice as far.
    pub distance: u32,
}

/// Firmware's figures for reaching a node from the initiators with the best access (`access0`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePerformance {
    /// Nodes with that access.
    pub initiators: Vec<usize>,
    /// Nanoseconds for a read.
    pub read_latency_ns: Option<u32>,
    /// Nanoseconds for a write.
    pub write_latency_ns: Option<u32>,
    /// MB/s for reads.
    pub read_bandwidth_mb_s: Option<u32>,
    /// MB/s for writes.
    pub write_bandwidth_mb_s: Option<u32>,
}

const NODE: &str = "sys/devices/system/node";

pub(super) fn discover(tree: &Tree) -> Vec<NumaNode> {
    let listed = tree.numbered(NODE, "node");
    if listed.is_empty() {
        tree.unknown(format!("NUMA: /{NODE} has no nodes (a kernel without NUMA, or a sandbox)"));
        return Vec::new();
    }
    // The columns of `distance` are the online nodes in order, and offline ones have no directory.
    let columns = tree.list(&format!("{NODE}/online")).unwrap_or_else(|| listed.clone());
    let tiers = tiers(tree);
    let nodes: Vec<NumaNode> = listed
        .into_iter()
        .map(|index| {
            let base = format!("{NODE}/node{index}");
            let cpus = tree.list(&format!("{base}/cpulist"));
            if cpus.is_none() {
                tree.unknown(format!("NUMA: /{base}/cpulist is not readable"));
            }
            let meminfo = tree.required(&format!("{base}/meminfo"), "NUMA memory").unwrap_or_default();
            NumaNode {
                index,
                cpu_less: cpus.as_ref().is_some_and(Vec::is_empty),
                cpus: cpus.unwrap_or_default(),
                distances: distances(tree, &base, &columns),
                total_bytes: meminfo_bytes(&meminfo, "MemTotal"),
                free_bytes: meminfo_bytes(&meminfo, "MemFree"),
                memory_tier: tiers.iter().find(|(_, nodes)| nodes.contains(&index)).map(|(tier, _)| *tier),
                access: access(tree, &base),
            }
        })
        .collect();
    if nodes.iter().all(|node| node.access.is_none()) {
        tree.unknown("HMAT: no access0/initiators figures (firmware without HMAT, or kernel without it)");
    }
    nodes
}

/// Some kernels count memory that was plugged in later for the machine, but not for its node: say
/// so.
pub(super) fn check_total(tree: &Tree, nodes: &[NumaNode], total_bytes: Option<u64>) {
    let in_nodes = nodes.iter().filter_map(|node| node.total_bytes).fold(0, u64::saturating_add);
    if let Some(total) = total_bytes.filter(|total| in_nodes > 0 && in_nodes < total / 2) {
        tree.unknown(format!(
            "NUMA memory: the nodes state {}, the machine {}; the nodes' figures are not complete",
            Size(in_nodes),
            Size(total),
        ));
    }
}

fn distances(tree: &Tree, base: &str, columns: &[usize]) -> Vec<NodeDistance> {
    let text = tree.text(&format!("{base}/distance")).unwrap_or_default();
    let values: Vec<u32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if values.len() != columns.len() {
        tree.unknown(format!("NUMA: /{base}/distance does not match the online nodes"));
        return Vec::new();
    }
    columns.iter().zip(values).map(|(&node, distance)| NodeDistance { node, distance }).collect()
}

/// `access0` counts any initiator (also devices); `access1` only processors. Either has the same
/// files.
fn access(tree: &Tree, base: &str) -> Option<NodePerformance> {
    ["access0", "access1"].into_iter().find_map(|class| {
        let at = format!("{base}/{class}/initiators");
        let figure = |file: &str| tree.number::<u32>(&format!("{at}/{file}")).filter(|figure| *figure > 0);
        let access = NodePerformance {
            initiators: tree.numbered(&at, "node"),
            read_latency_ns: figure("read_latency"),
            write_latency_ns: figure("write_latency"),
            read_bandwidth_mb_s: figure("read_bandwidth"),
            write_bandwidth_mb_s: figure("write_bandwidth"),
        };
        let figures =
            [access.read_latency_ns, access.write_latency_ns, access.read_bandwidth_mb_s, access.write_bandwidth_mb_s];
        figures.iter().any(Option::is_some).then_some(access)
    })
}

fn tiers(tree: &Tree) -> Vec<(u32, Vec<usize>)> {
    const TIERING: &str = "sys/devices/virtual/memory_tiering";
    tree.numbered(TIERING, "memory_tier")
        .into_iter()
        .filter_map(|tier| {
            let nodes = tree.list(&format!("{TIERING}/memory_tier{tier}/nodelist"))?;
            Some((u32::try_from(tier).ok()?, nodes))
        })
        .collect()
}

impl NumaNode {
    /// The nodes of the machine that we run on, ascending; empty on a kernel without NUMA. A part
    /// of
    /// [`Topology::discover`](super::Topology::discover) for those who need no more.
    pub fn all() -> Vec<NumaNode> {
        discover(&Tree::at(std::path::Path::new("/")))
    }

    /// Distance to another node, None if the firmware does not say.
    pub fn distance_to(&self, node: usize) -> Option<u32> {
        self.distances.iter().find(|entry| entry.node == node).map(|entry| entry.distance)
    }
}
