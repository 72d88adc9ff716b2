//! Bytes that stay at their addresses and change their place in the caches (CIDR'23, figure 6a).
//!
//! ```text
//! source range:      [ . . . . s s s s . . ]          the span is in place where both its ends are the same address:
//! target range:              [ s s s s ]              then lines are loaded, or handed back; else bytes are copied
//! ```

use datapipes_core::backend::Inline;
use datapipes_core::memory::Access;
use datapipes_core::{Counters, Error, ErrorKind, Result, Span};

use super::tally::Tally;
use super::{Bytes, Ends};
use crate::kernel::{self, Copier, Lines};

/// What happens to lines that stay.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Placement {
    /// They are brought into the caches of the core that runs the transfer.
    Load,
    /// An instruction hands them back.
    HandBack(Lines),
    /// Nothing: they leave the cache when others need the room.
    Leave,
}

pub(crate) struct PlaceMover {
    ends: Ends,
    placement: Placement,
    /// For spans that are not in place.
    copier: Copier,
    tally: Tally,
}

impl PlaceMover {
    pub(crate) fn new(ends: Ends, placement: Placement, copier: Copier) -> Self {
        PlaceMover { ends, placement, copier, tally: Tally::default() }
    }

    fn place(&self, bytes: Bytes) -> Result<()> {
        let Bytes { source: source_at, target: target_at, len } = bytes;
        let (source, target) = (&self.ends.source, &self.ends.target);
        // Both are asked, so that a span that lies outside of either is refused.
        let from = source.range(source_at, len)?;
        let to = target.range(target_at, len)?;
        if from.same_bytes(&to) {
            // Nothing is written, so that others may read the bytes meanwhile.
            let lease = from.raw_lease(Access::Read)?;
            match self.placement {
                Placement::Load => kernel::load(&lease),
                Placement::HandBack(lines) => lines.apply(&lease),
                Placement::Leave => {}
            }
            return Ok(());
        }
        if source.same_bytes(target) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "transfer",
                format!("{len} bytes from offset {source_at} to offset {target_at} of places that are the same bytes"),
            )
            .advice("give the same offset twice: such a transfer moves bytes between caches, not between addresses"));
        }
        self.copier.copy((source, source_at), (target, target_at), len)
    }
}

impl Inline for PlaceMover {
    fn transfer(&self, span: Span) -> Result<()> {
        let bytes = Bytes::of(span)?;
        self.tally.check_core(self.ends.target_core);
        self.tally.count(bytes.len, || self.place(bytes))
    }

    fn counters(&self) -> Counters {
        self.tally.counters()
    }
}
