//! Numbers that are in order but for a few.
//!
//! ```text
//! | ascending, kept | dropped | still to be looked at |
//! ```
//! Numbers that continue the ascending part are exchanged with the first of those that were
//! dropped. So nothing is moved twice and no memory is needed. Then the dropped ones are sorted and
//! merged into the others. If they become too many, all are sorted as usual. That random numbers
//! are not nearly in order is seen in a few places. The method is "drop-merge sort" (E. Ernerfeldt,
//! 2016), without its going back in the input.

/// Fewer numbers than this are sorted as fast without a look.
const FEW: usize = 256;
/// At most one number in this many may be dropped.
const DROPPED_PART: usize = 8;
/// The places that are looked at first. At three of four of them, numbers must ascend; in random
/// numbers they do at one of 24.
const PLACES: usize = 24;
const AT_A_PLACE: usize = 4;
/// If so many in a row are less than the last one that was kept, that one is dropped instead.
const IN_A_ROW: usize = 16;

/// Sorts in place; `sort` sorts numbers that are not nearly in order.
pub(super) fn sort_nearly_sorted<T: Ord + Copy>(values: &mut [T], sort: impl Fn(&mut [T])) {
    if values.len() < FEW {
        return sort(values);
    }
    let Some(kept) = keep_ascending(values) else { return sort(values) };
    if kept == values.len() {
        return;
    }
    let mut dropped = Vec::new();
    if dropped.try_reserve_exact(values.len() - kept).is_err() {
        return sort(values);
    }
    sort(&mut values[kept..]);
    dropped.extend_from_slice(&values[kept..]);
    merge_backwards(values, kept, &dropped);
}

/// Moves an ascending part to the front, and returns its length; `None` if too many numbers are not
/// in it. The numbers are then the same, in another order.
fn keep_ascending<T: Ord + Copy>(values: &mut [T]) -> Option<usize> {
    let Some(start) = values.windows(2).position(|pair| pair[0] > pair[1]) else { return Some(values.len()) };
    let step = values.len() / PLACES;
    let ascends = |place: &usize| values[place * step..][..AT_A_PLACE].is_sorted();
    if 4 * (0..PLACES).filter(ascends).count() < 3 * PLACES {
        return None;
    }
    let (mut kept, mut row) = (start, 0);
    for i in start..values.len() {
        let value = values[i];
        let follows = kept == 0 || values[kept - 1] <= value;
        // A number that is too large would make the next ones too small.
        let leads = values.get(i + 1).is_none_or(|next| value <= *next);
        if follows && leads {
            values.swap(kept, i);
            kept += 1;
            row = 0;
            continue;
        }
        row += usize::from(!follows);
        if row > IN_A_ROW {
            while kept > 0 && values[kept - 1] > value {
                kept -= 1;
            }
            row = 0;
        }
        if i + 1 - kept > values.len() / DROPPED_PART {
            return None;
        }
    }
    Some(kept)
}

/// Merges `dropped`, which are in order, into the first `kept` of the values.
fn merge_backwards<T: Ord + Copy>(values: &mut [T], mut kept: usize, dropped: &[T]) {
    let mut to = values.len();
    for value in dropped.iter().rev() {
        while kept > 0 && values[kept - 1] > *value {
            (kept, to) = (kept - 1, to - 1);
            values[to] = values[kept];
        }
        to -= 1;
        values[to] = *value;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    /// Sorts, and returns how many numbers were left to the usual sort.
    fn sort(values: &mut [u64]) -> usize {
        let left = Cell::new(0);
        sort_nearly_sorted(values, |values| {
            left.set(left.get() + values.len());
            values.sort_unstable();
        });
        left.get()
    }

    #[test]
    fn few_numbers_out_of_order_are_all_that_is_sorted() {
        // Two large ones side by side are seen only when `IN_A_ROW` after them are too small.
        for (every, most) in [(usize::MAX, 4), (1000, 900), (100, 9000), (30, 10_000)] {
            let mut values: Vec<u64> = (0..100_000).collect();
            for i in (50..values.len()).step_by(every) {
                // Too large, too small, and two of them side by side.
                values[i] = if i % 3 == 0 { u64::MAX - i as u64 } else { (i % 7) as u64 };
                if i % 5 == 0 {
                    values[i + 1] = values[i];
                }
            }
            let mut expected = values.clone();
            expected.sort_unstable();
            let left = sort(&mut values);
            assert!(values == expected, "every {every}");
            assert!(left <= most, "every {every}: {left}");
        }
    }

    proptest! {
        #[test]
        fn sorted_as_by_the_usual_sort(
            mut values in proptest::collection::vec(any::<u64>(), 0..700),
            others in proptest::collection::vec((any::<usize>(), any::<u64>()), 0..90),
            ascending in any::<bool>(),
        ) {
            if ascending {
                values.sort_unstable();
            }
            let len = values.len().max(1);
            for (at, value) in others {
                if let Some(to) = values.get_mut(at % len) {
                    *to = value;
                }
            }
            let mut expected = values.clone();
            expected.sort_unstable();
            sort(&mut values);
            prop_assert_eq!(values, expected);
        }
    }
}
