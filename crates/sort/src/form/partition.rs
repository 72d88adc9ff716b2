//! Distributing entries over buckets, on all cores.
//!
//! ```text
//! partition(entries):
//!     take splitters from a sample of prefixes      (a splitter's own value gets its own bucket)
//!     each core, its stripe: classify, count, scatter into the scratch memory
//! ```

#![allow(unsafe_code)]

use crate::form::slot_sorter::SlotSorter;
use crate::memory::parallel::{Disjoint, run_on_threads};
use crate::records::entry::{self, Entry, MAX_BUCKETS};
use crate::records::layout::Layout;
use crate::records::memo::Scope;

/// The intended number of entries in a bucket: 64 KiB, well within L2.
const BUCKET: usize = 1 << 12;
/// The number of sampled entries for each splitter.
const OVERSAMPLE: usize = 8;

/// The buckets of distributed entries.
pub(super) struct Partition {
    /// Bucket `i` has the entries `bounds[i]..bounds[i + 1]`.
    pub(super) bounds: Vec<usize>,
    /// The bytes of each bucket's records.
    pub(super) bytes: Vec<u64>,
}

/// The entries of a bucket in one stripe, and the bytes of their records.
#[derive(Clone, Copy, Default)]
struct Count {
    entries: usize,
    bytes: u64,
}

impl<L: Layout> SlotSorter<'_, L> {
    /// Distributes `entries` over buckets in `scratch`, each in the order of the input. `reversed`
    /// says that the entries are those of a slot, which grow downwards in memory.
    pub(super) fn partition(&self, entries: &mut [Entry], scratch: &mut [Entry], reversed: bool) -> Partition {
        let splitters = choose_splitters(entries);
        let buckets = 2 * splitters.len() + 1;
        let stripe = entries.len().div_ceil(self.threads);
        let stripes = entries.len().div_ceil(stripe);
        let mut counts = vec![Count::default(); stripes * buckets];
        {
            let all = Disjoint::new(entries);
            let counts = Disjoint::new(&mut counts);
            run_on_threads(stripes, |t| {
                let _scope = Scope::enter();
                // SAFETY: stripe t of the entries, and row t of the counts, are this thread's
                // alone.
                let (part, count) = unsafe {
                    (all.slice(t * stripe, stripe.min(all.len() - t * stripe)), counts.slice(t * buckets, buckets))
                };
                classify(part, &splitters, |id, e| {
                    count[id].entries += 1;
                    count[id].bytes += self.len(e) as u64;
                });
            });
        }
        let mut bounds = Vec::with_capacity(buckets + 1);
        let mut bytes = vec![0; buckets];
        let mut at = 0;
        for b in 0..buckets {
            bounds.push(at);
            for t in 0..stripes {
                let t = if reversed { stripes - 1 - t } else { t };
                let count = &mut counts[t * buckets + b];
                bytes[b] += count.bytes;
                at += std::mem::replace(&mut count.entries, at);
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
                let at = &mut position[entry::id(e)].entries;
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
        Partition { bounds, bytes }
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

/// Marks each entry with its bucket, and calls `count` with both. Bucket 2i lies between splitters
/// i-1 and i; bucket 2i+1 is splitter i.
fn classify(entries: &mut [Entry], splitters: &[u64], mut count: impl FnMut(usize, Entry)) {
    // A complete tree in the order of its levels: the children of node i are 2i and 2i+1, so a walk
    // down has no branch.
    let leaves = (splitters.len() + 1).next_power_of_two();
    let levels = leaves.trailing_zeros();
    let mut padded = splitters.to_vec();
    padded.resize(leaves - 1, u64::MAX);
    let mut tree = vec![0u64; leaves.max(2)];
    fill_tree(&mut tree, &padded, 1);
    let last = splitters.len();
    let mut place = |e: &mut Entry, below: usize| {
        let below = below.min(last);
        let equal = below < last && splitters[below] == entry::prefix(*e);
        let id = 2 * below + usize::from(equal);
        count(id, *e);
        *e = entry::with_id(*e, id);
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
            place(e, at - leaves);
        }
    }
    for e in rest {
        let below = splitters.partition_point(|s| *s < entry::prefix(*e));
        place(e, below);
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
