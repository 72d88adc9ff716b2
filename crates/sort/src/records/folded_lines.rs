//! Lines in the order of their bytes with letters folded (`-f` alone), and then by their bytes.
//!
//! They are sorted and merged as plain lines are, and letters are folded where bytes are loaded. So
//! no key is made of a line. Only lines that differ in nothing but the case of letters are compared
//! as a whole.

use std::cmp::Ordering;

use datapipes_core::Result;

use super::layout::{Layout, LongLimit, body};
use super::offset_value::Coding;
use super::tally::Tally;
use crate::text::{PiecedLine, TextOrder};

/// The layout of such lines. Duplicates are not dropped: which of them is the first would need more
/// than codes.
#[derive(Clone, Debug)]
pub(crate) struct FoldedLines {
    terminator: u8,
    order: TextOrder,
    coding: Coding,
    limit: LongLimit,
}

impl FoldedLines {
    /// Returns `None` if the order is another one.
    pub(crate) fn new(terminator: u8, order: &TextOrder) -> Option<FoldedLines> {
        let coding = Coding::of_folded(order.folded_lines()?);
        Some(FoldedLines { terminator, order: order.clone(), coding, limit: LongLimit::default() })
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
        self.coding.directed(self.coding.word(self.head(record), 0))
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
        (depth <= line.len()).then(|| self.coding.directed(self.coding.word(line, depth)))
    }

    #[inline]
    fn coding(&self) -> Option<Coding> {
        Some(self.coding)
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
