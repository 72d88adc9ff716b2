//! Vectors of which only some lanes count: masks of the first lanes, and stores lane by lane.
//!
//! Masked stores are slow on some processors (Zen 3 runs them in microcode), so the rest of a
//! partition is stored lane by lane.
#![allow(unsafe_code)]

use super::super::lanes::Lanes;

/// A mask for each count of leading lanes: those at `max - count ..` begin with so many lanes of
/// ones.
pub(super) const fn sliding<const N: usize>() -> [i32; N] {
    let mut mask = [0; N];
    let mut at = 0;
    while at < N / 2 {
        mask[at] = -1;
        at += 1;
    }
    mask
}

/// [`Lanes::store_apart`] for masks that leave lanes out.
///
/// # Safety
/// The same as there.
#[inline(always)]
pub(super) unsafe fn store_some_apart<L: Lanes>(
    lanes: L,
    base: *mut L::Element,
    (mut left, mut right): (usize, usize),
    vector: L::Vector,
    (lefts, rights): (u32, u32),
) {
    for lane in 0..L::LANES {
        let element = lanes.lane(vector, lane);
        // SAFETY: each end moves by as many elements as its mask has lanes so far, fewer than
        // `LANES`, for which the caller vouches. What belongs to neither side is overwritten, or
        // stays between the ends.
        unsafe {
            *base.add(left) = element;
            *base.add(right - 1) = element;
        }
        left += (lefts >> lane & 1) as usize;
        right -= (rights >> lane & 1) as usize;
    }
}
