//! How many transfers a runtime has under way, and what came of them.

use crate::guard::{self, reentry};
use crate::runtime::coordinator::Coordinator;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

/// A transfer that moves, in [`TransferCounts::counts`].
const MOVING: u64 = 1;
/// A transfer that has ended and whose callback was not called yet.
const CALLING: u64 = 1 << 32;

#[derive(Default)]
pub(crate) struct TransferCounts {
    /// Both counts in one number, so that they are read together: transfers that move, and above
    /// them those whose callback is to be called.
    counts: AtomicU64,
    /// Threads in `drain`.
    drains: AtomicU64,
    /// How many of them sleep.
    sleepers: Mutex<u32>,
    none: Condvar,
    /// Transfers whose threads sleep in the library, called by what carries them out.
    stuck: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
}

impl TransferCounts {
    pub(crate) fn began(&self) {
        self.counts.fetch_add(MOVING, Ordering::SeqCst);
    }

    /// Whether it went well; None where it was not started after all.
    pub(crate) fn ended(&self, good: Option<bool>, coordinator: &Coordinator) {
        if let Some(good) = good {
            self.at_once(good);
        }
        self.counts.fetch_sub(MOVING, Ordering::SeqCst);
        self.tell(coordinator);
    }

    /// One is to call back. To be called before its callback is handed over, and
    /// [`ended`](Self::ended) after: a runtime whose transfers have all ended may stop the thread
    /// that calls, which ends when there is nothing to call.
    pub(crate) fn calls_back(&self) {
        self.counts.fetch_add(CALLING, Ordering::SeqCst);
    }

    /// It has called back.
    pub(crate) fn called_back(&self, coordinator: &Coordinator) {
        self.counts.fetch_sub(CALLING, Ordering::SeqCst);
        self.tell(coordinator);
    }

    /// Either this sees the drain, or the drain sees what was counted.
    fn tell(&self, coordinator: &Coordinator) {
        let may_be_over =
            || self.counts.load(Ordering::SeqCst).is_multiple_of(CALLING) || self.stuck.load(Ordering::SeqCst) > 0;
        if self.drains.load(Ordering::SeqCst) > 0 && may_be_over() {
            drop(self.sleepers.lock());
            self.none.notify_all();
            coordinator.wake_blocked_waiters();
        }
    }

    /// Counts a transfer that was complete before it could be under way.
    pub(crate) fn at_once(&self, good: bool) {
        let counter = if good { &self.completed } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// What carries out a transfer sleeps in the library.
    pub(crate) fn worker_blocked(&self, coordinator: &Coordinator) {
        self.stuck.fetch_add(1, Ordering::SeqCst);
        self.tell(coordinator);
    }

    /// Notes that a worker that slept goes on.
    pub(crate) fn worker_resumed(&self) {
        self.stuck.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps until nothing is under way. Within a callback, callbacks do not count: it is one
    /// itself. Within what carries out a transfer, neither do transfers whose threads sleep
    /// likewise.
    pub(crate) fn drain(&self, coordinator: &Coordinator) {
        self.drains.fetch_add(1, Ordering::SeqCst);
        let (within, in_the_middle) = (guard::is_in_foreign_code(), reentry::is_in_operation());
        // Nobody knows which transfers end when it returns.
        if reentry::is_in_queue() {
            self.drains.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let over = |_: &u32| {
            let counts = self.counts.load(Ordering::SeqCst);
            match in_the_middle {
                true => counts % CALLING <= self.stuck.load(Ordering::SeqCst),
                false if within => counts.is_multiple_of(CALLING),
                false => counts == 0,
            }
        };
        drop(coordinator.sleep_until(&self.sleepers, &self.none, |sleepers| sleepers, over));
        self.drains.fetch_sub(1, Ordering::SeqCst);
    }

    /// Under way, completed, failed.
    pub(crate) fn read(&self) -> (u64, u64, u64) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = of(&self.counts);
        (counts % CALLING + counts / CALLING, of(&self.completed), of(&self.failed))
    }
}
