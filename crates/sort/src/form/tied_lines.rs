//! Ordering lines whose prefixes are equal.
//!
//! ```text
//! while there is a group of lines that agree in `depth` bytes:
//!     a pair is compared from there on
//!     otherwise load the next eight bytes of each line, and sort these numbers
//!     for each group of equal numbers:
//!         lines that end there come first, the shorter before the longer   (zeros look like an end)
//!         the others agree in `depth + 8` bytes
//! ```
//! So no byte of a line is compared twice.

#![allow(unsafe_code)]

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::form::slot_sorter::SlotSorter;
use crate::memory::parallel::{Disjoint, run_on_threads};
use crate::numbers::vector;
use crate::records::entry::{self, Entry};
use crate::records::layout::Layout;
use crate::records::offset_value::Coding;
use crate::records::prefetch::prefetch;

/// How many entries ahead a line is prefetched.
const AHEAD: usize = 40;

/// How many ties ahead the first lines of one are prefetched.
const TIES_AHEAD: usize = 12;

/// Entries whose lines agree in the first `depth` bytes, and have at least as many.
struct Tie {
    range: Range<usize>,
    depth: usize,
}

impl<L: Layout> SlotSorter<'_, L> {
    /// Orders each group of equal prefixes among sorted entries. The lines of a group agree in the
    /// first `depth` bytes, and in their prefixes behind these.
    pub(super) fn sort_tied_lines(&self, coding: Coding, entries: &mut [Entry], depth: usize) {
        let mut ties = Vec::new();
        let (mut from, mut fetched) = (0, 1);
        while let Some(tie) = next_group(entries, from..entries.len()) {
            from = tie.end;
            self.fetch_tied(entries, &mut fetched, from + AHEAD, depth + 8);
            if self.may_be_other(entries[tie.start], depth) {
                ties.push(Tie { range: tie, depth: 0 });
            } else {
                self.tell_apart(coding, entries, tie, depth + 8, &mut ties);
            }
            while let Some(Tie { range, depth }) = ties.pop() {
                if let Some(soon) = ties.len().checked_sub(TIES_AHEAD).and_then(|at| ties.get(at)) {
                    for e in entries.get(soon.range.clone()).unwrap_or_default().iter().take(2) {
                        prefetch(self.raw, entry::offset(*e) + soon.depth);
                    }
                }
                if range.len() == 2 {
                    self.order_pair(coding, &mut entries[range], depth);
                    continue;
                }
                let depth = self.sort_by_next_word(coding, entries, range.clone(), depth);
                let mut from = range.start;
                while let Some(tie) = next_group(entries, from..range.end) {
                    from = tie.end;
                    self.tell_apart(coding, entries, tie, depth, &mut ties);
                }
            }
        }
    }

    #[inline]
    fn line(&self, e: Entry) -> &[u8] {
        self.layout.coded_bytes(self.record(e))
    }

    fn order_pair(&self, coding: Coding, pair: &mut [Entry], depth: usize) {
        let (a, b) = (self.line(pair[0]), self.line(pair[1]));
        let agreed = coding.agreed(a, b, depth);
        let is_same = agreed == a.len() && agreed == b.len();
        let order = match coding.is_folded() && is_same {
            true => self.layout.compare(self.record(pair[0]), self.record(pair[1])),
            false => coding.order_at(a, b, agreed),
        };
        // Equal lines keep the order of the input.
        if order.then((pair[0] as u64).cmp(&(pair[1] as u64))) == Ordering::Greater {
            pair.swap(0, 1);
        }
        if is_same && self.unique {
            pair[1] = entry::repeated(pair[1]);
        }
    }

    /// Sorts entries of a tie by eight bytes of their lines, from `depth` on or, if all lines agree
    /// there, behind the bytes in which they agree. Returns the depth behind these eight bytes.
    fn sort_by_next_word(&self, coding: Coding, entries: &mut [Entry], range: Range<usize>, depth: usize) -> usize {
        let mut depth = depth;
        while !self.load_words(coding, entries, range.clone(), depth) {
            let agreed = self.agreed(coding, entries[range.start], &entries[range.clone()], depth);
            if agreed < depth + 8 {
                break;
            }
            depth = agreed;
        }
        sort_by_prefix(&mut entries[range]);
        depth + 8
    }

    /// Makes the words at `depth` the entries' prefixes. Returns whether they differ.
    fn load_words(&self, coding: Coding, entries: &mut [Entry], range: Range<usize>, depth: usize) -> bool {
        let (mut some, mut all) = (0, u64::MAX);
        for i in range {
            if let Some(ahead) = entries.get(i + AHEAD) {
                prefetch(self.raw, entry::offset(*ahead) + depth);
            }
            let line = self.line(entries[i]);
            let word = coding.word(line, depth);
            some |= word;
            all &= word;
            entries[i] = entry::with_prefix(entries[i], coding.directed(word));
        }
        some != all
    }

    /// Puts lines of equal words that end within `depth` bytes in order, and notes the others as
    /// a tie.
    fn tell_apart(&self, coding: Coding, entries: &mut [Entry], tie: Range<usize>, depth: usize, ties: &mut Vec<Tie>) {
        let others = self.settle_ended(coding, &mut entries[tie.clone()], depth, &mut []);
        let range = tie.start + others.start..tie.start + others.end;
        if range.len() > 1 {
            ties.push(Tie { range, depth });
        }
    }

    /// Puts lines of equal words that end within `depth` bytes in order, before the others (or
    /// behind them, if the order is descending). Returns the range of the others. If duplicates
    /// are to be dropped, those among the lines that end are marked. With as many entries of
    /// scratch memory in `room` as the tie has, all cores work on what is too large for one.
    pub(super) fn settle_ended(
        &self,
        coding: Coding,
        tie: &mut [Entry],
        depth: usize,
        room: &mut [Entry],
    ) -> Range<usize> {
        let word = coding.directed(entry::prefix(tie[0]));
        if word & 0xff != 0 {
            return 0..tie.len();
        }
        let mut ended = 0;
        for e in &mut *tie {
            let len = self.line(*e).len();
            ended += usize::from(len <= depth);
            *e = entry::with_prefix(*e, coding.directed(if len <= depth { len as u64 } else { u64::MAX }));
        }
        // Of equal lengths, the entry that is earlier in the input comes first.
        if !tie.is_sorted() {
            vector::sort_u128(tie);
        }
        let (those, others) = match coding.is_descending() {
            true => (tie.len() - ended..tie.len(), 0..tie.len() - ended),
            false => (0..ended, ended..tie.len()),
        };
        if coding.is_folded() {
            for group in tie[those.clone()].chunk_by_mut(|a, b| entry::prefix(*a) == entry::prefix(*b)) {
                self.sort_by_case(coding, group, room);
            }
        }
        if self.unique {
            // They agree in all bytes that are there, so those of one length are the same.
            let those = &mut tie[those];
            for i in 1..those.len() {
                if entry::prefix(those[i - 1]) == entry::prefix(those[i]) {
                    those[i] = entry::repeated(those[i]);
                }
            }
        }
        others
    }

    /// Orders lines that are the same once their letters are folded.
    fn sort_by_case(&self, coding: Coding, group: &mut [Entry], room: &mut [Entry]) {
        if group.len() < 2 {
            return;
        }
        let plain = self.layout.tie_break().filter(|_| coding.tie_order(self.line(group[0])).is_some());
        let Some(plain) = plain else {
            // They are in the order of the input already, unless they are very long.
            group.sort_by(|a, b| self.compare(*a, *b));
            return;
        };
        let (threads, is_giant) = if group.len() > self.giant(group.len()) && room.len() >= group.len() {
            (self.threads, true)
        } else {
            (1, false)
        };
        let plain = SlotSorter { layout: &plain, raw: self.raw, threads, unique: false, depth: 0 };
        let Some(coding) = plain.layout.coding() else { return };
        let depth = plain.load_first_difference(coding, group, 0);
        if is_giant {
            plain.repartition(group, &mut room[..group.len()], depth);
        } else {
            plain.sort_bucket(group, depth);
        }
    }

    /// Makes words of the lines the entries' prefixes: those behind all bytes in which the lines
    /// agree. They agree in `depth` bytes, and have at least as many. All cores work on it. Returns
    /// the depth of the words.
    pub(super) fn load_first_difference(&self, coding: Coding, entries: &mut [Entry], depth: usize) -> usize {
        let stripe = entries.len().div_ceil(self.threads).max(1);
        let stripes = entries.len().div_ceil(stripe);
        let agreed = AtomicUsize::new(usize::MAX);
        let shared = &*entries;
        run_on_threads(stripes, |t| {
            let part = &shared[t * stripe..shared.len().min((t + 1) * stripe)];
            agreed.fetch_min(self.agreed(coding, shared[0], part, depth), Relaxed);
        });
        let depth = agreed.into_inner();
        let all = Disjoint::new(entries);
        run_on_threads(stripes, |t| {
            // SAFETY: stripe t is this thread's alone.
            let part = unsafe { all.slice(t * stripe, stripe.min(all.len() - t * stripe)) };
            let len = part.len();
            self.load_words(coding, part, 0..len, depth);
        });
        depth
    }

    /// The number of bytes in which all lines agree with the first. They agree in `depth` bytes.
    fn agreed(&self, coding: Coding, first: Entry, others: &[Entry], depth: usize) -> usize {
        let first = self.line(first);
        others.iter().enumerate().fold(first.len(), |agreed, (i, e)| {
            if let Some(ahead) = others.get(i + AHEAD) {
                prefetch(self.raw, entry::offset(*ahead) + depth);
            }
            coding.agreed(&first[..agreed], self.line(*e), depth)
        })
    }
}

/// Sorts entries by their prefixes. Those of equal prefixes are in any order: whatever tells them
/// apart looks at their places in the input too.
#[inline]
pub(super) fn sort_by_prefix(entries: &mut [Entry]) {
    // In vector registers places cost nothing. Else a comparison of prefixes is cheaper than one of
    // whole entries, and groups of equal prefixes are done early.
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        return vector::sort_u128(entries);
    }
    entries.sort_unstable_by_key(|e| entry::prefix(*e));
}

/// The first group of two or more equal prefixes.
#[inline]
fn next_group(entries: &[Entry], range: Range<usize>) -> Option<Range<usize>> {
    let mut from = range.start;
    while from + 1 < range.end {
        let prefix = entry::prefix(entries[from]);
        let mut to = from + 1;
        while to < range.end && entry::prefix(entries[to]) == prefix {
            to += 1;
        }
        if to - from > 1 {
            return Some(from..to);
        }
        from = to;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::form::shared_start::{Prefix, SharedStart};
    use crate::records::layout::PlainLines;
    use crate::records::tally::Tally;

    /// Sorts lines as a slot does, and returns the numbers that they had in the input.
    fn order(lines: &[Vec<u8>], reverse: bool, threads: usize, unique: bool) -> Vec<usize> {
        order_behind(b"", lines, reverse, threads, unique)
    }

    /// Does the same with prefixes from behind some bytes.
    fn order_behind(skipped: &[u8], lines: &[Vec<u8>], reverse: bool, threads: usize, unique: bool) -> Vec<usize> {
        let shared = SharedStart::of(skipped);
        let layout = PlainLines::new(b'\n', reverse);
        let (mut raw, mut starts) = (Vec::new(), Vec::new());
        for line in lines {
            starts.push(raw.len());
            raw.extend_from_slice(line);
            raw.push(b'\n');
        }
        // The entries of a slot grow downwards.
        let mut entries: Vec<Entry> = lines
            .iter()
            .zip(&starts)
            .rev()
            .map(|(line, start)| {
                let end = start + line.len() + 1;
                let (Prefix::Alike(prefix) | Prefix::Other(prefix)) = shared.prefix(&layout, &raw[*start..end]);
                entry::entry(prefix, *start, end - start)
            })
            .collect();
        let mut scratch = vec![0; entries.len()];
        let sorter = SlotSorter { layout: &layout, raw: &raw, threads, unique, depth: skipped.len() };
        let mut read = Tally::default();
        entries.iter().for_each(|e| read.add(sorter.record(*e)));
        let buckets = sorter.divide(&mut entries, &mut scratch);
        let (mut written, mut dropped) = (Tally::default(), Tally::default());
        for bucket in &buckets {
            dropped.join(bucket.dropped);
            bucket.entries(&sorter).iter().for_each(|e| written.add(sorter.record(*e)));
        }
        read.verify(written, dropped).unwrap();
        let sorted = buckets.iter().flat_map(|bucket| bucket.entries(&sorter).to_vec());
        sorted.map(|e| starts.partition_point(|start| *start < entry::offset(e))).collect()
    }

    fn expected(lines: &[Vec<u8>], reverse: bool, unique: bool) -> Vec<usize> {
        let mut order: Vec<usize> = (0..lines.len()).collect();
        order.sort_by(|a, b| if reverse { lines[*b].cmp(&lines[*a]) } else { lines[*a].cmp(&lines[*b]) });
        if unique {
            order.dedup_by(|next, kept| lines[*next] == lines[*kept]);
        }
        order
    }

    /// Lines that share long prefixes, end near multiples of eight, and have zeros there.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        let tail = proptest::collection::vec(prop_oneof![Just(0u8), Just(0), Just(b'a'), Just(0xff)], 0..10);
        (prop_oneof![Just(0usize), Just(16), 0usize..30], tail)
            .prop_map(|(common, tail)| [&vec![b'a'; common][..], &tail].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn as_a_stable_sort(lines in proptest::collection::vec(line(), 0..40), reverse in any::<bool>()) {
            for unique in [false, true] {
                let expected = expected(&lines, reverse, unique);
                for skipped in ["", "aaaaaaa", "aaaaaaaaaaaaaaaa"] {
                    prop_assert_eq!(&order_behind(skipped.as_bytes(), &lines, reverse, 1, unique), &expected);
                }
            }
        }
    }

    #[test]
    fn groups_that_all_cores_sort() {
        let number = |i: usize| i.wrapping_mul(0x9e37_79b9) % 1_000_003;
        let with = |tail: Vec<u8>| [&b"twenty bytes for all"[..], &tail].concat();
        let lines_of = |line: &dyn Fn(usize) -> Vec<u8>| (0..150_000).map(line).collect::<Vec<_>>();
        for (name, lines) in [
            ("numbers", lines_of(&|i| with(number(i).to_string().into_bytes()))),
            ("zeros", lines_of(&|i| with(vec![0; number(i) % 50]))),
            ("equal", lines_of(&|_| with(Vec::new()))),
            ("most end", lines_of(&|i| if i % 100 == 0 { with(vec![b'x'; i % 30]) } else { b"twenty b".to_vec() })),
            ("in order", lines_of(&|i| with(format!("{i:09}").into_bytes()))),
        ] {
            for reverse in [false, true] {
                for (threads, unique) in [(1, false), (3, false), (3, true)] {
                    assert!(
                        order(&lines, reverse, threads, unique) == expected(&lines, reverse, unique),
                        "{name}, reverse {reverse}, {threads} threads, unique {unique}"
                    );
                    for skipped in ["twenty bytes for all", "x"] {
                        assert!(
                            order_behind(skipped.as_bytes(), &lines, reverse, threads, unique)
                                == expected(&lines, reverse, unique),
                            "{name} behind {skipped}, reverse {reverse}, {threads} threads, unique {unique}"
                        );
                    }
                }
            }
        }
    }
}
