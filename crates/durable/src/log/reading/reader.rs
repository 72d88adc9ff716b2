//! Reading records in order, checked.

use datapipes_core::{Error, ErrorKind, Machine, Result};
use serde::Serialize;

use super::chain::{self, Chain, ChainScan};
use crate::log::format::segment::Segment;
use crate::log::place::storage::SegmentStorage;

/// A record read from a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// The record's number. Numbers start at 1 and have no gaps.
    pub number: u64,
    /// The bytes that were appended.
    pub payload: Vec<u8>,
}

/// Records in order: an iterator that ends at the log's end, or after its first error.
///
/// It takes no lock, so it also reads a log that another process appends to: all records that are
/// durable when it arrives there, and perhaps some that are not yet.
pub struct LogReader {
    walk: ChainScan,
    from: u64,
    ended: bool,
}

impl LogReader {
    /// Reads a log from record `from` on; 0 and 1 mean the first that exists.
    ///
    /// # Errors
    /// `NotFound` if there is no log; `OutOfRange` if `from` was released already; `Corrupt` for
    /// damaged headers.
    pub fn open(machine: &Machine, storage: &dyn SegmentStorage, from: u64) -> Result<LogReader> {
        let chain = chain::open(machine, storage, false)?;
        if chain.segments.is_empty() {
            let why = format!("{} holds no log", storage.name());
            return Err(Error::new(ErrorKind::NotFound, "read", why));
        }
        LogReader::of(chain, from, |chain| ChainScan::to_end(machine, chain))
    }

    /// Reads these segments up to a position before which everything is durable.
    pub(crate) fn until(machine: &Machine, segments: Vec<Segment>, from: u64, until: u64) -> Result<LogReader> {
        let chain = Chain { segments, closing: None };
        LogReader::of(chain, from, |chain| ChainScan::until(machine, chain.segments, until))
    }

    fn of(mut chain: Chain, from: u64, walk: impl FnOnce(Chain) -> ChainScan) -> Result<LogReader> {
        let segments = &mut chain.segments;
        let first = segments.first().map_or(1, |s| s.header.first);
        if from > 1 && from < first {
            let why = format!("record {from}: the log starts at record {first}, those before were released");
            return Err(Error::new(ErrorKind::OutOfRange, "read", why));
        }
        // Start with the last segment that begins at or before `from`.
        let skip = segments.partition_point(|s| s.header.first <= from).saturating_sub(1);
        segments.drain(..skip);
        Ok(LogReader { walk: walk(chain), from, ended: false })
    }

    fn advance(&mut self) -> Result<Option<LogRecord>> {
        while let Some((number, payload)) = self.walk.next()? {
            if number >= self.from {
                return Ok(Some(LogRecord { number, payload: payload.to_vec() }));
            }
        }
        Ok(None)
    }
}

impl Iterator for LogReader {
    type Item = Result<LogRecord>;

    fn next(&mut self) -> Option<Result<LogRecord>> {
        if self.ended {
            return None;
        }
        let item = self.advance().transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

/// The contents of a log, found by reading and checking all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogSummary {
    /// The number of the first record that exists; that of the next one if there is none.
    pub first: u64,
    /// The number that the next record will have.
    pub next: u64,
    /// Bytes of all payloads.
    pub payload_bytes: u64,
    /// The number of segments.
    pub segments: usize,
    /// Bytes of the segments.
    pub segment_bytes: u64,
    /// How often the log was opened for appending.
    pub epoch: u32,
}

/// Reads and checks a whole log.
///
/// # Errors
/// `NotFound` if there is no log; `Corrupt` with the offset if it is damaged.
pub fn examine(machine: &Machine, storage: &dyn SegmentStorage) -> Result<LogSummary> {
    let chain = chain::open(machine, storage, false)?;
    let segments = &chain.segments;
    let Some(head) = segments.first().map(|s| s.header) else {
        return Err(Error::new(ErrorKind::NotFound, "read", format!("{} holds no log", storage.name())));
    };
    let (count, segment_bytes) = (segments.len(), segments.iter().map(|s| s.header.len).sum());
    let mut walk = ChainScan::to_end(machine, chain);
    let mut payload_bytes = 0;
    while let Some((_, payload)) = walk.next()? {
        payload_bytes += payload.len() as u64;
    }
    let tail = walk.tail();
    Ok(LogSummary {
        first: head.first,
        next: tail.map_or(head.first, |t| t.number),
        payload_bytes,
        segments: count,
        segment_bytes,
        epoch: tail.map_or(head.epoch, |t| t.epoch),
    })
}
