//! The checksums of ranges that were read, until they are the whole object.
#![deny(clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;

use crate::server::byte_sum::SumKind;

/// The most ranges that are kept; of an object that is read in more, no sum is made.
const MAX_RANGES: usize = 1 << 20;

/// What the ranges that were read say of the whole object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WholeSum {
    /// They are not the whole object yet.
    Open,
    /// Its sum.
    Known(u64),
    /// Two readings of the same bytes differ.
    Differs,
    /// There are too many of them.
    Lost,
}

/// Ranges that were read, in any order. Bytes may be read again, in other ranges: a command looks
/// at the beginning before it reads all. What was right once is compared again when it is read
/// again.
#[derive(Debug)]
pub(super) struct ReadSums {
    kind: SumKind,
    whole: u64,
    /// Sums by offset and length.
    ranges: BTreeMap<(u64, u64), u64>,
    /// Where ranges end that follow each other from the beginning, and the sum up to there.
    ends: BTreeMap<u64, u64>,
    differs: bool,
}

impl ReadSums {
    /// Begins with an object of `whole` bytes.
    pub(super) fn new(kind: SumKind, whole: u64) -> ReadSums {
        ReadSums { kind, whole, ranges: BTreeMap::new(), ends: BTreeMap::from([(0, 0)]), differs: false }
    }

    /// Notes a range. The same range that is read again counts in the place of the one before.
    pub(super) fn note(&mut self, at: u64, len: u64, sum: u64) -> WholeSum {
        if len == 0 {
            return self.says();
        }
        match self.ranges.insert((at, len), sum) {
            Some(before) if before == sum => {}
            None if self.ranges.len() > MAX_RANGES => return WholeSum::Lost,
            None => self.follow(at, Some((len, sum))),
            Some(_) => {
                // What followed from the one before is gone.
                (self.ends, self.differs) = (BTreeMap::from([(0, 0)]), false);
                self.follow(0, None);
            }
        }
        self.says()
    }

    fn says(&self) -> WholeSum {
        match self.ends.get(&self.whole) {
            _ if self.differs => WholeSum::Differs,
            Some(sum) if self.whole > 0 => WholeSum::Known(*sum),
            _ => WholeSum::Open,
        }
    }

    /// Follows the ranges from an end: one of them, or all.
    fn follow(&mut self, from: u64, one: Option<(u64, u64)>) {
        let mut left: Vec<(u64, u64, u64)> = match one {
            Some((len, sum)) => vec![(from, len, sum)],
            None => self.at(from),
        };
        while let Some((at, len, sum)) = left.pop() {
            let Some(before) = self.ends.get(&at).copied() else { continue };
            let (end, sum) = (at.saturating_add(len), if at == 0 { sum } else { self.kind.join(before, sum, len) });
            match self.ends.insert(end, sum) {
                None => left.append(&mut self.at(end)),
                Some(other) => self.differs |= other != sum,
            }
        }
    }

    /// The ranges that begin at an offset.
    fn at(&self, at: u64) -> Vec<(u64, u64, u64)> {
        self.ranges.range((at, 0)..=(at, u64::MAX)).map(|((at, len), sum)| (*at, *len, *sum)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes_testkit::{Random, seed};

    const KIND: SumKind = SumKind::Crc64;

    /// Notes ranges of bytes, and returns what the last one says.
    fn noted(sums: &mut ReadSums, bytes: &[u8], ranges: &[(usize, usize)]) -> WholeSum {
        let mut says = WholeSum::Open;
        for (at, end) in ranges {
            says = sums.note(*at as u64, bytes[*at..*end].len() as u64, KIND.of(&bytes[*at..*end]));
        }
        says
    }

    #[test]
    fn a_whole_pass_is_known_whatever_was_read_before() {
        let seed = seed(41);
        let mut random = Random(seed);
        for _ in 0..200 {
            let bytes = random.bytes(100);
            let mut sums = ReadSums::new(KIND, 100);
            for _ in 0..random.below(6) {
                let at = random.below(100);
                let end = at + random.below(101 - at);
                noted(&mut sums, &bytes, &[(at, end)]);
            }
            let mut cuts = vec![0, 100];
            cuts.extend((0..random.below(5)).map(|_| random.below(100)));
            cuts.sort_unstable();
            cuts.dedup();
            let mut pass: Vec<(usize, usize)> = cuts.windows(2).map(|two| (two[0], two[1])).collect();
            if random.below(2) == 1 {
                pass.reverse();
            }
            assert_eq!(noted(&mut sums, &bytes, &pass), WholeSum::Known(KIND.of(&bytes)), "{pass:?} (seed {seed})");
        }
    }

    #[test]
    fn ranges_with_gaps_are_not_the_whole() {
        let bytes = Random(1).bytes(100);
        let mut sums = ReadSums::new(KIND, 100);
        assert_eq!(noted(&mut sums, &bytes, &[(0, 60), (70, 100), (10, 60), (65, 100)]), WholeSum::Open);
        assert_eq!(noted(&mut sums, &bytes, &[(60, 65)]), WholeSum::Known(KIND.of(&bytes)));
    }

    #[test]
    fn damage_stays_until_the_same_bytes_come_whole() {
        let (good, mut bad) = (Random(2).bytes(100), Random(2).bytes(100));
        bad[3] ^= 1;
        let mut sums = ReadSums::new(KIND, 100);
        let wrong = WholeSum::Known(KIND.of(&bad));
        assert_eq!(noted(&mut sums, &bad, &[(0, 100)]), wrong);
        assert_eq!(noted(&mut sums, &bad, &[(0, 100)]), wrong);
        assert_eq!(noted(&mut sums, &good, &[(0, 100)]), WholeSum::Known(KIND.of(&good)));
        // It was right, and is not any more.
        assert_eq!(noted(&mut sums, &bad, &[(50, 100), (0, 50)]), WholeSum::Differs);
        assert_eq!(noted(&mut sums, &good, &[(0, 50)]), WholeSum::Known(KIND.of(&good)));
    }
}
