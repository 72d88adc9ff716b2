//! What the data consists of and how its records compare.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use super::order::{LineOrder, NumberOrder, Order, RecordOrder};

/// Where the parts of a fixed-size record lie, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    /// Length of a record.
    pub record_len: usize,
    /// Start of its key.
    pub key_offset: usize,
    /// Length of its key.
    pub key_len: usize,
}

impl RecordLayout {
    /// The sort benchmark's: 100 bytes, the first 10 the key.
    pub const BENCHMARK: Self = Self { record_len: 100, key_offset: 0, key_len: 10 };
}

pub(super) type Compare = Arc<dyn Fn(&[u8], &[u8]) -> Ordering + Send + Sync>;

/// What the data consists of and how its records compare. Cheap to clone.
#[derive(Clone)]
pub struct DataFormat(pub(super) Shape);

#[derive(Clone)]
pub(super) enum Shape {
    Records(RecordOrder),
    Numbers(NumberOrder),
    Lines { terminator: u8, order: LineOrder },
}

impl DataFormat {
    /// Fixed-size records ordered by the bytes of their keys, or `None` if the key does not lie in
    /// the record or the record is empty.
    pub fn records(layout: RecordLayout) -> Option<Self> {
        let key_end = layout.key_offset.checked_add(layout.key_len)?;
        let fits = layout.record_len > 0 && key_end <= layout.record_len;
        fits.then(|| Self(Shape::Records(RecordOrder::new(layout))))
    }

    /// The sort benchmark's records.
    pub fn benchmark_records() -> Self {
        Self(Shape::Records(RecordOrder::new(RecordLayout::BENCHMARK)))
    }

    /// Little-endian unsigned numbers of four bytes.
    pub fn u32() -> Self {
        Self(Shape::Numbers(NumberOrder::U32))
    }

    /// Little-endian unsigned numbers of eight bytes.
    pub fn u64() -> Self {
        Self(Shape::Numbers(NumberOrder::U64))
    }

    /// Little-endian two's complement numbers of eight bytes.
    pub fn i64() -> Self {
        Self(Shape::Numbers(NumberOrder::I64))
    }

    /// Little-endian double precision numbers in the total order of IEEE 754 (that of
    /// [`f64::total_cmp`]).
    pub fn f64() -> Self {
        Self(Shape::Numbers(NumberOrder::F64))
    }

    /// Lines ended by a newline, ordered by their bytes. The checksum leaves line ends out, so that
    /// data with and without a final newline agree.
    pub fn lines() -> Self {
        Self(Shape::Lines { terminator: b'\n', order: LineOrder(None) })
    }

    /// Lines that end with `terminator` instead (NUL for `sort -z`); other formats stay as they
    /// are.
    #[must_use]
    pub fn terminated_by(mut self, terminator: u8) -> Self {
        if let Shape::Lines { terminator: place, .. } = &mut self.0 {
            *place = terminator;
        }
        self
    }

    /// Lines that compare by `compare`, which gets them without their ends; other formats stay as
    /// they are.
    #[must_use]
    pub fn ordered_by(mut self, compare: impl Fn(&[u8], &[u8]) -> Ordering + Send + Sync + 'static) -> Self {
        if let Shape::Lines { order, .. } = &mut self.0 {
            *order = LineOrder(Some(Arc::new(compare)));
        }
        self
    }

    /// Bytes in a record, or `None` for lines. Ranges that are checked apart begin at multiples of
    /// it, or for lines behind a line's end.
    pub fn record_len(&self) -> Option<usize> {
        match &self.0 {
            Shape::Records(order) => Some(order.layout.record_len),
            Shape::Numbers(order) => Some(order.len()),
            Shape::Lines { .. } => None,
        }
    }

    /// How two whole records compare.
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
