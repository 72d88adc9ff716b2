//! Registered memory: pinned once, so that requests need not look up its pages.
//!
//! Registration faults pages in, and a region may be huge and deliberately not touched yet. So each
//! slice is registered when a sixteenth of its bytes was asked for, into a table that starts empty
//! (kernel 5.19). Earlier, it would cost more than it saves: with a slice of 16 MiB that was not
//! touched before, registering took 40% of the time in which a file of a kilobyte is sorted. Where
//! the kernel refuses (memlock limit, no memory), requests use plain addresses; the counters show
//! that.
//!
//! Unsafe code: addresses are passed to the kernel for pinning. They belong to the mover's memory
//! range, which keeps its region mapped for as long as the ring exists.
#![deny(clippy::arithmetic_side_effects)]
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_core::memory::MemoryRange;
use io_uring::Submitter;

/// The largest buffer that the kernel accepts.
const MAX_SLICE_BYTES: usize = 1 << 30;
/// The most buffers of a ring.
const TABLE: usize = 1 << 14;
/// A slice is registered when requests have asked for this part of its bytes.
const REGISTERED_AFTER: usize = 16;

/// Whether the kernel has a slice's pages pinned.
#[derive(Clone, Copy)]
enum Slice {
    /// It has not; requests have asked for this many bytes of it.
    Plain(usize),
    Registered,
}

/// The registered slices of one ring.
pub(crate) struct Slices {
    memory: MemoryRange,
    slice_bytes: usize,
    /// The number of the range's first slice in its region.
    first: usize,
    slices: Vec<Slice>,
    /// The region's generation when the slices were registered.
    generation: u64,
    /// Why no more slices will be registered.
    refused: Option<String>,
}

impl Slices {
    /// Makes a table for the slices of a range. With `slice_bytes` of 0, it registers none.
    pub(crate) fn new(ring: &Submitter<'_>, memory: MemoryRange, slice_bytes: usize, calls: &AtomicU64) -> Slices {
        let generation = memory.region().generation();
        let mut slices = Slices { memory, slice_bytes, first: 0, slices: Vec::new(), generation, refused: None };
        if slice_bytes == 0 {
            slices.refused = Some("not asked for".into());
            return slices;
        }
        if slices.memory.region().maps_file() {
            // The kernel would pin pages that a truncated file loses, and bytes that are read into
            // them would be in no file.
            slices.refused = Some("pages of a mapped file may be taken from it".into());
            return slices;
        }
        // The caller passes a power of two, so neither division is by zero.
        slices.first = slices.memory.at().checked_div(slice_bytes).unwrap_or(0);
        let count = slices.end().div_ceil(slice_bytes).saturating_sub(slices.first);
        if count > TABLE || slice_bytes > MAX_SLICE_BYTES {
            slices.refused = Some(format!("{count} slices of {slice_bytes} bytes"));
            return slices;
        }
        calls.fetch_add(1, Ordering::Relaxed);
        // The count is at most TABLE.
        match ring.register_buffers_sparse(count as u32) {
            Ok(()) => slices.slices = vec![Slice::Plain(0); count],
            Err(e) => slices.refused = Some(e.to_string()),
        }
        slices
    }

    /// Returns the buffer that holds `len` bytes at `region_at`, if there is one, and registers it
    /// if that pays.
    pub(crate) fn lookup(
        &mut self,
        ring: &Submitter<'_>,
        region_at: usize,
        len: usize,
        calls: &AtomicU64,
    ) -> Option<u16> {
        let slice = region_at.checked_div(self.slice_bytes)?;
        let generation = self.memory.region().generation();
        if generation != self.generation {
            // Pages were released: the registered pages may no longer be at these addresses.
            self.generation = generation;
            self.slices.fill(Slice::Plain(0));
        }
        let last = region_at.checked_add(len)?.checked_sub(1)?;
        if last.checked_div(self.slice_bytes)? != slice {
            return None;
        }
        let index = slice.checked_sub(self.first)?;
        if let Slice::Plain(asked) = *self.slices.get(index)? {
            let asked = asked.saturating_add(len);
            let part = self.part(index)?;
            let pays = asked >= part.len() / REGISTERED_AFTER;
            if self.refused.is_some() || !pays || !self.register(ring, index, &part, calls) {
                self.slices[index] = Slice::Plain(asked);
                return None;
            }
            self.slices[index] = Slice::Registered;
        }
        u16::try_from(index).ok()
    }

    /// Registers no more slices, and uses none.
    pub(crate) fn refuse(&mut self, why: &str) {
        self.refused = Some(why.to_owned());
        self.slices.clear();
    }

    /// The end of the range in its region.
    fn end(&self) -> usize {
        self.memory.at().saturating_add(self.memory.len())
    }

    /// Returns the bytes of the slice with an index; `None` where it lies outside the range.
    fn part(&self, index: usize) -> Option<MemoryRange> {
        let slice = self.first.checked_add(index)?.checked_mul(self.slice_bytes)?;
        let start = slice.max(self.memory.at());
        let end = slice.checked_add(self.slice_bytes)?.min(self.end());
        self.memory.range(start.checked_sub(self.memory.at())?, end.checked_sub(start)?).ok()
    }

    /// Registers the slice with an index and these bytes.
    fn register(&mut self, ring: &Submitter<'_>, index: usize, part: &MemoryRange, calls: &AtomicU64) -> bool {
        // The kernel accepts buffers that do not start at a page. It pins the pages that they
        // touch.
        let buffer = libc::iovec { iov_base: part.address().cast(), iov_len: part.len() };
        calls.fetch_add(1, Ordering::Relaxed);
        // The index is less than TABLE. SAFETY: the buffer lies within the memory range held in
        // `self`. So it stays mapped while the ring, which is dropped before `self`, has it
        // registered. Bytes move only for jobs that lease them.
        let outcome = unsafe { ring.register_buffers_update(index as u32, &[buffer], None) };
        if let Err(e) = &outcome {
            self.refused = Some(e.to_string());
        }
        outcome.is_ok()
    }
}
