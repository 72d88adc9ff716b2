//! What an order is made of: a record's parts, or a caller's comparison.

use std::cmp::Ordering;
use std::sync::Arc;

/// The parts of a fixed-size record, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    /// Length of a record.
    pub record_len: usize,
    /// Offset of its key.
    pub key_offset: usize,
    /// Length of its key.
    pub key_len: usize,
}

impl RecordLayout {
    /// The sort benchmark's layout: 100 bytes, of which the first 10 are the key.
    pub const BENCHMARK: Self = Self { record_len: 100, key_offset: 0, key_len: 10 };
}

pub(super) type Compare = Arc<dyn Fn(&[u8], &[u8]) -> Ordering + Send + Sync>;
