//! 4 numbers of 128 bits, with the high words in one register and the low words in another.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::instructions::Avx2;
use super::super::lanes::Lanes;
use super::super::pairs::high;
use super::rest::store_some_apart;
use super::words64::Words64;

/// 4 numbers of 128 bits, ordered as a whole or by the high word only. In memory the words
/// alternate, low word first; loads separate them and stores interleave them.
#[derive(Clone, Copy)]
pub(in super::super) struct Words128<const WHOLE: bool>(Words64);

/// The high and the low words of 4 numbers.
#[derive(Clone, Copy)]
pub(in super::super) struct Pair {
    high: __m256i,
    low: __m256i,
}

impl<const WHOLE: bool> Words128<WHOLE> {
    pub(in super::super) fn new(avx2: Avx2) -> Self {
        Self(Words64(avx2))
    }

    /// All ones in the lanes where `a > b`: by the high word, and, if it is equal and `WHOLE` is
    /// set, by the low word.
    #[inline(always)]
    fn above(self, a: Pair, b: Pair) -> __m256i {
        let above = self.0.above(a.high, b.high);
        if !WHOLE {
            return above;
        }
        let low = self.0.above(a.low, b.low);
        // The three comparisons do not wait for one another.
        // SAFETY: `self` proves the instructions.
        unsafe { _mm256_or_si256(above, _mm256_and_si256(_mm256_cmpeq_epi64(a.high, b.high), low)) }
    }

    /// Returns `b` in the lanes whose first bit is set in `choice`, `a` in the others.
    #[inline(always)]
    fn choose(self, a: Pair, b: Pair, choice: __m256i) -> Pair {
        Pair { high: self.0.choose(a.high, b.high, choice), low: self.0.choose(a.low, b.low, choice) }
    }

    #[inline(always)]
    fn permute(self, vector: Pair, permutation: __m256i) -> Pair {
        Pair { high: self.0.permute(vector.high, permutation), low: self.0.permute(vector.low, permutation) }
    }

    /// Separates the words of two registers as they are in memory.
    #[inline(always)]
    fn apart(self, first: __m256i, second: __m256i) -> Pair {
        // SAFETY: `self` proves the instructions.
        unsafe {
            let (low, high) =
                (_mm256_permute2x128_si256::<0x20>(first, second), _mm256_permute2x128_si256::<0x31>(first, second));
            Pair { high: _mm256_unpackhi_epi64(low, high), low: _mm256_unpacklo_epi64(low, high) }
        }
    }
}

impl<const WHOLE: bool> Lanes for Words128<WHOLE> {
    type Element = u128;
    type Vector = Pair;
    type Instructions = Avx2;
    const LANES: usize = 4;
    const ROWS: usize = 8;
    const BATCH: usize = 2;
    const MAX: u128 = u128::MAX;

    #[inline(always)]
    fn instructions(self) -> Avx2 {
        self.0.instructions()
    }

    fn is_same(self, a: u128, b: u128) -> bool {
        if WHOLE { a == b } else { high(a) == high(b) }
    }

    #[inline(always)]
    fn splat(self, value: u128) -> Pair {
        Pair { high: self.0.splat((value >> 64) as u64), low: self.0.splat(value as u64) }
    }

    #[inline(always)]
    fn lane(self, vector: Pair, lane: usize) -> u128 {
        u128::from(self.0.lane(vector.high, lane)) << 64 | u128::from(self.0.lane(vector.low, lane))
    }

    #[inline(always)]
    unsafe fn load(self, from: *const u128) -> Pair {
        let words = from.cast::<u64>();
        // SAFETY: the caller vouches for 4 numbers, which are 8 words.
        unsafe { self.apart(self.0.load(words), self.0.load(words.add(4))) }
    }

    #[inline(always)]
    unsafe fn load_first(self, from: *const u128, count: usize, rest: Pair) -> Pair {
        let words = from.cast::<u64>();
        let (first, second) = (count.min(2), count.saturating_sub(2));
        let zero = self.0.splat(0);
        // SAFETY: the caller vouches for `count` numbers: twice as many words, at most 4 of them in
        // each half. A half of no words is not touched, so its address may lie behind the end.
        let loaded = unsafe {
            self.apart(
                self.0.load_first(words, 2 * first, zero),
                self.0.load_first(words.wrapping_add(4), 2 * second, zero),
            )
        };
        self.choose(rest, loaded, self.0.first(count))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u128, vector: Pair) {
        let words = to.cast::<u64>();
        let (first, second) = self.0.zip(vector.low, vector.high);
        // SAFETY: the caller vouches for 4 numbers, which are 8 words.
        unsafe {
            self.0.store(words, first);
            self.0.store(words.add(4), second);
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut u128, count: usize, vector: Pair) {
        let words = to.cast::<u64>();
        let (first, second) = self.0.zip(vector.low, vector.high);
        // SAFETY: the caller vouches for `count` numbers, twice as many words; a masked store
        // touches no others, so the second address may lie behind the end.
        unsafe {
            self.0.store_first(words, 2 * count.min(2), first);
            self.0.store_first(words.wrapping_add(4), 2 * count.saturating_sub(2), second);
        }
    }

    #[inline(always)]
    unsafe fn store_apart(
        self,
        base: *mut u128,
        (left, right): (usize, usize),
        vector: Pair,
        (lefts, rights): (u32, u32),
    ) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            if lefts | rights == 15 {
                let apart = self.permute(vector, self.0.permutation(lefts));
                self.store(base.add(left), apart);
                self.store(base.add(right - 4), apart);
            } else {
                store_some_apart(self, base, (left, right), vector, (lefts, rights));
            }
        }
    }

    #[inline(always)]
    fn less(self, a: Pair, b: Pair) -> u32 {
        self.0.mask(self.above(b, a))
    }

    #[inline(always)]
    fn exchange(self, a: Pair, b: Pair) -> (Pair, Pair) {
        let above = self.above(a, b);
        (self.choose(a, b, above), self.choose(b, a, above))
    }

    #[inline(always)]
    fn pick<const DISTANCE: usize>(self, a: Pair, b: Pair) -> Pair {
        let upper = self.0.upper::<DISTANCE>();
        if WHOLE {
            // Equal numbers are equal in all bits, so it does not matter which of them an upper
            // lane takes.
            // SAFETY: `self` proves the instructions.
            return self.choose(a, b, unsafe { _mm256_xor_si256(self.above(a, b), upper) });
        }
        // Lanes with equal keys must not both take the same low word, so both keep theirs.
        let (above, below) = (self.0.above(a.high, b.high), self.0.above(b.high, a.high));
        self.choose(a, b, self.0.choose(above, below, upper))
    }

    #[inline(always)]
    fn mirror<const WIDTH: usize>(self, vector: Pair) -> Pair {
        Pair { high: self.0.mirror::<WIDTH>(vector.high), low: self.0.mirror::<WIDTH>(vector.low) }
    }

    #[inline(always)]
    fn swap<const DISTANCE: usize>(self, vector: Pair) -> Pair {
        Pair { high: self.0.swap::<DISTANCE>(vector.high), low: self.0.swap::<DISTANCE>(vector.low) }
    }

    #[inline(always)]
    fn zip(self, a: Pair, b: Pair) -> (Pair, Pair) {
        let (high, low) = (self.0.zip(a.high, b.high), self.0.zip(a.low, b.low));
        (Pair { high: high.0, low: low.0 }, Pair { high: high.1, low: low.1 })
    }
}
