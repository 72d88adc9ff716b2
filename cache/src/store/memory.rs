//! The memory of a shard: slabs from the bottom, tables at the top.
//!
//! ```text
//! [ slab 0 ][ slab 1 ] ... [ slab n-1 ][ less than a slab ][ index, grows down ][ ghosts, fixed ]
//! ```
//! A slot is named by slab and place in it, in 32 bits. Slots give out bytes only by copy, except to a [`Pinned`], whose
//! slab is neither reused nor reassigned until it is dropped.
//!
//! Unsafe code: reads and writes of slots and tables in one mapping. Promises: every address is computed from a slab and
//! a place that were checked against the slab's class; slabs and tables never overlap (`Shard` moves the border only
//! over slabs that are not in use); everything is reached under the shard's lock, except pinned bytes, which nobody writes.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use datapipes_core::memory::{Access, MapOptions, RawLease, Region};
use datapipes_core::{Error, ErrorKind, Result};

use super::class::{CLASSES, Geometry, SLAB};
use super::header::{Header, State};
use crate::sync::Arc;

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;
/// A slab that belongs to no class.
const UNUSED: u8 = u8::MAX;
/// Bits of a slot's place in its slab.
const PLACE_BITS: u32 = 12;

/// One mapping for all shards, held exclusively for as long as anybody reads from it.
pub(crate) struct Memory {
    lease: RawLease,
}

impl Memory {
    /// Maps `len` bytes.
    pub(crate) fn map(len: usize, prefault: bool) -> Result<Arc<Memory>> {
        let region = Region::map(len, MapOptions { prefault, ..MapOptions::default() })?;
        Ok(Arc::new(Memory { lease: region.range(0, len)?.raw_lease(Access::Write)? }))
    }

    fn part(&self, at: usize, len: usize) -> Result<NonNull<u8>> {
        if at.checked_add(len).is_none_or(|end| end > self.lease.len()) {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                "divide",
                format!("{len} bytes at {at} of a cache's memory"),
            ));
        }
        // SAFETY: `at` lies within the lease, as was just checked.
        let start = unsafe { self.lease.address().add(at) };
        NonNull::new(start).ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "divide", "address 0"))
    }
}

/// Who still reads from which slab without the lock.
pub(crate) struct Pins {
    counts: Box<[AtomicU32]>,
    /// Keeps the bytes.
    _memory: Arc<Memory>,
}

/// Bytes of an item that stay as they are until this is dropped, whatever becomes of the item.
pub(crate) struct Pinned {
    pins: Arc<Pins>,
    slab: u32,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are not written while the slab is pinned, and the count is atomic.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: start and len are of one slot, checked when it was pinned; the memory is kept by `pins`, and nobody
        // writes to a slot of a pinned slab that ever held an item since.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(count) = self.pins.counts.get(self.slab as usize) {
            count.fetch_sub(1, Ordering::Release);
        }
    }
}

/// The slabs of a shard.
pub(crate) struct Slots {
    base: NonNull<u8>,
    classes: Vec<u8>,
    pins: Arc<Pins>,
    geometry: [Geometry; CLASSES],
    len: usize,
}

// SAFETY: the memory belongs to the process; the slots are reached through `&mut` or `&` of one owner under a lock.
unsafe impl Send for Slots {}

impl Slots {
    /// Over `len` bytes at `at` of the memory; the policy keeps `extra` bytes of each item there.
    pub(crate) fn over(memory: &Arc<Memory>, at: usize, len: usize, extra: usize) -> Result<Slots> {
        let base = memory.part(at, len)?;
        let slabs = len / SLAB;
        let pins = Pins { counts: (0..slabs).map(|_| AtomicU32::new(0)).collect(), _memory: memory.clone() };
        let geometry = std::array::from_fn(|class| Geometry::of(class as u8, extra));
        Ok(Slots { base, classes: vec![UNUSED; slabs], pins: Arc::new(pins), geometry, len })
    }

    /// Slabs that would fit if there were no tables.
    pub(crate) fn slabs(&self) -> usize {
        self.classes.len()
    }

    /// Bytes of the shard.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len
    }

    /// The class a slab belongs to.
    pub(crate) fn class_of_slab(&self, slab: u32) -> Option<u8> {
        self.classes.get(slab as usize).copied().filter(|&c| c != UNUSED)
    }

    /// Gives a slab to a class, or to none.
    pub(crate) fn assign(&mut self, slab: u32, class: Option<u8>) {
        debug_assert!(!self.is_pinned(slab), "a slab changes its class while somebody reads from it");
        if let Some(c) = self.classes.get_mut(slab as usize) {
            *c = class.unwrap_or(UNUSED);
        }
    }

    pub(crate) fn geometry(&self, class: u8) -> &Geometry {
        &self.geometry[usize::from(class)]
    }

    pub(crate) fn slot(slab: u32, place: usize) -> u32 {
        slab << PLACE_BITS | place as u32
    }

    pub(crate) fn slab_of(slot: u32) -> u32 {
        slot >> PLACE_BITS
    }

    /// The class of a slot's slab; the slot must be one that was given out.
    pub(crate) fn class_of_slot(&self, slot: u32) -> u8 {
        self.classes[Self::slab_of(slot) as usize]
    }

    pub(crate) fn is_pinned(&self, slab: u32) -> bool {
        // Acquire: what a reader did before it let go happens before the slot is written again.
        self.pins.counts[slab as usize].load(Ordering::Acquire) != 0
    }

    /// The slab's geometry and address, and the slot's place in it. Panics (a bug of ours) for a slot that is none.
    #[inline]
    fn locate(&self, slot: u32) -> (*mut u8, &Geometry, usize) {
        let (slab, place) = (Self::slab_of(slot) as usize, (slot & ((1 << PLACE_BITS) - 1)) as usize);
        let geometry = &self.geometry[usize::from(self.classes[slab])];
        assert!(place < geometry.items, "slot {slot} is not in its slab");
        // SAFETY: `classes` has an entry for every whole slab of the shard's memory, and `slab` has one.
        (unsafe { self.base.as_ptr().add(slab * SLAB) }, geometry, place)
    }

    #[inline]
    pub(crate) fn header(&self, slot: u32) -> Header {
        let (slab, _, place) = self.locate(slot);
        // SAFETY: place is below the slab's items, whose headers stand at its start, aligned; every bit pattern is a header.
        unsafe { slab.cast::<Header>().add(place).read() }
    }

    #[inline]
    pub(crate) fn set_header(&mut self, slot: u32, header: Header) {
        let (slab, _, place) = self.locate(slot);
        // SAFETY: as in `header`; the shard is borrowed mutably.
        unsafe { slab.cast::<Header>().add(place).write(header) }
    }

    /// Two numbers that the policy keeps with a slot. Only where it asked for 8 extra bytes.
    pub(crate) fn links(&self, slot: u32) -> [u32; 2] {
        let (slab, g, place) = self.locate(slot);
        assert!(g.extra_at + (place + 1) * 8 <= g.data_at, "this policy keeps no links");
        // SAFETY: it lies between headers and data, as was just checked, and is aligned to 8.
        unsafe { slab.add(g.extra_at).cast::<[u32; 2]>().add(place).read() }
    }

    pub(crate) fn set_links(&mut self, slot: u32, links: [u32; 2]) {
        let (slab, g, place) = self.locate(slot);
        assert!(g.extra_at + (place + 1) * 8 <= g.data_at, "this policy keeps no links");
        // SAFETY: as in `links`; the shard is borrowed mutably.
        unsafe { slab.add(g.extra_at).cast::<[u32; 2]>().add(place).write(links) }
    }

    #[inline]
    fn data(&self, slot: u32, at: usize, len: usize) -> NonNull<u8> {
        let (slab, g, place) = self.locate(slot);
        assert!(at + len <= g.capacity, "{len} bytes at {at} of an item of {}", g.capacity);
        // SAFETY: the item lies within its slab (`Geometry`), and at + len within the item.
        unsafe { NonNull::new_unchecked(slab.add(g.data_at + place * g.capacity + at)) }
    }

    /// The header, while the first bytes of the data are on their way, too: one wait for memory instead of two.
    #[inline]
    pub(crate) fn header_and_data_soon(&self, slot: u32) -> Header {
        let (slab, g, place) = self.locate(slot);
        let data = slab.wrapping_add(g.data_at + place * g.capacity);
        prefetch(data);
        prefetch(data.wrapping_add(64));
        // SAFETY: as in `header`.
        unsafe { slab.cast::<Header>().add(place).read() }
    }

    /// Brings a slot's header and first bytes nearer.
    pub(crate) fn prefetch(&self, slot: u32) {
        let (slab, g, place) = self.locate(slot);
        prefetch(slab.wrapping_add(place * size_of::<Header>()));
        prefetch(slab.wrapping_add(g.data_at + place * g.capacity));
        prefetch(slab.wrapping_add(g.data_at + place * g.capacity + 64));
    }

    /// Copies bytes of an item, from `at` on.
    #[inline]
    pub(crate) fn copy_out(&self, slot: u32, at: usize, out: &mut [u8]) {
        let from = self.data(slot, at, out.len());
        // SAFETY: `data` checked the length; `out` is no part of the cache's memory, which nobody else has a slice of but
        // readers of pinned bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), out.as_mut_ptr(), out.len()) }
    }

    /// Writes an item's bytes. The slot must be free, or in a slab that nobody has pinned.
    pub(crate) fn copy_in(&mut self, slot: u32, bytes: &[u8]) {
        debug_assert!(self.header(slot).state() == State::Free || !self.is_pinned(Self::slab_of(slot)));
        let to = self.data(slot, 0, bytes.len());
        // SAFETY: as in `copy_out`; a free slot is never one that somebody has pinned (a slot that dies while its slab is
        // pinned becomes free only when the slab is not pinned any more).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
    }

    /// Moves an item's bytes to another slot of the same class.
    pub(crate) fn copy_within(&mut self, from: u32, to: u32, len: usize) {
        let (source, target) = (self.data(from, 0, len), self.data(to, 0, len));
        if from != to {
            // SAFETY: both lie in slots, of which different ones do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), len) }
        }
    }

    /// Keeps bytes of an item readable without the lock.
    pub(crate) fn pin(&self, slot: u32, at: usize, len: usize) -> Pinned {
        let slab = Self::slab_of(slot);
        let start = self.data(slot, at, len);
        self.pins.counts[slab as usize].fetch_add(1, Ordering::Relaxed);
        Pinned { pins: self.pins.clone(), slab, start, len }
    }

    /// `count` values of a table that ends `from_end` bytes before the end of the shard's memory; what they hold is set to
    /// zero. The caller sees to it that neither a slab in use nor another table lies there.
    pub(crate) fn table<T: Zero>(&mut self, count: usize, from_end: usize) -> Table<T> {
        let bytes = count * size_of::<T>() + from_end;
        assert!(bytes <= self.len && bytes.is_multiple_of(align_of::<T>()), "a table of {bytes} bytes");
        let unused = |slab: usize| self.classes.get(slab).is_none_or(|&c| c == UNUSED);
        assert!((self.len - bytes) / SLAB >= self.slabs() || ((self.len - bytes) / SLAB..self.slabs()).all(unused));
        // SAFETY: within the shard's memory; aligned, because the end of the shard is (shares are multiples of a page) and
        // so is `bytes`.
        let start = unsafe { self.base.add(self.len - bytes) }.cast::<T>();
        // SAFETY: as above, for `count` values; zeros are a `T`.
        unsafe { std::ptr::write_bytes(start.as_ptr(), 0, count) };
        Table { start, count, _memory: self.pins.clone() }
    }
}

/// Types of which zeros are a value.
pub(crate) trait Zero: Copy + Send {}
impl Zero for u8 {}
impl Zero for u32 {}

/// A slice in a shard's memory.
pub(crate) struct Table<T> {
    start: NonNull<T>,
    count: usize,
    _memory: Arc<Pins>,
}

// SAFETY: it is the only one over its bytes, and its values are Send.
unsafe impl<T: Zero> Send for Table<T> {}

impl<T: Zero> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `Slots::table` made it over `count` values, zeroed; its caller keeps others away; the memory is kept.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T: Zero> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

/// Brings the line of a value nearer, without looking at it.
#[inline]
pub(crate) fn prefetch<T>(value: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(value.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
