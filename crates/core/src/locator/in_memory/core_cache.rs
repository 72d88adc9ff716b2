//! A core's cache, backed by a range of memory.

use std::sync::Arc;

use super::Dram;
use crate::error::{Error, ErrorKind, Result};
use crate::locator::endpoint::kept;
use crate::locator::{Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach};
use crate::memory::{Lease, LeaseMut};
use crate::topology::Core;

/// The L2 of a core, or its share of L3, as a place (CIDR'23, figure 6a).
///
/// A cache has no addresses of its own, so it is backed by a range of memory. Bytes that are moved
/// here are at that range's addresses, and the pipe loads their lines into the cache of the core
/// that transfers. The lines are not reserved: other work on the core may evict them.
///
/// A transfer loads the caches of the core that *runs* it, so run it on the core that this names,
/// as [`Machine::each_core`](crate::Machine::each_core) does. The report counts transfers that ran
/// on another core.
#[derive(Clone, Debug)]
pub struct CoreCache {
    backing: Dram,
    core: usize,
    level: u8,
    line: u64,
}

impl CoreCache {
    /// Makes the L2 of `core` over `backing`.
    ///
    /// # Errors
    /// `OutOfRange` where the backing is larger than the cache; `Unavailable` where the cache's
    /// size is not known.
    pub fn over(core: &Core, backing: &Dram) -> Result<CoreCache> {
        CoreCache::at_level(core, 2, backing)
    }

    /// Makes the cache of `core` at `level` over `backing`. Of a cache that cores share, only the
    /// core's share counts.
    ///
    /// # Errors
    /// `OutOfRange` where the backing is larger than the share, because it would evict itself;
    /// `Unavailable` where the machine does not report the size.
    pub fn at_level(core: &Core, level: u8, backing: &Dram) -> Result<CoreCache> {
        let facts = core.data_cache(u32::from(level));
        let capacity = facts.and_then(|c| if level >= 3 { c.share_bytes() } else { c.size_bytes });
        let Some(capacity) = capacity else {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "declare",
                format!("L{level} of core {}: the machine does not report its size", core.index),
            ));
        };
        if backing.len() as u64 > capacity {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                "declare",
                format!("{} bytes over the L{level} of core {}, whose share is {capacity}", backing.len(), core.index),
            )
            .with_advice("back it by a smaller range, or by the core's share of a larger cache"));
        }
        let line = facts.and_then(|c| c.line_bytes).unwrap_or(64);
        Ok(CoreCache { backing: backing.clone(), core: core.index, level, line: u64::from(line) })
    }

    /// The memory that backs it.
    pub fn backing(&self) -> &Dram {
        &self.backing
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.backing.len()
    }

    /// Leases the bytes for reading.
    ///
    /// # Errors
    /// `Busy` while another lease may write them.
    pub fn lease(&self) -> Result<Lease> {
        self.backing.lease()
    }

    /// Leases the bytes for writing.
    ///
    /// # Errors
    /// `Busy` while another lease holds them.
    pub fn lease_mut(&self) -> Result<LeaseMut> {
        self.backing.lease_mut()
    }
}

impl Locator for CoreCache {
    fn endpoint(&self) -> Endpoint {
        let range = self.backing.memory();
        let facts = PlaceFacts {
            kind: "core-cache",
            name: format!("cache:l{}/core{}@{}+{}", self.level, self.core, range.at(), range.len()),
            reach: Reach::Memory,
            granularity: 1,
            alignment: self.line,
            persistence: kept(range, Persistence::Volatile),
            len: Some(range.len() as u64),
            node: range.region().options().node,
            core: Some(self.core),
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Memory(range.clone()) }
    }
}
