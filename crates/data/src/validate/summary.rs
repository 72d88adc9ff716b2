//! The result of a check.

use std::cmp::Ordering;

use serde::{Serialize, Serializer};

use super::format::DataFormat;

/// The result of a check of a range. It counts as valsort does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ValidationSummary {
    /// Records in the range; a last line without an end is one.
    pub records: u64,
    /// Bytes in the range.
    pub bytes: u64,
    /// Records that are less than the record before them.
    pub unordered: u64,
    /// The number of the first of them, from 0.
    pub first_unordered_record: Option<u64>,
    /// Its offset in bytes from the start of the range.
    pub first_unordered_offset: Option<u64>,
    /// Records that compare equal to the record before them.
    pub duplicates: u64,
    /// The sum of the records' CRC-32s, which does not depend on their order.
    #[serde(serialize_with = "as_hex")]
    pub checksum: u128,
    /// Bytes at the end that are too few for a fixed-size record. They are counted in `bytes` and
    /// nowhere else.
    pub trailing_bytes: u64,
    /// The first record, without a line end; empty if there is none.
    #[serde(skip)]
    pub first: Vec<u8>,
    /// The last record, without a line end; empty if there is none.
    #[serde(skip)]
    pub last: Vec<u8>,
}

impl ValidationSummary {
    /// Returns whether the range consists of whole records in order.
    pub fn is_ordered(&self) -> bool {
        self.unordered == 0 && self.trailing_bytes == 0
    }

    /// Returns the checksum as gensort and valsort print it: hexadecimal, without leading zeros.
    pub fn checksum_hex(&self) -> String {
        format!("{:x}", self.checksum)
    }

    /// Joins the summary of this range with that of the range that follows, `right`. Both ranges
    /// hold whole records of `format`.
    #[must_use]
    pub fn join(self, right: Self, format: &DataFormat) -> Self {
        let mut whole = self;
        let met = (whole.records > 0 && right.records > 0).then(|| format.compare(&whole.last, &right.first));
        match met {
            Some(Ordering::Greater) => whole.note_unordered(1, Some((whole.records, whole.bytes))),
            Some(Ordering::Equal) => whole.duplicates += 1,
            _ => {}
        }
        let place = right.first_unordered_record.zip(right.first_unordered_offset);
        let place = place.map(|(record, offset)| (whole.records + record, whole.bytes + offset));
        whole.note_unordered(right.unordered, place);
        if whole.records == 0 {
            whole.first = right.first;
        }
        if right.records > 0 {
            whole.last = right.last;
        }
        whole.records += right.records;
        whole.bytes += right.bytes;
        whole.duplicates += right.duplicates;
        whole.checksum = whole.checksum.wrapping_add(right.checksum);
        whole.trailing_bytes += right.trailing_bytes;
        whole
    }

    /// Counts `count` unordered records; the first of them is the given record at the given offset.
    fn note_unordered(&mut self, count: u64, place: Option<(u64, u64)>) {
        self.unordered += count;
        if self.first_unordered_record.is_none() {
            (self.first_unordered_record, self.first_unordered_offset) = place.unzip();
        }
    }

    /// Takes in the counts of one run.
    pub(super) fn note_tally(&mut self, tally: &Tally) {
        let place = (tally.unordered > 0).then(|| (self.records + tally.first_record, tally.first_offset));
        self.note_unordered(tally.unordered, place);
        self.records += tally.records;
        self.duplicates += tally.duplicates;
        self.checksum = self.checksum.wrapping_add(u128::from(tally.checksum));
    }
}

/// The counts of one run of records, kept in registers while the run is processed.
#[derive(Default)]
pub(super) struct Tally {
    records: u64,
    unordered: u64,
    duplicates: u64,
    /// The sum of 32-bit values; a run, which lies in memory, has too few of them to overflow it.
    checksum: u64,
    first_record: u64,
    first_offset: u64,
}

impl Tally {
    /// Counts a record at `offset`; `previous` is how the record before compares with it.
    #[inline(always)]
    pub(super) fn note(&mut self, previous: Ordering, crc: u32, offset: u64) {
        // Counts are added without branches: in unsorted data every second record is unordered,
        // which no predictor can guess.
        let unordered = previous == Ordering::Greater;
        if unordered & (self.unordered == 0) {
            (self.first_record, self.first_offset) = (self.records, offset);
        }
        self.unordered += u64::from(unordered);
        self.duplicates += u64::from(previous == Ordering::Equal);
        self.checksum += u64::from(crc);
        self.records += 1;
    }
}

fn as_hex<S: Serializer>(checksum: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{checksum:x}"))
}
