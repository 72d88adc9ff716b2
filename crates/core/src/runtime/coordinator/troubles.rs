//! What a runtime met and got over: panics of code that is not ours, threads that the kernel
//! refused.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::guard::Panics;
use crate::sync::Arc;

pub(crate) struct Troubles {
    panics: Arc<Panics>,
    refused: AtomicU64,
    first_refused: OnceLock<String>,
}

impl Troubles {
    pub(crate) fn new() -> Troubles {
        Troubles { panics: Panics::with_number(), refused: AtomicU64::new(0), first_refused: OnceLock::new() }
    }

    /// The panics.
    pub(crate) fn panics(&self) -> &Arc<Panics> {
        &self.panics
    }

    /// A thread was refused; `instead` says what was done.
    pub(crate) fn refused(&self, error: &Error, instead: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        // The first stays.
        let _ = self.first_refused.set(format!("{error}; {instead}"));
    }

    /// Threads that were refused, and the first.
    pub(crate) fn refusals(&self) -> (u64, Option<String>) {
        (self.refused.load(Ordering::Relaxed), self.first_refused.get().cloned())
    }
}
