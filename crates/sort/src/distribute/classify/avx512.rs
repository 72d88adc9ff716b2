//! Walks down the tree of splitters in AVX-512 registers, a prefix in each lane.
//!
//! The nodes of the first seven levels stay in registers, where permutations look them up. Those of
//! deeper levels are gathered from the first-level cache.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use crate::numbers::vector::Avx512;

/// Prefixes in a register.
const LANES: usize = 8;
/// Registers that walk at once. Their steps wait for different results, so they hide each other's
/// latency.
const REGISTERS: usize = 4;
const AT_ONCE: usize = REGISTERS * LANES;
/// The levels whose nodes are in registers.
const LEVELS_IN_REGISTERS: u32 = 7;
/// The leaves of the smallest tree that has these levels.
pub(super) const MIN_LEAVES: usize = 1 << LEVELS_IN_REGISTERS;

/// Sets the bucket of each prefix in whole groups of them. Returns how many these are.
///
/// The root of the tree has the index 1, and its length is a power of two: the number of its
/// leaves. With a smaller one than [`MIN_LEAVES`] it sets none.
#[inline]
pub(super) fn classify(_: Avx512, tree: &[u64], prefixes: &[u64], buckets: &mut [u16]) -> usize {
    if tree.len() < MIN_LEAVES || !tree.len().is_power_of_two() {
        return 0;
    }
    // SAFETY: who has an `Avx512` has the instructions.
    unsafe { walk(tree, prefixes, buckets) }
}

/// The part of `classify` behind its checks.
#[target_feature(enable = "avx512f")]
fn walk(tree: &[u64], prefixes: &[u64], buckets: &mut [u16]) -> usize {
    let (groups, _) = prefixes.as_chunks::<AT_ONCE>();
    let (targets, _) = buckets.as_chunks_mut::<AT_ONCE>();
    let levels = tree.len().trailing_zeros();
    let root = _mm512_set1_epi64(tree[1] as i64);
    // A permutation looks at no lane behind the nodes of a level.
    let (second, third, fourth) = (nodes(tree, 2), nodes(tree, 4), nodes(tree, 8));
    let fifth = sixteen(tree, 16);
    let (sixth_low, sixth_high) = (sixteen(tree, 32), sixteen(tree, 48));
    let (seventh_1, seventh_2) = (sixteen(tree, 64), sixteen(tree, 80));
    let (seventh_3, seventh_4) = (sixteen(tree, 96), sixteen(tree, 112));
    let mut done = 0;
    for (group, target) in groups.iter().zip(targets) {
        let mut prefix = [_mm512_setzero_si512(); REGISTERS];
        for (i, prefix) in prefix.iter_mut().enumerate() {
            // SAFETY: the array has the lanes of all registers.
            *prefix = unsafe { _mm512_loadu_si512(group.as_ptr().add(i * LANES).cast()) };
        }
        // The number of each lane's node in its level.
        let mut at = [_mm512_setzero_si512(); REGISTERS];
        for i in 0..REGISTERS {
            at[i] = down(at[i], root, prefix[i]);
        }
        for i in 0..REGISTERS {
            at[i] = down(at[i], _mm512_permutexvar_epi64(at[i], second), prefix[i]);
        }
        for i in 0..REGISTERS {
            at[i] = down(at[i], _mm512_permutexvar_epi64(at[i], third), prefix[i]);
        }
        for i in 0..REGISTERS {
            at[i] = down(at[i], _mm512_permutexvar_epi64(at[i], fourth), prefix[i]);
        }
        for i in 0..REGISTERS {
            at[i] = down(at[i], look_up(at[i], fifth), prefix[i]);
        }
        for i in 0..REGISTERS {
            let upper = _mm512_test_epi64_mask(at[i], _mm512_set1_epi64(16));
            let node = _mm512_mask_blend_epi64(upper, look_up(at[i], sixth_low), look_up(at[i], sixth_high));
            at[i] = down(at[i], node, prefix[i]);
        }
        for i in 0..REGISTERS {
            let upper = _mm512_test_epi64_mask(at[i], _mm512_set1_epi64(16));
            let low = _mm512_mask_blend_epi64(upper, look_up(at[i], seventh_1), look_up(at[i], seventh_2));
            let high = _mm512_mask_blend_epi64(upper, look_up(at[i], seventh_3), look_up(at[i], seventh_4));
            let upper = _mm512_test_epi64_mask(at[i], _mm512_set1_epi64(32));
            at[i] = down(at[i], _mm512_mask_blend_epi64(upper, low, high), prefix[i]);
        }
        for level in LEVELS_IN_REGISTERS..levels {
            let first = tree[1 << level..].as_ptr();
            for i in 0..REGISTERS {
                // SAFETY: `at` is less than the number of nodes of the level, and these are in the
                // tree.
                let node = unsafe { _mm512_i64gather_epi64::<8>(at[i], first.cast()) };
                at[i] = down(at[i], node, prefix[i]);
            }
        }
        for (i, at) in at.iter().enumerate() {
            // SAFETY: the array has two bytes for each lane of all registers.
            unsafe { _mm_storeu_si128(target.as_mut_ptr().add(i * LANES).cast(), _mm512_cvtepi64_epi16(*at)) };
        }
        done += AT_ONCE;
    }
    done
}

/// From each lane's node to its child.
#[inline]
#[target_feature(enable = "avx512f")]
fn down(at: __m512i, node: __m512i, prefix: __m512i) -> __m512i {
    let right = _mm512_cmplt_epu64_mask(node, prefix);
    let left = _mm512_slli_epi64::<1>(at);
    _mm512_mask_add_epi64(left, right, left, _mm512_set1_epi64(1))
}

/// Eight nodes from `first` on.
#[inline]
#[target_feature(enable = "avx512f")]
fn nodes(tree: &[u64], first: usize) -> __m512i {
    let nodes: &[u64] = &tree[first..first + LANES];
    // SAFETY: the slice is as large as the register.
    unsafe { _mm512_loadu_si512(nodes.as_ptr().cast()) }
}

/// Sixteen nodes from `first` on.
#[inline]
#[target_feature(enable = "avx512f")]
fn sixteen(tree: &[u64], first: usize) -> (__m512i, __m512i) {
    (nodes(tree, first), nodes(tree, first + LANES))
}

/// The node of each lane among sixteen, by the low four bits of its number.
#[inline]
#[target_feature(enable = "avx512f")]
fn look_up(at: __m512i, (low, high): (__m512i, __m512i)) -> __m512i {
    _mm512_permutex2var_epi64(low, at, high)
}
