//! The operations that the sort needs on a register full of elements.
//!
//! A value of [`Lanes`] is a proof: it is built from one of [`super::instructions`], which exists
//! only after the CPU was asked for them. So the operations on registers are safe to call; only
//! those that follow a pointer are not.
#![allow(unsafe_code)]

use super::instructions::Instructions;

/// Elements in the lanes of a vector. Lane masks have lane 0 in their lowest bit.
///
/// Everything is `inline(always)` and has no target feature of its own, so it takes on those of the
/// function that it is inlined into. `Option`s and closures of std would not; that is why the
/// callers have plain loops.
pub(super) trait Lanes: Copy {
    type Element: Copy + Ord;
    type Vector: Copy;
    type Instructions: Instructions;
    /// Lanes of a vector: 4, 8 or 16.
    const LANES: usize;
    /// Rows that the largest network sorts (8 or 16): as many as the registers hold.
    const ROWS: usize;
    /// Vectors that a partition reads at once (at most 8); two batches fit the registers.
    const BATCH: usize;
    /// The greatest element.
    const MAX: Self::Element;

    /// The instructions that the operations need.
    fn instructions(self) -> Self::Instructions;

    /// Whether neither element is less in the order of [`Lanes::less`].
    fn is_same(self, a: Self::Element, b: Self::Element) -> bool {
        a == b
    }

    fn splat(self, value: Self::Element) -> Self::Vector;

    fn lane(self, vector: Self::Vector, lane: usize) -> Self::Element;

    /// # Safety
    /// `LANES` elements are readable at `from`.
    unsafe fn load(self, from: *const Self::Element) -> Self::Vector;

    /// Loads the first `count` lanes from memory and takes the others from `rest`.
    ///
    /// # Safety
    /// `count` is at most `LANES`, and as many elements are readable at `from`.
    unsafe fn load_first(self, from: *const Self::Element, count: usize, rest: Self::Vector) -> Self::Vector;

    /// # Safety
    /// `LANES` elements are writable at `to`.
    unsafe fn store(self, to: *mut Self::Element, vector: Self::Vector);

    /// # Safety
    /// `count` is at most `LANES`, and as many elements are writable at `to`.
    unsafe fn store_first(self, to: *mut Self::Element, count: usize, vector: Self::Vector);

    /// Stores the lanes of the first mask from the element `ends.0` of `base` on, and those of the
    /// second right before the element `ends.1`. No lane is in both masks. Anything may be written
    /// to the rest of the two places.
    ///
    /// # Safety
    /// `LANES` elements are writable from `ends.0` on, and as many before `ends.1`. These two
    /// places are the same or have no element in common (otherwise the order of the stores counts).
    unsafe fn store_apart(
        self,
        base: *mut Self::Element,
        ends: (usize, usize),
        vector: Self::Vector,
        masks: (u32, u32),
    );

    /// The lanes where `a < b`.
    fn less(self, a: Self::Vector, b: Self::Vector) -> u32;

    /// Returns the smaller and the larger elements, lane by lane.
    fn exchange(self, a: Self::Vector, b: Self::Vector) -> (Self::Vector, Self::Vector);

    /// Returns the smaller of `a` and `b`, or the larger in lanes whose number has the bit
    /// `DISTANCE`.
    fn pick<const DISTANCE: usize>(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Reverses the lanes within each group of `WIDTH`.
    fn mirror<const WIDTH: usize>(self, vector: Self::Vector) -> Self::Vector;

    /// Swaps each lane with the one whose number differs in the bit `DISTANCE`.
    fn swap<const DISTANCE: usize>(self, vector: Self::Vector) -> Self::Vector;

    /// Interleaves two vectors: a0 b0 a1 b1 ..
    fn zip(self, a: Self::Vector, b: Self::Vector) -> (Self::Vector, Self::Vector);
}
