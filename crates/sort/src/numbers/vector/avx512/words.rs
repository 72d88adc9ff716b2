//! Words in the lanes of AVX-512 registers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::super::instructions::Avx512;
use super::super::lanes::Lanes;

/// The lanes whose number has the bit `distance`.
pub(super) const fn upper_lanes(distance: usize) -> u16 {
    let mut mask = 0;
    let mut lane = 0;
    while lane < 16 {
        if lane & distance != 0 {
            mask |= 1 << lane;
        }
        lane += 1;
    }
    mask
}

const fn first_lanes(count: usize) -> u32 {
    (1u32 << count) - 1
}

/// `Lanes` for unsigned words that one register holds `$lanes` of.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $word:ident x $lanes:literal, $mask:ident, $splat:ident as $signed:ident,
     $load:ident, $mask_load:ident, $store:ident, $mask_store:ident, $less:ident, $compress:ident,
     $min:ident, $max:ident, $mask_max:ident, $permute:ident, $permute_two:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(in super::super) struct $name(pub(in super::super) Avx512);

        impl $name {
            const ZIP_LOW: [$word; $lanes] = Self::zip_order(0);
            const ZIP_HIGH: [$word; $lanes] = Self::zip_order($lanes / 2);

            const fn zip_order(first: $word) -> [$word; $lanes] {
                let mut order = [0; $lanes];
                let mut lane = 0;
                while lane < $lanes {
                    order[lane] = first + (lane as $word) / 2 + if lane % 2 == 1 { $lanes } else { 0 };
                    lane += 1;
                }
                order
            }

            /// Lane `l` is taken from lane `l ^ flip`: `width - 1` mirrors groups, a power of two
            /// swaps lanes.
            const fn flip_order(flip: usize) -> [$word; $lanes] {
                let mut order = [0; $lanes];
                let mut lane = 0;
                while lane < $lanes {
                    order[lane] = (lane ^ flip) as $word;
                    lane += 1;
                }
                order
            }

            #[inline(always)]
            pub(super) fn order(self, order: &[$word; $lanes]) -> __m512i {
                // SAFETY: the array is as large as the register; `self` proves the instructions.
                unsafe { $load(order.as_ptr().cast()) }
            }

            /// Moves the lanes of the mask, in their order, to the lanes from 0 on; zeros follow.
            #[inline(always)]
            pub(super) fn compress(self, mask: u32, vector: __m512i) -> __m512i {
                // SAFETY: `self` proves the instructions.
                unsafe { $compress(mask as $mask, vector) }
            }
        }

        impl Lanes for $name {
            type Element = $word;
            type Vector = __m512i;
            type Instructions = Avx512;
            const LANES: usize = $lanes;
            const ROWS: usize = 16;
            const BATCH: usize = 8;
            const MAX: $word = $word::MAX;

            #[inline(always)]
            fn instructions(self) -> Avx512 {
                self.0
            }

            #[inline(always)]
            fn splat(self, value: $word) -> __m512i {
                // SAFETY: `self` proves the instructions.
                unsafe { $splat(value as $signed) }
            }

            #[inline(always)]
            fn lane(self, vector: __m512i, lane: usize) -> $word {
                let mut lanes = [0; $lanes];
                // SAFETY: the array is as large as the register; `self` proves the instructions.
                unsafe { $store(lanes.as_mut_ptr().cast(), vector) };
                lanes[lane]
            }

            #[inline(always)]
            unsafe fn load(self, from: *const $word) -> __m512i {
                // SAFETY: the caller vouches for the memory, `self` for the instructions.
                unsafe { $load(from.cast()) }
            }

            #[inline(always)]
            unsafe fn load_first(self, from: *const $word, count: usize, rest: __m512i) -> __m512i {
                // SAFETY: a masked load touches only its lanes, and the caller vouches for those.
                unsafe { $mask_load(rest, first_lanes(count) as $mask, from.cast()) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $word, vector: __m512i) {
                // SAFETY: the caller vouches for the memory, `self` for the instructions.
                unsafe { $store(to.cast(), vector) }
            }

            #[inline(always)]
            unsafe fn store_first(self, to: *mut $word, count: usize, vector: __m512i) {
                // SAFETY: a masked store touches only its lanes, and the caller vouches for those.
                unsafe { $mask_store(to.cast(), first_lanes(count) as $mask, vector) }
            }

            #[inline(always)]
            unsafe fn store_apart(self, base: *mut $word, ends: (usize, usize), vector: __m512i, masks: (u32, u32)) {
                let count = masks.1.count_ones() as usize;
                // SAFETY: the caller vouches for the memory: a vector's room at `left`, and
                // `count <= LANES` before `right`.
                unsafe {
                    self.store(base.add(ends.0), self.compress(masks.0, vector));
                    self.store_first(base.add(ends.1 - count), count, self.compress(masks.1, vector));
                }
            }

            #[inline(always)]
            fn less(self, a: __m512i, b: __m512i) -> u32 {
                // SAFETY: `self` proves the instructions.
                unsafe { $less(a, b) as u32 }
            }

            #[inline(always)]
            fn exchange(self, a: __m512i, b: __m512i) -> (__m512i, __m512i) {
                // SAFETY: `self` proves the instructions.
                unsafe { ($min(a, b), $max(a, b)) }
            }

            #[inline(always)]
            fn pick<const DISTANCE: usize>(self, a: __m512i, b: __m512i) -> __m512i {
                // SAFETY: `self` proves the instructions.
                unsafe { $mask_max($min(a, b), const { upper_lanes(DISTANCE) as $mask }, a, b) }
            }

            #[inline(always)]
            fn mirror<const WIDTH: usize>(self, vector: __m512i) -> __m512i {
                // SAFETY: `self` proves the instructions.
                unsafe { $permute(self.order(const { &Self::flip_order(WIDTH - 1) }), vector) }
            }

            #[inline(always)]
            fn swap<const DISTANCE: usize>(self, vector: __m512i) -> __m512i {
                // SAFETY: `self` proves the instructions.
                unsafe { $permute(self.order(const { &Self::flip_order(DISTANCE) }), vector) }
            }

            #[inline(always)]
            fn zip(self, a: __m512i, b: __m512i) -> (__m512i, __m512i) {
                let (low, high) = (self.order(&Self::ZIP_LOW), self.order(&Self::ZIP_HIGH));
                // SAFETY: `self` proves the instructions.
                unsafe { ($permute_two(a, low, b), $permute_two(a, high, b)) }
            }
        }
    };
}

words! {
    /// 8 words of 64 bits.
    Words64, u64 x 8, __mmask8, _mm512_set1_epi64 as i64,
    _mm512_loadu_epi64, _mm512_mask_loadu_epi64, _mm512_storeu_epi64, _mm512_mask_storeu_epi64,
    _mm512_cmplt_epu64_mask, _mm512_maskz_compress_epi64,
    _mm512_min_epu64, _mm512_max_epu64, _mm512_mask_max_epu64, _mm512_permutexvar_epi64, _mm512_permutex2var_epi64
}

words! {
    /// 16 words of 32 bits.
    Words32, u32 x 16, __mmask16, _mm512_set1_epi32 as i32,
    _mm512_loadu_epi32, _mm512_mask_loadu_epi32, _mm512_storeu_epi32, _mm512_mask_storeu_epi32,
    _mm512_cmplt_epu32_mask, _mm512_maskz_compress_epi32,
    _mm512_min_epu32, _mm512_max_epu32, _mm512_mask_max_epu32, _mm512_permutexvar_epi32, _mm512_permutex2var_epi32
}
