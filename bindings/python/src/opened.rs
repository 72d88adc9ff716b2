//! A file as one process opened it, and what readers of it share.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datapipes::process::OwningProcess;
use datapipes::{Constraints, Counters, Pipe, Result, Ssd};

use crate::kept::KeptPipes;

/// What was moved, by primitive. The names of short reads and writes are not those of primitives.
pub(crate) type Moved = BTreeMap<&'static str, Counters>;

/// A file as one process opened it, and its pipes that are kept for further reads.
pub(crate) struct Opened {
    pub(crate) ssd: Ssd,
    /// The path by which it was opened, for errors.
    pub(crate) path: Arc<Path>,
    pub(crate) kept: KeptPipes,
    /// Whether the last read that should not wait missed the page cache.
    missed: AtomicBool,
    pub(crate) owner: OwningProcess,
}

impl Opened {
    pub(crate) fn new(ssd: Ssd) -> Arc<Opened> {
        let path = ssd.path().into();
        Arc::new(Opened {
            ssd,
            path,
            kept: KeptPipes::default(),
            missed: AtomicBool::new(false),
            owner: OwningProcess::here(),
        })
    }

    /// Whether a read that does not wait should be tried. Where it misses, the kernel begins to read
    /// the bytes, and those around them, beside the transfer that follows. So after a miss it is
    /// asked first, which costs a hit a third of its time.
    pub(crate) fn may_be_cached(&self, offset: u64, len: u64) -> bool {
        !self.missed.load(Ordering::Relaxed) || datapipes::is_cached(&self.ssd, offset, len) != Some(false)
    }

    /// Takes note of what came of it.
    pub(crate) fn note_cached(&self, hit: bool) {
        if self.missed.load(Ordering::Relaxed) == hit {
            self.missed.store(!hit, Ordering::Relaxed);
        }
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
