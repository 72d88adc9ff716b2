//! 8 words of 32 bits.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::instructions::Avx2;
use super::super::lanes::Lanes;
use super::rest::{sliding, store_some_apart};

/// 8 words of 32 bits.
#[derive(Clone, Copy)]
pub(in super::super) struct Words32(pub(in super::super) Avx2);

/// The first `count` lanes of words have ones from the place `8 - count` on.
const FIRST: [i32; 16] = sliding();

/// For each mask: the numbers of the lanes in it, and then those of the others, four bits each.
static APART: [u32; 256] = apart();

const fn apart() -> [u32; 256] {
    let mut table = [0; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut at, mut lane) = (0, 0);
        while lane < 8 {
            if mask >> lane & 1 == 1 {
                table[mask] |= (lane as u32) << at;
                at += 4;
            }
            lane += 1;
        }
        lane = 0;
        while lane < 8 {
            if mask >> lane & 1 == 0 {
                table[mask] |= (lane as u32) << at;
                at += 4;
            }
            lane += 1;
        }
        mask += 1;
    }
    table
}

impl Words32 {
    /// All ones in the first `count` lanes.
    #[inline(always)]
    fn first(self, count: usize) -> __m256i {
        assert!(count <= 8, "a register has eight lanes");
        // SAFETY: eight entries from here on are in the table; `self` proves the instructions.
        unsafe { _mm256_loadu_si256(FIRST.as_ptr().add(8 - count).cast()) }
    }

    /// Puts the lanes of the mask first, and the others behind them.
    #[inline(always)]
    fn apart(self, vector: __m256i, mask: u32) -> __m256i {
        // SAFETY: `self` proves the instructions. A permutation looks at three bits of a lane only.
        unsafe {
            let order = _mm256_set1_epi32(APART[(mask & 255) as usize] as i32);
            let order = _mm256_srlv_epi32(order, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
            _mm256_permutevar8x32_epi32(vector, order)
        }
    }
}

impl Lanes for Words32 {
    type Element = u32;
    type Vector = __m256i;
    type Instructions = Avx2;
    const LANES: usize = 8;
    const ROWS: usize = 16;
    const BATCH: usize = 4;
    const MAX: u32 = u32::MAX;

    #[inline(always)]
    fn instructions(self) -> Avx2 {
        self.0
    }

    #[inline(always)]
    fn splat(self, value: u32) -> __m256i {
        // SAFETY: `self` proves the instructions.
        unsafe { _mm256_set1_epi32(value as i32) }
    }

    #[inline(always)]
    fn lane(self, vector: __m256i, lane: usize) -> u32 {
        let mut lanes = [0; 8];
        // SAFETY: the array is as large as the register; `self` proves the instructions.
        unsafe { self.store(lanes.as_mut_ptr(), vector) };
        lanes[lane]
    }

    #[inline(always)]
    unsafe fn load(self, from: *const u32) -> __m256i {
        // SAFETY: the caller vouches for the memory, `self` for the instructions.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_first(self, from: *const u32, count: usize, rest: __m256i) -> __m256i {
        let first = self.first(count);
        // SAFETY: a masked load touches only its lanes, and the caller vouches for those.
        unsafe { _mm256_blendv_epi8(rest, _mm256_maskload_epi32(from.cast(), first), first) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u32, vector: __m256i) {
        // SAFETY: the caller vouches for the memory, `self` for the instructions.
        unsafe { _mm256_storeu_si256(to.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut u32, count: usize, vector: __m256i) {
        // SAFETY: a masked store touches only its lanes, and the caller vouches for those.
        unsafe {
            if count == 8 {
                self.store(to, vector);
            } else if count > 0 {
                _mm256_maskstore_epi32(to.cast(), self.first(count), vector);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_apart(
        self,
        base: *mut u32,
        (left, right): (usize, usize),
        vector: __m256i,
        (lefts, rights): (u32, u32),
    ) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            if lefts | rights == 255 {
                let apart = self.apart(vector, lefts);
                self.store(base.add(left), apart);
                self.store(base.add(right - 8), apart);
            } else {
                store_some_apart(self, base, (left, right), vector, (lefts, rights));
            }
        }
    }

    #[inline(always)]
    fn less(self, a: __m256i, b: __m256i) -> u32 {
        // SAFETY: `self` proves the instructions.
        unsafe {
            let flip = _mm256_set1_epi32(i32::MIN);
            let less = _mm256_cmpgt_epi32(_mm256_xor_si256(b, flip), _mm256_xor_si256(a, flip));
            _mm256_movemask_ps(_mm256_castsi256_ps(less)) as u32
        }
    }

    #[inline(always)]
    fn exchange(self, a: __m256i, b: __m256i) -> (__m256i, __m256i) {
        // SAFETY: `self` proves the instructions.
        unsafe { (_mm256_min_epu32(a, b), _mm256_max_epu32(a, b)) }
    }

    #[inline(always)]
    fn pick<const DISTANCE: usize>(self, a: __m256i, b: __m256i) -> __m256i {
        let (low, high) = self.exchange(a, b);
        // SAFETY: `self` proves the instructions.
        unsafe {
            match DISTANCE {
                1 => _mm256_blend_epi32::<0b1010_1010>(low, high),
                2 => _mm256_blend_epi32::<0b1100_1100>(low, high),
                _ => _mm256_blend_epi32::<0b1111_0000>(low, high),
            }
        }
    }

    #[inline(always)]
    fn mirror<const WIDTH: usize>(self, vector: __m256i) -> __m256i {
        // SAFETY: `self` proves the instructions.
        unsafe {
            match WIDTH {
                2 => self.swap::<1>(vector),
                4 => _mm256_shuffle_epi32::<0b00_01_10_11>(vector),
                _ => _mm256_shuffle_epi32::<0b00_01_10_11>(self.swap::<4>(vector)),
            }
        }
    }

    #[inline(always)]
    fn swap<const DISTANCE: usize>(self, vector: __m256i) -> __m256i {
        // SAFETY: `self` proves the instructions.
        unsafe {
            match DISTANCE {
                1 => _mm256_shuffle_epi32::<0b10_11_00_01>(vector),
                2 => _mm256_shuffle_epi32::<0b01_00_11_10>(vector),
                _ => _mm256_permute2x128_si256::<1>(vector, vector),
            }
        }
    }

    #[inline(always)]
    fn zip(self, a: __m256i, b: __m256i) -> (__m256i, __m256i) {
        // SAFETY: `self` proves the instructions.
        unsafe {
            let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            (_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high))
        }
    }
}
