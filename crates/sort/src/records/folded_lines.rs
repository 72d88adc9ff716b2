//! Lines in the order of their bytes with letters folded (`-f` alone), and then by their bytes.
//!
//! They are sorted and merged as plain lines are, and letters are folded where bytes are loaded. So
//! no key is made of a line. Lines that differ in nothing but the case of letters are then sorted
//! as plain lines.

use std::cmp::Ordering;

use datapipes_core::Result;

use super::layout::{Layout, LongLimit, PlainLines, body};
use super::offset_value::{Coding, TieOrder};
use super::tally::Tally;
use crate::text::{PiecedLine, TextOrder};

/// The layout of such lines. Duplicates are not dropped: which of them is the first would need more
/// than codes.
#[derive(Clone, Debug)]
pub(crate) struct FoldedLines {
    terminator: u8,
    order: TextOrder,
    reverse: bool,
    limit: LongLimit,
}

impl FoldedLines {
    /// Returns `None` if the order is another one.
    pub(crate) fn new(terminator: u8, order: &TextOrder) -> Option<FoldedLines> {
        let reverse = order.folded_lines()?;
        Some(FoldedLines { terminator, order: order.clone(), reverse, limit: LongLimit::default() })
    }

    /// What stubs have of their lines decides, unless it is the same. A line that is not long is
    /// shorter than that.
    #[cold]
    fn compare_stubs(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.order.compare_keys(self.head(a), self.head(b))
    }

    /// What a record has of its line. The place that a stub ends with has no order: lines with the
    /// same head are told apart by their inputs, or read again.
    #[inline]
    fn head<'r>(&self, record: &'r [u8]) -> &'r [u8] {
        match self.limit.is_stub(record) {
            true => &record[..=self.limit.get()],
            false => body(record),
        }
    }
}

impl Layout for FoldedLines {
    #[inline]
    fn terminator(&self) -> Option<u8> {
        Some(self.terminator)
    }

    #[inline]
    fn prefix(&self, record: &[u8]) -> u64 {
        let coding = Coding::of_folded(self.reverse, None);
        coding.directed(coding.word(self.head(record), 0))
    }

    #[inline]
    fn prefix_decides(&self) -> bool {
        false
    }

    #[inline]
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        if self.limit.is_stub(a) || self.limit.is_stub(b) {
            return self.compare_stubs(a, b);
        }
        self.order.compare(body(a), body(b))
    }

    #[inline]
    fn prefix_at(&self, record: &[u8], depth: usize) -> Option<u64> {
        // A line that ends before `depth` was padded with zeros, which a longer line may contain.
        let line = self.head(record);
        let coding = Coding::of_folded(self.reverse, None);
        (depth <= line.len()).then(|| coding.directed(coding.word(line, depth)))
    }

    /// Of long lines there are only stubs here, so they are not told apart.
    #[inline]
    fn coding(&self) -> Option<Coding> {
        let ties = self.order.last_resort().map(|reverse| TieOrder { reverse, most: self.limit.get() });
        Some(Coding::of_folded(self.reverse, ties))
    }

    fn tie_break(&self) -> Option<PlainLines> {
        let reverse = self.order.last_resort()?;
        Some(PlainLines { terminator: self.terminator, reverse, limit: self.limit.clone() })
    }

    #[inline]
    fn coded_bytes<'r>(&self, record: &'r [u8]) -> &'r [u8] {
        self.head(record)
    }

    fn set_long_limit(&self, limit: usize) {
        self.limit.set(limit);
    }

    #[inline]
    fn count(&self, tally: &mut Tally, record: &[u8]) {
        self.limit.count(tally, record);
    }

    fn compare_long(&self, a: &mut dyn PiecedLine, b: &mut dyn PiecedLine, keys_only: bool) -> Result<Ordering> {
        self.order.compare_in(a, b, self.limit.get(), keys_only)
    }
}
