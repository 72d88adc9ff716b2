//! The arena of a shard: slabs from the bottom, tables at the top.
//!
//! ```text
//! [ slab 0 ] ... [ slab n-1 ][ less than a slab ][ index, grows down ][ policy's tables, fixed ]
//! ```
//! Threads without the shard's lock read slabs and index (`optimistic.rs`) while the lock's holder
//! writes them. So they consist of words, each an atomic of eight bytes, and a reader without the
//! lock checks afterwards whether anything changed (`guarded.rs`). A word may be old or new, but
//! nothing else, and results of torn words are discarded.
//!
//! The unsafe code makes slices over one mapping. Every range is checked against the part it
//! belongs to. The words end where the tables begin, and no two tables overlap. Words are accessed
//! only as atomics, except pinned ones, which nobody writes.
#![allow(unsafe_code)]

pub(crate) mod bucket;
pub(crate) mod class;
pub(crate) mod header;
pub(crate) mod index;
pub(crate) mod memory;

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};

use datapipes_core::memory::{Access, MapOptions, RawLease, Region};
use datapipes_core::{Error, ErrorKind, Result};

use crate::sync::Arc;
use bucket::Bucket;
use class::{CLASSES, Geometry, SLAB};

/// The value for a slab that belongs to no class.
const UNUSED: u8 = u8::MAX;
/// The bits of a slot's position in its slab.
const PLACE_BITS: u32 = 12;
/// The bytes of a word.
pub(crate) const WORD: usize = 8;

/// One mapping for all shards. The lease is exclusive for as long as anybody reads from it.
pub(crate) struct Memory {
    lease: RawLease,
}

impl Memory {
    /// Maps `len` bytes.
    pub(crate) fn map(len: usize, prefault: bool) -> Result<Arc<Memory>> {
        let region = Region::map(len, MapOptions::default().prefault(prefault))?;
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
            return refused(format!("{len} bytes at {at}, which are not aligned to lines"));
        }
        NonNull::new(start).ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "divide", "address 0"))
    }
}

/// The position of a slot.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    slab: usize,
    place: usize,
    pub(crate) geometry: &'a Geometry,
}

/// The memory of a shard.
pub(crate) struct Arena {
    base: NonNull<u8>,
    len: usize,
    /// The offset where the words end and the policy's tables begin.
    words: AtomicUsize,
    /// The number of buckets of the index, which ends at `words`.
    buckets: AtomicUsize,
    /// The number of items that end in another sector than they begin in.
    spanning: AtomicUsize,
    /// The number of those that are not whole pages.
    others_spanning: AtomicUsize,
    /// The class of each slab.
    classes: Box<[AtomicU8]>,
    geometry: [Geometry; CLASSES],
    memory: Arc<Memory>,
}

// SAFETY: the memory belongs to the process. Its words are atomics, and each table has one owner.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Uses `len` bytes at `at` of the memory. The policy keeps `extra` bytes for each item there.
    pub(crate) fn over(memory: &Arc<Memory>, at: usize, len: usize, extra: usize) -> Result<Arena> {
        Ok(Arena {
            base: memory.part(at, len)?,
            len,
            words: AtomicUsize::new(len),
            buckets: AtomicUsize::new(0),
            spanning: AtomicUsize::new(0),
            others_spanning: AtomicUsize::new(0),
            classes: (0..len / SLAB).map(|_| AtomicU8::new(UNUSED)).collect(),
            geometry: std::array::from_fn(|class| Geometry::of(class as u8, extra)),
            memory: memory.clone(),
        })
    }

    /// Whether there are items that end in another sector than they begin in.
    #[inline]
    pub(crate) fn has_spanning(&self) -> bool {
        self.spanning.load(Relaxed) > 0
    }

    /// Whether some of them may begin elsewhere than at the start of a page.
    #[inline]
    pub(crate) fn has_others_spanning(&self) -> bool {
        self.others_spanning.load(Relaxed) > 0
    }

    /// Sets the number of such items, by how many sectors after their first one they end.
    pub(crate) fn set_spanning(&self, reach: &[usize; 8]) {
        let others = reach[1..7].iter().sum();
        self.others_spanning.store(others, Relaxed);
        self.spanning.store(others + reach[7], Relaxed);
    }

    /// The number of slabs that would fit without tables.
    pub(crate) fn slabs(&self) -> usize {
        self.classes.len()
    }

    /// The number of slabs below an index of `buckets` buckets.
    pub(crate) fn slabs_below(&self, buckets: usize) -> usize {
        self.words.load(Relaxed).saturating_sub(buckets * size_of::<Bucket>()) / SLAB
    }

    /// The bytes of the policy's tables.
    pub(crate) fn fixed(&self) -> usize {
        self.len - self.words.load(Relaxed)
    }

    /// The class that a slab belongs to.
    pub(crate) fn class_of_slab(&self, slab: u32) -> Option<u8> {
        self.classes.get(slab as usize).map(|c| c.load(Relaxed)).filter(|&c| c != UNUSED)
    }

    /// Assigns a slab to a class, or to none.
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

    /// The position of a slot. None for a number that is not a slot, which an optimistic read may
    /// see.
    #[inline]
    pub(crate) fn place(&self, slot: u32) -> Option<Place<'_>> {
        let (slab, place) = (Self::slab_of(slot) as usize, (slot & ((1 << PLACE_BITS) - 1)) as usize);
        let geometry = self.geometry.get(usize::from(self.classes.get(slab)?.load(Relaxed)))?;
        (place < geometry.items).then_some(Place { slab: slab * SLAB, place, geometry })
    }

    /// Returns words from a position on. It panics (a bug in this crate) if they are not all words.
    #[inline]
    fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        assert!(at.is_multiple_of(WORD) && at + count * WORD <= self.words.load(Relaxed), "{count} words at {at}");
        // SAFETY: the range lies within the shard's memory, is aligned (the base is aligned to
        // lines) and initialized (mapped memory is). It lies below the tables, where everything is
        // accessed as an atomic, or is pinned and not written.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at).cast(), count) }
    }

    /// The word of a slot's header.
    #[inline]
    pub(crate) fn header_word(&self, place: Place<'_>) -> &AtomicU64 {
        &self.words(place.slab + place.place * WORD, 1)[0]
    }

    /// The word that the policy keeps with a slot. It exists only if the policy asked for one.
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

    /// The address of bytes of a slot's data.
    #[inline]
    pub(crate) fn bytes(&self, place: Place<'_>, at: usize, len: usize) -> NonNull<u8> {
        let capacity = place.geometry.capacity;
        assert!(at <= capacity && len <= capacity - at, "{len} bytes at {at} of an item of {capacity}");
        // SAFETY: the item lies within its slab (`Geometry`), the slab within the memory, and `at +
        // len` within the item.
        unsafe { self.base.add(Self::data_at(place) + at) }
    }

    /// Prefetches two lines of a slot's bytes, from `at` on.
    #[inline]
    pub(crate) fn data_soon(&self, place: Place<'_>, at: u64) {
        let data = self.base.as_ptr().wrapping_add(Self::data_at(place) + at as usize);
        prefetch(data);
        prefetch(data.wrapping_add(64));
    }

    /// Prefetches a slot's header, and some of its bytes.
    pub(crate) fn slot_soon(&self, place: Place<'_>, at: u64) {
        prefetch(self.base.as_ptr().wrapping_add(place.slab + place.place * WORD));
        self.data_soon(place, at);
    }

    /// The buckets of the index.
    #[inline]
    pub(crate) fn index(&self) -> &[Bucket] {
        let count = self.buckets.load(Relaxed);
        let words =
            self.words(self.words.load(Relaxed) - count * size_of::<Bucket>(), count * size_of::<Bucket>() / WORD);
        // SAFETY: a bucket is eight words and aligned to a line, and so is the end of the words.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), count) }
    }

    /// Sets the number of buckets of the index, and empties them. The caller has made sure that no
    /// slab in use lies there.
    pub(crate) fn set_index(&self, buckets: usize) {
        let below = self.slabs_below(buckets) as u32;
        assert!((below..self.slabs() as u32).all(|s| self.class_of_slab(s).is_none()), "an index over slabs in use");
        self.buckets.store(buckets, Relaxed);
        let count = buckets * size_of::<Bucket>() / WORD;
        self.words(self.words.load(Relaxed) - count * WORD, count).iter().for_each(|w| w.store(0, Relaxed));
    }

    /// Takes a table of `count` zeros from the end of the words. It must be called before anything
    /// else is stored.
    pub(crate) fn table<T: Zero>(self: &Arc<Self>, count: usize) -> Table<T> {
        let bytes = (count * size_of::<T>()).next_multiple_of(64);
        let end = self.words.load(Relaxed);
        assert!(bytes <= end && self.buckets.load(Relaxed) == 0, "a table of {bytes} bytes");
        self.words.store(end - bytes, Relaxed);
        // SAFETY: the address lies within the shard's memory and is aligned to a line.
        let start = unsafe { self.base.add(end - bytes) }.cast::<T>();
        // SAFETY: as above, for `count` values, and zeros are a `T`.
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
    // It copies line by line: the compiler does not merge atomics into larger moves, and a loop
    // over words would take half the time of a short read.
    let (lines, words) = words.as_chunks::<8>();
    let (whole, out) = out.split_at_mut((lines.len() * 64).min(out.len() / 64 * 64));
    let (chunks, _) = whole.as_chunks_mut::<64>();
    for (line, to) in lines.iter().zip(&mut *chunks) {
        for (word, to) in line.iter().zip(to.as_chunks_mut::<WORD>().0) {
            *to = load(word);
        }
    }
    // If only a part of the last line is wanted, its words are left over.
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

/// Copies bytes into words, from the first one on.
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

/// Types for which zeros are a value.
pub(crate) trait Zero: Copy + Send {}
impl Zero for u8 {}
impl Zero for u32 {}

/// A slice in a shard's memory.
pub(crate) struct Table<T> {
    start: NonNull<T>,
    count: usize,
    _memory: Arc<Memory>,
}

// SAFETY: no other value refers to its bytes, and its elements are Send.
unsafe impl<T: Zero> Send for Table<T> {}

impl<T: Zero> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `Arena::table` made it over `count` zeroed values, which nobody else accesses,
        // and the memory is kept alive.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T: Zero> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

/// Prefetches the line of a value, without accessing it.
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
