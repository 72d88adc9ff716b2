//! Which bytes of a part were written: ranges that neither overlap nor touch, in order.
#![deny(clippy::arithmetic_side_effects)]

use std::ops::Range;

/// Ranges of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Covered(Vec<Range<u64>>);

impl Covered {
    /// Adds a range.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|have| have.end < range.start);
        let last = self.0.partition_point(|have| have.start <= range.end);
        let joined = match (self.0.get(first), last.checked_sub(1).and_then(|last| self.0.get(last))) {
            (Some(low), Some(high)) if first < last => range.start.min(low.start)..range.end.max(high.end),
            _ => range,
        };
        self.0.splice(first..last.max(first), [joined]);
    }

    /// Whether every byte up to `len` was added.
    pub(crate) fn is_whole(&self, len: u64) -> bool {
        matches!(self.0.as_slice(), [one] if one.start == 0 && one.end >= len) || len == 0
    }

    /// The ranges up to `len` that were not added.
    pub(crate) fn gaps(&self, len: u64) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for have in &self.0 {
            if have.start > at {
                gaps.push(at..have.start.min(len));
            }
            at = have.end;
        }
        if at < len {
            gaps.push(at..len);
        }
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes_testkit::{Random, seed};

    #[test]
    fn it_is_a_set_of_bytes() {
        let seed = seed(18);
        let mut random = Random(seed);
        for _ in 0..500 {
            let (mut covered, mut twin) = (Covered::default(), [false; 64]);
            for _ in 0..random.next() % 12 {
                let (a, b) = (random.next() % 65, random.next() % 65);
                covered.add(a.min(b)..a.max(b));
                twin[a.min(b) as usize..a.max(b) as usize].fill(true);
                let gaps = covered.gaps(64);
                for at in 0..64u64 {
                    assert_eq!(
                        gaps.iter().any(|gap| gap.contains(&at)),
                        !twin[at as usize],
                        "{covered:?} (seed {seed})"
                    );
                }
                assert_eq!(covered.is_whole(64), twin.iter().all(|have| *have), "{covered:?} (seed {seed})");
                assert!(covered.0.windows(2).all(|two| two[0].end < two[1].start), "{covered:?} (seed {seed})");
            }
        }
    }
}
