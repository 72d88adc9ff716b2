//! Little-endian numbers in eight distributions.

use super::random;

/// The type of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NumberType {
    /// Unsigned, four bytes.
    U32,
    /// Unsigned, eight bytes.
    U64,
    /// Two's complement, eight bytes.
    I64,
    /// IEEE 754 double precision, eight bytes; finite values between minus and plus one million.
    F64,
}

impl NumberType {
    /// Returns the bytes of a number.
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::U32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// The distribution of numbers over their type's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Every value is equally likely.
    Uniform,
    /// The k-th most frequent of a million values has a frequency proportional to 1/k (within a
    /// factor of two).
    Zipf,
    /// One hundred values.
    FewDistinct,
    /// Four of five numbers are the same.
    Hot,
    /// Numbers in ascending order.
    Sorted,
    /// Numbers in descending order.
    Reverse,
    /// Numbers in ascending order, except that one in a hundred is out of place.
    NearlySorted,
    /// One value.
    AllEqual,
}

/// The stream that a range of numbers is a part of.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberSource {
    pub(super) number: NumberType,
    pub(super) distribution: Distribution,
    pub(super) seed: u64,
    /// Numbers in the whole stream; ordered distributions spread their values over it.
    pub(super) records: u64,
}

/// The number of powers of two that the zipf-like ranks cover: 2^20 values.
const ZIPF_OCTAVES: u64 = 20;

impl NumberSource {
    /// Fills `out` with whole numbers from number `index` of the stream on.
    pub(super) fn fill(&self, index: u64, out: &mut [u8]) {
        // Every arm passes a different closure, so that each distribution has its own tight loop.
        let seed = self.seed;
        let step = u64::MAX / self.records.max(1);
        let random = move |index| random::at_index(seed, index);
        let value = random::mix(!seed);
        let ascending = move |index: u64| index.wrapping_mul(step).wrapping_add(random::below(random(index), step));
        match self.distribution {
            Distribution::Uniform => self.fill_with(index, out, random),
            Distribution::Zipf => self.fill_with(index, out, move |index| random::mix(seed ^ zipf_rank(random(index)))),
            Distribution::FewDistinct => {
                self.fill_with(index, out, move |index| random::mix(seed ^ (random::below(random(index), 100) + 1)));
            }
            Distribution::Hot => self.fill_with(index, out, move |index| {
                let random = random(index);
                if random::below(random, 5) == 0 { random::mix(random) } else { value }
            }),
            Distribution::Sorted => self.fill_with(index, out, ascending),
            Distribution::Reverse => self.fill_with(index, out, move |index| !ascending(index)),
            Distribution::NearlySorted => self.fill_with(index, out, move |index| {
                let random = random::mix(random(index));
                if random::below(random, 100) == 0 { random::mix(random) } else { ascending(index) }
            }),
            Distribution::AllEqual => self.fill_with(index, out, move |_| value),
        }
    }

    /// Maps ranks in `0..2^64` to the number type, and keeps their order.
    #[inline]
    fn fill_with(&self, index: u64, out: &mut [u8], rank: impl Fn(u64) -> u64) {
        match self.number {
            NumberType::U32 => fill_chunks(index, out, |index| ((rank(index) >> 32) as u32).to_le_bytes()),
            NumberType::U64 => fill_chunks(index, out, |index| rank(index).to_le_bytes()),
            NumberType::I64 => fill_chunks(index, out, |index| (rank(index) ^ (1 << 63)).to_le_bytes()),
            NumberType::F64 => fill_chunks(index, out, |index| {
                // A double holds 53 bits exactly, so the conversion cannot change the order.
                let unit = (rank(index) >> 11) as f64 / (1u64 << 53) as f64;
                ((unit - 0.5) * 2e6).to_le_bytes()
            }),
        }
    }
}

#[inline]
fn fill_chunks<const N: usize>(index: u64, out: &mut [u8], number: impl Fn(u64) -> [u8; N]) {
    let (chunks, rest) = out.as_chunks_mut::<N>();
    assert!(rest.is_empty(), "a range of whole numbers");
    for (index, chunk) in (index..).zip(chunks) {
        *chunk = number(index);
    }
}

/// Returns a rank from 1 on: each power of two is equally likely, and so is each rank within it.
#[inline]
fn zipf_rank(random: u64) -> u64 {
    let octave = random::below(random, ZIPF_OCTAVES);
    let base = 1 << octave;
    base | (random & (base - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn numbers(number: NumberType, distribution: Distribution) -> Vec<u64> {
        let source = NumberSource { number, distribution, seed: 5, records: 10_000 };
        let mut bytes = vec![0; 10_000 * number.len_bytes()];
        source.fill(0, &mut bytes);
        bytes
            .chunks_exact(number.len_bytes())
            .map(|chunk| {
                let mut wide = [0; 8];
                wide[..chunk.len()].copy_from_slice(chunk);
                let bits = u64::from_le_bytes(wide);
                match number {
                    NumberType::U32 | NumberType::U64 => bits,
                    NumberType::I64 => bits ^ (1 << 63),
                    // Any order-preserving image will do; the values stay far below 2^32 after the
                    // shift.
                    NumberType::F64 => ((f64::from_bits(bits) + 1e6) * 1e6) as u64,
                }
            })
            .collect()
    }

    fn most_frequent(numbers: &[u64]) -> (usize, usize) {
        let mut counts = HashMap::new();
        numbers.iter().for_each(|number| *counts.entry(number).or_insert(0usize) += 1);
        (counts.len(), counts.values().copied().max().unwrap_or(0))
    }

    #[test]
    fn distributions_are_what_they_say() {
        for number in [NumberType::U32, NumberType::U64, NumberType::I64, NumberType::F64] {
            let of = |distribution| numbers(number, distribution);
            assert!(of(Distribution::Sorted).is_sorted());
            assert!(of(Distribution::Reverse).iter().rev().is_sorted());
            assert_eq!(most_frequent(&of(Distribution::AllEqual)).0, 1);
            assert_eq!(most_frequent(&of(Distribution::FewDistinct)).0, 100);
            assert!(most_frequent(&of(Distribution::Uniform)).0 > 9_990);
            let (distinct, most) = most_frequent(&of(Distribution::Hot));
            assert!((7_800..8_200).contains(&most) && distinct > 1_800, "{distinct} {most}");
            let (distinct, most) = most_frequent(&of(Distribution::Zipf));
            assert!((400..600).contains(&most) && distinct > 2_000, "{distinct} {most}");
            let descents = of(Distribution::NearlySorted).windows(2).filter(|pair| pair[0] > pair[1]).count();
            assert!((50..200).contains(&descents), "{descents}");
        }
    }
}
