//! Sorting the entries of one slot, on all cores.
//!
//! ```text
//! sort(entries):
//!     take splitters from a sample of prefixes      (a splitter's own value gets its own bucket)
//!     each core, its stripe: classify, count, scatter into the scratch memory
//!     each core, bucket by bucket in its cache:
//!         sort the numbers                          (by prefix, then by position in the input)
//!         for each group of equal prefixes that is not in order:
//!             sort by the next eight bytes of the keys, or by comparisons
//!     all cores sort a bucket that is too large for one of them:
//!         by the next bytes if its prefixes are equal, otherwise by new splitters
//! ```

#![allow(unsafe_code)]

use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::memory::parallel::{Disjoint, run_on_threads};
use crate::numbers::vector;
use crate::records::entry::{self, Entry, MAX_BUCKETS};
use crate::records::layout::{Layout, PlainLines};
use crate::records::memo::{self, Question, Scope};
use crate::records::prefetch::prefetch;
use crate::records::tally::Tally;

/// Below this number of entries one core sorts them faster than several could distribute them.
const SMALL: usize = 1 << 14;
/// The intended number of entries in a bucket: 64 KiB, well within L2.
const BUCKET: usize = 1 << 12;
/// The number of sampled entries for each splitter.
const OVERSAMPLE: usize = 8;
/// How many entries ahead a record is prefetched whose prefix another has too.
const AHEAD: usize = 16;
/// Smaller groups are compared; larger ones get new prefixes.
const FEW: usize = 24;

/// Consecutive entries in their final order, and the bytes of their records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SortedBucket {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) bytes: u64,
    /// Records that were dropped here as duplicates.
    pub(crate) dropped: Tally,
}

/// The context for sorting a slot, besides the entries.
pub(crate) struct SlotSorter<'a, L> {
    pub(crate) layout: &'a L,
    /// The slot's bytes, which entries point into.
    pub(crate) raw: &'a [u8],
    pub(crate) threads: usize,
    /// Whether only the first of records with the same key is kept.
    pub(crate) unique: bool,
}

impl<L: Layout> SlotSorter<'_, L> {
    /// Sorts the entries. The result is in the memory of `entries` or of `scratch`. The buckets
    /// that are returned are in order and index the returned slice.
    pub(crate) fn sort<'e>(
        &self,
        entries: &'e mut [Entry],
        scratch: &'e mut [Entry],
    ) -> (&'e [Entry], Vec<SortedBucket>) {
        // The slot's bytes stay as they are, for other threads too, until this returns.
        let _scope = Scope::enter();
        if entries.len() <= SMALL {
            self.sort_bucket(entries, 0);
            let piece = self.finish(entries, 0);
            return (entries, vec![piece]);
        }
        let bounds = self.partition(entries, scratch, true);
        let giant = (entries.len() / (4 * self.threads)).max(SMALL * 4);
        for w in bounds.windows(2) {
            if w[1] - w[0] > giant {
                self.sort_large_bucket(&mut scratch[w[0]..w[1]], &mut entries[w[0]..w[1]], 0);
            }
        }
        let pieces = self.each_bucket(scratch, &bounds, |bucket, start| {
            if bucket.len() <= giant {
                self.sort_bucket(bucket, 0);
            }
            self.finish(bucket, start)
        });
        (scratch, pieces)
    }

    /// The record of an entry.
    #[inline]
    pub(crate) fn record(&self, e: Entry) -> &[u8] {
        let at = entry::offset(e);
        &self.raw[at..at + self.len(e)]
    }

    #[inline]
    pub(crate) fn len(&self, e: Entry) -> usize {
        if let Some(len) = self.layout.fixed_len() {
            return len;
        }
        entry::short_len(e).unwrap_or_else(|| self.long_len(e))
    }

    #[cold]
    fn long_len(&self, e: Entry) -> usize {
        let at = entry::offset(e);
        let find = || self.layout.end_of(self.raw, at).unwrap_or(self.raw.len()) - at;
        let question = Question { address: self.raw[at..].as_ptr().addr(), len: 0, about: 0 };
        memo::recall(question, || (0, find())).1
    }

    /// Distributes `entries` over buckets in `scratch`, each in the order of the input, and returns
    /// the buckets' bounds. `reversed` says that the entries are those of a slot, which grow
    /// downwards in memory.
    fn partition(&self, entries: &mut [Entry], scratch: &mut [Entry], reversed: bool) -> Vec<usize> {
        let splitters = choose_splitters(entries);
        let buckets = 2 * splitters.len() + 1;
        let stripe = entries.len().div_ceil(self.threads);
        let stripes = entries.len().div_ceil(stripe);
        let mut counts = vec![0usize; stripes * buckets];
        {
            let all = Disjoint::new(entries);
            let counts = Disjoint::new(&mut counts);
            run_on_threads(stripes, |t| {
                // SAFETY: stripe t of the entries, and row t of the counts, are this thread's
                // alone.
                let (part, count) = unsafe {
                    (all.slice(t * stripe, stripe.min(all.len() - t * stripe)), counts.slice(t * buckets, buckets))
                };
                classify(part, &splitters, count);
            });
        }
        let mut bounds = Vec::with_capacity(buckets + 1);
        let mut at = 0;
        for b in 0..buckets {
            bounds.push(at);
            for t in 0..stripes {
                let t = if reversed { stripes - 1 - t } else { t };
                at += std::mem::replace(&mut counts[t * buckets + b], at);
            }
        }
        bounds.push(at);
        let target = Disjoint::new(scratch);
        let positions = Disjoint::new(&mut counts);
        let entries = &*entries;
        run_on_threads(stripes, |t| {
            // SAFETY: row t of the positions is this thread's alone.
            let position = unsafe { positions.slice(t * buckets, buckets) };
            let part = &entries[t * stripe..entries.len().min((t + 1) * stripe)];
            let mut scatter = |e: Entry| {
                let at = &mut position[entry::id(e)];
                // SAFETY: the positions of (stripe, bucket) pairs were laid out from the counts of
                // the same entries, so every position is below the total, which the scratch holds,
                // and is written once.
                unsafe { target.write(*at, entry::without_id(e)) };
                *at += 1;
            };
            if reversed {
                part.iter().rev().for_each(|e| scatter(*e));
            } else {
                part.iter().for_each(|e| scatter(*e));
            }
        });
        bounds
    }

    /// Runs `work` on every bucket; each core takes the next one when it is free. The results are
    /// in the buckets' order.
    fn each_bucket<R: Send + Copy>(
        &self,
        entries: &mut [Entry],
        bounds: &[usize],
        work: impl Fn(&mut [Entry], usize) -> R + Sync,
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
                    slot[0] = Some(work(bucket, start));
                }
            });
        }
        results.into_iter().flatten().collect()
    }

    /// Sorts entries whose records agree in the first `depth` bytes, on this core.
    pub(super) fn sort_bucket(&self, entries: &mut [Entry], depth: usize) {
        vector::sort_u128(entries);
        if self.layout.prefix_decides() {
            return;
        }
        if let Some(coding) = self.layout.coding() {
            self.sort_tied_lines(coding, entries, depth + 8);
            return;
        }
        let (mut from, mut fetched) = (0, 1);
        while from < entries.len() {
            let prefix = entry::prefix(entries[from]);
            let len = entries[from..].iter().take_while(|e| entry::prefix(**e) == prefix).count();
            if len > 1 {
                self.fetch_tied(entries, &mut fetched, from + len + AHEAD);
                self.sort_equal_prefixes(&mut entries[from..from + len], depth);
            }
            from += len;
        }
    }

    /// Prefetches the records of entries `fetched..to` that have equal prefixes.
    #[inline]
    fn fetch_tied(&self, entries: &[Entry], fetched: &mut usize, to: usize) {
        for i in *fetched..to.min(entries.len()) {
            if entry::prefix(entries[i - 1]) == entry::prefix(entries[i]) {
                prefetch(self.raw, entry::offset(entries[i - 1]));
                prefetch(self.raw, entry::offset(entries[i]));
            }
        }
        *fetched = to.max(*fetched);
    }

    /// Orders records with equal prefixes.
    fn sort_equal_prefixes(&self, group: &mut [Entry], depth: usize) {
        if let Some(plain) = self.plain_behind(group) {
            let plain = SlotSorter { layout: &plain, raw: self.raw, threads: 1, unique: false };
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
    fn load_next_prefixes(&self, group: &mut [Entry], depth: usize) -> bool {
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
            let others = self.settle_ended(coding, entries, depth + 8);
            let (entries, other) = (&mut entries[others.clone()], &mut other[others]);
            if !entries.is_empty() {
                let depth = self.load_first_difference(coding, entries, depth + 8);
                self.repartition(entries, other, depth);
            }
            return;
        }
        if let Some(plain) = self.plain_behind(entries) {
            let plain = SlotSorter { layout: &plain, raw: self.raw, threads: self.threads, unique: false };
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
    fn repartition(&self, entries: &mut [Entry], other: &mut [Entry], depth: usize) {
        let bounds = self.partition(entries, other, false);
        let giant = (entries.len() / (4 * self.threads)).max(SMALL * 4);
        for w in bounds.windows(2) {
            if w[1] - w[0] > giant {
                self.sort_large_bucket(&mut other[w[0]..w[1]], &mut entries[w[0]..w[1]], depth);
            }
        }
        self.each_bucket(other, &bounds, |bucket, _| {
            if bucket.len() <= giant {
                self.sort_bucket(bucket, depth);
            }
        });
        entries.copy_from_slice(other);
    }

    /// Drops duplicates if that is asked for, and adds up the bytes.
    fn finish(&self, bucket: &mut [Entry], start: usize) -> SortedBucket {
        let mut len = bucket.len();
        let mut dropped = Tally::default();
        if self.unique && len > 1 {
            // Equal keys have equal prefixes, so both records are in this bucket.
            let mut kept = 0;
            for i in 1..len {
                if self.layout.same_key(self.record(bucket[kept]), self.record(bucket[i])) {
                    dropped.add(self.record(bucket[i]));
                } else {
                    kept += 1;
                    bucket[kept] = bucket[i];
                }
            }
            len = kept + 1;
        }
        let bytes = match self.layout.fixed_len() {
            Some(each) => (len * each) as u64,
            None => bucket[..len].iter().map(|e| self.len(*e) as u64).sum(),
        };
        SortedBucket { start, len, bytes, dropped }
    }
}

/// Distinct prefixes that cut a sample of the entries into equal parts.
fn choose_splitters(entries: &[Entry]) -> Vec<u64> {
    let wanted = (entries.len() / BUCKET).next_power_of_two().min(MAX_BUCKETS / 2) - 1;
    let samples = ((wanted + 1) * OVERSAMPLE).min(entries.len());
    // A stride that is odd and not a multiple of a page's records meets no period of the data.
    let step = (entries.len() / samples).max(1);
    let mut sample: Vec<u64> = entries.iter().step_by(step).map(|e| entry::prefix(*e)).collect();
    sample.sort_unstable();
    let mut splitters: Vec<u64> =
        (1..=wanted).map(|i| sample[(i * sample.len() / (wanted + 1)).min(sample.len() - 1)]).collect();
    splitters.dedup();
    splitters
}

/// Marks each entry with its bucket and counts the entries of each. Bucket 2i lies between
/// splitters i-1 and i; bucket 2i+1 is splitter i.
fn classify(entries: &mut [Entry], splitters: &[u64], counts: &mut [usize]) {
    // A complete tree in the order of its levels: the children of node i are 2i and 2i+1, so a walk
    // down has no branch.
    let leaves = (splitters.len() + 1).next_power_of_two();
    let levels = leaves.trailing_zeros();
    let mut padded = splitters.to_vec();
    padded.resize(leaves - 1, u64::MAX);
    let mut tree = vec![0u64; leaves.max(2)];
    fill_tree(&mut tree, &padded, 1);
    let last = splitters.len();
    let place = |e: &mut Entry, below: usize, counts: &mut [usize]| {
        let below = below.min(last);
        let equal = below < last && splitters[below] == entry::prefix(*e);
        let id = 2 * below + usize::from(equal);
        *e = entry::with_id(*e, id);
        counts[id] += 1;
    };
    // Several walks at once hide each other's latency.
    const WALKS: usize = 8;
    let (groups, rest) = entries.as_chunks_mut::<WALKS>();
    for group in groups {
        let mut at = [1usize; WALKS];
        for _ in 0..levels {
            for (at, e) in at.iter_mut().zip(group.iter()) {
                *at = 2 * *at + usize::from(tree[*at] < entry::prefix(*e));
            }
        }
        for (at, e) in at.iter().zip(group.iter_mut()) {
            place(e, at - leaves, counts);
        }
    }
    for e in rest {
        let below = splitters.partition_point(|s| *s < entry::prefix(*e));
        place(e, below, counts);
    }
}

/// Writes the sorted numbers in the order of the levels of a complete binary tree.
fn fill_tree(tree: &mut [u64], sorted: &[u64], node: usize) {
    if sorted.is_empty() || node >= tree.len() {
        return;
    }
    let middle = sorted.len() / 2;
    tree[node] = sorted[middle];
    fill_tree(tree, &sorted[..middle], 2 * node);
    fill_tree(tree, &sorted[middle + 1..], 2 * node + 1);
}
