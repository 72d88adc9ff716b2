//! Memory of one NUMA node. Memory behind CXL appears as a node without processors.

use std::sync::Arc;

use super::Dram;
use crate::error::{Error, ErrorKind, Result};
use crate::locator::{Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach};
use crate::memory::{Lease, LeaseMut, MapOptions};
use crate::topology::NumaNode;

/// Memory on a NUMA node; the pages were checked to be there.
///
/// ```
/// use datapipes_core::{ErrorKind, NumaMemory};
/// match NumaMemory::allocate(0, 1 << 20) {
///     Ok(memory) => assert_eq!(memory.lease()?.len(), 1 << 20),
///     // A kernel without NUMA, or a sandbox that forbids the calls.
///     Err(e) => assert_eq!(e.kind(), ErrorKind::Unavailable),
/// }
/// assert!(NumaMemory::allocate(9999, 4096).is_err());
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NumaMemory {
    memory: Dram,
    node: u32,
    cpu_less: bool,
}

impl NumaMemory {
    /// Allocates `len` bytes on a node. They are bound to it (`mbind`, strict) and touched, and
    /// then the kernel is asked where each page is (`move_pages`; of more than 1 GiB of ordinary
    /// pages it is asked about every n-th, 262144 in all).
    ///
    /// # Errors
    /// `NotFound` where there is no such node, with the nodes that exist. `Unavailable` where the
    /// kernel has no NUMA support, refuses to bind, or puts pages on another node. `OutOfMemory`
    /// where the node lacks memory. `PermissionDenied` in a sandbox.
    pub fn allocate(node: u32, len: usize) -> Result<NumaMemory> {
        let nodes = NumaNode::all();
        let cpu_less = find(&nodes, node)?.cpu_less;
        let memory = Dram::allocate_with(len, MapOptions { node: Some(node), ..MapOptions::default() })?;
        let found = memory.memory().page_nodes()?;
        let here = found.on.get(&node).copied().unwrap_or(0);
        if here != found.asked {
            let mut shown: Vec<String> = found.on.iter().map(|(n, pages)| format!("{pages} on node {n}")).collect();
            shown.extend(
                found
                    .without
                    .iter()
                    .map(|(errno, pages)| format!("{pages} on none ({})", std::io::Error::from_raw_os_error(*errno))),
            );
            let context = format!("{len} bytes on NUMA node {node}: of {} pages {}", found.asked, shown.join(", "));
            return Err(Error::new(ErrorKind::Unavailable, "verify", context).with_advice(
                "see whether a policy of the process or of its control group (cpuset.mems) forbids the node",
            ));
        }
        Ok(NumaMemory { memory, node, cpu_less })
    }

    /// The number of the node.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Whether the node has no processors of its own: memory behind CXL, or persistent memory used
    /// as plain memory.
    pub fn is_cpu_less(&self) -> bool {
        self.cpu_less
    }

    /// The same bytes as a plain place in memory.
    pub fn as_dram(&self) -> &Dram {
        &self.memory
    }

    /// Makes a place of `len` bytes at `at` of this one, which are the same bytes.
    ///
    /// # Errors
    /// `OutOfRange` where the bytes do not lie within this place.
    pub fn range(&self, at: usize, len: usize) -> Result<NumaMemory> {
        Ok(NumaMemory { memory: self.memory.range(at, len)?, ..self.clone() })
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Leases the bytes for reading.
    ///
    /// # Errors
    /// `Busy` while another lease may write them.
    pub fn lease(&self) -> Result<Lease> {
        self.memory.lease()
    }

    /// Leases the bytes for writing.
    ///
    /// # Errors
    /// `Busy` while another lease holds them.
    pub fn lease_mut(&self) -> Result<LeaseMut> {
        self.memory.lease_mut()
    }
}

/// Finds the node by its number, or makes the error.
fn find(nodes: &[NumaNode], wanted: u32) -> Result<&NumaNode> {
    let has_memory = |node: &&NumaNode| node.total_bytes != Some(0);
    if nodes.is_empty() {
        return Err(Error::new(
            ErrorKind::Unavailable,
            "allocate",
            "memory of a NUMA node: the kernel reports no nodes",
        )
        .with_advice("use plain memory (dram)"));
    }
    nodes.iter().filter(has_memory).find(|node| node.index == wanted as usize).ok_or_else(|| {
        let there = |node: &NumaNode| match node.cpu_less {
            true => format!("{} (without processors)", node.index),
            false => node.index.to_string(),
        };
        let list: Vec<String> = nodes.iter().filter(has_memory).map(there).collect();
        let why = match nodes.iter().any(|node| node.index == wanted as usize) {
            true => "has no memory",
            false => "does not exist",
        };
        Error::new(ErrorKind::NotFound, "allocate", format!("memory of NUMA node {wanted}, which {why}"))
            .with_advice(format!("these have memory: {}", list.join(", ")))
    })
}

impl Locator for NumaMemory {
    fn endpoint(&self) -> Endpoint {
        let range = self.memory.memory();
        let like = if self.cpu_less { " (a node without processors, as for CXL or PMem)" } else { "" };
        let facts = PlaceFacts {
            kind: if self.cpu_less { "numa-without-processors" } else { "numa" },
            name: format!("numa:{}@{}+{}{like}", self.node, range.at(), range.len()),
            reach: Reach::Memory,
            granularity: 1,
            alignment: 64,
            persistence: Persistence::Volatile,
            len: Some(range.len() as u64),
            node: Some(self.node),
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Memory(range.clone()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(index: usize, cpus: Vec<usize>, total_bytes: Option<u64>) -> NumaNode {
        let cpu_less = cpus.is_empty();
        NumaNode {
            index,
            cpus,
            cpu_less,
            distances: Vec::new(),
            total_bytes,
            free_bytes: None,
            memory_tier: None,
            access: None,
        }
    }

    #[test]
    fn a_node_that_does_not_exist_is_refused_with_those_that_do() {
        let nodes = [node(0, vec![0], None), node(1, vec![1], Some(0)), node(4, vec![], Some(1 << 30))];
        assert!(find(&nodes, 0).is_ok() && find(&nodes, 4).is_ok_and(|n| n.cpu_less));
        let said = |wanted| find(&nodes, wanted).unwrap_err();
        assert_eq!(said(2).kind(), ErrorKind::NotFound);
        assert!(
            said(2).to_string().contains("does not exist; these have memory: 0, 4 (without processors)"),
            "{}",
            said(2)
        );
        assert!(said(1).to_string().contains("has no memory"), "{}", said(1));
        assert_eq!(find(&[], 0).unwrap_err().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn memory_of_every_node_is_there() {
        let nodes = if cfg!(miri) { Vec::new() } else { NumaNode::all() };
        if nodes.is_empty() {
            println!("SKIPPED: memory_of_every_node_is_there: the kernel (or Miri) tells of no NUMA nodes");
        }
        for node in nodes.iter().filter(|n| n.total_bytes != Some(0)) {
            let index = u32::try_from(node.index).unwrap();
            let memory = NumaMemory::allocate(index, (3 << 20) + 5).unwrap();
            let found = memory.as_dram().memory().page_nodes().unwrap();
            assert_eq!(found.asked, ((3 << 20) + 5usize).div_ceil(crate::process::page_size()));
            assert_eq!(found.on.get(&index), Some(&found.asked), "{found:?}");
            let facts = memory.range(10, 20).unwrap().endpoint().facts;
            assert_eq!((facts.node, facts.len), (Some(index), Some(20)));
            assert_eq!(facts.name.contains("CXL"), node.cpu_less);
        }
    }

    #[test]
    fn pages_that_were_never_touched_are_on_no_node() {
        let options = MapOptions { prefault: false, ..MapOptions::default() };
        let memory = Dram::allocate_with(64 << 10, options).unwrap();
        memory.lease_mut().unwrap()[5000] = 1;
        match memory.memory().page_nodes() {
            Ok(found) => {
                assert_eq!(found.on.values().sum::<usize>(), 1, "{found:?}");
                // Older kernels report EFAULT for a page that is not there yet.
                let absent = [libc::ENOENT, libc::EFAULT].map(|errno| found.without.get(&errno).copied().unwrap_or(0));
                assert_eq!(absent.iter().sum::<usize>(), 15, "{found:?}");
            }
            Err(e) => println!("SKIPPED: pages_that_were_never_touched_are_on_no_node: {e}"),
        }
    }
}
