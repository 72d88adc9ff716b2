//! Unused bytes of a place, as ranges that are never adjacent.

use std::collections::BTreeMap;
use std::ops::Range;

/// Places are divided at multiples of this: the page size, which direct I/O accepts everywhere.
pub(in crate::locator) const GRAIN: u64 = 4096;

/// Lengths by start offset.
#[derive(Clone, Debug, Default)]
pub(super) struct Holes(BTreeMap<u64, u64>);

impl Holes {
    pub(super) fn of(range: Range<u64>) -> Holes {
        let mut holes = Holes::default();
        holes.put(range);
        holes
    }

    pub(super) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, len)| *start..start + len)
    }

    /// Takes the first `len` contiguous bytes whose start is congruent to `like` modulo the grain.
    /// So bytes that are aligned in the staging are aligned in the place.
    pub(super) fn take(&mut self, len: u64, like: u64) -> Option<Range<u64>> {
        let fits = |(&start, &hole): (&u64, &u64)| {
            let skip = skip(start, like);
            (skip <= hole && hole - skip >= len).then_some(start + skip)
        };
        let start = self.0.iter().find_map(fits)?;
        Some(self.cut(start..start + len))
    }

    /// Takes the longest piece that starts as in `take` and has at least `least` bytes, but no more
    /// than `len`.
    pub(super) fn take_some(&mut self, len: u64, least: u64, like: u64) -> Option<Range<u64>> {
        let usable = |(&start, &hole): (&u64, &u64)| {
            let skip = skip(start, like);
            (hole.saturating_sub(skip), start + skip)
        };
        let (room, start) = self.0.iter().map(usable).max()?;
        (room >= least.max(1)).then(|| self.cut(start..start + room.min(len)))
    }

    /// Returns a range. It must not overlap a hole.
    pub(super) fn put(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        if let Some((&before, &len)) = self.0.range(..=start).next_back()
            && before + len >= start
        {
            debug_assert!(before + len == start, "bytes from {start} are returned twice");
            self.0.remove(&before);
            start = before;
        }
        if let Some((&after, &len)) = self.0.range(start..).next()
            && after <= end
        {
            debug_assert!(after == end, "bytes up to {end} are returned twice");
            self.0.remove(&after);
            end = after + len;
        }
        self.0.insert(start, end - start);
    }

    fn cut(&mut self, range: Range<u64>) -> Range<u64> {
        if let Some((&start, &len)) = self.0.range(..=range.start).next_back() {
            self.0.remove(&start);
            let end = start + len;
            if start < range.start {
                self.0.insert(start, range.start - start);
            }
            if range.end < end {
                self.0.insert(range.end, end - range.end);
            }
        }
        range
    }
}

/// Bytes from `start` to the next offset that is congruent to `like`.
fn skip(start: u64, like: u64) -> u64 {
    (like % GRAIN + GRAIN - start % GRAIN) % GRAIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_congruent_and_come_together_again() {
        let mut holes = Holes::of(0..20_000);
        assert_eq!(holes.take(100, 4096 + 7), Some(7..107));
        assert_eq!(holes.take(8192, 0), Some(4096..12288));
        assert_eq!(holes.take(8192, 0), None);
        assert_eq!(holes.take_some(8192, 1, 0), Some(12288..20000));
        assert_eq!(holes.total(), 7 + 4096 - 107);
        for range in [12288..20000, 7..107, 4096..12288] {
            holes.put(range);
        }
        assert_eq!(holes.take(20_000, 0), Some(0..20_000));
        assert_eq!((holes.take(1, 0), holes.take_some(1, 1, 0), holes.total()), (None, None, 0));
    }
}
