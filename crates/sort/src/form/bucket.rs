//! A part of a slot's entries, which is sorted when its records are first asked for.

use std::sync::OnceLock;

use datapipes_core::locks::Mutex;

use crate::form::slot_sorter::SlotSorter;
use crate::records::entry::Entry;
use crate::records::layout::Layout;
use crate::records::memo::Scope;
use crate::records::tally::Tally;

/// Entries that come after those of the bucket before, and before those of the next one.
///
/// A bucket is sorted just before its records are copied, so its entries, and the lines that were
/// read to tell equal prefixes apart, are still in the cache. Several threads may ask for the
/// entries: one sorts, and the others wait for it.
#[derive(Debug)]
pub(crate) struct SlotBucket<'e> {
    /// Bytes of its records.
    pub(crate) bytes: u64,
    /// Records that were dropped here as duplicates.
    pub(crate) dropped: Tally,
    unsorted: Mutex<Option<&'e mut [Entry]>>,
    sorted: OnceLock<&'e [Entry]>,
    /// The last place that was found: a number of entries, and the bytes of their records.
    found: Mutex<(usize, usize)>,
}

impl<'e> SlotBucket<'e> {
    /// Makes a bucket that is still to be sorted.
    pub(super) fn unsorted(entries: &'e mut [Entry], bytes: u64) -> SlotBucket<'e> {
        let unsorted = Mutex::new(Some(entries));
        SlotBucket { bytes, dropped: Tally::default(), unsorted, sorted: OnceLock::new(), found: Mutex::default() }
    }

    /// Makes a bucket of entries in their final order.
    pub(super) fn sorted(entries: &'e [Entry], bytes: u64, dropped: Tally) -> SlotBucket<'e> {
        let (unsorted, sorted) = (Mutex::new(None), OnceLock::from(entries));
        SlotBucket { bytes, dropped, unsorted, sorted, found: Mutex::default() }
    }

    /// Returns the entries in their final order. The sorter must be the one that made the bucket.
    pub(crate) fn entries<L: Layout>(&self, sorter: &SlotSorter<'_, L>) -> &'e [Entry] {
        self.sorted.get_or_init(|| match self.unsorted.lock().take() {
            Some(entries) => {
                // The records stay as they are while their entries are sorted.
                let _scope = Scope::enter();
                sorter.sort_bucket(entries, sorter.depth);
                entries
            }
            None => &[],
        })
    }

    /// Finds the entry in which byte `at` of the bucket lies, and the offset of that byte in its
    /// record. Blocks ask for one place after the other, so the search goes on from the last one:
    /// all entries of a large bucket would be looked at for each block.
    pub(crate) fn find<L: Layout>(&self, sorter: &SlotSorter<'_, L>, at: usize) -> (usize, usize) {
        if let Some(each) = sorter.layout.fixed_len() {
            return (at / each, at % each);
        }
        let entries = self.entries(sorter);
        let (mut index, mut before) = Some(*self.found.lock()).filter(|found| found.1 <= at).unwrap_or_default();
        while let Some(e) = entries.get(index) {
            let len = sorter.len(*e);
            if at - before < len {
                break;
            }
            (index, before) = (index + 1, before + len);
        }
        *self.found.lock() = (index, before);
        (index, if index < entries.len() { at - before } else { 0 })
    }
}
