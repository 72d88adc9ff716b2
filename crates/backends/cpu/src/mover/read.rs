//! Reading into memory from a place that reads its own bytes.

use std::sync::Arc;

use datapipes_core::backend::{Counters, InlineMover};
use datapipes_core::locator::Reader;
use datapipes_core::memory::MemoryRange;
use datapipes_core::{Error, ErrorKind, Result, Span};

use super::Bytes;
use super::tally::Tally;

/// Lets the source read into the leased target.
pub(crate) struct ReadMover {
    source: Arc<dyn Reader>,
    target: MemoryRange,
    tally: Tally,
}

impl ReadMover {
    pub(crate) fn new(source: Arc<dyn Reader>, target: MemoryRange) -> ReadMover {
        ReadMover { source, target, tally: Tally::default() }
    }
}

/// The bytes that are read at once into memory to which no references are given.
const AT_ONCE: usize = 64 << 10;

impl ReadMover {
    /// Reads through a buffer, into memory that others access as well.
    fn by_copy(&self, from: u64, target: &MemoryRange) -> Result<()> {
        let mut buffer = vec![0; target.len().min(AT_ONCE)];
        let mut done = 0;
        while done < target.len() {
            let piece = &mut buffer[..(target.len() - done).min(AT_ONCE)];
            self.source.read_at(from.saturating_add(done as u64), piece).map_err(told)?;
            target.write(done, piece)?;
            done += piece.len();
        }
        Ok(())
    }
}

fn told(e: Error) -> Error {
    match e.kind() {
        ErrorKind::EndOfFile | ErrorKind::Device | ErrorKind::Busy => e,
        _ => e.within("reading the source"),
    }
}

impl InlineMover for ReadMover {
    fn transfer(&self, span: Span) -> Result<()> {
        let bytes = Bytes::of(Span { source: 0, ..span })?;
        let target = self.target.range(bytes.target, bytes.len)?;
        if target.region().is_shared() {
            return self.tally.count(bytes.len, || self.by_copy(span.source, &target));
        }
        let mut lease = target.lease_mut()?;
        self.tally.count(bytes.len, || self.source.read_at(span.source, &mut lease).map_err(told))
    }

    fn counters(&self) -> Counters {
        self.tally.counters()
    }
}
