//! What the engine knows of records: where they end, and how two of them are ordered.
//!
//! The engine is generic over [`Layout`], so the inner loops are compiled for each kind of record.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datapipes_core::Result;

use super::number_kind::Numbers;
use super::offset_value::Coding;
use super::stub::Stub;
use super::tally::Tally;
use super::terminator;
use crate::text::{LineKey, PiecedLine, TextOrder, compare_pieces};

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

    /// The key of records of one length, if they are ordered by some of their bytes.
    fn binary_key(&self) -> Option<BinaryKey> {
        None
    }

    /// The kind of numbers, if records are only numbers; these are sorted without entries.
    fn numbers(&self) -> Option<Numbers> {
        None
    }

    /// Says that stubs take the place of lines of more than `limit` bytes from here on.
    fn set_long_limit(&self, _limit: usize) {}

    /// Counts a record; a stub as its line.
    #[inline]
    fn count(&self, tally: &mut Tally, record: &[u8]) {
        tally.add(record);
    }

    /// Returns what a stub needs to know of the key of its line, besides the first bytes.
    ///
    /// # Errors
    /// Those of reading the line, and `OutOfMemory` if a part of the key is too long to be
    /// compared.
    fn key_of_long(&self, _line: &mut dyn PiecedLine) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    /// The order of two long lines, or of their keys only.
    ///
    /// # Errors
    /// Those of reading the lines.
    fn compare_long(&self, _a: &mut dyn PiecedLine, _b: &mut dyn PiecedLine, _keys_only: bool) -> Result<Ordering> {
        Ok(Ordering::Equal)
    }
}

/// The most bytes of a line that is not long: such lines are sorted as they are. Longer ones have
/// stubs.
#[derive(Debug)]
pub(crate) struct LongLimit(AtomicUsize);

impl Default for LongLimit {
    fn default() -> Self {
        LongLimit(AtomicUsize::new(usize::MAX))
    }
}

impl Clone for LongLimit {
    fn clone(&self) -> Self {
        LongLimit(AtomicUsize::new(self.get()))
    }
}

impl LongLimit {
    #[inline]
    pub(super) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    pub(super) fn set(&self, limit: usize) {
        self.0.store(limit, Relaxed);
    }

    /// Whether a record, with its terminator, is a stub.
    #[inline]
    pub(super) fn is_stub(&self, record: &[u8]) -> bool {
        record.len().wrapping_sub(1) > self.get() && !record.is_empty()
    }

    /// Counts a record; a stub as its line.
    #[inline]
    pub(super) fn count(&self, tally: &mut Tally, record: &[u8]) {
        match self.is_stub(record).then(|| Stub::of(record, self.get())).flatten() {
            Some(stub) => tally.add_hashed(stub.len, stub.hash),
            None => tally.add(record),
        }
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

/// Records of one length, and their key: `len` bytes from offset `at` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BinaryKey {
    pub(crate) record: usize,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) reverse: bool,
}

impl Layout for Fixed {
    fn binary_key(&self) -> Option<BinaryKey> {
        let Fixed { len, key_at, key_len, reverse } = *self;
        Some(BinaryKey { record: len, at: key_at, len: key_len, reverse })
    }

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
    pub(crate) limit: LongLimit,
}

impl PlainLines {
    pub(crate) fn new(terminator: u8, reverse: bool) -> PlainLines {
        PlainLines { terminator, reverse, limit: LongLimit::default() }
    }

    /// What is compared of a line: of a stub only what it has of its line.
    #[inline]
    fn compared<'r>(&self, record: &'r [u8]) -> &'r [u8] {
        if self.limit.is_stub(record) { &record[..=self.limit.get()] } else { body(record) }
    }
}

/// A record without its terminator.
#[inline]
pub(super) fn body(record: &[u8]) -> &[u8] {
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
        let order = self.compared(a).cmp(self.compared(b));
        if self.reverse { order.reverse() } else { order }
    }

    #[inline]
    fn same_key(&self, a: &[u8], b: &[u8]) -> bool {
        // Whether the lines of two stubs are the same is seen when these are written.
        body(a) == body(b) && !self.limit.is_stub(a)
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

    fn set_long_limit(&self, limit: usize) {
        self.limit.set(limit);
    }

    #[inline]
    fn count(&self, tally: &mut Tally, record: &[u8]) {
        self.limit.count(tally, record);
    }

    fn compare_long(&self, a: &mut dyn PiecedLine, b: &mut dyn PiecedLine, _keys_only: bool) -> Result<Ordering> {
        let order = compare_pieces(a, b)?;
        Ok(if self.reverse { order.reverse() } else { order })
    }
}

/// Lines in an order of GNU sort's options.
#[derive(Clone, Debug)]
pub(crate) struct KeyedLines {
    pub(crate) terminator: u8,
    pub(crate) order: TextOrder,
    pub(crate) limit: LongLimit,
}

impl KeyedLines {
    pub(crate) fn new(terminator: u8, order: TextOrder) -> KeyedLines {
        KeyedLines { terminator, order, limit: LongLimit::default() }
    }

    fn stub<'r>(&self, record: &'r [u8]) -> Option<Stub<'r>> {
        self.limit.is_stub(record).then(|| Stub::of(record, self.limit.get())).flatten()
    }

    #[cold]
    fn prefix_of_stub(&self, record: &[u8]) -> u64 {
        let Some(stub) = self.stub(record) else { return 0 };
        stub.key().take(WHOLE_AT).fold(0, |prefix, byte| prefix << 8 | u64::from(byte))
    }

    /// Compares the keys of records of which one is a stub at least, and says whether they are
    /// known as a whole.
    #[cold]
    fn compare_keys_of_stubs(&self, a: &[u8], b: &[u8]) -> (Ordering, bool) {
        // The prefix, and what it lacks.
        fn compared(stub: Stub<'_>) -> impl Iterator<Item = u8> {
            stub.key().take(WHOLE_AT).chain(stub.key().skip(WHOLE_AT + 1))
        }
        let of_line = |record| {
            let LineKey { prefix, behind, .. } = self.order.key_of_line(body(record));
            prefix.to_be_bytes().into_iter().chain(behind)
        };
        match (self.stub(a), self.stub(b)) {
            (Some(a), Some(b)) if a.has_key_of(&b) => (Ordering::Equal, is_whole(&a)),
            (Some(a), Some(b)) => (compared(a).cmp(compared(b)), is_whole(&a) && is_whole(&b)),
            (Some(a), None) => (compared(a).cmp(of_line(b)), is_whole(&a)),
            (None, Some(b)) => (of_line(a).cmp(compared(b)), is_whole(&b)),
            (None, None) => (of_line(a).cmp(of_line(b)), true),
        }
    }

    #[cold]
    fn compare_stubs(&self, a: &[u8], b: &[u8]) -> Ordering {
        let (keys, whole) = self.compare_keys_of_stubs(a, b);
        match self.order.last_resort() {
            Some(reverse) if whole && keys == Ordering::Equal => {
                let lines = PlainLines { terminator: self.terminator, reverse, limit: self.limit.clone() };
                lines.compare(a, b)
            }
            _ => keys,
        }
    }

    #[inline]
    fn has_stub(&self, a: &[u8], b: &[u8]) -> bool {
        self.limit.is_stub(a) || self.limit.is_stub(b)
    }
}

/// Says in the key of a stub, behind the prefix, that no part of it is missing.
const WHOLE: u8 = 1;
const WHOLE_AT: usize = size_of::<u64>();

fn is_whole(stub: &Stub<'_>) -> bool {
    stub.key().nth(WHOLE_AT) == Some(WHOLE)
}

impl Layout for KeyedLines {
    #[inline]
    fn terminator(&self) -> Option<u8> {
        Some(self.terminator)
    }

    #[inline]
    fn prefix(&self, record: &[u8]) -> u64 {
        if self.limit.is_stub(record) {
            return self.prefix_of_stub(record);
        }
        self.order.prefix(body(record))
    }

    fn prefix_decides(&self) -> bool {
        // Lines with equal keys are still compared byte by byte, unless their order in the input is
        // to be kept.
        self.order.prefix_decides() && self.order.needs_stable()
    }

    #[inline]
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        if self.has_stub(a, b) {
            return self.compare_stubs(a, b);
        }
        self.order.compare(body(a), body(b))
    }

    #[inline]
    fn same_key(&self, a: &[u8], b: &[u8]) -> bool {
        if self.has_stub(a, b) {
            return self.compare_keys_of_stubs(a, b) == (Ordering::Equal, true);
        }
        self.order.compare_keys(body(a), body(b)) == Ordering::Equal
    }

    fn prefix_at(&self, _record: &[u8], _depth: usize) -> Option<u64> {
        None
    }

    fn tie_break(&self) -> Option<PlainLines> {
        self.order.last_resort().map(|reverse| PlainLines {
            terminator: self.terminator,
            reverse,
            limit: self.limit.clone(),
        })
    }

    fn prefix_is_exact(&self, record: &[u8]) -> bool {
        if self.limit.is_stub(record) {
            return self.order.word_is_exact(self.prefix_of_stub(record));
        }
        self.order.prefix_is_exact(body(record))
    }

    #[inline]
    fn has_normalized_keys(&self) -> bool {
        true
    }

    #[inline]
    fn push_behind_prefix(&self, record: &[u8], prefix: u64, out: &mut Vec<u8>) {
        let from = out.len();
        if let Some(stub) = self.stub(record) {
            out.extend(stub.key().skip(WHOLE_AT + 1).take(NORMALIZED_LEN));
            if is_whole(&stub) {
                // The stub has more of its line than is looked at.
                self.order.push_line_behind(&record[..NORMALIZED_LEN.min(record.len())], out);
            }
        } else {
            self.order.push_behind_prefix(body(record), prefix, NORMALIZED_LEN, out);
        }
        out.truncate(from + NORMALIZED_LEN);
    }

    fn set_long_limit(&self, limit: usize) {
        self.limit.set(limit);
    }

    #[inline]
    fn count(&self, tally: &mut Tally, record: &[u8]) {
        self.limit.count(tally, record);
    }

    fn key_of_long(&self, line: &mut dyn PiecedLine) -> Result<Vec<u8>> {
        let LineKey { prefix, whole, behind } = self.order.key_of(line, self.limit.get())?;
        let whole = if whole { WHOLE } else { 0 };
        Ok([&prefix.to_be_bytes()[..], &[whole], &behind].concat())
    }

    fn compare_long(&self, a: &mut dyn PiecedLine, b: &mut dyn PiecedLine, keys_only: bool) -> Result<Ordering> {
        self.order.compare_in(a, b, self.limit.get(), keys_only)
    }
}
