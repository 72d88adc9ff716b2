//! Where records that are in order are cut, in memory or in a file.

use std::borrow::Cow;

use datapipes_core::Result;

/// Records in order, of which few are looked up.
pub(super) trait SortedRecords {
    /// Their bytes.
    fn byte_len(&self) -> u64;

    /// Returns where the record begins that byte `at` belongs to. One begins at `low`.
    fn start_of(&self, low: u64, at: u64) -> Result<u64>;

    /// Returns the record that begins at `start`, with the byte that ends it if there is one.
    fn record_at(&self, start: u64) -> Result<Cow<'_, [u8]>>;
}

/// Sorted records in memory.
pub(super) struct RecordsInMemory<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) fixed_len: Option<usize>,
    pub(super) terminator: u8,
}

impl SortedRecords for RecordsInMemory<'_> {
    fn byte_len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn start_of(&self, low: u64, at: u64) -> Result<u64> {
        // Both are offsets in memory.
        let (low, at) = (low as usize, at as usize);
        Ok(match self.fixed_len {
            Some(len) => at / len * len,
            None => memchr::memrchr(self.terminator, &self.bytes[low..at]).map_or(low, |end| low + end + 1),
        } as u64)
    }

    fn record_at(&self, start: u64) -> Result<Cow<'_, [u8]>> {
        let rest = &self.bytes[start as usize..];
        let len = match self.fixed_len {
            Some(len) => len,
            None => memchr::memchr(self.terminator, rest).map_or(rest.len(), |end| end + 1),
        };
        Ok(Cow::Borrowed(&rest[..len]))
    }
}

/// Returns the offset of the first record behind `low` that `before` is not true of, by halves.
pub(super) fn cut(sorted: &impl SortedRecords, mut low: u64, before: impl Fn(&[u8]) -> bool) -> Result<u64> {
    let mut high = sorted.byte_len();
    while low < high {
        let start = sorted.start_of(low, u64::midpoint(low, high))?;
        let record = sorted.record_at(start)?;
        if before(&record) {
            low = start + record.len() as u64;
        } else {
            high = start;
        }
    }
    Ok(low)
}

/// Returns the first and the last record; `None` if there are none.
pub(super) fn ends(sorted: &impl SortedRecords) -> Result<Option<[Cow<'_, [u8]>; 2]>> {
    let len = sorted.byte_len();
    if len == 0 {
        return Ok(None);
    }
    let last = sorted.start_of(0, len - 1)?;
    Ok(Some([sorted.record_at(0)?, sorted.record_at(last)?]))
}
