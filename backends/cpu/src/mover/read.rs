//! Bytes of a place that reads itself, into memory.

use std::sync::Arc;

use datapipes_core::backend::{Counters, Inline};
use datapipes_core::locator::Reader;
use datapipes_core::memory::MemoryRange;
use datapipes_core::{ErrorKind, Result, Span};

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

impl Inline for ReadMover {
    fn transfer(&self, span: Span) -> Result<()> {
        let bytes = Bytes::of(Span { source: 0, ..span })?;
        let mut lease = self.target.range(bytes.target, bytes.len)?.lease_mut()?;
        self.tally.count(bytes.len, || {
            self.source.read_at(span.source, &mut lease).map_err(|e| match e.kind() {
                ErrorKind::EndOfFile | ErrorKind::Device | ErrorKind::Busy => e,
                _ => e.within("reading the source"),
            })
        })
    }

    fn counters(&self) -> Counters {
        self.tally.counters()
    }
}
