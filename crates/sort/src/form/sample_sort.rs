//! Sorting the entries of one slot, on all cores.
//!
//! ```text
//! divide(entries):
//!     partition the entries over buckets
//!     all cores sort a bucket that is too large for one of them:
//!         by the next bytes if its prefixes are equal, otherwise by new splitters
//!     the core that writes a bucket's records sorts it in its cache:
//!         sort the numbers                          (by prefix, then by position in the input)
//!         for each group of equal prefixes that is not in order:
//!             sort by the next eight bytes of the keys, or by comparisons
//! ```

#![allow(unsafe_code)]

use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::form::bucket::SlotBucket;
use crate::form::partition::Partition;
use crate::form::slot_sorter::SlotSorter;
use crate::form::tied_lines::sort_by_prefix;
use crate::memory::parallel::{Disjoint, run_on_threads};
use crate::numbers::vector;
use crate::records::entry::{self, Entry, MAX_BUCKETS};
use crate::records::layout::{Layout, PlainLines};
use crate::records::memo::Scope;
use crate::records::prefetch::prefetch;
use crate::records::tally::{Tally, hash};

/// Below this number of entries one core sorts them faster than several could distribute them.
const SMALL: usize = 1 << 14;
/// How many entries ahead a record is prefetched whose prefix another has too.
const AHEAD: usize = 16;
/// Smaller groups are compared; larger ones get new prefixes.
const FEW: usize = 24;

/// What is left of a bucket when duplicates are dropped.
#[derive(Clone, Copy)]
struct KeptEntries {
    len: usize,
    bytes: u64,
    dropped: Tally,
}

impl<L: Layout> SlotSorter<'_, L> {
    /// Divides the entries into buckets, which are in order. What one core cannot sort alone is
    /// sorted now, and a bucket of which duplicates are to be dropped; the others are sorted when
    /// their entries are asked for. Both slices are used.
    pub(crate) fn divide<'e>(&self, entries: &'e mut [Entry], scratch: &'e mut [Entry]) -> Vec<SlotBucket<'e>> {
        // The slot's bytes stay as they are, for other threads too, until the buckets are gone.
        let _scope = Scope::enter();
        let len = entries.len();
        let giant = self.giant(len);
        let (all, Partition { bounds, bytes }) = if len <= SMALL {
            let bytes = entries.iter().map(|e| self.len(*e) as u64).sum();
            (entries, Partition { bounds: vec![0, len], bytes: vec![bytes] })
        } else {
            let partition = self.partition(entries, scratch, true);
            for w in partition.bounds.windows(2).filter(|w| w[1] - w[0] > giant) {
                self.sort_large_bucket(&mut scratch[w[0]..w[1]], &mut entries[w[0]..w[1]], self.depth);
            }
            (scratch, partition)
        };
        let kept = self.unique.then(|| {
            self.each_bucket(all, &bounds, |bucket| {
                if bucket.len() > giant {
                    return self.drop_duplicates(bucket);
                }
                self.sort_bucket(bucket, self.depth);
                match self.layout.coding() {
                    Some(_) => self.drop_repeated(bucket),
                    None => self.drop_duplicates(bucket),
                }
            })
        });
        let (mut rest, mut kept) = (all, kept.into_iter().flatten());
        let mut buckets = Vec::with_capacity(bytes.len());
        for (w, bytes) in bounds.windows(2).zip(bytes) {
            let entries;
            (entries, rest) = std::mem::take(&mut rest).split_at_mut(w[1] - w[0]);
            if entries.is_empty() {
                continue;
            }
            buckets.push(match kept.next() {
                Some(KeptEntries { len, bytes, dropped }) => SlotBucket::sorted(&entries[..len], bytes, dropped),
                None if entries.len() > giant => SlotBucket::sorted(entries, bytes, Tally::default()),
                None => SlotBucket::unsorted(entries, bytes),
            });
        }
        buckets
    }

    /// Larger buckets of `len` entries are sorted by all cores.
    pub(super) fn giant(&self, len: usize) -> usize {
        (len / (4 * self.threads)).max(SMALL * 4)
    }

    /// Runs `work` on every bucket; each core takes the next one when it is free. The results are
    /// in the buckets' order.
    fn each_bucket<R: Send + Copy>(
        &self,
        entries: &mut [Entry],
        bounds: &[usize],
        work: impl Fn(&mut [Entry]) -> R + Sync,
    ) -> Vec<R> {
        let filled: Vec<_> = bounds.windows(2).filter(|w| w[1] > w[0]).map(|w| (w[0], w[1] - w[0])).collect();
        let mut results: Vec<Option<R>> = vec![None; filled.len()];
        let next = AtomicUsize::new(0);
        {
            let all = Disjoint::new(entries);
            let out = Disjoint::new(&mut results);
            run_on_threads(self.threads, |_| {
                let _scope = Scope::enter();
                loop {
                    let i = next.fetch_add(1, Relaxed);
                    let Some(&(start, len)) = filled.get(i) else { break };
                    // SAFETY: buckets do not overlap, and each index is handed out once.
                    let (bucket, slot) = unsafe { (all.slice(start, len), out.slice(i, 1)) };
                    slot[0] = Some(work(bucket));
                }
            });
        }
        results.into_iter().flatten().collect()
    }

    /// Sorts entries whose records agree in the first `depth` bytes, on this core.
    pub(super) fn sort_bucket(&self, entries: &mut [Entry], depth: usize) {
        if let Some(coding) = self.layout.coding() {
            sort_by_prefix(entries);
            self.sort_tied_lines(coding, entries, depth);
            return;
        }
        vector::sort_u128(entries);
        if self.layout.prefix_decides() {
            return;
        }
        let (mut from, mut fetched) = (0, 1);
        while from < entries.len() {
            let prefix = entry::prefix(entries[from]);
            let len = entries[from..].iter().take_while(|e| entry::prefix(**e) == prefix).count();
            if len > 1 {
                self.fetch_tied(entries, &mut fetched, from + len + AHEAD, 0);
                self.sort_equal_prefixes(&mut entries[from..from + len], depth);
            }
            from += len;
        }
    }

    /// Prefetches the records of entries `fetched..to` that have equal prefixes, from `depth` on.
    #[inline]
    pub(super) fn fetch_tied(&self, entries: &[Entry], fetched: &mut usize, to: usize, depth: usize) {
        for i in *fetched..to.min(entries.len()) {
            if entry::prefix(entries[i - 1]) == entry::prefix(entries[i]) {
                prefetch(self.raw, entry::offset(entries[i - 1]) + depth);
                prefetch(self.raw, entry::offset(entries[i]) + depth);
            }
        }
        *fetched = to.max(*fetched);
    }

    /// Orders records with equal prefixes.
    fn sort_equal_prefixes(&self, group: &mut [Entry], depth: usize) {
        if let Some(plain) = self.plain_behind(group) {
            let plain = SlotSorter { layout: &plain, raw: self.raw, threads: 1, unique: false, depth: 0 };
            if plain.in_order(group) {
                return;
            }
            if group.len() == 2 {
                group.swap(0, 1);
                return;
            }
            // Every line has bytes at depth 0.
            plain.load_next_prefixes(group, 0);
            plain.sort_bucket(group, 0);
            return;
        }
        let by_keys = self.layout.has_normalized_keys() && group.len() > 2;
        // To make the keys of as many as are sorted at once takes little more than to compare them.
        if !(by_keys && group.len() <= MAX_BUCKETS) && self.in_order(group) {
            return;
        }
        if by_keys {
            self.sort_by_keys(group, entry::prefix(group[0]));
        } else if group.len() == 2 {
            group.swap(0, 1);
        } else if group.len() > FEW && self.load_next_prefixes(group, depth + 8) {
            self.sort_bucket(group, depth + 8);
        } else {
            group.sort_unstable_by(|a, b| self.compare(*a, *b));
        }
    }

    /// Returns the order by the lines' bytes, if all keys of the group are equal and only these
    /// bytes decide.
    fn plain_behind(&self, group: &[Entry]) -> Option<PlainLines> {
        let plain = self.layout.tie_break()?;
        // Their prefixes are equal, so what the first one's holds, all hold.
        self.layout.prefix_is_exact(self.record(*group.first()?)).then_some(plain)
    }

    #[inline]
    pub(super) fn compare(&self, a: Entry, b: Entry) -> Ordering {
        self.layout.compare(self.record(a), self.record(b)).then_with(|| (a as u64).cmp(&(b as u64)))
    }

    fn in_order(&self, group: &[Entry]) -> bool {
        group.windows(2).all(|w| self.compare(w[0], w[1]) == Ordering::Less)
    }

    /// Replaces the prefixes by the next bytes of the keys. Returns false if these cannot decide;
    /// the prefixes are then invalid.
    pub(super) fn load_next_prefixes(&self, group: &mut [Entry], depth: usize) -> bool {
        for e in group.iter_mut() {
            match self.layout.prefix_at(self.record(*e), depth) {
                Some(prefix) => *e = entry::with_prefix(*e, prefix),
                None => return false,
            }
        }
        true
    }

    /// Sorts a bucket that is too large for one core. The result is in `entries`; `other` is
    /// scratch memory.
    fn sort_large_bucket(&self, entries: &mut [Entry], other: &mut [Entry], depth: usize) {
        let first = entry::prefix(entries[0]);
        if entries.iter().any(|e| entry::prefix(*e) != first) {
            self.repartition(entries, other, depth);
            return;
        }
        if self.layout.prefix_decides() {
            // Positions ascend: the scatter keeps the order within a bucket.
            return;
        }
        let stripe = entries.len().div_ceil(self.threads);
        let stripes = entries.len().div_ceil(stripe);
        let unordered = AtomicUsize::new(0);
        let group = &*entries;
        run_on_threads(stripes, |t| {
            let _scope = Scope::enter();
            let part = &group[t * stripe..group.len().min((t + 1) * stripe + 1)];
            if !self.in_order(part) {
                unordered.fetch_add(1, Relaxed);
            }
        });
        if unordered.load(Relaxed) == 0 {
            return;
        }
        if let Some(coding) = self.layout.coding() {
            if self.may_be_other(entries[0], depth) {
                let sorter = SlotSorter { depth: 0, ..*self };
                let depth = sorter.load_first_difference(coding, entries, 0);
                sorter.repartition(entries, other, depth);
                return;
            }
            let others = self.settle_ended(coding, entries, depth + 8, other);
            let (entries, other) = (&mut entries[others.clone()], &mut other[others]);
            if !entries.is_empty() {
                let depth = self.load_first_difference(coding, entries, depth + 8);
                self.repartition(entries, other, depth);
            }
            return;
        }
        if let Some(plain) = self.plain_behind(entries) {
            let plain = SlotSorter { layout: &plain, raw: self.raw, threads: self.threads, unique: false, depth: 0 };
            plain.load_next_prefixes(entries, 0);
            plain.repartition(entries, other, 0);
            return;
        }
        let undecided = AtomicUsize::new(0);
        let all = Disjoint::new(entries);
        run_on_threads(stripes, |t| {
            // SAFETY: stripe t is this thread's alone.
            let part = unsafe { all.slice(t * stripe, stripe.min(all.len() - t * stripe)) };
            if !self.load_next_prefixes(part, depth + 8) {
                undecided.fetch_add(1, Relaxed);
            }
        });
        if undecided.load(Relaxed) == 0 {
            self.repartition(entries, other, depth + 8);
            return;
        }
        // Each core sorts a stripe, by normalized keys or by comparing, then the stripes are
        // merged.
        let all = Disjoint::new(entries);
        run_on_threads(stripes, |t| {
            // SAFETY: stripe t is this thread's alone.
            let part = unsafe { all.slice(t * stripe, stripe.min(all.len() - t * stripe)) };
            let _scope = Scope::enter();
            if self.layout.has_normalized_keys() {
                self.sort_by_keys(part, first);
            } else {
                part.sort_unstable_by(|a, b| self.compare(*a, *b));
            }
        });
        let mut width = stripe;
        while width < entries.len() {
            for (from, to) in entries.chunks(2 * width).zip(other.chunks_mut(2 * width)) {
                let (a, b) = from.split_at(width.min(from.len()));
                self.merge(a, b, to);
            }
            entries.copy_from_slice(other);
            width *= 2;
        }
    }

    fn merge<'e>(&self, mut a: &'e [Entry], mut b: &'e [Entry], to: &mut [Entry]) {
        for slot in to {
            let from = match (a.first(), b.first()) {
                (Some(x), Some(y)) if self.compare(*y, *x) == Ordering::Less => &mut b,
                (Some(_), _) => &mut a,
                (None, _) => &mut b,
            };
            if let Some((first, rest)) = from.split_first() {
                *slot = *first;
                *from = rest;
            }
        }
    }

    /// Partitions a giant bucket once more and sorts its parts. The result is in `entries`.
    pub(super) fn repartition(&self, entries: &mut [Entry], other: &mut [Entry], depth: usize) {
        let Partition { bounds, .. } = self.partition(entries, other, false);
        let giant = self.giant(entries.len());
        for w in bounds.windows(2) {
            if w[1] - w[0] > giant {
                self.sort_large_bucket(&mut other[w[0]..w[1]], &mut entries[w[0]..w[1]], depth);
            }
        }
        self.each_bucket(other, &bounds, |bucket| {
            if bucket.len() <= giant {
                self.sort_bucket(bucket, depth);
            }
        });
        entries.copy_from_slice(other);
    }

    /// Drops all but the first of records with the same key from a sorted bucket.
    fn drop_duplicates(&self, bucket: &mut [Entry]) -> KeptEntries {
        let mut dropped = Tally::default();
        // Equal keys have equal prefixes, so both records are in this bucket.
        let mut kept = 0;
        for i in 1..bucket.len() {
            if self.layout.same_key(self.record(bucket[kept]), self.record(bucket[i])) {
                self.layout.count(&mut dropped, self.record(bucket[i]));
            } else {
                kept += 1;
                bucket[kept] = bucket[i];
            }
        }
        let len = bucket.len().min(kept + 1);
        self.kept(&bucket[..len], dropped)
    }

    /// Does the same for lines that were marked where they repeat the one before. They are not
    /// read again: the first of them says what they count for.
    fn drop_repeated(&self, bucket: &mut [Entry]) -> KeptEntries {
        let mut dropped = Tally::default();
        let (mut kept, mut sum) = (0, None);
        for i in 0..bucket.len() {
            if i > 0 && entry::is_repeated(bucket[i]) {
                let record = self.record(bucket[kept - 1]);
                dropped.add_hashed(record.len() as u64, *sum.get_or_insert_with(|| hash(record)));
            } else {
                bucket[kept] = bucket[i];
                (kept, sum) = (kept + 1, None);
            }
        }
        self.kept(&bucket[..kept], dropped)
    }

    fn kept(&self, entries: &[Entry], dropped: Tally) -> KeptEntries {
        KeptEntries { len: entries.len(), bytes: entries.iter().map(|e| self.len(*e) as u64).sum(), dropped }
    }
}
