//! A file as one process opened it, and what readers of it share.

use std::collections::BTreeMap;
use std::sync::Arc;

use datapipes::process::OwningProcess;
use datapipes::{Constraints, Counters, Pipe, Result, Ssd};

use crate::kept::KeptPipes;

/// What was moved, by primitive. The names of short reads and writes are not those of primitives.
pub(crate) type Moved = BTreeMap<&'static str, Counters>;

/// A file as one process opened it, and its pipes that are kept for further reads.
pub(crate) struct Opened {
    pub(crate) ssd: Ssd,
    pub(crate) kept: KeptPipes,
    pub(crate) owner: OwningProcess,
}

impl Opened {
    pub(crate) fn new(ssd: Ssd) -> Arc<Opened> {
        Arc::new(Opened { ssd, kept: KeptPipes::default(), owner: OwningProcess::here() })
    }
}

/// Adds what a pipe did.
pub(crate) fn note(moved: &mut Moved, pipe: &Pipe) {
    for hop in pipe.report().hops {
        moved.entry(hop.primitive).or_default().add(&hop.counters);
    }
}

/// The bytes from an offset to the end, at most `len`.
pub(crate) fn available(ssd: &Ssd, offset: u64, len: u64) -> Result<u64> {
    Ok(ssd.len()?.saturating_sub(offset).min(len))
}

pub(crate) fn constraints(len: u64) -> Constraints {
    Constraints::default().typical_len(len)
}
