//! The two sources of randomness: gensort's generator with skip-ahead, and a mixer that gives the
//! number of any index.

/// gensort's 128-bit linear congruential generator: `x -> A * x + C (mod 2^128)`, started from
/// zero.
///
/// Record `n` uses the value after `n + 1` steps. Any number is reached in at most 128
/// multiplications, so a thread can start anywhere without generating what lies before. The
/// constants are those of `rand16.c` in gensort (C. Nyberg, sort benchmark). The top bytes of `C`
/// spell "JimGrayRIP", so the first record begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lcg(u128);

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
const INCREMENT: u128 = 0x4a69_6d47_7261_7952_4950_2020_2020_2001;

impl Lcg {
    /// Returns the state whose [`value`](Self::value) belongs to record `record`.
    pub(super) fn at_record(record: u128) -> Self {
        // x -> a*x + c composed with itself is x -> a^2*x + (a*c + c): it is squared for each bit,
        // and applied if the bit is set.
        let mut state = 0u128;
        let (mut multiplier, mut increment) = (MULTIPLIER, INCREMENT);
        let mut steps = record;
        while steps != 0 {
            if steps & 1 == 1 {
                state = multiplier.wrapping_mul(state).wrapping_add(increment);
            }
            increment = multiplier.wrapping_mul(increment).wrapping_add(increment);
            multiplier = multiplier.wrapping_mul(multiplier);
            steps >>= 1;
        }
        // The last step is separate, because `record + 1` may overflow.
        let mut lcg = Self(state);
        lcg.advance();
        lcg
    }

    /// Returns the current number.
    #[inline]
    pub(super) fn value(self) -> u128 {
        self.0
    }

    /// Goes on to the next record's number.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.0 = MULTIPLIER.wrapping_mul(self.0).wrapping_add(INCREMENT);
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection that scatters neighbouring integers over all 64-bit numbers (the finalizer of
/// SplitMix64).
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Returns the random number of an index of a seeded stream (SplitMix64, addressed instead of
/// advanced).
#[inline]
pub(crate) fn at_index(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// Returns `random` scaled to `0..bound`, without a division.
#[inline]
pub(crate) fn below(random: u64, bound: u64) -> u64 {
    ((u128::from(random) * u128::from(bound)) >> 64) as u64
}

/// A sequential SplitMix64 stream.
#[derive(Clone, Debug)]
pub(crate) struct Stream(u64);

impl Stream {
    /// Returns the stream of one block; blocks of one seed are independent of each other.
    pub(crate) fn of_block(seed: u64, block: u64) -> Self {
        Self(mix(seed ^ mix(block.wrapping_add(GOLDEN))))
    }

    /// Returns the next 64 random bits.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Returns a number in `0..bound`.
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        below(self.next(), bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipping_equals_stepping() {
        for start in [0u128, 1, 7, 1 << 40, u128::from(u64::MAX) - 3, u128::MAX - 9] {
            let mut stepped = Lcg::at_record(start);
            for ahead in 0..40 {
                assert_eq!(stepped, Lcg::at_record(start.wrapping_add(ahead)), "{start} + {ahead}");
                stepped.advance();
            }
        }
    }

    #[test]
    fn powers_of_two_match_the_published_table() {
        // `Gen[k].c` of rand16.c is the number after 2^k steps from zero, which is that of record
        // 2^k - 1.
        for (power, high) in [(1, 0x95e0_e482_62b3_edfe_u64), (7, 0x98a2_542f_d23d_0dbd), (64, 0xf0b1_944b_fd71_a97f)] {
            assert_eq!((Lcg::at_record((1u128 << power) - 1).value() >> 64) as u64, high, "2^{power}");
        }
    }
}
