//! Transfers that keep bytes at their addresses and move them between caches (CIDR'23, figure 6a).
//!
//! ```text
//! source range:      [ . . . . s s s s . . ]     the span is in place if both its ends are the
//! target range:              [ s s s s ]         same address: then lines are loaded or handed
//!                                                back; else bytes are copied
//! ```
//!
//! Memory that others share, such as a mapped file, may lose pages. It is accessed by the core's
//! guarded routines.
//!
//! Unsafe code: the addresses of leases are passed to those routines.
#![allow(unsafe_code)]

use datapipes_core::backend::InlineMover;
use datapipes_core::memory::{Access, RawLease, copy_pair, guarded};
use datapipes_core::{Counters, Error, ErrorKind, Result, Span};

use super::tally::Tally;
use super::{Bytes, Ends};
use crate::kernel::{self, Copier, LineInstruction};

/// What happens to lines that stay at their addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InPlaceAction {
    /// They are loaded into the caches of the core that runs the transfer.
    Load,
    /// An instruction returns them to memory or to a shared cache.
    HandBack(LineInstruction),
    /// Nothing happens: they leave the cache when others need the space.
    Leave,
}

pub(crate) struct InPlaceMover {
    ends: Ends,
    placement: InPlaceAction,
    /// Copies spans that are not in place.
    copier: Copier,
    tally: Tally,
}

impl InPlaceMover {
    pub(crate) fn new(ends: Ends, placement: InPlaceAction, copier: Copier) -> Self {
        InPlaceMover { ends, placement, copier, tally: Tally::default() }
    }

    fn place(&self, bytes: Bytes) -> Result<()> {
        let Bytes { source: source_at, target: target_at, len } = bytes;
        let (source, target) = (&self.ends.source, &self.ends.target);
        // Both ranges are checked, so that a span outside either is refused.
        let from = source.range(source_at, len)?;
        let to = target.range(target_at, len)?;
        if from.same_bytes(&to) {
            // Nothing is written, so others may read the bytes meanwhile.
            let lease = from.raw_lease(Access::Read)?;
            if from.region().is_shared() {
                return self.place_guarded(&lease);
            }
            match self.placement {
                InPlaceAction::Load => kernel::load(&lease),
                InPlaceAction::HandBack(lines) => lines.apply(&lease),
                InPlaceAction::Leave => {}
            }
            return Ok(());
        }
        if source.same_bytes(target) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "transfer",
                format!("{len} bytes from offset {source_at} to offset {target_at} of places that are the same bytes"),
            )
            .with_advice(
                "give the same offset twice: such a transfer moves bytes between caches, not between addresses",
            ));
        }
        if source.region().is_shared() {
            return self.copy_guarded(bytes);
        }
        self.copier.copy((source, source_at), (target, target_at), len)
    }

    /// Handles a span whose pages may be missing.
    fn place_guarded(&self, lease: &RawLease) -> Result<()> {
        let (start, len) = (lease.address().cast_const(), lease.len());
        let outcome = match self.placement {
            // SAFETY: the lease gives the right to read its bytes.
            InPlaceAction::Load => unsafe { guarded::load(start, len) },
            InPlaceAction::HandBack(lines) => match lines.flush() {
                // SAFETY: the lease keeps the bytes mapped, and none changes. A `LineInstruction`
                // proves that the processor has the instruction.
                Some(flush) => unsafe { guarded::write_back(flush, start, len) },
                None => {
                    // This is a hint, which touches no page.
                    lines.apply(lease);
                    Ok(())
                }
            },
            InPlaceAction::Leave => Ok(()),
        };
        outcome.map_err(|gone| gone.error("transfer", lease.place().0))
    }

    /// Copies a span that is not in place.
    fn copy_guarded(&self, Bytes { source, target, len }: Bytes) -> Result<()> {
        let ends = &self.ends;
        if ends.target_keeps {
            let context = format!("{len} bytes from offset {source} to offset {target} would have to be flushed");
            return Err(Error::new(ErrorKind::Unsupported, "transfer", context)
                .with_advice("copy them by a pipe between places that do not overlap"));
        }
        let outcome = copy_pair((&ends.source, source), (&ends.target, target), len, |from, to| {
            // SAFETY: `copy_pair` calls this with `len` bytes leased for reading at `from` and for
            // writing at `to`, and refuses overlapping ranges.
            unsafe { guarded::copy(from, to, len) }
        })?;
        outcome.map_err(|gone| gone.error("transfer", ends.source.region()))
    }
}

impl InlineMover for InPlaceMover {
    fn transfer(&self, span: Span) -> Result<()> {
        let bytes = Bytes::of(span)?;
        self.tally.check_core(self.ends.target_core);
        self.tally.count(bytes.len, || self.place(bytes))
    }

    fn counters(&self) -> Counters {
        self.tally.counters()
    }
}
