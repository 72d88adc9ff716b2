//! Partitions a slice in place around a pivot, a batch of vectors at a time.
//!
//! ```text
//! | lefts | gap |  not read yet  | gap | rights |      a gap was read and is not written yet
//! read the first batch (kept to the end) and the last batch (the current one)
//! while a batch is left:
//!     read the next batch at the side with the smaller gap
//!     write the lefts of the current batch to the left, its rights to the right
//!     the next batch becomes the current one
//! write the rest (less than a batch), the current batch, and the one kept
//! ```
//! Before a read both gaps together are as long as two batches, so after it each has room for the
//! current batch. That is why lefts can be written as full vectors, whose unused end is overwritten
//! by later writes; rights need a masked store, or a full vector that ends with them. Because one
//! batch is read ahead, the choice of the side is not on the path from one batch to the next. That
//! saves a third of the time.
#![allow(unsafe_code)]

use super::instructions::{Instructions, Work};
use super::lanes::Lanes;

/// The most vectors of a batch of any type.
const MAX_BATCH: usize = 8;

/// The ends of the two sides: `left..right` is free to write.
struct Split<L: Lanes> {
    lanes: L,
    pivot: L::Vector,
    base: *mut L::Element,
    left: usize,
    right: usize,
}

impl<L: Lanes> Split<L> {
    /// Writes the lanes of the mask to the left, and `rights` to the right.
    ///
    /// # Safety
    /// `LANES` elements from `left` on, and as many before `right`, are within the slice, and were
    /// read or kept. The two places are the same or have no element in common.
    #[inline(always)]
    unsafe fn write(&mut self, vector: L::Vector, lefts: u32, rights: u32) {
        // SAFETY: the caller vouches for a vector's room at both ends.
        unsafe { self.lanes.store_apart(self.base, (self.left, self.right), vector, (lefts, rights)) }
        self.left += lefts.count_ones() as usize;
        self.right -= rights.count_ones() as usize;
    }

    /// The lanes that go left: those below the pivot, or, with `EQUAL_LEFT`, those not above it.
    #[inline(always)]
    fn lefts<const EQUAL_LEFT: bool>(&self, vector: L::Vector) -> u32 {
        let all = ((1u64 << L::LANES) - 1) as u32;
        if EQUAL_LEFT { all & !self.lanes.less(self.pivot, vector) } else { self.lanes.less(vector, self.pivot) }
    }

    /// # Safety
    /// The same as for [`Split::write`].
    #[inline(always)]
    unsafe fn write_all<const EQUAL_LEFT: bool>(&mut self, vector: L::Vector) {
        let all = ((1u64 << L::LANES) - 1) as u32;
        let lefts = self.lefts::<EQUAL_LEFT>(vector);
        // SAFETY: the caller vouches for the room.
        unsafe { self.write(vector, lefts, all & !lefts) }
    }
}

/// # Safety
/// A batch is readable at `from`.
#[inline(always)]
unsafe fn load_batch<L: Lanes>(lanes: L, from: *const L::Element) -> [L::Vector; MAX_BATCH] {
    let mut batch = [lanes.splat(L::MAX); MAX_BATCH];
    for (k, vector) in batch.iter_mut().enumerate().take(L::BATCH) {
        // SAFETY: the caller vouches for the memory.
        *vector = unsafe { lanes.load(from.add(k * L::LANES)) };
    }
    batch
}

/// Moves the elements below the pivot (with `EQUAL_LEFT`, those not above it) to the front. Returns
/// how many they are.
#[inline(always)]
pub(super) fn partition<L: Lanes, const EQUAL_LEFT: bool>(
    lanes: L,
    values: &mut [L::Element],
    pivot: L::Element,
) -> usize {
    lanes.instructions().run(Partition::<L, EQUAL_LEFT> { lanes, values, pivot })
}

struct Partition<'a, L: Lanes, const EQUAL_LEFT: bool> {
    lanes: L,
    values: &'a mut [L::Element],
    pivot: L::Element,
}

impl<L: Lanes, const EQUAL_LEFT: bool> Work for Partition<'_, L, EQUAL_LEFT> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        partition_inline::<L, EQUAL_LEFT>(self.lanes, self.values, self.pivot)
    }
}

#[inline(always)]
fn partition_inline<L: Lanes, const EQUAL_LEFT: bool>(lanes: L, values: &mut [L::Element], pivot: L::Element) -> usize {
    let batch = L::BATCH * L::LANES;
    let len = values.len();
    assert!(L::BATCH <= MAX_BATCH && len >= 2 * batch, "both ends are kept aside, and do not overlap");
    let base = values.as_mut_ptr();
    let mut split = Split { lanes, pivot: lanes.splat(pivot), base, left: 0, right: len };

    // SAFETY: the first and the last batch are within the slice (asserted above).
    let (kept, mut current) = unsafe { (load_batch(lanes, base), load_batch(lanes, base.add(len - batch))) };

    let (mut unread, mut unread_end) = (batch, len - batch);
    while unread_end - unread >= batch {
        let is_left = unread - split.left <= split.right - unread_end;
        let start = std::hint::select_unpredictable(is_left, unread, unread_end - batch);
        let taken = std::hint::select_unpredictable(is_left, batch, 0);
        unread += taken;
        unread_end -= batch - taken;
        // SAFETY: the batch at `start` is not read yet, so it is within the slice.
        let next = unsafe { load_batch(lanes, base.add(start)) };
        for vector in current.iter().take(L::BATCH) {
            // SAFETY: each gap has room for the batch (see the module), and a vector's write takes
            // at most its part. The places are in different gaps.
            unsafe { split.write_all::<EQUAL_LEFT>(*vector) };
        }
        current = next;
    }
    while unread_end - unread >= L::LANES {
        let is_left = unread - split.left <= split.right - unread_end;
        let start = if is_left { unread } else { unread_end - L::LANES };
        if is_left {
            unread += L::LANES;
        } else {
            unread_end -= L::LANES;
        }
        // SAFETY: the vector at `start` is not read yet. It is read at the smaller gap, which then
        // has room for it; the other gap has room for a batch. The places are in different gaps.
        unsafe {
            let vector = lanes.load(base.add(start));
            split.write_all::<EQUAL_LEFT>(vector);
        }
    }
    let count = unread_end - unread;
    // SAFETY: `count` elements, fewer than a vector, are not read yet. Once they are read, the two
    // gaps are one, as long as two batches and `count`: at least two vectors.
    unsafe {
        let vector = lanes.load_first(base.add(unread), count, split.pivot);
        let (lefts, valid) = (split.lefts::<EQUAL_LEFT>(vector), (1u32 << count) - 1);
        split.write(vector, lefts & valid, !lefts & valid);
    }
    for vector in kept.iter().take(L::BATCH) {
        // SAFETY: the one gap has exactly as much room as vectors are still kept, so for the last
        // of them both places are the same, and for the others they are apart.
        unsafe { split.write_all::<EQUAL_LEFT>(*vector) };
    }
    for vector in current.iter().take(L::BATCH) {
        // SAFETY: as for the vectors in `kept`.
        unsafe { split.write_all::<EQUAL_LEFT>(*vector) };
    }
    split.left
}
