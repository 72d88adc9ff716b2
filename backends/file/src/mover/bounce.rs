//! Aligned buffers for what direct I/O does not take as it is.
//!
//! Unsafe code: copies between a bounce buffer and leased memory by address. Callers promise what
//! each function names.
#![deny(clippy::arithmetic_side_effects)]
#![allow(unsafe_code)]

use std::sync::{Mutex, PoisonError};

use datapipes_core::Result;
use datapipes_core::memory::guarded::{self, AccessFault};
use datapipes_core::memory::{MapOptions, Pages, Region};

/// Buffers of one mover: mapped when first needed, reused, never more than requests are in flight.
pub(crate) struct BouncePool {
    buffer_bytes: usize,
    free: Mutex<Vec<Region>>,
}

impl BouncePool {
    pub(crate) fn new(buffer_bytes: usize) -> Self {
        BouncePool { buffer_bytes, free: Mutex::new(Vec::new()) }
    }

    /// A buffer, aligned to pages.
    pub(crate) fn take(&self) -> Result<BounceBuffer> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let region = match free {
            Some(region) => region,
            None => Region::map(self.buffer_bytes, MapOptions { pages: Pages::Small, prefault: false, node: None })?,
        };
        Ok(BounceBuffer { region })
    }

    /// Takes a buffer back. No request may use it any more.
    pub(crate) fn give_back(&self, bounce: BounceBuffer) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(bounce.region);
    }
}

/// A buffer that belongs to one request.
pub(crate) struct BounceBuffer {
    region: Region,
}

impl BounceBuffer {
    /// The address of its first byte.
    pub(crate) fn address(&self) -> usize {
        self.region.address().expose_provenance()
    }

    /// Copies `len` bytes at `source`, in `memory`, to the start of the buffer.
    ///
    /// # Errors
    /// Where a page of a mapped file is gone.
    ///
    /// # Safety
    /// `source..source + len` is readable memory, leased to the job of the request.
    pub(crate) unsafe fn fill(&mut self, source: usize, len: usize, memory: &Region) -> Result<(), AccessFault> {
        assert!(len <= self.region.len(), "a bounce of {len} bytes in a buffer of {}", self.region.len());
        // SAFETY: the source is promised by the caller; the target is this buffer, which nobody
        // else refers to, and its length was just checked.
        unsafe { copy(memory, std::ptr::with_exposed_provenance(source), self.region.address(), len) }
    }

    /// Copies `len` bytes from `skip` of the buffer to `target`, in `memory`.
    ///
    /// # Errors
    /// Where a page of a mapped file is gone.
    ///
    /// # Safety
    /// `target..target + len` is writable memory, leased to the job of the request.
    pub(crate) unsafe fn empty(
        &self,
        skip: usize,
        target: usize,
        len: usize,
        memory: &Region,
    ) -> Result<(), AccessFault> {
        assert!(
            skip.saturating_add(len) <= self.region.len(),
            "{len} bytes at {skip} of a buffer of {}",
            self.region.len()
        );
        // SAFETY: the range of the source was just checked and the kernel is done with it; the
        // target is promised by the caller.
        unsafe {
            let source = self.region.address().add(skip);
            copy(memory, source.cast_const(), std::ptr::with_exposed_provenance_mut(target), len)
        }
    }
}

/// Copies from or to a region. Memory that others have as well may lose its pages.
///
/// # Safety
/// `len` bytes are readable at `from` and writable at `to`, and nobody else uses them.
unsafe fn copy(memory: &Region, from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
    if memory.is_shared() {
        // SAFETY: what this function demands.
        return unsafe { guarded::copy(from, to, len) };
    }
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    Ok(())
}
