//! How many transfers a runtime has under way, and what came of them.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, PoisonError};

#[derive(Default)]
pub(crate) struct Tally {
    under_way: AtomicU64,
    /// Threads in `drain`.
    drains: AtomicU64,
    lock: Mutex<()>,
    none: Condvar,
    completed: AtomicU64,
    failed: AtomicU64,
}

impl Tally {
    pub(crate) fn began(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether it went well; None where it was not started after all.
    pub(crate) fn ended(&self, good: Option<bool>) {
        if let Some(good) = good {
            self.at_once(good);
        }
        // Either this sees the drain, or the drain sees that nothing is under way.
        if self.under_way.fetch_sub(1, Ordering::SeqCst) == 1 && self.drains.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.none.notify_all();
        }
    }

    /// Counts a transfer that was complete before it could be under way.
    pub(crate) fn at_once(&self, good: bool) {
        let counter = if good { &self.completed } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn drain(&self) {
        self.drains.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.under_way.load(Ordering::SeqCst) > 0 {
            guard = self.none.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.drains.fetch_sub(1, Ordering::SeqCst);
    }

    /// Under way, completed, failed.
    pub(crate) fn read(&self) -> (u64, u64, u64) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (of(&self.under_way), of(&self.completed), of(&self.failed))
    }
}
