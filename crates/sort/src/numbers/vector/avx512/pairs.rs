//! Numbers of 128 bits, with the high words in one AVX-512 register and the low words in another.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::instructions::Avx512;
use super::super::lanes::Lanes;
use super::super::pairs::high;
use super::words::{Words64, upper_lanes};

/// 8 numbers of 128 bits, ordered as a whole or by the high word only. In memory the words
/// alternate, low word first; loads separate them and stores interleave them.
#[derive(Clone, Copy)]
pub(in super::super) struct Words128<const WHOLE: bool>(Words64);

/// The high and the low words of 8 numbers.
#[derive(Clone, Copy)]
pub(in super::super) struct Pair {
    high: __m512i,
    low: __m512i,
}

const EVEN: [u64; 8] = [0, 2, 4, 6, 8, 10, 12, 14];
const ODD: [u64; 8] = [1, 3, 5, 7, 9, 11, 13, 15];

impl<const WHOLE: bool> Words128<WHOLE> {
    pub(in super::super) fn new(avx512: Avx512) -> Self {
        Self(Words64(avx512))
    }

    #[inline(always)]
    fn apart(self, first: __m512i, second: __m512i) -> Pair {
        let (even, odd) = (self.0.order(&EVEN), self.0.order(&ODD));
        // SAFETY: `self` proves the instructions.
        unsafe {
            Pair {
                high: _mm512_permutex2var_epi64(first, odd, second),
                low: _mm512_permutex2var_epi64(first, even, second),
            }
        }
    }

    /// Compares lane by lane: by the high word, and, if it is equal and `WHOLE` is set, by the low
    /// word.
    #[inline(always)]
    fn less_mask(self, a: Pair, b: Pair) -> __mmask8 {
        // SAFETY: `self` proves the instructions.
        unsafe {
            let less = _mm512_cmplt_epu64_mask(a.high, b.high);
            if WHOLE {
                // The three comparisons do not wait for one another.
                less | (_mm512_cmpeq_epu64_mask(a.high, b.high) & _mm512_cmplt_epu64_mask(a.low, b.low))
            } else {
                less
            }
        }
    }

    #[inline(always)]
    fn compress(self, mask: u32, vector: Pair) -> Pair {
        Pair { high: self.0.compress(mask, vector.high), low: self.0.compress(mask, vector.low) }
    }

    /// Returns `b` in the lanes of the mask, `a` in the others.
    #[inline(always)]
    fn blend(self, mask: __mmask8, a: Pair, b: Pair) -> Pair {
        // SAFETY: `self` proves the instructions.
        unsafe {
            Pair {
                high: _mm512_mask_blend_epi64(mask, a.high, b.high),
                low: _mm512_mask_blend_epi64(mask, a.low, b.low),
            }
        }
    }
}

impl<const WHOLE: bool> Lanes for Words128<WHOLE> {
    type Element = u128;
    type Vector = Pair;
    type Instructions = Avx512;
    const LANES: usize = 8;
    const ROWS: usize = 8;
    const BATCH: usize = 4;
    const MAX: u128 = u128::MAX;

    #[inline(always)]
    fn instructions(self) -> Avx512 {
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
        // SAFETY: the caller vouches for 8 numbers, which are 16 words.
        unsafe { self.apart(self.0.load(words), self.0.load(words.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_first(self, from: *const u128, count: usize, rest: Pair) -> Pair {
        let words = from.cast::<u64>();
        let (first, second) = (count.min(4), count.saturating_sub(4));
        let zero = self.0.splat(0);
        // SAFETY: the caller vouches for `count` numbers: twice as many words, at most 8 of them in
        // each half. A half of no words is not touched, so its address may lie behind the end.
        let loaded = unsafe {
            self.apart(
                self.0.load_first(words, 2 * first, zero),
                self.0.load_first(words.wrapping_add(8), 2 * second, zero),
            )
        };
        self.blend(((1u32 << count) - 1) as __mmask8, rest, loaded)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u128, vector: Pair) {
        let words = to.cast::<u64>();
        let (first, second) = self.0.zip(vector.low, vector.high);
        // SAFETY: the caller vouches for 8 numbers, which are 16 words.
        unsafe {
            self.0.store(words, first);
            self.0.store(words.add(8), second);
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut u128, count: usize, vector: Pair) {
        let words = to.cast::<u64>();
        let (first, second) = self.0.zip(vector.low, vector.high);
        let mask = (1u32 << (2 * count)) - 1;
        // SAFETY: the caller vouches for `count` numbers, twice as many words; a masked store
        // touches no others, so the second address may lie behind the end.
        unsafe {
            _mm512_mask_storeu_epi64(words.cast(), mask as __mmask8, first);
            _mm512_mask_storeu_epi64(words.wrapping_add(8).cast(), (mask >> 8) as __mmask8, second);
        }
    }

    #[inline(always)]
    unsafe fn store_apart(self, base: *mut u128, ends: (usize, usize), vector: Pair, masks: (u32, u32)) {
        let count = masks.1.count_ones() as usize;
        // SAFETY: the caller vouches for the memory: a vector's room at `left`, and
        // `count <= LANES` before `right`.
        unsafe {
            self.store(base.add(ends.0), self.compress(masks.0, vector));
            self.store_first(base.add(ends.1 - count), count, self.compress(masks.1, vector));
        }
    }

    #[inline(always)]
    fn less(self, a: Pair, b: Pair) -> u32 {
        u32::from(self.less_mask(a, b))
    }

    #[inline(always)]
    fn exchange(self, a: Pair, b: Pair) -> (Pair, Pair) {
        let swapped = self.less_mask(b, a);
        (self.blend(swapped, a, b), self.blend(swapped, b, a))
    }

    #[inline(always)]
    fn pick<const DISTANCE: usize>(self, a: Pair, b: Pair) -> Pair {
        let upper = const { upper_lanes(DISTANCE) as __mmask8 };
        if WHOLE {
            // Equal numbers are equal in all bits, so it does not matter which of them an upper
            // lane takes.
            return self.blend(self.less_mask(b, a) ^ upper, a, b);
        }
        // Lanes with equal keys must not both take the same low word, so both keep theirs.
        // SAFETY: `self` proves the instructions.
        let from_b = unsafe {
            _mm512_mask_cmplt_epu64_mask(!upper, b.high, a.high) | _mm512_mask_cmplt_epu64_mask(upper, a.high, b.high)
        };
        self.blend(from_b, a, b)
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
