//! How records compare, by kind of record.

use std::cmp::Ordering;

use super::format::{Compare, Layout};

/// An order of records, whole and without line ends.
pub(super) trait Order {
    /// How the record `left` compares with `right`.
    fn compare(&self, left: &[u8], right: &[u8]) -> Ordering;
}

/// Fixed-size records by the bytes of their key.
#[derive(Clone, Copy)]
pub(super) struct RecordOrder {
    pub(super) layout: Layout,
}

impl RecordOrder {
    pub(super) fn new(layout: Layout) -> Self {
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
        let (left, right) = (self.key(left), self.key(right));
        // Nearly all keys differ in their first eight bytes, which two loads decide without a call.
        match (left.first_chunk(), right.first_chunk()) {
            (Some(high), Some(other)) if high != other => u64::from_be_bytes(*high).cmp(&u64::from_be_bytes(*other)),
            _ => left.cmp(right),
        }
    }
}

/// Little-endian numbers by an order-preserving image in the unsigned numbers.
#[derive(Clone, Copy)]
pub(super) struct NumberOrder {
    pub(super) len: usize,
    pub(super) rank: fn(&[u8]) -> u64,
}

impl Order for NumberOrder {
    #[inline]
    fn compare(&self, left: &[u8], right: &[u8]) -> Ordering {
        (self.rank)(left).cmp(&(self.rank)(right))
    }
}

/// The little-endian number in up to eight bytes.
#[inline]
pub(super) fn word(bytes: &[u8]) -> u64 {
    if let Some(word) = bytes.first_chunk() {
        return u64::from_le_bytes(*word);
    }
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// The bits of a double mapped so that their unsigned order is IEEE 754's total order.
#[inline]
pub(super) fn total_rank(bits: u64) -> u64 {
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// Lines by their bytes, or by a closure.
#[derive(Clone)]
pub(super) struct LineOrder(pub(super) Option<Compare>);

impl Order for LineOrder {
    #[inline]
    fn compare(&self, left: &[u8], right: &[u8]) -> Ordering {
        match &self.0 {
            Some(compare) => compare(left, right),
            None => left.cmp(right),
        }
    }
}
