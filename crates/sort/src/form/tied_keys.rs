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

use crate::form::sample_sort::SlotSorter;
use crate::numbers::vector;
use crate::records::entry::{self, Entry, MAX_BUCKETS};
use crate::records::layout::{Layout, NORMALIZED_LEN, PlainLines};
use crate::records::words::{common_prefix, word};

/// The most records whose keys are in memory at once: as many as entries have numbers for.
const FEW: usize = MAX_BUCKETS;

thread_local! {
    /// The memory of keys, which is used again by the next group.
    static KEYS: RefCell<Keys> = RefCell::default();
}

#[derive(Default)]
struct Keys {
    /// The keys one behind the other, each with a byte in the place of a terminator.
    bytes: Vec<u8>,
    key: Vec<u8>,
    /// The entries of the keys: the first eight bytes, the place, and the number in the group.
    entries: Vec<Entry>,
    group: Vec<Entry>,
}

impl<L: Layout> SlotSorter<'_, L> {
    /// Orders records with equal prefixes by their normalized keys.
    pub(super) fn sort_by_keys(&self, group: &mut [Entry]) {
        if group.len() <= FEW {
            let kept = KEYS.try_with(|keys| self.sort_few(group, &mut keys.borrow_mut()));
            if kept.is_err() {
                // In a handler of `atexit` the thread's memory of keys may be gone.
                self.sort_few(group, &mut Keys::default());
            }
            return;
        }
        if !self.split_by_word(group) {
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
                self.sort_by_keys(part);
            }
            from += len;
        }
    }

    fn sort_few(&self, group: &mut [Entry], keys: &mut Keys) {
        let Keys { bytes, key, entries, group: before } = keys;
        bytes.clear();
        entries.clear();
        for (i, e) in group.iter().enumerate() {
            self.layout.normalize(self.record(*e), key);
            let at = bytes.len();
            bytes.extend_from_slice(key);
            bytes.push(0);
            entries.push(entry::with_id(entry::entry(word(key, 0), at, key.len() + 1), i));
        }
        let plain = PlainLines { terminator: 0, reverse: false };
        let sorter = SlotSorter { layout: &plain, raw: bytes, threads: 1, unique: false };
        sorter.sort_bucket(entries, 0);
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
    fn split_by_word(&self, group: &mut [Entry]) -> bool {
        let (mut first, mut key) = (Vec::new(), Vec::new());
        self.layout.normalize(self.record(group[0]), &mut first);
        let mut agreed = first.len();
        for e in group.iter() {
            self.layout.normalize(self.record(*e), &mut key);
            agreed = common_prefix(&first[..agreed], &key, 0);
        }
        if agreed >= NORMALIZED_LEN {
            return false;
        }
        for e in group.iter_mut() {
            self.layout.normalize(self.record(*e), &mut key);
            *e = entry::with_prefix(*e, word(&key, agreed));
        }
        vector::sort_u128(group);
        true
    }
}
