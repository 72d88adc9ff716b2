//! The bytes of a shard: slabs from the bottom, tables at the top.
//!
//! ```text
//! [ slab 0 ][ slab 1 ] ... [ slab n-1 ][ less than a slab ][ index, grows down ][ the policy's tables, fixed ]
//! ```
//! Slabs and index are read by threads that do not hold the shard's lock (`glance.rs`) while one
//! that does writes them. So they are words, each an atomic of eight bytes, and whoever reads
//! without the lock asks afterwards whether anything changed (`guarded.rs`): a word may be old or
//! new, never something else, and what is made of torn words is thrown away.
//!
//! Unsafe code: slices over one mapping. Promises: every range is checked against the part it
//! belongs to; the words end where the tables begin, and no two tables overlap; words are reached
//! only as atomics, except pinned ones, which nobody writes.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

use datapipes_core::memory::{Access, MapOptions, RawLease, Region};
use datapipes_core::{Error, ErrorKind, Result};

use super::class::{CLASSES, Geometry, SLAB};
use super::index::Bucket;
use crate::sync::Arc;

/// A slab that belongs to no class.
const UNUSED: u8 = u8::MAX;
/// Bits of a slot's place in its slab.
const PLACE_BITS: u32 = 12;
/// Bytes of a word.
pub(crate) const WORD: usize = 8;

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
        let refused = |why: String| Err(Error::new(ErrorKind::OutOfRange, "divide", why));
        if at.checked_add(len).is_none_or(|end| end > self.lease.len()) {
            return refused(format!("{len} bytes at {at} of a cache's memory"));
        }
        // SAFETY: `at` lies within the lease, as was just checked.
        let start = unsafe { self.lease.address().add(at) };
        if !start.addr().is_multiple_of(64) || !len.is_multiple_of(64) {
            return refused(format!("{len} bytes at {at}, which are not lines"));
        }
        NonNull::new(start).ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "divide", "address 0"))
    }
}

/// Where a slot lies.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    slab: usize,
    place: usize,
    pub(crate) geometry: &'a Geometry,
}

/// The memory of a shard.
pub(crate) struct Ground {
    base: NonNull<u8>,
    len: usize,
    /// Where the words end and the policy's tables begin.
    words: AtomicUsize,
    /// Buckets of the index, which ends there.
    buckets: AtomicUsize,
    /// Items that end in another sector than the one they begin in.
    spanning: AtomicUsize,
    /// The class of each slab.
    classes: Box<[AtomicU8]>,
    geometry: [Geometry; CLASSES],
    memory: Arc<Memory>,
}

// SAFETY: the memory belongs to the process; its words are atomics, its tables have one owner each.
unsafe impl Send for Ground {}
// SAFETY: as above.
unsafe impl Sync for Ground {}

impl Ground {
    /// Over `len` bytes at `at` of the memory; the policy keeps `extra` bytes of each item there.
    pub(crate) fn over(memory: &Arc<Memory>, at: usize, len: usize, extra: usize) -> Result<Ground> {
        Ok(Ground {
            base: memory.part(at, len)?,
            len,
            words: AtomicUsize::new(len),
            buckets: AtomicUsize::new(0),
            spanning: AtomicUsize::new(0),
            classes: (0..len / SLAB).map(|_| AtomicU8::new(UNUSED)).collect(),
            geometry: std::array::from_fn(|class| Geometry::of(class as u8, extra)),
            memory: memory.clone(),
        })
    }

    /// Whether there are items that end in another sector than the one they begin in.
    #[inline]
    pub(crate) fn has_spanning(&self) -> bool {
        self.spanning.load(Relaxed) > 0
    }

    /// Notes how many such items there are.
    pub(crate) fn set_spanning(&self, items: usize) {
        self.spanning.store(items, Relaxed);
    }

    /// Slabs that would fit if there were no tables.
    pub(crate) fn slabs(&self) -> usize {
        self.classes.len()
    }

    /// Slabs below an index of so many buckets.
    pub(crate) fn slabs_below(&self, buckets: usize) -> usize {
        self.words.load(Relaxed).saturating_sub(buckets * size_of::<Bucket>()) / SLAB
    }

    /// Bytes of the policy's tables.
    pub(crate) fn fixed(&self) -> usize {
        self.len - self.words.load(Relaxed)
    }

    /// The class a slab belongs to.
    pub(crate) fn class_of_slab(&self, slab: u32) -> Option<u8> {
        self.classes.get(slab as usize).map(|c| c.load(Relaxed)).filter(|&c| c != UNUSED)
    }

    /// Gives a slab to a class, or to none.
    pub(crate) fn assign(&self, slab: u32, class: Option<u8>) {
        if let Some(c) = self.classes.get(slab as usize) {
            c.store(class.unwrap_or(UNUSED), Relaxed);
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

    /// Where a slot lies. None for a number that is no slot: one that was read while it changed.
    #[inline]
    pub(crate) fn place(&self, slot: u32) -> Option<Place<'_>> {
        let (slab, place) = (Self::slab_of(slot) as usize, (slot & ((1 << PLACE_BITS) - 1)) as usize);
        let geometry = self.geometry.get(usize::from(self.classes.get(slab)?.load(Relaxed)))?;
        (place < geometry.items).then_some(Place { slab: slab * SLAB, place, geometry })
    }

    /// Words from a place on. Panics (a bug of ours) where they are not all words.
    #[inline]
    fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        assert!(at.is_multiple_of(WORD) && at + count * WORD <= self.words.load(Relaxed), "{count} words at {at}");
        // SAFETY: within the shard's memory, aligned (its base is aligned to lines), initialized
        // (mapped memory is); below the tables, where everything is reached as an atomic, or is
        // pinned and not written.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at).cast(), count) }
    }

    /// The word of a slot's header.
    #[inline]
    pub(crate) fn header_word(&self, place: Place<'_>) -> &AtomicU64 {
        &self.words(place.slab + place.place * WORD, 1)[0]
    }

    /// The word that the policy keeps with a slot. Only where it asked for one.
    pub(crate) fn extra_word(&self, place: Place<'_>) -> &AtomicU64 {
        let g = place.geometry;
        assert!(g.extra_at + (place.place + 1) * WORD <= g.data_at, "this policy keeps no links");
        &self.words(place.slab + g.extra_at + place.place * WORD, 1)[0]
    }

    fn data_at(place: Place<'_>) -> usize {
        place.slab + place.geometry.data_at + place.place * place.geometry.capacity
    }

    /// The words of a slot's data.
    #[inline]
    pub(crate) fn data(&self, place: Place<'_>) -> &[AtomicU64] {
        self.words(Self::data_at(place), place.geometry.capacity / WORD)
    }

    /// Address of bytes of a slot's data.
    #[inline]
    pub(crate) fn bytes(&self, place: Place<'_>, at: usize, len: usize) -> NonNull<u8> {
        let capacity = place.geometry.capacity;
        assert!(at <= capacity && len <= capacity - at, "{len} bytes at {at} of an item of {capacity}");
        // SAFETY: the item lies within its slab (`Geometry`), the slab within the memory, and at +
        // len within the item.
        unsafe { self.base.add(Self::data_at(place) + at) }
    }

    /// Brings two lines of a slot's bytes nearer, from `at` on.
    #[inline]
    pub(crate) fn data_soon(&self, place: Place<'_>, at: u64) {
        let data = self.base.as_ptr().wrapping_add(Self::data_at(place) + at as usize);
        prefetch(data);
        prefetch(data.wrapping_add(64));
    }

    /// Brings a slot's header nearer, and bytes of it.
    pub(crate) fn slot_soon(&self, place: Place<'_>, at: u64) {
        prefetch(self.base.as_ptr().wrapping_add(place.slab + place.place * WORD));
        self.data_soon(place, at);
    }

    /// The index.
    #[inline]
    pub(crate) fn index(&self) -> &[Bucket] {
        let count = self.buckets.load(Relaxed);
        let words =
            self.words(self.words.load(Relaxed) - count * size_of::<Bucket>(), count * size_of::<Bucket>() / WORD);
        // SAFETY: a bucket is eight words, aligned to a line, as the end of the words is.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), count) }
    }

    /// Gives the index so many buckets, all of them empty. The caller has seen to it that no slab
    /// in use lies there.
    pub(crate) fn set_index(&self, buckets: usize) {
        let below = self.slabs_below(buckets) as u32;
        assert!((below..self.slabs() as u32).all(|s| self.class_of_slab(s).is_none()), "an index over slabs in use");
        self.buckets.store(buckets, Relaxed);
        let count = buckets * size_of::<Bucket>() / WORD;
        self.words(self.words.load(Relaxed) - count * WORD, count).iter().for_each(|w| w.store(0, Relaxed));
    }

    /// Takes a table of `count` zeros from the end of what are words until now. Only before
    /// anything else is there.
    pub(crate) fn table<T: Zero>(self: &Arc<Self>, count: usize) -> Table<T> {
        let bytes = (count * size_of::<T>()).next_multiple_of(64);
        let end = self.words.load(Relaxed);
        assert!(bytes <= end && self.buckets.load(Relaxed) == 0, "a table of {bytes} bytes");
        self.words.store(end - bytes, Relaxed);
        // SAFETY: within the shard's memory, aligned to a line.
        let start = unsafe { self.base.add(end - bytes) }.cast::<T>();
        // SAFETY: as above, for `count` values; zeros are a `T`.
        unsafe { std::ptr::write_bytes(start.as_ptr(), 0, count) };
        Table { start, count, _memory: self.memory.clone() }
    }
}

/// Copies bytes out of words, from byte `at` on.
#[inline]
pub(crate) fn copy_out(words: &[AtomicU64], at: usize, out: &mut [u8]) {
    let (first, skip) = (at / WORD, at % WORD);
    let words = &words[first..(at + out.len()).div_ceil(WORD)];
    if skip == 0 {
        copy_words(words, out);
        return;
    }
    let Some((word, words)) = words.split_first() else { return };
    let head = (WORD - skip).min(out.len());
    let (begin, rest) = out.split_at_mut(head);
    begin.copy_from_slice(&load(word)[skip..skip + head]);
    copy_words(words, rest);
}

#[inline]
fn load(word: &AtomicU64) -> [u8; WORD] {
    word.load(Relaxed).to_ne_bytes()
}

/// Copies bytes from the first word on.
#[inline]
fn copy_words(words: &[AtomicU64], out: &mut [u8]) {
    // By lines: atomics are not made into larger moves, and a loop a word would be half of a short
    // read.
    let (lines, words) = words.as_chunks::<8>();
    let (whole, out) = out.split_at_mut((lines.len() * 64).min(out.len() / 64 * 64));
    let (chunks, _) = whole.as_chunks_mut::<64>();
    for (line, to) in lines.iter().zip(&mut *chunks) {
        for (word, to) in line.iter().zip(to.as_chunks_mut::<WORD>().0) {
            *to = load(word);
        }
    }
    // A last line of which not all is wanted is not among the rest of the words.
    let words = if lines.len() > chunks.len() { &lines[chunks.len()][..] } else { words };
    let (whole, last) = out.as_chunks_mut::<WORD>();
    let mut words = words.iter();
    for (to, word) in whole.iter_mut().zip(words.by_ref()) {
        *to = load(word);
    }
    if let (1.., Some(word)) = (last.len(), words.next()) {
        last.copy_from_slice(&load(word)[..last.len()]);
    }
}

/// Copies bytes into words, from the first on.
pub(crate) fn copy_in(words: &[AtomicU64], bytes: &[u8]) {
    let words = &words[..bytes.len().div_ceil(WORD)];
    let (whole, last) = bytes.as_chunks::<WORD>();
    for (word, bytes) in words.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*bytes), Relaxed);
    }
    if !last.is_empty()
        && let Some(word) = words.last()
    {
        let mut padded = [0; WORD];
        padded[..last.len()].copy_from_slice(last);
        word.store(u64::from_ne_bytes(padded), Relaxed);
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
    _memory: Arc<Memory>,
}

// SAFETY: it is the only one over its bytes, and its values are Send.
unsafe impl<T: Zero> Send for Table<T> {}

impl<T: Zero> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `Ground::table` made it over `count` values, zeroed, which nobody else reaches;
        // the memory is kept.
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
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(value.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_in_and_out_of_words_at_any_place() {
        let words: Vec<AtomicU64> = (0..9).map(|_| AtomicU64::new(u64::MAX)).collect();
        let bytes: Vec<u8> = (1..=67).collect();
        copy_in(&words, &bytes);
        for at in 0..bytes.len() {
            for len in 0..=bytes.len() - at {
                let mut out = vec![0; len];
                copy_out(&words, at, &mut out);
                assert_eq!(out, bytes[at..at + len], "{len} at {at}");
            }
        }
        assert_eq!(words[8].load(Relaxed).to_ne_bytes()[3..], [0; 5], "the rest of the last word");
    }
}
