//! 4 words of 64 bits.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::instructions::Avx2;
use super::super::lanes::Lanes;
use super::rest::{sliding, store_some_apart};

/// 4 words of 64 bits. In registers their first bit is flipped, so that signed comparisons order
/// them.
#[derive(Clone, Copy)]
pub(in super::super) struct Words64(pub(in super::super) Avx2);

/// The first `count` lanes of words have ones from the place `2 * (4 - count)` on.
const FIRST: [i32; 16] = sliding();

/// For each mask: the halves of the lanes in it, and then those of the others.
static APART: [[u32; 8]; 16] = apart();

const fn apart() -> [[u32; 8]; 16] {
    let mut table = [[0; 8]; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut at, mut side) = (0, 1);
        while side < 2 {
            let mut lane = 0;
            while lane < 4 {
                if mask >> lane & 1 == side {
                    table[mask][at] = 2 * lane as u32;
                    table[mask][at + 1] = 2 * lane as u32 + 1;
                    at += 2;
                }
                lane += 1;
            }
            side = if side == 1 { 0 } else { 2 };
        }
        mask += 1;
    }
    table
}

impl Words64 {
    #[inline(always)]
    pub(super) fn flip(self, vector: __m256i) -> __m256i {
        // SAFETY: `self` proves the instructions.
        unsafe { _mm256_xor_si256(vector, _mm256_set1_epi64x(i64::MIN)) }
    }

    /// All ones in the first `count` lanes.
    #[inline(always)]
    pub(super) fn first(self, count: usize) -> __m256i {
        assert!(count <= 4, "a register has four lanes");
        // SAFETY: eight entries from here on are in the table; `self` proves the instructions.
        unsafe { _mm256_loadu_si256(FIRST.as_ptr().add(2 * (4 - count)).cast()) }
    }

    /// The permutation that puts the lanes of the mask first.
    #[inline(always)]
    pub(super) fn permutation(self, mask: u32) -> __m256i {
        // SAFETY: the entry is as large as the register; `self` proves the instructions.
        unsafe { _mm256_loadu_si256(APART[(mask & 15) as usize].as_ptr().cast()) }
    }

    #[inline(always)]
    pub(super) fn permute(self, vector: __m256i, permutation: __m256i) -> __m256i {
        // SAFETY: `self` proves the instructions.
        unsafe { _mm256_permutevar8x32_epi32(vector, permutation) }
    }

    /// All ones in the lanes where `a > b`.
    #[inline(always)]
    pub(super) fn above(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` proves the instructions.
        unsafe { _mm256_cmpgt_epi64(a, b) }
    }

    /// The first bits of the lanes.
    #[inline(always)]
    pub(super) fn mask(self, lanes: __m256i) -> u32 {
        // SAFETY: `self` proves the instructions.
        unsafe { _mm256_movemask_pd(_mm256_castsi256_pd(lanes)) as u32 }
    }

    /// Returns `b` in the lanes whose first bit is set in `choice`, `a` in the others.
    #[inline(always)]
    pub(super) fn choose(self, a: __m256i, b: __m256i, choice: __m256i) -> __m256i {
        // SAFETY: `self` proves the instructions.
        unsafe {
            let (a, b, choice) = (_mm256_castsi256_pd(a), _mm256_castsi256_pd(b), _mm256_castsi256_pd(choice));
            _mm256_castpd_si256(_mm256_blendv_pd(a, b, choice))
        }
    }

    /// All ones in the lanes whose number has the bit `DISTANCE`.
    #[inline(always)]
    pub(super) fn upper<const DISTANCE: usize>(self) -> __m256i {
        // SAFETY: `self` proves the instructions.
        unsafe {
            match DISTANCE {
                1 => _mm256_setr_epi64x(0, -1, 0, -1),
                _ => _mm256_setr_epi64x(0, 0, -1, -1),
            }
        }
    }
}

impl Lanes for Words64 {
    type Element = u64;
    type Vector = __m256i;
    type Instructions = Avx2;
    const LANES: usize = 4;
    const ROWS: usize = 16;
    const BATCH: usize = 4;
    const MAX: u64 = u64::MAX;

    #[inline(always)]
    fn instructions(self) -> Avx2 {
        self.0
    }

    #[inline(always)]
    fn splat(self, value: u64) -> __m256i {
        // SAFETY: `self` proves the instructions.
        self.flip(unsafe { _mm256_set1_epi64x(value as i64) })
    }

    #[inline(always)]
    fn lane(self, vector: __m256i, lane: usize) -> u64 {
        let mut lanes = [0; 4];
        // SAFETY: the array is as large as the register; `self` proves the instructions.
        unsafe { self.store(lanes.as_mut_ptr(), vector) };
        lanes[lane]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const u64) -> __m256i {
        // SAFETY: the caller vouches for the memory, `self` for the instructions.
        self.flip(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn load_first(self, from: *const u64, count: usize, rest: __m256i) -> __m256i {
        let first = self.first(count);
        // SAFETY: a masked load touches only its lanes, and the caller vouches for those.
        let loaded = self.flip(unsafe { _mm256_maskload_epi64(from.cast(), first) });
        self.choose(rest, loaded, first)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u64, vector: __m256i) {
        // SAFETY: the caller vouches for the memory, `self` for the instructions.
        unsafe { _mm256_storeu_si256(to.cast(), self.flip(vector)) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut u64, count: usize, vector: __m256i) {
        // SAFETY: a masked store touches only its lanes, and the caller vouches for those.
        unsafe {
            if count == 4 {
                self.store(to, vector);
            } else if count > 0 {
                _mm256_maskstore_epi64(to.cast(), self.first(count), self.flip(vector));
            }
        }
    }

    #[inline(always)]
    unsafe fn store_apart(
        self,
        base: *mut u64,
        (left, right): (usize, usize),
        vector: __m256i,
        (lefts, rights): (u32, u32),
    ) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            if lefts | rights == 15 {
                let apart = self.permute(vector, self.permutation(lefts));
                self.store(base.add(left), apart);
                self.store(base.add(right - 4), apart);
            } else {
                store_some_apart(self, base, (left, right), vector, (lefts, rights));
            }
        }
    }

    #[inline(always)]
    fn less(self, a: __m256i, b: __m256i) -> u32 {
        self.mask(self.above(b, a))
    }

    #[inline(always)]
    fn exchange(self, a: __m256i, b: __m256i) -> (__m256i, __m256i) {
        let above = self.above(a, b);
        (self.choose(a, b, above), self.choose(b, a, above))
    }

    #[inline(always)]
    fn pick<const DISTANCE: usize>(self, a: __m256i, b: __m256i) -> __m256i {
        // Equal words do not differ, so it does not matter which of them an upper lane takes.
        // SAFETY: `self` proves the instructions.
        let from_b = unsafe { _mm256_xor_si256(self.above(a, b), self.upper::<DISTANCE>()) };
        self.choose(a, b, from_b)
    }

    #[inline(always)]
    fn mirror<const WIDTH: usize>(self, vector: __m256i) -> __m256i {
        match WIDTH {
            2 => self.swap::<1>(vector),
            _ => self.swap::<1>(self.swap::<2>(vector)),
        }
    }

    #[inline(always)]
    fn swap<const DISTANCE: usize>(self, vector: __m256i) -> __m256i {
        // SAFETY: `self` proves the instructions.
        unsafe {
            match DISTANCE {
                1 => _mm256_shuffle_epi32::<0b01_00_11_10>(vector),
                _ => _mm256_permute2x128_si256::<1>(vector, vector),
            }
        }
    }

    #[inline(always)]
    fn zip(self, a: __m256i, b: __m256i) -> (__m256i, __m256i) {
        // SAFETY: `self` proves the instructions.
        unsafe {
            let (even, odd) = (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
            (_mm256_permute2x128_si256::<0x20>(even, odd), _mm256_permute2x128_si256::<0x31>(even, odd))
        }
    }
}
