//! The span of a transfer, and the one function that checks it.
//!
//! ```text
//! Span (any numbers) -> Bounds::check, on entry to every flavor -> CheckedSpan -> parts, none of
//!                                                                                which wraps
//! ```
//!
//! Code that cuts a span takes a [`CheckedSpan`], which only the check makes.
#![deny(clippy::arithmetic_side_effects)]

use std::ops::Deref;

use crate::error::{Error, ErrorKind, Result};

/// The highest offset at which a place may end: the kernel counts offsets as `loff_t`.
pub(crate) const MAX_OFFSET: u64 = i64::MAX as u64;

/// What a transfer moves: `len` bytes from offset `source` of the source locator to offset `target`
/// of the target.
///
/// The fields have names because three integers in a row are easily swapped (CIDR'23, section 5.2,
/// passes them by position). A span may hold any numbers. A pipe refuses a span that does not lie
/// within its ends, as `OutOfRange`, before anything moves. Memory ends at its length, and every
/// other place at 2^63 - 1, beyond which the kernel has no offsets. A span from a file to the same
/// file must not overlap itself either (`InvalidInput`; within memory, `Busy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset in the source locator, in bytes.
    pub source: u64,
    /// Offset in the target locator, in bytes.
    pub target: u64,
    /// Bytes to move.
    pub len: u64,
}

impl Span {
    /// The part of this span that starts `at` bytes into it and has `len` bytes.
    ///
    /// # Errors
    /// `OutOfRange` where the part does not lie within the span, or where the span exceeds 64 bits.
    ///
    /// ```
    /// use datapipes_core::Span;
    /// let span = Span { source: 100, target: 0, len: 50 };
    /// assert_eq!(span.part(10, 40)?, Span { source: 110, target: 10, len: 40 });
    /// assert!(span.part(11, 40).is_err() && span.part(u64::MAX, 2).is_err());
    /// # Ok::<(), datapipes_core::Error>(())
    /// ```
    pub fn part(self, at: u64, len: u64) -> Result<Span> {
        let part = || {
            at.checked_add(len).filter(|end| *end <= self.len)?;
            Some(Span { source: self.source.checked_add(at)?, target: self.target.checked_add(at)?, len })
        };
        part().ok_or_else(|| {
            Error::new(ErrorKind::OutOfRange, "cut", format!("{len} bytes at {at} of a span ({self:?})"))
        })
    }
}

/// Where the two ends of a pipe end. No byte of a span lies at these offsets or beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) source: u64,
    pub(crate) target: u64,
    /// Where both ends begin in the file, if they are the same file, opened or mapped. A span that
    /// overlaps itself there would read what it wrote, and might never end. (One region of memory
    /// needs no such check, since its leases exclude each other.)
    pub(crate) one_file: Option<Begins>,
}

/// Where the two ends of a pipe begin in one file: 0, or the offset that memory maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Begins {
    pub(crate) source: u64,
    pub(crate) target: u64,
}

impl Bounds {
    /// Returns the checked span, or `None` where it leaves the bounds or overlaps itself.
    #[inline]
    pub(crate) fn check(self, span: Span) -> Option<CheckedSpan> {
        let within = |at: u64, end: u64| at.checked_add(span.len).is_some_and(|last| last <= end);
        let fits = within(span.source, self.source) && within(span.target, self.target);
        (fits && !self.is_over_itself(span)).then_some(CheckedSpan(span))
    }

    /// Whether the span writes bytes that it also reads.
    #[inline]
    pub(crate) fn is_over_itself(self, span: Span) -> bool {
        self.one_file.is_some_and(|begins| {
            // No sum wraps for a span that fits: memory and files end at `MAX_OFFSET` at the
            // latest.
            let (from, to) = (begins.source.saturating_add(span.source), begins.target.saturating_add(span.target));
            span.len > 0 && from.abs_diff(to) < span.len
        })
    }
}

/// A span that lies within both ends of its pipe. No sum of an offset and a length within it
/// exceeds [`MAX_OFFSET`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckedSpan(Span);

impl CheckedSpan {
    /// Returns a part, which lies within the bounds as well.
    ///
    /// # Errors
    /// `OutOfRange` where the part does not lie within the span.
    pub(crate) fn part(self, at: u64, len: u64) -> Result<CheckedSpan> {
        self.0.part(at, len).map(CheckedSpan)
    }

    /// The plain span.
    #[inline]
    pub(crate) fn span(self) -> Span {
        self.0
    }
}

impl Deref for CheckedSpan {
    type Target = Span;

    #[inline]
    fn deref(&self) -> &Span {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWKWARD: [u64; 12] = [
        0,
        1,
        511,
        4096,
        1 << 32,
        MAX_OFFSET - 1,
        MAX_OFFSET,
        MAX_OFFSET + 1,
        u64::MAX - 4096,
        u64::MAX - 10,
        u64::MAX - 1,
        u64::MAX,
    ];

    #[test]
    fn the_check_agrees_with_exact_arithmetic() {
        for source in AWKWARD {
            for target in AWKWARD {
                for len in AWKWARD {
                    for end in AWKWARD {
                        let (span, bounds) =
                            (Span { source, target, len }, Bounds { source: end, target: MAX_OFFSET, one_file: None });
                        let fits = |at: u64, end: u64| u128::from(at) + u128::from(len) <= u128::from(end);
                        let within = fits(source, end) && fits(target, MAX_OFFSET);
                        assert_eq!(bounds.check(span).is_some(), within, "{span:?} in {bounds:?}");
                        let bounds = Bounds { one_file: Some(Begins::default()), ..bounds };
                        let last = |at: u64| u128::from(at) + u128::from(len);
                        let apart = last(source) <= u128::from(target) || last(target) <= u128::from(source);
                        let expected = within && (apart || len == 0);
                        assert_eq!(bounds.check(span).is_some(), expected, "{span:?} in {bounds:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_part_lies_within_or_is_refused() {
        for source in AWKWARD {
            for len in AWKWARD {
                let whole = Span { source, target: 7, len };
                for at in AWKWARD {
                    for part in AWKWARD {
                        let ends =
                            [at.checked_add(part).filter(|end| *end <= len), source.checked_add(at), at.checked_add(7)];
                        match whole.part(at, part) {
                            Ok(cut) => assert_eq!(
                                (Some(cut.source), Some(cut.target), cut.len, ends[0].is_some()),
                                (ends[1], ends[2], part, true)
                            ),
                            Err(e) => {
                                assert_eq!(e.kind(), ErrorKind::OutOfRange);
                                assert!(ends.contains(&None), "{whole:?} at {at}, {part} bytes");
                            }
                        }
                    }
                }
            }
        }
    }
}
