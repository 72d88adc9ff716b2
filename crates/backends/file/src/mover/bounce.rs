//! Aligned buffers for bytes that direct I/O does not accept at their address.
//!
//! Unsafe code: copies by address between a bounce buffer and leased memory. Each function states
//! what its callers must guarantee.
#![deny(clippy::arithmetic_side_effects)]
#![allow(unsafe_code)]

use datapipes_core::locks::Mutex;

use datapipes_core::Result;
use datapipes_core::memory::guarded::{self, AccessFault};
use datapipes_core::memory::{MapOptions, Pages, Region};

/// The buffers of one mover. They are mapped when first needed and reused, and never more than the
/// requests in flight.
pub(crate) struct BouncePool {
    buffer_bytes: usize,
    free: Mutex<Vec<Region>>,
}

impl BouncePool {
    pub(crate) fn new(buffer_bytes: usize) -> Self {
        BouncePool { buffer_bytes, free: Mutex::new(Vec::new()) }
    }

    /// Returns a free buffer, aligned to pages.
    pub(crate) fn take(&self) -> Result<BounceBuffer> {
        let free = self.free.lock().pop();
        let region = match free {
            Some(region) => region,
            None => Region::map(self.buffer_bytes, MapOptions::default().pages(Pages::Small).prefault(false))?,
        };
        Ok(BounceBuffer { region })
    }

    /// Returns a buffer to the pool. No request may use it any more.
    pub(crate) fn give_back(&self, bounce: BounceBuffer) {
        self.free.lock().push(bounce.region);
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

    /// Copies `len` bytes at `source`, which lie in `memory`, to the start of the buffer.
    ///
    /// # Errors
    /// The fault where a page of a mapped file is missing.
    ///
    /// # Safety
    /// `source..source + len` must be readable memory that is leased to the job of the request.
    pub(crate) unsafe fn fill(&mut self, source: usize, len: usize, memory: &Region) -> Result<(), AccessFault> {
        assert!(len <= self.region.len(), "a bounce of {len} bytes in a buffer of {}", self.region.len());
        // SAFETY: the caller guarantees the source. The target is this buffer, which nobody else
        // refers to; its length was just checked.
        unsafe { copy(memory, std::ptr::with_exposed_provenance(source), self.region.address(), len) }
    }

    /// Copies `len` bytes from `skip` of the buffer to `target`, which lies in `memory`.
    ///
    /// # Errors
    /// The fault where a page of a mapped file is missing.
    ///
    /// # Safety
    /// `target..target + len` must be writable memory that is leased to the job of the request.
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
        // SAFETY: the range of the source was just checked, and the kernel has finished with it.
        // The caller guarantees the target.
        unsafe {
            let source = self.region.address().add(skip);
            copy(memory, source.cast_const(), std::ptr::with_exposed_provenance_mut(target), len)
        }
    }
}

/// Copies from or to a region. Shared memory may lose its pages.
///
/// # Safety
/// `len` bytes must be readable at `from` and writable at `to`, and nobody else may use them.
unsafe fn copy(memory: &Region, from: *const u8, to: *mut u8, len: usize) -> Result<(), AccessFault> {
    if memory.is_shared() {
        // SAFETY: the caller guarantees what this function demands.
        return unsafe { guarded::copy(from, to, len) };
    }
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    Ok(())
}
