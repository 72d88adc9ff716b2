//! The checker.

use std::cmp::Ordering;

use super::crc::crc32;
use super::format::{DataFormat, Shape};
use super::order::{self, NumberOrder, Order, Ranked};
use super::summary::{Tally, ValidationSummary};

/// Checks a range of data that is fed to it in order, in pieces of any length.
///
/// It keeps at most two records: the last whole one, and the begun part of the next.
#[derive(Clone, Debug)]
pub struct Checker {
    format: DataFormat,
    progress: Progress,
}

/// What was found so far. `summary.last` is the record before the next one.
#[derive(Clone, Debug, Default)]
struct Progress {
    summary: ValidationSummary,
    /// The start of a record whose end was not fed yet.
    carry: Vec<u8>,
    /// Offset of the next record's first byte, with its carried part.
    offset: u64,
}

impl Checker {
    /// Makes a checker that has seen nothing.
    pub fn new(format: DataFormat) -> Self {
        Self { format, progress: Progress::default() }
    }

    /// Takes in the bytes that follow those of the last call.
    pub fn feed(&mut self, bytes: &[u8]) {
        let progress = &mut self.progress;
        progress.summary.bytes += bytes.len() as u64;
        match &self.format.0 {
            Shape::Records(order) => match order.layout.record_len {
                // The most common length is a constant, so that the loops over it unroll.
                100 => progress.feed_fixed::<100>(100, bytes, order),
                len => progress.feed_fixed::<0>(len, bytes, order),
            },
            Shape::Numbers(NumberOrder::U32) => progress.feed_fixed::<4>(4, bytes, &Ranked(order::word)),
            Shape::Numbers(NumberOrder::U64) => progress.feed_fixed::<8>(8, bytes, &Ranked(order::word)),
            Shape::Numbers(NumberOrder::I64) => progress.feed_fixed::<8>(8, bytes, &Ranked(order::signed_rank)),
            Shape::Numbers(NumberOrder::F64) => progress.feed_fixed::<8>(8, bytes, &Ranked(order::total_rank)),
            Shape::Lines { terminator, order } => progress.feed_lines(*terminator, bytes, order),
        }
    }

    /// Returns what was found. A last line without an end counts as a line; a last part of a
    /// fixed-size record does not count.
    pub fn finish(mut self) -> ValidationSummary {
        let progress = &mut self.progress;
        if !progress.carry.is_empty() {
            match &self.format.0 {
                Shape::Lines { order, .. } => progress.take_carry(order, 0),
                _ => progress.summary.trailing_bytes = progress.carry.len() as u64,
            }
        }
        self.progress.summary
    }
}

impl Progress {
    /// Feeds fixed-size records. `LEN` is the record length if it is a constant, and zero if it is
    /// `record_len`.
    fn feed_fixed<const LEN: usize>(&mut self, record_len: usize, bytes: &[u8], order: &impl Order) {
        let len = if LEN == 0 { record_len } else { LEN };
        let mut bytes = bytes;
        if !self.carry.is_empty() {
            let (head, rest) = bytes.split_at((len - self.carry.len()).min(bytes.len()));
            self.carry.extend_from_slice(head);
            if self.carry.len() < len {
                return;
            }
            self.take_carry(order, 0);
            bytes = rest;
        }
        let records = bytes.chunks_exact(len);
        self.carry.extend_from_slice(records.remainder());
        self.take_run(records, order, 0);
    }

    fn feed_lines(&mut self, terminator: u8, bytes: &[u8], order: &impl Order) {
        let mut bytes = bytes;
        if !self.carry.is_empty() {
            let Some(end) = memchr::memchr(terminator, bytes) else {
                self.carry.extend_from_slice(bytes);
                return;
            };
            self.carry.extend_from_slice(&bytes[..end]);
            // An empty carry means that no line is open, so an empty line needs no carry.
            self.take_carry(order, 1);
            bytes = &bytes[end + 1..];
        }
        let Some(last_end) = memchr::memrchr(terminator, bytes) else {
            self.carry.extend_from_slice(bytes);
            return;
        };
        let (lines, rest) = bytes.split_at(last_end + 1);
        let mut start = 0;
        let lines = memchr::memchr_iter(terminator, lines).map(|end| {
            let line = &lines[start..end];
            start = end + 1;
            line
        });
        self.take_run(lines, order, 1);
        self.carry.extend_from_slice(rest);
    }

    /// Takes in the carried record, which is complete now.
    fn take_carry(&mut self, order: &impl Order, end_len: usize) {
        let mut record = std::mem::take(&mut self.carry);
        self.take_run([record.as_slice()].into_iter(), order, end_len);
        record.clear();
        self.carry = record;
    }

    /// Takes in whole records, each followed by `end_len` bytes that are not part of it.
    fn take_run<'a>(&mut self, mut records: impl Iterator<Item = &'a [u8]>, order: &impl Order, end_len: usize) {
        let Some(first) = records.next() else { return };
        let summary = &mut self.summary;
        let mut tally = Tally::default();
        let mut offset = self.offset;
        let met = if summary.records == 0 {
            summary.first = first.to_vec();
            Ordering::Less
        } else {
            order.compare(&summary.last, first)
        };
        tally.note(met, crc32(first), offset);
        offset += (first.len() + end_len) as u64;
        let mut previous = first;
        for record in records {
            tally.note(order.compare(previous, record), crc32(record), offset);
            offset += (record.len() + end_len) as u64;
            previous = record;
        }
        summary.note_tally(&tally);
        summary.last.clear();
        summary.last.extend_from_slice(previous);
        self.offset = offset;
    }
}
