//! Ordering records whose prefixes are equal, by their normalized keys.
//!
//! ```text
//! a group of few:    write the keys one behind the other, and sort them as lines
//! a group of many:   find in how many bytes all keys agree, and sort by the eight bytes behind them;
//!                    then each group of equal words
//! ```
//! A key is made from its record again for each eight bytes of a large group, because the memory
//! has no room for the keys of all its records.

use std::cell::RefCell;

use crate::form::slot_sorter::SlotSorter;
use crate::numbers::vector;
use crate::records::entry::{self, Entry, MAX_BUCKETS};
use crate::records::layout::{Layout, NORMALIZED_LEN, PlainLines};
use crate::records::prefetch::prefetch;
use crate::records::words::{common_prefix, word};

/// The most records whose keys are in memory at once: as many as entries have numbers for.
const FEW: usize = MAX_BUCKETS;

/// How often a record's key is made to split a group. Records that still agree are compared,
/// because long keys that part late would be made once for each word: 60,000 lines of 1 KB took 17
/// times as long with `-d` as with GNU sort, 4 times with at most 12 splits, and 2.4 times with 3.
const MAX_SPLITS: u32 = 3;

/// How many entries ahead a record is prefetched.
const AHEAD: usize = 12;

thread_local! {
    /// The memory of keys, which is used again by the next group.
    static KEYS: RefCell<Keys> = RefCell::default();
}

#[derive(Default)]
struct Keys {
    /// The keys one behind the other, each with a byte in the place of a terminator.
    bytes: Vec<u8>,
    /// The entries of the keys: eight bytes, the place, and the number in the group.
    entries: Vec<Entry>,
    group: Vec<Entry>,
}

impl<L: Layout> SlotSorter<'_, L> {
    /// Orders records whose prefixes are all `prefix` by what follows it in their normalized keys.
    /// Other numbers may be in the place of the prefixes.
    pub(super) fn sort_by_keys(&self, group: &mut [Entry], prefix: u64) {
        self.split_by_keys(group, prefix, MAX_SPLITS);
    }

    fn split_by_keys(&self, group: &mut [Entry], prefix: u64, splits: u32) {
        if group.len() <= FEW {
            let kept = KEYS.try_with(|keys| self.sort_few(group, prefix, &mut keys.borrow_mut()));
            if kept.is_err() {
                // In a handler of `atexit` the thread's memory of keys may be gone.
                self.sort_few(group, prefix, &mut Keys::default());
            }
            return;
        }
        if splits == 0 || !self.split_by_word(group, prefix) {
            group.sort_unstable_by(|a, b| self.compare(*a, *b));
            return;
        }
        let all = group.len();
        let mut from = 0;
        while from < group.len() {
            let word = entry::prefix(group[from]);
            let len = group[from..].iter().take_while(|e| entry::prefix(**e) == word).count();
            let part = &mut group[from..from + len];
            if len == all {
                // All words are equal: keys end there, or have zeros.
                part.sort_unstable_by(|a, b| self.compare(*a, *b));
            } else if len > 1 {
                self.split_by_keys(part, prefix, splits - 1);
            }
            from += len;
        }
    }

    fn sort_few(&self, group: &mut [Entry], prefix: u64, keys: &mut Keys) {
        let Keys { bytes, entries, group: before } = keys;
        bytes.clear();
        entries.clear();
        let mut agreed = usize::MAX;
        for (i, e) in group.iter().enumerate() {
            self.prefetch_ahead(group, i);
            let at = bytes.len();
            self.layout.push_behind_prefix(self.record(*e), prefix, bytes);
            let len = bytes.len() - at;
            let first = entries.first().map_or(len, |first| entry::short_len(*first).unwrap_or(0) - 1);
            agreed = agreed.min(common_prefix(&bytes[..first.min(agreed)], &bytes[at..], 0));
            bytes.push(0);
            entries.push(entry::with_id(entry::entry(0, at, len + 1), i));
        }
        for e in entries.iter_mut() {
            let at = entry::offset(*e);
            let len = entry::short_len(*e).unwrap_or(0);
            *e = entry::with_prefix(*e, word(&bytes[at..at + len - 1], agreed));
        }
        let plain = PlainLines::new(0, false);
        let sorter = SlotSorter { layout: &plain, raw: bytes, threads: 1, unique: false, depth: 0 };
        sorter.sort_bucket(entries, agreed);
        before.clear();
        before.extend_from_slice(group);
        for (to, e) in group.iter_mut().zip(entries.iter()) {
            *to = before[entry::id(*e)];
        }
        self.compare_cut(group, entries);
    }

    /// Orders records whose keys agree in all bytes that were looked at by comparing them.
    /// `entries` are those of the keys.
    fn compare_cut(&self, group: &mut [Entry], entries: &[Entry]) {
        let is_cut = |e: &Entry| entry::short_len(*e).is_none_or(|len| len > NORMALIZED_LEN);
        if entries.iter().any(is_cut) {
            // They are long, and their comparison in full finds most of them in order.
            group.sort_by(|a, b| self.compare(*a, *b));
        }
    }

    /// Sorts records by the eight bytes behind those in which all keys agree. Returns false if
    /// they agree in all bytes that are looked at.
    fn split_by_word(&self, group: &mut [Entry], prefix: u64) -> bool {
        let (mut first, mut key) = (Vec::new(), Vec::new());
        self.layout.push_behind_prefix(self.record(group[0]), prefix, &mut first);
        let mut agreed = first.len();
        for (i, e) in group.iter().enumerate() {
            self.prefetch_ahead(group, i);
            key.clear();
            self.layout.push_behind_prefix(self.record(*e), prefix, &mut key);
            agreed = common_prefix(&first[..agreed], &key, 0);
        }
        if agreed >= NORMALIZED_LEN {
            return false;
        }
        for i in 0..group.len() {
            self.prefetch_ahead(group, i);
            key.clear();
            self.layout.push_behind_prefix(self.record(group[i]), prefix, &mut key);
            group[i] = entry::with_prefix(group[i], word(&key, agreed));
        }
        vector::sort_u128(group);
        true
    }

    /// Prefetches a record whose key is made soon after that of entry `i`.
    #[inline]
    fn prefetch_ahead(&self, group: &[Entry], i: usize) {
        if let Some(ahead) = group.get(i + AHEAD) {
            prefetch(self.raw, entry::offset(*ahead));
        }
    }
}
