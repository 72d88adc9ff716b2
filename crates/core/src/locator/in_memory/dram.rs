//! Main memory.

use std::sync::Arc;

use crate::error::Result;
use crate::locator::endpoint::kept;
use crate::locator::{Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach};
use crate::memory::{Lease, LeaseMut, MapOptions, MemoryRange, Pool, Region};

/// A range of main memory.
///
/// Over memory that maps a file ([`Pmem::memory`](crate::locator::Pmem::memory)), it is as
/// persistent as the file, and caches in front of the file are told of bytes that are moved into
/// it.
///
/// ```
/// use datapipes_core::{Dram, ErrorKind};
/// let dram = Dram::allocate(1 << 20)?;
/// let mut writer = dram.lease_mut()?;
/// writer[0] = 7;
/// assert_eq!(dram.lease().err().map(|e| e.kind()), Some(ErrorKind::Busy));
/// drop(writer);
/// assert_eq!(dram.lease()?[0], 7);
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dram {
    range: MemoryRange,
}

impl Dram {
    /// Allocates `len` bytes: zeroed, prefaulted, on huge pages where the kernel has them.
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes; `OutOfMemory`.
    pub fn allocate(len: usize) -> Result<Dram> {
        Dram::allocate_with(len, MapOptions::default())
    }

    /// Allocates `len` bytes with these options.
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn allocate_with(len: usize, options: MapOptions) -> Result<Dram> {
        Ok(Dram::over(Region::map(len, options)?.range(0, len)?))
    }

    /// Allocates `len` bytes from a pool. They return to it when the last clone of this locator,
    /// the last pipe that was connected to it and the last lease are gone. They contain what their
    /// last user left.
    ///
    /// # Errors
    /// `OutOfMemory` where no hole of the pool is large enough.
    pub fn from_pool(pool: &Pool, len: usize) -> Result<Dram> {
        Ok(Dram::over(pool.take(len)?))
    }

    /// Makes a locator over an existing range.
    pub fn over(range: MemoryRange) -> Dram {
        Dram { range }
    }

    /// Makes a locator of `len` bytes at `at` of this one, which are the same bytes.
    ///
    /// # Errors
    /// `OutOfRange` where the bytes do not lie within this place.
    pub fn range(&self, at: usize, len: usize) -> Result<Dram> {
        Ok(Dram::over(self.range.range(at, len)?))
    }

    /// The memory range.
    pub fn memory(&self) -> &MemoryRange {
        &self.range
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Leases the bytes for reading.
    ///
    /// # Errors
    /// `Busy` while another lease may write them.
    pub fn lease(&self) -> Result<Lease> {
        self.range.lease()
    }

    /// Leases the bytes for writing.
    ///
    /// # Errors
    /// `Busy` while another lease holds them.
    pub fn lease_mut(&self) -> Result<LeaseMut> {
        self.range.lease_mut()
    }
}

impl Locator for Dram {
    fn endpoint(&self) -> Endpoint {
        let facts = PlaceFacts {
            kind: "dram",
            name: format!("dram:{}@{}+{}", self.range.region().id(), self.range.at(), self.range.len()),
            reach: Reach::Memory,
            granularity: 1,
            alignment: 64,
            persistence: kept(&self.range, Persistence::Volatile),
            len: Some(self.range.len() as u64),
            node: self.range.region().options().node,
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Memory(self.range.clone()) }
    }
}
