//! Main memory.

use std::sync::Arc;

use crate::error::Result;
use crate::locator::endpoint::kept;
use crate::locator::{Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach, Ssd};
use crate::memory::{Lease, LeaseMut, MapOptions, MemoryRange, Pool, Region};
use crate::process::page_size;

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

    /// Allocates `len` bytes for those at `offset` of a file: the first address and `offset` have
    /// the same remainder for every block and page that direct I/O asks for. So a transfer between
    /// them goes straight to the device but for its two edges, wherever in a block it begins. With
    /// [`allocate`](Self::allocate) that needs an offset at the start of a block; else all bytes
    /// bounce. The same holds for parts that are at equal distances from both beginnings.
    ///
    /// ```
    /// use datapipes_core::{Dram, Ssd};
    /// let file = Ssd::unlinked_in(std::env::temp_dir())?;
    /// let payload = Dram::allocate_for(&file, 10_008, 1 << 20)?;
    /// assert_eq!(payload.len(), 1 << 20);
    /// assert_eq!(payload.memory().address().addr() % 4096, 10_008 % 4096);
    /// # Ok::<(), datapipes_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_for(file: &Ssd, offset: u64, len: usize) -> Result<Dram> {
        Dram::allocate_for_with(file, offset, len, MapOptions::default())
    }

    /// As [`allocate_for`](Self::allocate_for), with these options.
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn allocate_for_with(file: &Ssd, offset: u64, len: usize, options: MapOptions) -> Result<Dram> {
        // All three are powers of two, so the greatest is a multiple of the others.
        let block = (file.file().offset_align().max(file.file().memory_align()) as usize).max(page_size());
        // Regions start at a page. For a larger block, room is left to find a start.
        let slack = if block > page_size() { block } else { 0 };
        let skip = usize::try_from(offset % block as u64).unwrap_or(0);
        let whole = if len == 0 { Some(0) } else { len.checked_add(skip + slack) };
        // No memory is as long as that: `map` refuses it.
        let region = Region::map(whole.unwrap_or(usize::MAX), options)?;
        let start = (skip + block - region.address().addr() % block) % block;
        Ok(Dram::over(region.range(start, len)?))
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
