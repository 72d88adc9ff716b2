//! What the threads of a sort share: how far it is, and whether to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use datapipes_core::{Error, ErrorKind, Result};

use crate::report::SpacePlan;

/// How far a sort is. Read it from another thread as often as you like.
#[derive(Debug, Default)]
pub struct SortProgress {
    /// Bytes of input in all, 0 while that is not known.
    pub total: AtomicU64,
    /// Bytes read from the input.
    pub read: AtomicU64,
    /// Bytes of sorted runs written to the spill places.
    pub spilled: AtomicU64,
    /// Bytes of spilled runs that were merged (those that are merged twice count twice).
    pub merged: AtomicU64,
    /// Bytes written to the output.
    pub written: AtomicU64,
    /// What the sort is about to use, known before it reads or writes anything.
    pub plan: OnceLock<SpacePlan>,
}

/// A handle to stop a sort from elsewhere (a signal handler sets it), and to watch it.
#[derive(Clone, Debug, Default)]
pub struct Control {
    /// How far it is.
    pub progress: Arc<SortProgress>,
    stop: Arc<AtomicBool>,
}

impl Control {
    /// Asks the sort to stop: it returns `Interrupted` soon, and leaves nothing behind.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Whether somebody asked it to stop.
    pub fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// An error if somebody asked it to stop.
    pub(crate) fn check(&self) -> Result<()> {
        if self.stopped() {
            return Err(Error::new(ErrorKind::Interrupted, "sort", "it was asked to stop"));
        }
        Ok(())
    }
}

pub(crate) fn count(counter: &AtomicU64, bytes: u64) {
    counter.fetch_add(bytes, Relaxed);
}
