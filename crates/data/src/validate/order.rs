//! The order of records, for each kind of record.

use std::cmp::Ordering;

use super::layout::{Compare, RecordLayout};

/// An order of whole records without line ends.
pub(super) trait Order {
    /// Compares the record `left` with `right`.
    fn compare(&self, left: &[u8], right: &[u8]) -> Ordering;
}

/// Fixed-size records, ordered by the bytes of their key.
#[derive(Clone, Copy)]
pub(super) struct RecordOrder {
    pub(super) layout: RecordLayout,
}

impl RecordOrder {
    pub(super) fn new(layout: RecordLayout) -> Self {
        Self { layout }
    }

    #[inline]
    fn key<'a>(&self, record: &'a [u8]) -> &'a [u8] {
        &record[self.layout.key_offset..self.layout.key_offset + self.layout.key_len]
    }
}

impl Order for RecordOrder {
    #[inline]
    fn compare(&self, left: &[u8], right: &[u8]) -> Ordering {
        compare_bytes(self.key(left), self.key(right))
    }
}

/// Compares by bytes.
#[inline]
fn compare_bytes(left: &[u8], right: &[u8]) -> Ordering {
    // Nearly all keys differ in their first eight bytes, which two loads decide without a call.
    match (left.first_chunk(), right.first_chunk()) {
        (Some(high), Some(other)) if high != other => u64::from_be_bytes(*high).cmp(&u64::from_be_bytes(*other)),
        _ => left.cmp(right),
    }
}

/// Little-endian numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberOrder {
    U32,
    U64,
    I64,
    F64,
}

impl NumberOrder {
    pub(super) const fn len(self) -> usize {
        match self {
            Self::U32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

impl Order for NumberOrder {
    #[inline]
    fn compare(&self, left: &[u8], right: &[u8]) -> Ordering {
        match self {
            Self::U32 | Self::U64 => Ranked(word).compare(left, right),
            Self::I64 => Ranked(signed_rank).compare(left, right),
            Self::F64 => Ranked(total_rank).compare(left, right),
        }
    }
}

/// Records ordered by an order-preserving map to the unsigned numbers. The map is a type parameter,
/// so that it is inlined into the loop over numbers of one type.
pub(super) struct Ranked<F>(pub(super) F);

impl<F: Fn(&[u8]) -> u64> Order for Ranked<F> {
    #[inline]
    fn compare(&self, left: &[u8], right: &[u8]) -> Ordering {
        (self.0)(left).cmp(&(self.0)(right))
    }
}

/// Returns the little-endian number in up to eight bytes.
#[inline]
pub(super) fn word(bytes: &[u8]) -> u64 {
    if let Some(word) = bytes.first_chunk() {
        return u64::from_le_bytes(*word);
    }
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Maps a two's complement number such that the unsigned order of the results is that of the
/// numbers.
#[inline]
pub(super) fn signed_rank(bytes: &[u8]) -> u64 {
    word(bytes) ^ (1 << 63)
}

/// Maps a double such that the unsigned order of the results is IEEE 754's total order.
#[inline]
pub(super) fn total_rank(bytes: &[u8]) -> u64 {
    let bits = word(bytes);
    // The mask is all ones for negative numbers, which reverses their order, and else only the sign
    // bit.
    bits ^ (((bits as i64) >> 63) as u64 | 1 << 63)
}

/// Lines, ordered by their bytes or by a closure.
#[derive(Clone)]
pub(super) struct LineOrder(pub(super) Option<Compare>);

impl Order for LineOrder {
    #[inline]
    fn compare(&self, left: &[u8], right: &[u8]) -> Ordering {
        match &self.0 {
            Some(compare) => compare(left, right),
            None => compare_bytes(left, right),
        }
    }
}
