//! Registered memory: pinned once, so that no request pays for looking up its pages.
//!
//! Registration faults pages in, and a region may be huge and deliberately not touched yet. So it is done slice by
//! slice, when a slice is first used, into a table that starts out empty (kernel 5.19). Where the kernel refuses
//! (memlock limit, no memory), requests use plain addresses, which the counters show.
//!
//! Unsafe code: addresses handed to the kernel for pinning. They belong to the mover's memory range, which keeps its
//! region mapped for as long as the ring exists.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_core::memory::MemoryRange;
use io_uring::IoUring;

/// The most that the kernel takes as one buffer.
const MOST: usize = 1 << 30;
/// The most buffers of a ring.
const TABLE: usize = 1 << 14;

/// The registered slices of one ring.
pub(crate) struct Slices {
    memory: MemoryRange,
    slice_bytes: usize,
    /// Number of the range's first slice in its region.
    first: usize,
    /// By slice.
    registered: Vec<bool>,
    /// The region's generation when they were registered.
    generation: u64,
    /// Why there will be no more.
    refused: Option<String>,
}

impl Slices {
    /// A table for the slices of a range; `slice_bytes` of 0 registers none.
    pub(crate) fn new(ring: &IoUring, memory: MemoryRange, slice_bytes: usize, calls: &AtomicU64) -> Slices {
        let generation = memory.region().generation();
        let mut slices = Slices { memory, slice_bytes, first: 0, registered: Vec::new(), generation, refused: None };
        if slice_bytes == 0 {
            slices.refused = Some("not asked for".into());
            return slices;
        }
        slices.first = slices.memory.at() / slice_bytes;
        let end = (slices.memory.at() + slices.memory.len()).div_ceil(slice_bytes);
        let count = end - slices.first;
        if count > TABLE || slice_bytes > MOST {
            slices.refused = Some(format!("{count} slices of {slice_bytes} bytes"));
            return slices;
        }
        calls.fetch_add(1, Ordering::Relaxed);
        // The count is at most TABLE.
        match ring.submitter().register_buffers_sparse(count as u32) {
            Ok(()) => slices.registered = vec![false; count],
            Err(e) => slices.refused = Some(e.to_string()),
        }
        slices
    }

    /// The buffer that holds `len` bytes at `region_at`, registered now if it was not.
    pub(crate) fn lookup(&mut self, ring: &IoUring, region_at: usize, len: usize, calls: &AtomicU64) -> Option<u16> {
        if self.slice_bytes == 0 {
            return None;
        }
        let generation = self.memory.region().generation();
        if generation != self.generation {
            // Pages were given back: what is registered may be pages that are no longer at these addresses.
            self.generation = generation;
            self.registered.fill(false);
        }
        let slice = region_at / self.slice_bytes;
        if (region_at + len - 1) / self.slice_bytes != slice {
            return None;
        }
        let index = slice.checked_sub(self.first)?;
        if *self.registered.get(index)? {
            return u16::try_from(index).ok();
        }
        if self.refused.is_some() || !self.register(ring, slice, calls) {
            return None;
        }
        self.registered[index] = true;
        u16::try_from(index).ok()
    }

    fn register(&mut self, ring: &IoUring, slice: usize, calls: &AtomicU64) -> bool {
        let range = self.memory.at()..self.memory.at() + self.memory.len();
        let start = (slice * self.slice_bytes).max(range.start);
        let end = ((slice + 1) * self.slice_bytes).min(range.end);
        let address = self.memory.address().wrapping_add(start - range.start);
        // The kernel takes buffers at page borders as well as others: it pins the pages that are touched.
        let buffer = libc::iovec { iov_base: address.cast(), iov_len: end - start };
        calls.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the buffer lies within the memory range held in `self`, so it stays mapped while the ring, which is
        // dropped before `self` is, has it registered; bytes move only for jobs that lease them.
        let outcome = unsafe { ring.submitter().register_buffers_update((slice - self.first) as u32, &[buffer], None) };
        if let Err(e) = outcome {
            self.refused = Some(e.to_string());
            return false;
        }
        true
    }
}
