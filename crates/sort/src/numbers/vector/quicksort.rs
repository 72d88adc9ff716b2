//! The recursion: existing runs, the choice of the pivot and of the side to sort first, and when to
//! give up.
#![allow(unsafe_code)]

use super::instructions::{Instructions, Work};
use super::lanes::Lanes;
use super::network::{sample, sort_small};
use super::partition::partition;

/// Sorts in place.
pub(super) fn sort<L: Lanes>(lanes: L, values: &mut [L::Element]) {
    let chances = values.len().checked_ilog2().unwrap_or(0);
    sort_with_chances(lanes, values, chances);
}

/// Sorts in place. After more than `chances` uneven splits in nested calls it sorts without
/// vectors.
pub(super) fn sort_with_chances<L: Lanes>(lanes: L, values: &mut [L::Element], chances: u32) {
    lanes.instructions().run(Sort { lanes, values, chances });
}

struct Sort<'a, L: Lanes> {
    lanes: L,
    values: &'a mut [L::Element],
    chances: u32,
}

impl<L: Lanes> Work for Sort<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Sort { lanes, values, chances } = self;
        if values.len() <= L::ROWS * L::LANES {
            sort_small(lanes, values);
        } else if is_run::<L, true>(lanes, values) {
            values.reverse();
        } else if !is_run::<L, false>(lanes, values) {
            lanes.instructions().run(Quicksort { lanes, values, least: None, chances });
        }
    }
}

/// Whether no element is less (with `DOWN`, greater) than the one before it. Stops at the first
/// that is.
#[inline(always)]
fn is_run<L: Lanes, const DOWN: bool>(lanes: L, values: &[L::Element]) -> bool {
    let mut start = 0;
    while start + L::LANES < values.len() {
        // SAFETY: the later vector ends at `start + 1 + LANES`, which is at most the length.
        let (before, after) =
            unsafe { (lanes.load(values.as_ptr().add(start)), lanes.load(values.as_ptr().add(start + 1))) };
        let wrong = if DOWN { lanes.less(before, after) } else { lanes.less(after, before) };
        if wrong != 0 {
            return false;
        }
        start += L::LANES;
    }
    values[start..].windows(2).all(|pair| if DOWN { pair[0] >= pair[1] } else { pair[0] <= pair[1] })
}

/// Sorts in place. `least` is a lower bound of all elements (the pivot of an earlier split), if one
/// is known. `chances` is the number of uneven splits until it gives up.
struct Quicksort<'a, L: Lanes> {
    lanes: L,
    values: &'a mut [L::Element],
    least: Option<L::Element>,
    chances: u32,
}

impl<L: Lanes> Work for Quicksort<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Quicksort { lanes, mut values, mut least, mut chances } = self;
        while values.len() > L::ROWS * L::LANES {
            let len = values.len();
            let pivot = lanes.instructions().run(Pivot { lanes, values: &*values });
            let is_least = least.is_some_and(|least| lanes.is_same(least, pivot));
            let left_len = lanes.instructions().run(Split { lanes, values: &mut *values, pivot, is_least });
            let (left, right) = values.split_at_mut(left_len);
            if left.len().min(right.len()) < len / 8 {
                if chances == 0 {
                    left.sort_unstable();
                    return right.sort_unstable();
                }
                chances -= 1;
            }
            if is_least {
                // No element on the left is above the least one: all are equal.
                values = right;
            } else if left.len() < right.len() {
                lanes.instructions().run(Quicksort { lanes, values: left, least, chances });
                (values, least) = (right, Some(pivot));
            } else {
                lanes.instructions().run(Quicksort { lanes, values: right, least: Some(pivot), chances });
                values = left;
            }
        }
        sort_small(lanes, values);
    }
}

/// The choice of a pivot. This and [`Split`] are functions of their own: without optimization, each
/// of their registers would have a place in each frame of the recursion, which would need more than
/// a thread's stack.
struct Pivot<'a, L: Lanes> {
    lanes: L,
    values: &'a [L::Element],
}

impl<L: Lanes> Work for Pivot<'_, L> {
    type Output = L::Element;

    #[inline(always)]
    fn run(self) -> L::Element {
        let Pivot { lanes, values } = self;
        if values.len() < 64 * L::LANES {
            sample::<L, 4>(lanes, values)
        } else if values.len() < 4096 * L::LANES || L::ROWS < 16 {
            sample::<L, 8>(lanes, values)
        } else {
            sample::<L, 16>(lanes, values)
        }
    }
}

/// A split by a pivot. Returns the length of the left side.
struct Split<'a, L: Lanes> {
    lanes: L,
    values: &'a mut [L::Element],
    pivot: L::Element,
    is_least: bool,
}

impl<L: Lanes> Work for Split<'_, L> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let Split { lanes, values, pivot, is_least } = self;
        match is_least {
            true => partition::<L, true>(lanes, values, pivot),
            false => partition::<L, false>(lanes, values, pivot),
        }
    }
}
