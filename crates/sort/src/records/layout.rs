//! What the engine knows of records: where they end, and how two of them are ordered.
//!
//! The engine is generic over [`Layout`], so the inner loops are compiled for each kind of record.

use std::cmp::Ordering;

use super::number_kind::Numbers;
use super::offset_value::Coding;
use super::terminator;
use crate::text::TextOrder;

/// The most bytes of a normalized key that are looked at; records that agree in these are compared.
pub(crate) const NORMALIZED_LEN: usize = 1020;

/// How records lie in bytes, and their order. If the layout has a terminator, it is part of the
/// record.
pub(crate) trait Layout: Send + Sync {
    /// The length of every record, if all have the same. A layout has this or a terminator.
    #[inline]
    fn fixed_len(&self) -> Option<usize> {
        None
    }

    /// The byte that ends a record, if there is one.
    #[inline]
    fn terminator(&self) -> Option<u8> {
        None
    }

    /// The end of the record that starts at `from`, or `None` if the bytes end first.
    #[inline]
    fn end_of(&self, bytes: &[u8], from: usize) -> Option<usize> {
        match self.fixed_len() {
            Some(len) => Some(from + len).filter(|end| *end <= bytes.len()),
            None => terminator::find(self.terminator()?, bytes, from).map(|at| at + 1),
        }
    }

    /// Calls `sink` with the start and the end of each whole record from `from` on, until it
    /// returns false. Returns the end of the last record that `sink` accepted (or `from`).
    #[inline]
    fn scan(&self, bytes: &[u8], from: usize, mut sink: impl FnMut(usize, usize) -> bool) -> usize {
        let mut at = from;
        match (self.fixed_len(), self.terminator()) {
            (None, Some(terminator)) => terminator::find_each(terminator, bytes, from, |end| {
                let accepted = sink(at, end + 1);
                if accepted {
                    at = end + 1;
                }
                accepted
            }),
            _ => {
                while let Some(end) = self.end_of(bytes, at) {
                    if !sink(at, end) {
                        break;
                    }
                    at = end;
                }
            }
        }
        at
    }

    /// A number such that prefix(a) < prefix(b) implies that a comes before b. Equal numbers decide
    /// nothing, unless [`prefix_decides`](Self::prefix_decides).
    fn prefix(&self, record: &[u8]) -> u64;

    /// The prefix of a record as it is in a file. Only numbers have another form in memory.
    #[inline]
    fn file_prefix(&self, record: &[u8]) -> u64 {
        self.prefix(record)
    }

    /// Whether records with equal prefixes are equal in order.
    fn prefix_decides(&self) -> bool;

    /// The order of two records, regardless of their positions. `Equal` means that the earlier one
    /// in the input comes first.
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering;

    /// Whether one of the two is dropped when only unique keys are kept.
    fn same_key(&self, a: &[u8], b: &[u8]) -> bool {
        self.compare(a, b) == Ordering::Equal
    }

    /// The next eight bytes of the key, from `depth` on, as a prefix. The records agree in all
    /// bytes before. `None` means that these bytes cannot decide and the records must be compared.
    fn prefix_at(&self, record: &[u8], depth: usize) -> Option<u64>;

    /// The order of records with equal keys, if such records are ordered as plain lines.
    fn tie_break(&self) -> Option<PlainLines> {
        None
    }

    /// Whether records with the same prefix have equal keys. It is the same for all of them.
    fn prefix_is_exact(&self, _record: &[u8]) -> bool {
        false
    }

    /// How records are coded for a merge, if their order is that of their
    /// [`coded_bytes`](Self::coded_bytes).
    fn coding(&self) -> Option<Coding> {
        None
    }

    /// The bytes of a record by which it is coded.
    #[inline]
    fn coded_bytes<'r>(&self, record: &'r [u8]) -> &'r [u8] {
        record
    }

    /// Whether records have normalized keys, whose bytes have the order of the records.
    #[inline]
    fn has_normalized_keys(&self) -> bool {
        false
    }

    /// Appends bytes that order records with this prefix, at most [`NORMALIZED_LEN`]: what the
    /// prefix lacks of their normalized keys.
    #[inline]
    fn push_behind_prefix(&self, _record: &[u8], _prefix: u64, _out: &mut Vec<u8>) {}

    /// The kind of numbers, if records are only numbers; these are sorted without entries.
    fn numbers(&self) -> Option<Numbers> {
        None
    }
}

/// Records of one length with a key at a fixed offset, in the order of the key's bytes.
#[derive(Clone, Debug)]
pub(crate) struct Fixed {
    pub(crate) len: usize,
    pub(crate) key_at: usize,
    pub(crate) key_len: usize,
    pub(crate) reverse: bool,
}

impl Fixed {
    #[inline]
    fn key<'a>(&self, record: &'a [u8]) -> &'a [u8] {
        &record[self.key_at..self.key_at + self.key_len]
    }
}

/// The first eight bytes as a big-endian number, padded with zeros.
#[inline]
fn load(bytes: &[u8]) -> u64 {
    if let Some(eight) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*eight);
    }
    let mut padded = [0; 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(padded)
}

impl Layout for Fixed {
    #[inline]
    fn fixed_len(&self) -> Option<usize> {
        Some(self.len)
    }

    #[inline]
    fn prefix(&self, record: &[u8]) -> u64 {
        // If the record has eight bytes from the key on, one load and a mask serve short keys too.
        let prefix = if let (true, Some(eight)) = (self.key_len < 8, record[self.key_at..].first_chunk::<8>()) {
            u64::from_be_bytes(*eight) & !(u64::MAX >> (8 * self.key_len))
        } else {
            load(self.key(record))
        };
        if self.reverse { !prefix } else { prefix }
    }

    #[inline]
    fn prefix_decides(&self) -> bool {
        self.key_len <= 8
    }

    #[inline]
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        let order = self.key(a).cmp(self.key(b));
        if self.reverse { order.reverse() } else { order }
    }

    #[inline]
    fn prefix_at(&self, record: &[u8], depth: usize) -> Option<u64> {
        let prefix = load(self.key(record).get(depth..)?);
        Some(if self.reverse { !prefix } else { prefix })
    }
}

/// Lines in the order of their bytes.
#[derive(Clone, Debug)]
pub(crate) struct PlainLines {
    pub(crate) terminator: u8,
    pub(crate) reverse: bool,
}

/// A record without its terminator.
#[inline]
fn body(record: &[u8]) -> &[u8] {
    match record.split_last() {
        Some((_, body)) => body,
        None => record,
    }
}

impl Layout for PlainLines {
    #[inline]
    fn terminator(&self) -> Option<u8> {
        Some(self.terminator)
    }

    #[inline]
    fn prefix(&self, record: &[u8]) -> u64 {
        let prefix = load(body(record));
        if self.reverse { !prefix } else { prefix }
    }

    #[inline]
    fn prefix_decides(&self) -> bool {
        false
    }

    #[inline]
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        let order = body(a).cmp(body(b));
        if self.reverse { order.reverse() } else { order }
    }

    #[inline]
    fn prefix_at(&self, record: &[u8], depth: usize) -> Option<u64> {
        // A line that ends before `depth` was padded with zeros, which a longer line may contain.
        let prefix = load(body(record).get(depth..)?);
        Some(if self.reverse { !prefix } else { prefix })
    }

    fn coding(&self) -> Option<Coding> {
        Some(Coding::new(self.reverse))
    }

    #[inline]
    fn coded_bytes<'r>(&self, record: &'r [u8]) -> &'r [u8] {
        body(record)
    }
}

/// Lines in an order of GNU sort's options.
#[derive(Clone, Debug)]
pub(crate) struct KeyedLines {
    pub(crate) terminator: u8,
    pub(crate) order: TextOrder,
}

impl Layout for KeyedLines {
    #[inline]
    fn terminator(&self) -> Option<u8> {
        Some(self.terminator)
    }

    #[inline]
    fn prefix(&self, record: &[u8]) -> u64 {
        self.order.prefix(body(record))
    }

    fn prefix_decides(&self) -> bool {
        // Lines with equal keys are still compared byte by byte, unless their order in the input is
        // to be kept.
        self.order.prefix_decides() && self.order.needs_stable()
    }

    #[inline]
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.order.compare(body(a), body(b))
    }

    #[inline]
    fn same_key(&self, a: &[u8], b: &[u8]) -> bool {
        self.order.compare_keys(body(a), body(b)) == Ordering::Equal
    }

    fn prefix_at(&self, _record: &[u8], _depth: usize) -> Option<u64> {
        None
    }

    fn tie_break(&self) -> Option<PlainLines> {
        self.order.last_resort().map(|reverse| PlainLines { terminator: self.terminator, reverse })
    }

    fn prefix_is_exact(&self, record: &[u8]) -> bool {
        self.order.prefix_is_exact(body(record))
    }

    #[inline]
    fn has_normalized_keys(&self) -> bool {
        true
    }

    #[inline]
    fn push_behind_prefix(&self, record: &[u8], prefix: u64, out: &mut Vec<u8>) {
        let from = out.len();
        self.order.push_behind_prefix(body(record), prefix, NORMALIZED_LEN, out);
        out.truncate(from + NORMALIZED_LEN);
    }
}
