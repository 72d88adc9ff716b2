//! Discovery of the hardware: cores, caches, NUMA nodes, instructions, memory, and the storage
//! behind a path.
//!
//! [`Topology::discover`] reads the machine once and returns a plain value that is passed on. It
//! never fails: what could not be read is `None` or empty, and [`Topology::unknown`] has the
//! reason. It prints as text, and serde writes it as JSON.
//!
//! ```
//! let machine = datapipes_core::topology::Topology::discover();
//! assert!(machine.usable_cores().count() > 0);
//! println!("{machine}");
//! ```
//!
//! It does not measure (calibration finds the costs), and it does not test io_uring (the file
//! backend does).

mod cores;
mod cpu;
mod memory;
mod mounts;
mod numa;
mod size;
mod storage;
#[cfg(test)]
mod tests;
mod text;
mod tree;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use cores::{Cache, CacheKind, Core};
pub use cpu::CpuFeatures;
pub use memory::cgroup::CgroupLimit;
pub use memory::room::MemoryHeadroom;
pub use memory::{HugePages, Memlock, MemoryFacts};
pub use numa::{NodeDistance, NodePerformance, NumaNode};
pub use size::Size;
pub use storage::block::{BlockDevice, DeviceNumber};
pub use storage::{DirectIo, StorageFacts};

/// The facts of one machine, as this process sees them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Topology {
    /// The kernel's release.
    pub kernel: Option<String>,
    /// All present cores, ascending; `usable` tells which this process may use.
    pub cores: Vec<Core>,
    /// NUMA nodes, ascending; empty on a kernel without NUMA.
    pub nodes: Vec<NumaNode>,
    /// Instructions of the processor.
    pub cpu: CpuFeatures,
    /// Memory and its limits.
    pub memory: MemoryFacts,
    /// What could not be read, and why.
    pub unknown: Vec<String>,
}

impl Topology {
    /// Reads the machine that the process runs on.
    pub fn discover() -> Topology {
        Topology::discover_under(Path::new("/"))
    }

    /// Reads a machine recorded under `root` (`root/sys`, `root/proc`).
    ///
    /// The processor's features then come from its recorded `cpuinfo`. They describe that machine
    /// and do not permit executing anything on this one (see [`CpuFeatures::source`]).
    pub fn discover_under(root: &Path) -> Topology {
        let tree = tree::Tree::at(root);
        let kernel = tree.required("proc/sys/kernel/osrelease", "kernel release");
        let cores = cores::discover(&tree);
        let nodes = numa::discover(&tree);
        let memory = memory::discover(&tree);
        numa::check_total(&tree, &nodes, memory.total_bytes);
        Topology { kernel, cores, nodes, cpu: cpu::discover(&tree), memory, unknown: tree.into_unknown() }
    }

    /// Returns a core by its number.
    pub fn core(&self, index: usize) -> Option<&Core> {
        self.cores.iter().find(|core| core.index == index)
    }

    /// Returns the cores that this process may run on.
    pub fn usable_cores(&self) -> impl Iterator<Item = &Core> {
        self.cores.iter().filter(|core| core.usable)
    }

    /// Returns a NUMA node by its number.
    pub fn node(&self, index: usize) -> Option<&NumaNode> {
        self.nodes.iter().find(|node| node.index == index)
    }

    /// Size of a core's L1 data cache in bytes.
    pub fn l1_size(&self, core: usize) -> Option<u64> {
        self.core(core)?.data_cache(1)?.size_bytes
    }

    /// Size of a core's L2 cache in bytes, all of it even where siblings share it.
    pub fn l2_size(&self, core: usize) -> Option<u64> {
        self.core(core)?.data_cache(2)?.size_bytes
    }

    /// Size of a core's L3 cache in bytes, all of it.
    pub fn l3_size(&self, core: usize) -> Option<u64> {
        self.core(core)?.data_cache(3)?.size_bytes
    }

    /// A core's share of its L3 in bytes: its size divided by the logical processors that share it.
    pub fn l3_share(&self, core: usize) -> Option<u64> {
        self.core(core)?.data_cache(3)?.share_bytes()
    }

    /// Bytes in a cache line: the largest of the first usable core's caches, or 64 if that is not
    /// known.
    pub fn line_bytes(&self) -> u32 {
        let caches = self.usable_cores().flat_map(|core| &core.caches);
        caches.filter_map(|cache| cache.line_bytes).filter(|line| line.is_power_of_two()).max().unwrap_or(64)
    }

    /// Returns a stable name for this hardware and kernel, 16 hexadecimal digits, by which
    /// calibrations are stored.
    ///
    /// It covers what costs depend on (processor, cores, caches, nodes, kernel). It does not cover
    /// what changes while a machine runs (usage, affinity, and memory, which hypervisors add and
    /// remove).
    pub fn fingerprint(&self) -> String {
        let mut text = format!("{:?} {:?}", self.kernel, self.cpu);
        for core in &self.cores {
            text += &format!("{} {:?} {:?} {:?}", core.index, core.package, core.node, core.caches);
        }
        for node in &self.nodes {
            text += &format!("{} {:?} {:?}", node.index, node.distances, node.access);
        }
        // This is FNV-1a, because the standard library's hasher may change between releases of
        // Rust.
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        format!("{hash:016x}")
    }
}
