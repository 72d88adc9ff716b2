//! What the steps of sorting a slot share: its bytes, and where its records are.

use crate::form::shared_start::may_be_other;
use crate::records::entry::{self, Entry};
use crate::records::layout::Layout;
use crate::records::memo::{self, Question};

/// The context for sorting a slot, besides the entries.
pub(crate) struct SlotSorter<'a, L> {
    pub(crate) layout: &'a L,
    /// The slot's bytes, which entries point into.
    pub(crate) raw: &'a [u8],
    pub(crate) threads: usize,
    /// Whether only the first of records with the same key is kept.
    pub(crate) unique: bool,
    /// The bytes in which all records agree, as far as they are known. The prefixes of the entries
    /// are what follows. If it is not 0, records whose prefix is the smallest or the largest one
    /// may begin otherwise.
    pub(crate) depth: usize,
}

impl<L: Layout> SlotSorter<'_, L> {
    /// Whether an entry that still has the prefix of the slot, which begins at `depth`, may be that
    /// of a record that does not begin as the others do.
    #[inline]
    pub(super) fn may_be_other(&self, e: Entry, depth: usize) -> bool {
        depth == self.depth && depth > 0 && may_be_other(entry::prefix(e))
    }

    /// The record of an entry.
    #[inline]
    pub(crate) fn record(&self, e: Entry) -> &[u8] {
        let at = entry::offset(e);
        &self.raw[at..at + self.len(e)]
    }

    #[inline]
    pub(crate) fn len(&self, e: Entry) -> usize {
        if let Some(len) = self.layout.fixed_len() {
            return len;
        }
        entry::short_len(e).unwrap_or_else(|| self.long_len(e))
    }

    #[cold]
    fn long_len(&self, e: Entry) -> usize {
        let at = entry::offset(e);
        let find = || self.layout.end_of(self.raw, at).unwrap_or(self.raw.len()) - at;
        let question = Question { address: self.raw[at..].as_ptr().addr(), len: 0, about: 0 };
        memo::recall(question, || (0, find())).1
    }
}
