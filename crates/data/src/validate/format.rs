//! The format of the data, and the order of its records.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::layout::RecordLayout;
use super::order::{LineOrder, NumberOrder, Order, RecordOrder};

/// The format of the data, and the order of its records. It is cheap to clone.
#[derive(Clone)]
pub struct DataFormat(pub(super) Shape);

#[derive(Clone)]
pub(super) enum Shape {
    Records(RecordOrder),
    Numbers(NumberOrder),
    Lines { terminator: u8, order: LineOrder },
}

impl DataFormat {
    /// Returns fixed-size records ordered by the bytes of their keys, or `None` if the key does not
    /// lie in the record or the record is empty.
    pub fn records(layout: RecordLayout) -> Option<Self> {
        let key_end = layout.key_offset.checked_add(layout.key_len)?;
        let fits = layout.record_len > 0 && key_end <= layout.record_len;
        fits.then(|| Self(Shape::Records(RecordOrder::new(layout))))
    }

    /// Returns the sort benchmark's records.
    pub fn benchmark_records() -> Self {
        Self(Shape::Records(RecordOrder::new(RecordLayout::BENCHMARK)))
    }

    /// Returns little-endian unsigned numbers of four bytes.
    pub fn u32() -> Self {
        Self(Shape::Numbers(NumberOrder::U32))
    }

    /// Returns little-endian unsigned numbers of eight bytes.
    pub fn u64() -> Self {
        Self(Shape::Numbers(NumberOrder::U64))
    }

    /// Returns little-endian two's complement numbers of eight bytes.
    pub fn i64() -> Self {
        Self(Shape::Numbers(NumberOrder::I64))
    }

    /// Returns little-endian double precision numbers in the total order of IEEE 754 (that of
    /// [`f64::total_cmp`]).
    pub fn f64() -> Self {
        Self(Shape::Numbers(NumberOrder::F64))
    }

    /// Returns lines ended by a newline, ordered by their bytes. The checksum leaves line ends out,
    /// so that data with and without a final newline agree.
    pub fn lines() -> Self {
        Self(Shape::Lines { terminator: b'\n', order: LineOrder(None) })
    }

    /// Makes lines end with `terminator` instead (NUL for `sort -z`); other formats are unchanged.
    #[must_use]
    pub fn terminated_by(mut self, terminator: u8) -> Self {
        if let Shape::Lines { terminator: place, .. } = &mut self.0 {
            *place = terminator;
        }
        self
    }

    /// Makes lines compare by `compare`, which gets them without their ends; other formats are
    /// unchanged.
    #[must_use]
    pub fn ordered_by(mut self, compare: impl Fn(&[u8], &[u8]) -> Ordering + Send + Sync + 'static) -> Self {
        if let Shape::Lines { order, .. } = &mut self.0 {
            *order = LineOrder(Some(Arc::new(compare)));
        }
        self
    }

    /// Returns the bytes in a record, or `None` for lines. Ranges that are checked separately begin
    /// at multiples of it; for lines they begin behind a line's end.
    pub fn record_len(&self) -> Option<usize> {
        match &self.0 {
            Shape::Records(order) => Some(order.layout.record_len),
            Shape::Numbers(order) => Some(order.len()),
            Shape::Lines { .. } => None,
        }
    }

    /// Compares two whole records.
    pub(super) fn compare(&self, left: &[u8], right: &[u8]) -> Ordering {
        match &self.0 {
            Shape::Records(order) => order.compare(left, right),
            Shape::Numbers(order) => order.compare(left, right),
            Shape::Lines { order, .. } => order.compare(left, right),
        }
    }
}

impl fmt::Debug for DataFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Shape::Records(order) => order.layout.fmt(f),
            Shape::Numbers(order) => order.fmt(f),
            Shape::Lines { terminator, order } => {
                let by = if order.0.is_some() { "closure" } else { "bytes" };
                write!(f, "Lines {{ terminator: {terminator}, order: {by} }}")
            }
        }
    }
}
