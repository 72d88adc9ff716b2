//! How many transfers a runtime has under way, and what came of them.

use crate::guard::{self, reentry};
use crate::runtime::coordinator::Coordinator;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};

/// A drain that began, above the transfers in [`TransferCounts::moving`] and in
/// [`TransferCounts::calling`].
const DRAIN: u64 = 1 << 32;

/// How many transfers such a number counts.
fn transfers(counted: u64) -> u64 {
    counted % DRAIN
}

/// How many drains began before it was read, modulo 2^32.
fn drains_before(counted: u64) -> u32 {
    (counted / DRAIN) as u32
}

/// A drain waits for the transfers that began before it. Each transfer knows how many drains began
/// before it, and learns from the atomic operation that ends it how many have begun by then. Only
/// where drains began meanwhile are they told, under a lock.
#[derive(Default)]
pub(crate) struct TransferCounts {
    /// Transfers that move, and above them the number of drains that began.
    moving: AtomicU64,
    /// Transfers that have ended and whose callback was not called yet, and above them the same
    /// number.
    calling: AtomicU64,
    drains: Mutex<Drains>,
    /// A drain may be over.
    drained: Condvar,
    /// Transfers whose threads sleep in the library, called by what carries them out: for each, the
    /// number of drains that began before it. The lock may be taken under that of `drains`.
    stuck: Mutex<Vec<u32>>,
    completed: AtomicU64,
    failed: AtomicU64,
}

#[derive(Default)]
struct Drains {
    under_way: Vec<Drain>,
    /// How many of their threads sleep.
    sleepers: u32,
}

/// What a drain still waits for.
struct Drain {
    /// The drains that began before it.
    number: u32,
    moving: u64,
    calling: u64,
}

impl Drains {
    /// Those that began while `since` grew to `until`.
    fn between(&mut self, since: u32, until: u32) -> impl Iterator<Item = &mut Drain> {
        let is_between = move |drain: &&mut Drain| drain.number.wrapping_sub(since) < until.wrapping_sub(since);
        self.under_way.iter_mut().filter(is_between)
    }
}

impl TransferCounts {
    /// A transfer begins. Returns how many drains began before it.
    pub(crate) fn began(&self) -> u32 {
        drains_before(self.moving.fetch_add(1, Ordering::SeqCst))
    }

    /// Whether it went well; None where it was not started after all.
    pub(crate) fn ended(&self, good: Option<bool>, began: u32, coordinator: &Coordinator) {
        if let Some(good) = good {
            self.at_once(good);
        }
        let now = drains_before(self.moving.fetch_sub(1, Ordering::SeqCst));
        if now != began {
            self.tell(coordinator, |drains| drains.between(began, now).for_each(|drain| drain.moving -= 1));
        }
    }

    /// One is to call back. To be called before its callback is handed over, and
    /// [`ended`](Self::ended) after: a runtime whose transfers have all ended may stop the thread
    /// that calls, which ends when there is nothing to call.
    ///
    /// Returns what [`called_back`](Self::called_back) is to be told.
    pub(crate) fn calls_back(&self, began: u32) -> u32 {
        let now = drains_before(self.calling.fetch_add(1, Ordering::SeqCst));
        let ahead = now.wrapping_sub(began).cast_signed();
        if ahead < 0 {
            // A drain has counted what moves, before this began, and not yet what calls back.
            return now;
        }
        if ahead > 0 {
            // Those drains wait for it as one that moves, and from now on for its callback too.
            self.drains.lock().between(began, now).for_each(|drain| drain.calling += 1);
        }
        began
    }

    /// It has called back.
    pub(crate) fn called_back(&self, counted: u32, coordinator: &Coordinator) {
        let now = drains_before(self.calling.fetch_sub(1, Ordering::SeqCst));
        if now != counted {
            self.tell(coordinator, |drains| drains.between(counted, now).for_each(|drain| drain.calling -= 1));
        }
    }

    /// Has the drains look again after a change.
    fn tell(&self, coordinator: &Coordinator, change: impl FnOnce(&mut Drains)) {
        let mut drains = self.drains.lock();
        change(&mut drains);
        let may_be_over = drains.sleepers > 0
            && (drains.under_way.iter().any(|drain| drain.moving == 0) || !self.stuck.lock().is_empty());
        drop(drains);
        if may_be_over {
            self.drained.notify_all();
            coordinator.wake_blocked_waiters();
        }
    }

    /// Counts a transfer that was complete before it could be under way.
    pub(crate) fn at_once(&self, good: bool) {
        let counter = if good { &self.completed } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// What carries out a transfer sleeps in the library.
    pub(crate) fn worker_blocked(&self, began: u32, coordinator: &Coordinator) {
        self.stuck.lock().push(began);
        self.tell(coordinator, |_| ());
    }

    /// Notes that a worker that slept goes on. (Its thread may have the lock of the drains.)
    pub(crate) fn worker_resumed(&self, began: u32) {
        let mut stuck = self.stuck.lock();
        if let Some(at) = stuck.iter().position(|other| *other == began) {
            stuck.swap_remove(at);
        }
    }

    /// Sleeps until what was under way when it was called has ended. Within a callback, callbacks
    /// do not count: it is one itself. Within what carries out a transfer, neither do transfers
    /// whose threads sleep likewise.
    pub(crate) fn drain(&self, coordinator: &Coordinator) {
        let (within, in_the_middle) = (guard::is_in_foreign_code(), reentry::is_in_operation());
        // Nobody knows which transfers end when it returns.
        if reentry::is_in_queue() {
            return;
        }
        let number = self.begin_drain();
        let over = |drains: &Drains| {
            let Some(drain) = drains.under_way.iter().find(|drain| drain.number == number) else { return true };
            match in_the_middle {
                true => drain.moving <= self.stuck_before(number),
                false => drain.moving == 0 && (within || drain.calling == 0),
            }
        };
        // In a child there is nothing to do: what there is belongs to the parent.
        let slept = coordinator.sleep_until(&self.drains, &self.drained, |drains| &mut drains.sleepers, over);
        if let Some(mut drains) = slept {
            drains.under_way.retain(|drain| drain.number != number);
        }
    }

    /// Notes what is under way now. What begins or ends later sees the number.
    fn begin_drain(&self) -> u32 {
        let mut drains = self.drains.lock();
        // In this order, see `calls_back`.
        let moving = self.moving.fetch_add(DRAIN, Ordering::SeqCst);
        let calling = self.calling.fetch_add(DRAIN, Ordering::SeqCst);
        let number = drains_before(moving);
        drains.under_way.push(Drain { number, moving: transfers(moving), calling: transfers(calling) });
        number
    }

    /// Those for which a drain of this number waits, and whose threads sleep.
    fn stuck_before(&self, number: u32) -> u64 {
        let is_before = |began: &&u32| number.wrapping_sub(**began).cast_signed() >= 0;
        self.stuck.lock().iter().filter(is_before).count() as u64
    }

    /// Under way, completed, failed.
    pub(crate) fn read(&self) -> (u64, u64, u64) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (transfers(of(&self.moving)) + transfers(of(&self.calling)), of(&self.completed), of(&self.failed))
    }
}
