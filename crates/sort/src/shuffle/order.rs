//! The order of records as tasks of several machines share it: splitters, and cuts at them.

use std::cmp::Ordering;

use datapipes_core::{Error, ErrorKind, Result};

use crate::job::{RecordFormat, check_key};
use crate::numbers::Numbers;
use crate::records::layout::{Fixed, KeyedLines, Layout, PlainLines};
use crate::shuffle::cuts::{RecordsInMemory, SortedRecords, cut, ends};

/// A record with the number of the part of the input that it begins in. It is a sample of the
/// input, or a splitter. A line has its terminator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedRecord {
    /// The record.
    pub record: Vec<u8>,
    /// The number of the part. Parts are numbered in the order of the input.
    pub part: u64,
}

/// How records lie in bytes, and their order.
///
/// ```
/// use datapipes_sort::text::TextOptions;
/// use datapipes_sort::{PlacedRecord, RecordFormat, ShuffleOrder};
///
/// let format = RecordFormat::Lines { order: TextOptions::default().compile()?, terminator: b'\n' };
/// let order = ShuffleOrder::new(&format, false)?;
/// let samples = [b"c\n", b"a\n", b"b\n"].map(|line| PlacedRecord { record: line.to_vec(), part: 0 });
/// let splitters = order.splitters(samples.to_vec(), 2);
/// assert_eq!(splitters[0].record, b"b\n");
/// assert_eq!(order.cuts(b"a\na\nb\n", 0, &splitters)?, [0, 4, 6]);
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShuffleOrder {
    layout: AnyLayout,
    /// Whether records with equal keys must come to one range, where all but one are dropped.
    unique: bool,
}

/// A layout that is chosen at run time. Few records are compared by it.
#[derive(Clone, Debug)]
enum AnyLayout {
    Fixed(Fixed),
    Numbers(Numbers),
    Plain(PlainLines),
    Keyed(KeyedLines),
}

impl ShuffleOrder {
    /// Takes the order of a sort. `unique` says that only the first of records with the same key is
    /// kept.
    ///
    /// # Errors
    /// `InvalidInput` if a key does not lie within its record.
    pub fn new(format: &RecordFormat, unique: bool) -> Result<ShuffleOrder> {
        let layout = match format {
            &RecordFormat::Records { len, key_at, key_len, reverse } => {
                check_key(len, key_at, key_len)?;
                AnyLayout::Fixed(Fixed { len, key_at, key_len, reverse })
            }
            &RecordFormat::Numbers { kind, reverse } => AnyLayout::Numbers(Numbers { kind, reverse }),
            RecordFormat::Lines { order, terminator } if order.is_plain_bytes() || order.plain_reverse() => {
                AnyLayout::Plain(PlainLines::new(*terminator, order.plain_reverse()))
            }
            RecordFormat::Lines { order, terminator } => AnyLayout::Keyed(KeyedLines::new(*terminator, order.clone())),
        };
        Ok(ShuffleOrder { layout, unique })
    }

    /// The length of every record, if all have the same.
    pub fn fixed_len(&self) -> Option<usize> {
        match &self.layout {
            AnyLayout::Fixed(layout) => layout.fixed_len(),
            AnyLayout::Numbers(layout) => layout.fixed_len(),
            AnyLayout::Plain(_) | AnyLayout::Keyed(_) => None,
        }
    }

    /// The byte that ends a record, if there is one.
    pub fn terminator(&self) -> Option<u8> {
        match &self.layout {
            AnyLayout::Fixed(_) | AnyLayout::Numbers(_) => None,
            AnyLayout::Plain(layout) => layout.terminator(),
            AnyLayout::Keyed(layout) => layout.terminator(),
        }
    }

    /// The order of two records, which are as they are in files.
    ///
    /// # Errors
    /// `InvalidInput` if one of them has another length than records have.
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Result<Ordering> {
        if let Some(len) = self.fixed_len()
            && (a.len() != len || b.len() != len)
        {
            let context = format!("records of {} and {} bytes, which should have {len}", a.len(), b.len());
            return Err(Error::new(ErrorKind::InvalidInput, "compare", context));
        }
        Ok(self.order_of(a, b))
    }

    fn order_of(&self, a: &[u8], b: &[u8]) -> Ordering {
        match &self.layout {
            AnyLayout::Fixed(layout) => layout.compare(a, b),
            AnyLayout::Numbers(layout) => layout.file_prefix(a).cmp(&layout.file_prefix(b)),
            AnyLayout::Plain(layout) => layout.compare(a, b),
            AnyLayout::Keyed(layout) => layout.compare(a, b),
        }
    }

    /// Chooses `ranges - 1` of the samples, in their order, so that about as many samples lie
    /// between any two. Without samples there are no splitters. Samples that do not have the length
    /// of records are left out.
    pub fn splitters(&self, mut samples: Vec<PlacedRecord>, ranges: usize) -> Vec<PlacedRecord> {
        if let Some(len) = self.fixed_len() {
            samples.retain(|sample| sample.record.len() == len);
        }
        samples.sort_by(|a, b| self.order_of(&a.record, &b.record).then(a.part.cmp(&b.part)));
        let count = samples.len();
        let chosen = (1..ranges).filter_map(|i| samples.get(i * count / ranges));
        chosen.cloned().collect()
    }

    /// Returns the offsets at which a sorted part of the input is cut, with its start and its end.
    ///
    /// # Errors
    /// `InvalidInput` if the bytes do not end with a record, or if a splitter is no record.
    pub fn cuts(&self, sorted: &[u8], part: u64, splitters: &[PlacedRecord]) -> Result<Vec<usize>> {
        self.check_whole(sorted)?;
        let cuts = self.cuts_in(&self.in_memory(sorted), part, splitters)?;
        Ok(cuts.into_iter().map(|cut| cut as usize).collect())
    }

    pub(super) fn cuts_in(
        &self,
        sorted: &impl SortedRecords,
        part: u64,
        splitters: &[PlacedRecord],
    ) -> Result<Vec<u64>> {
        let mut cuts = vec![0];
        let mut from = 0;
        for splitter in splitters {
            self.check_record(&splitter.record)?;
            from = cut(sorted, from, |record| {
                match self.order_of(record, &splitter.record) {
                    Ordering::Less => true,
                    // If duplicates are dropped, all records of a key are in one range.
                    Ordering::Equal => !self.unique && part < splitter.part,
                    Ordering::Greater => false,
                }
            })?;
            cuts.push(from);
        }
        cuts.push(sorted.byte_len());
        Ok(cuts)
    }

    /// Whether sorted records lie between two splitters, if there are these. Records that equal a
    /// splitter may be on both sides of it.
    ///
    /// # Errors
    /// As [`cuts`](Self::cuts).
    pub fn lie_between(&self, sorted: &[u8], splitters: [Option<&[u8]>; 2]) -> Result<bool> {
        self.check_whole(sorted)?;
        self.ends_between(&self.in_memory(sorted), splitters)
    }

    pub(super) fn ends_between(&self, sorted: &impl SortedRecords, splitters: [Option<&[u8]>; 2]) -> Result<bool> {
        splitters.into_iter().flatten().try_for_each(|splitter| self.check_record(splitter))?;
        let Some([first, last]) = ends(sorted)? else { return Ok(true) };
        let [lower, upper] = splitters;
        let above = lower.is_none_or(|lower| self.order_of(&first, lower) != Ordering::Less);
        let below = upper.is_none_or(|upper| self.order_of(&last, upper) != Ordering::Greater);
        Ok(above && below)
    }

    fn in_memory<'a>(&self, bytes: &'a [u8]) -> RecordsInMemory<'a> {
        RecordsInMemory { bytes, fixed_len: self.fixed_len(), terminator: self.ending() }
    }

    fn ending(&self) -> u8 {
        self.terminator().unwrap_or(b'\n')
    }

    fn check_whole(&self, sorted: &[u8]) -> Result<()> {
        let whole = match self.fixed_len() {
            Some(len) => sorted.len().is_multiple_of(len),
            None => sorted.last().is_none_or(|last| *last == self.ending()),
        };
        if whole {
            return Ok(());
        }
        let context = format!("{} bytes of a part, which do not end with a record", sorted.len());
        Err(Error::new(ErrorKind::InvalidInput, "shuffle", context))
    }

    fn check_record(&self, record: &[u8]) -> Result<()> {
        let whole = match self.fixed_len() {
            Some(len) => record.len() == len,
            None => record.last() == Some(&self.ending()),
        };
        if whole {
            return Ok(());
        }
        let context = format!("a splitter of {} bytes, which is no record", record.len());
        Err(Error::new(ErrorKind::InvalidInput, "shuffle", context))
    }
}
