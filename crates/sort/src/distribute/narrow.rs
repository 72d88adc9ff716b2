//! Sorting a portion by entries of eight bytes, in cache.
//!
//! ```text
//! bit 63                                          0
//!    | first bits of the key, less the least | offset |
//! ```
//! The prefixes of a bucket lie between two splitters, so few bits tell most of them apart. The
//! order of the entries is that of these bits and then of the input. Entries with equal bits are
//! ordered by the bits that did not fit, and then by the next bytes of the keys.

use std::cmp::Ordering;

use crate::numbers::vector;
use crate::records::layout::Layout;
use crate::records::tally::Tally;

use super::load::Loaded;

/// Groups of at most this many entries are compared.
const FEW: usize = 24;

/// A range of words of keys: the least, and how many bits of each word do not fit an entry.
#[derive(Clone, Copy)]
struct Window {
    low: u64,
    dropped_bits: u32,
}

/// The context of sorting, besides the entries.
pub(super) struct NarrowSorter<'a, L> {
    pub(super) layout: &'a L,
    /// The bytes that offsets point into.
    pub(super) raw: &'a [u8],
    pub(super) record: usize,
}

impl<L: Layout> NarrowSorter<'_, L> {
    /// Makes the entries of the records of a bucket, whose prefixes are `low..=high`, and sorts
    /// them.
    pub(super) fn sort(&self, places: &[Loaded], (low, high): (u64, u64), entries: &mut [u64]) {
        let window = self.window(low, high);
        let offsets = places.iter().flat_map(|place| (place.at..place.at + place.len).step_by(self.record));
        for (entry, offset) in entries.iter_mut().zip(offsets) {
            *entry = self.entry(self.layout.prefix(&self.raw[offset..offset + self.record]), offset, window);
        }
        self.sort_words(entries, 0, window);
    }

    /// Keeps the first of records with equal keys. Returns the number of records kept, and the
    /// others.
    pub(super) fn drop_duplicates(&self, entries: &mut [u64]) -> (usize, Tally) {
        let (mut kept, mut dropped) = (0, Tally::default());
        for i in 1..entries.len() {
            if self.layout.same_key(self.of(entries[kept]), self.of(entries[i])) {
                dropped.add(self.of(entries[i]));
            } else {
                kept += 1;
                entries[kept] = entries[i];
            }
        }
        (entries.len().min(kept + 1), dropped)
    }

    /// Returns the record of an entry.
    #[inline]
    pub(super) fn of(&self, entry: u64) -> &[u8] {
        let offset = self.offset(entry);
        &self.raw[offset..offset + self.record]
    }

    /// Returns where the record of an entry begins.
    #[inline]
    pub(super) fn offset(&self, entry: u64) -> usize {
        (entry & !(u64::MAX << self.offset_bits())) as usize
    }

    #[inline]
    fn offset_bits(&self) -> u32 {
        usize::BITS - self.raw.len().leading_zeros()
    }

    fn window(&self, low: u64, high: u64) -> Window {
        let bits = u64::BITS - (high - low).leading_zeros();
        Window { low, dropped_bits: (bits + self.offset_bits()).saturating_sub(u64::BITS) }
    }

    #[inline]
    fn entry(&self, word: u64, offset: usize, window: Window) -> u64 {
        let word = word.wrapping_sub(window.low) >> window.dropped_bits;
        word << self.offset_bits() | offset as u64
    }

    /// Sorts entries whose records agree in the first `depth` bytes of their keys, and whose words
    /// there lie in the window.
    fn sort_words(&self, entries: &mut [u64], depth: usize, window: Window) {
        vector::sort_u64(entries);
        if depth == 0 && window.dropped_bits == 0 && self.layout.prefix_decides() {
            return;
        }
        let bits = self.offset_bits();
        for group in entries.chunk_by_mut(|a, b| a >> bits == b >> bits) {
            if group.len() > 1 {
                self.sort_equal_words(group, depth, window);
            }
        }
    }

    /// Orders entries whose bits are equal. They are in the order of the input.
    fn sort_equal_words(&self, group: &mut [u64], depth: usize, window: Window) {
        if group.windows(2).all(|w| self.order(w[0], w[1]) != Ordering::Greater) {
            return;
        }
        // A word that fitted the entries is equal in all of them.
        let depth = if window.dropped_bits == 0 { depth + 8 } else { depth };
        if group.len() > FEW
            && let Some(window) = self.load_words(group, depth)
        {
            return self.sort_words(group, depth, window);
        }
        group.sort_unstable_by(|a, b| self.order(*a, *b).then_with(|| self.offset(*a).cmp(&self.offset(*b))));
    }

    fn order(&self, a: u64, b: u64) -> Ordering {
        self.layout.compare(self.of(a), self.of(b))
    }

    /// Replaces the bits of the entries by those of the words at `depth`. Returns `None`, and
    /// changes nothing, if some key ends before.
    fn load_words(&self, group: &mut [u64], depth: usize) -> Option<Window> {
        let word = |entry: u64| self.layout.prefix_at(self.of(entry), depth);
        let (mut low, mut high) = (u64::MAX, 0);
        for entry in group.iter() {
            let word = word(*entry)?;
            (low, high) = (low.min(word), high.max(word));
        }
        let window = self.window(low, high);
        for entry in group {
            *entry = self.entry(word(*entry)?, self.offset(*entry), window);
        }
        Some(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::layout::Fixed;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn portions_are_sorted_as_a_stable_sort_does(
            record in 1_usize..40,
            key in (0_usize..40, 1_usize..40),
            reverse: bool,
            alphabet in prop_oneof![Just(1_u8), Just(2), Just(255)],
            bytes in proptest::collection::vec(any::<u8>(), 0..8000),
            gap in 0_usize..50,
        ) {
            let key_at = key.0 % record;
            let layout = Fixed { len: record, key_at, key_len: 1 + (key.1 - 1) % (record - key_at), reverse };
            let bytes: Vec<u8> = bytes.iter().map(|b| b % alphabet).collect();
            let n = bytes.len() / record;
            let bytes = &bytes[..n * record];
            // Two pieces with a gap between them.
            let cut = n / 3 * record;
            let raw = [&bytes[..cut], &vec![0xee; gap], &bytes[cut..]].concat();
            let places = [Loaded { at: 0, len: cut }, Loaded { at: cut + gap, len: bytes.len() - cut }];
            let mut expected: Vec<&[u8]> = bytes.chunks_exact(record).collect();
            expected.sort_by(|a, b| layout.compare(a, b));
            let prefixes: Vec<u64> = expected.iter().map(|r| layout.prefix(r)).collect();
            let bounds = (prefixes.first().copied().unwrap_or(0), prefixes.last().copied().unwrap_or(0));
            let sorter = NarrowSorter { layout: &layout, raw: &raw, record };
            let mut entries = vec![0; n];
            sorter.sort(&places, bounds, &mut entries);
            let sorted: Vec<&[u8]> = entries.iter().map(|e| sorter.of(*e)).collect();
            prop_assert_eq!(&sorted, &expected);
            let (kept, dropped) = sorter.drop_duplicates(&mut entries);
            expected.dedup_by(|next, kept| layout.same_key(kept, next));
            let sorted: Vec<&[u8]> = entries[..kept].iter().map(|e| sorter.of(*e)).collect();
            prop_assert_eq!(sorted, expected);
            prop_assert_eq!(dropped.records, (n - kept) as u64);
        }
    }
}
