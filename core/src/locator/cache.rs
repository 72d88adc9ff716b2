//! A core's cache, backed by a range of memory.

use std::sync::Arc;

use super::{Dram, Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Lease, LeaseMut};
use crate::topology::Core;

/// The L2 of a core, or its share of L3, as a place (CIDR'23, figure 6a).
///
/// A cache has no addresses of its own, so it is backed by a range of memory: bytes moved here are
/// at that range's addresses, and the pipe sees to it that their lines are in the cache of the core
/// that transfers. It is a place to compute, not a reservation: other work on the core may evict
/// the lines.
///
/// A transfer loads the caches of the core that *runs* it. Use it from the core it names
/// ([`Machine::each_core`](crate::Machine::each_core) does); the report counts transfers that ran
/// elsewhere.
#[derive(Clone, Debug)]
pub struct CoreCache {
    backing: Dram,
    core: usize,
    level: u8,
    line: u64,
}

impl CoreCache {
    /// The L2 of `core` over `backing`.
    ///
    /// # Errors
    /// `OutOfRange` where the backing is larger than the cache; `Unavailable` where its size is not
    /// known.
    pub fn over(core: &Core, backing: &Dram) -> Result<CoreCache> {
        CoreCache::at_level(core, 2, backing)
    }

    /// The cache of `core` at `level` over `backing`; a cache that cores share counts with the
    /// core's share.
    ///
    /// # Errors
    /// `OutOfRange` where the backing is larger than the share: such a range would evict itself;
    /// `Unavailable` where the machine does not tell the size.
    pub fn at_level(core: &Core, level: u8, backing: &Dram) -> Result<CoreCache> {
        let facts = core.data_cache(u32::from(level));
        let capacity = facts.and_then(|c| if level >= 3 { c.share_bytes() } else { c.size_bytes });
        let Some(capacity) = capacity else {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "declare",
                format!("L{level} of core {}: the machine does not tell its size", core.index),
            ));
        };
        if backing.len() as u64 > capacity {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                "declare",
                format!("{} bytes over the L{level} of core {}, whose share is {capacity}", backing.len(), core.index),
            )
            .advice("back it by a smaller range, or by the core's share of a larger cache"));
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
    /// `Busy` while somebody may write them.
    pub fn lease(&self) -> Result<Lease> {
        self.backing.lease()
    }

    /// Leases the bytes for writing.
    ///
    /// # Errors
    /// `Busy` while anybody else holds them.
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
            persistence: super::kept(range, Persistence::Volatile),
            len: Some(range.len() as u64),
            node: range.region().options().node,
            core: Some(self.core),
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Memory(range.clone()) }
    }
}
