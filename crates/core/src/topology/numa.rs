//! NUMA nodes: their distances, and what the firmware's HMAT says about accessing them.

use serde::{Deserialize, Serialize};

use crate::topology::size::Size;
use crate::topology::tree::{Tree, meminfo_bytes};

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NumaNode {
    /// The kernel's number, which `mbind` takes.
    pub index: usize,
    /// Its logical processors.
    pub cpus: Vec<usize>,
    /// Whether it has memory but no processors: CXL expanders, PMem in system-RAM mode, GPU memory.
    pub cpu_less: bool,
    /// The relative distance to each node; 10 is the node itself.
    pub distances: Vec<NodeDistance>,
    /// Memory of the node in bytes.
    pub total_bytes: Option<u64>,
    /// Unused memory of the node in bytes (without caches that could be dropped).
    pub free_bytes: Option<u64>,
    /// Memory tier (smaller is faster), where the kernel has tiers.
    pub memory_tier: Option<u32>,
    /// What HMAT says about accessing this node from its nearest initiators.
    pub access: Option<NodePerformance>,
}

/// The distance to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeDistance {
    /// The other node.
    pub node: usize,
    /// The distance in ACPI SLIT units: 10 is local, 20 is twice as far.
    pub distance: u32,
}

/// The firmware's figures for accessing a node from the initiators with the best access
/// (`access0`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodePerformance {
    /// The nodes with that access.
    pub initiators: Vec<usize>,
    /// The latency of a read in nanoseconds.
    pub read_latency_ns: Option<u32>,
    /// The latency of a write in nanoseconds.
    pub write_latency_ns: Option<u32>,
    /// The read bandwidth in bytes per second.
    pub read_bytes_per_second: Option<u64>,
    /// The write bandwidth in bytes per second.
    pub write_bytes_per_second: Option<u64>,
}

const NODE: &str = "sys/devices/system/node";

pub(super) fn discover(tree: &Tree) -> Vec<NumaNode> {
    let listed = tree.numbered(NODE, "node");
    if listed.is_empty() {
        tree.unknown(format!("NUMA: /{NODE} has no nodes (a kernel without NUMA, or a sandbox)"));
        return Vec::new();
    }
    // The columns of `distance` are the online nodes in order; offline nodes have no directory.
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

/// Reports where the nodes' memory is incomplete: some kernels count memory that was added later
/// for the machine but not for its node.
pub(super) fn check_total(tree: &Tree, nodes: &[NumaNode], total_bytes: Option<u64>) {
    let in_nodes = nodes.iter().filter_map(|node| node.total_bytes).fold(0, u64::saturating_add);
    if let Some(total) = total_bytes.filter(|total| in_nodes > 0 && in_nodes < total / 2) {
        tree.unknown(format!(
            "NUMA memory: the nodes report {}, the machine {}; the nodes' figures are incomplete",
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

/// Returns HMAT's figures. `access0` counts any initiator (devices too), `access1` only processors.
/// Both have the same files.
fn access(tree: &Tree, base: &str) -> Option<NodePerformance> {
    ["access0", "access1"].into_iter().find_map(|class| {
        let at = format!("{base}/{class}/initiators");
        let figure = |file: &str| tree.number::<u32>(&format!("{at}/{file}")).filter(|figure| *figure > 0);
        // The files have MB/s.
        let rate = |file: &str| figure(file).map(|mb| u64::from(mb) * 1_000_000);
        let access = NodePerformance {
            initiators: tree.numbered(&at, "node"),
            read_latency_ns: figure("read_latency"),
            write_latency_ns: figure("write_latency"),
            read_bytes_per_second: rate("read_bandwidth"),
            write_bytes_per_second: rate("write_bandwidth"),
        };
        let latencies = [access.read_latency_ns, access.write_latency_ns];
        let rates = [access.read_bytes_per_second, access.write_bytes_per_second];
        let is_known = latencies.iter().any(Option::is_some) || rates.iter().any(Option::is_some);
        is_known.then_some(access)
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
    /// Returns the nodes of this machine, ascending; empty on a kernel without NUMA. It is a part
    /// of [`Topology::discover`](super::Topology::discover).
    pub fn all() -> Vec<NumaNode> {
        discover(&Tree::at(std::path::Path::new("/")))
    }

    /// The distance to another node; `None` if the firmware does not tell.
    pub fn distance_to(&self, node: usize) -> Option<u32> {
        self.distances.iter().find(|entry| entry.node == node).map(|entry| entry.distance)
    }
}

#[cfg(test)]
mod tests {
    use super::NumaNode;

    /// The environment says what the machine was made with: `LATENCY_NS:MB_S` of each node.
    #[test]
    fn what_the_firmware_says_of_each_node_is_read() {
        let Ok(made) = std::env::var("DATAPIPES_HMAT") else {
            return println!("SKIPPED: what_the_firmware_says_of_each_node_is_read: DATAPIPES_HMAT is not set");
        };
        let nodes = NumaNode::all();
        assert_eq!(nodes.len(), made.split(',').count(), "{nodes:?}");
        for (node, figures) in nodes.iter().zip(made.split(',')) {
            let (latency, rate) = figures.split_once(':').unwrap();
            let (latency, rate): (u32, f64) = (latency.parse().unwrap(), rate.parse::<f64>().unwrap() * 1e6);
            let access = node.access.as_ref().unwrap();
            assert_eq!((access.read_latency_ns, access.write_latency_ns), (Some(latency), Some(latency)), "{node:?}");
            for told in [access.read_bytes_per_second, access.write_bytes_per_second] {
                // Some count a MB as 2^20 bytes.
                let told = told.unwrap() as f64;
                assert!((0.95..1.06).contains(&(told / rate)), "{told} of {rate}: {node:?}");
            }
        }
    }
}
