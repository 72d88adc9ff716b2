//! The slots of a pipe's queue: how many transfers may be under way, and threads that wait until
//! one ends.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::reentry;
use crate::runtime::coordinator::Coordinator;
use crate::sync::{Condvar, Mutex, MutexGuard};

pub(super) struct Slots {
    state: Mutex<State>,
    freed: Condvar,
    /// The numbers of transfers under way whose threads sleep in the library, called by what
    /// carries them out. The lock may be taken under that of `state`.
    stuck: Mutex<Vec<u64>>,
}

struct State {
    taken: usize,
    max: usize,
    sleepers: u32,
    /// The number of the next transfer.
    next: u64,
    drains: Vec<Drain>,
    /// The number of the next drain.
    next_drain: u64,
}

/// What a drain still waits for.
struct Drain {
    number: u64,
    /// It waits for transfers with a lower number than this.
    before: u64,
    left: usize,
}

/// Whether a thread that waits for transfers of a pipe would wait for itself.
struct SelfWait {
    in_transfer: bool,
    at_queue: bool,
}

impl SelfWait {
    fn here() -> SelfWait {
        SelfWait { in_transfer: reentry::is_in_operation(), at_queue: reentry::is_in_queue() }
    }

    /// Whether it is so where it waits for `left` transfers with a lower number than `before`.
    fn is_so(&self, left: usize, before: u64, slots: &Slots) -> bool {
        let stuck = || slots.stuck.lock().iter().filter(|number| **number < before).count();
        self.at_queue || self.in_transfer && left <= stuck()
    }
}

impl Slots {
    pub(super) fn new(max: usize) -> Slots {
        Slots {
            state: Mutex::new(State {
                taken: 0,
                max: max.max(1),
                sleepers: 0,
                next: 0,
                drains: Vec::new(),
                next_drain: 0,
            }),
            freed: Condvar::new(),
            stuck: Mutex::new(Vec::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes a slot of the pipe's queue, and returns the number of the transfer. Before it waits
    /// for one, it has what is under way attended by `attend`.
    ///
    /// # Errors
    /// `Busy` where none is free and the caller does not want to wait, or would wait for itself.
    pub(super) fn acquire(
        &self,
        wait: bool,
        pipe: &dyn fmt::Debug,
        coordinator: &Coordinator,
        attend: impl FnOnce(),
    ) -> Result<u64> {
        let mut state = self.lock();
        if state.taken >= state.max {
            if !wait {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "transfer",
                    format!("{} transfers are under way on {pipe:?}", state.taken),
                )
                .with_advice("wait for one of them, or call `transfer`, which waits"));
            }
            drop(state);
            let self_wait = SelfWait::here();
            let over = |state: &State| state.taken < state.max || self_wait.is_so(state.taken, state.next, self);
            // What it called meanwhile may have forked.
            state = match self.sleep_until(coordinator, attend, over) {
                Some(state) => state,
                None => return coordinator.owner.check("transfer").map(|()| 0),
            };
            if state.taken >= state.max {
                let why = format!(
                    "{} transfers are under way on {pipe:?}, and this is called by what carries one out",
                    state.taken
                );
                return Err(Error::new(ErrorKind::Busy, "transfer", why).with_advice("give the pipe a longer queue"));
            }
        }
        state.taken += 1;
        state.next += 1;
        Ok(state.next - 1)
    }

    /// Gives back the slot of the transfer with this number.
    pub(super) fn release(&self, number: u64, coordinator: &Coordinator) {
        let mut state = self.lock();
        state.taken -= 1;
        for drain in state.drains.iter_mut().filter(|drain| number < drain.before) {
            drain.left -= 1;
        }
        let sleepers = state.sleepers;
        drop(state);
        if sleepers > 0 {
            self.freed.notify_all();
            coordinator.wake_blocked_waiters();
        }
    }

    /// Whether a slot is free.
    pub(super) fn has_room(&self) -> bool {
        let state = self.lock();
        state.taken < state.max
    }

    /// Slots that are taken.
    pub(super) fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Sleeps until the slots that are taken now were given back. Before that, it has what is under
    /// way attended by `attend`.
    pub(super) fn drain(&self, coordinator: &Coordinator, attend: impl FnOnce()) {
        let mut state = self.lock();
        if state.taken == 0 {
            return;
        }
        let (number, before, left) = (state.next_drain, state.next, state.taken);
        state.next_drain += 1;
        state.drains.push(Drain { number, before, left });
        drop(state);
        let self_wait = SelfWait::here();
        let over = |state: &State| {
            let left = state.drains.iter().find(|drain| drain.number == number).map_or(0, |drain| drain.left);
            left == 0 || self_wait.is_so(left, before, self)
        };
        if let Some(mut state) = self.sleep_until(coordinator, attend, over) {
            state.drains.retain(|drain| drain.number != number);
        }
    }

    /// Sleeps until `over`. It drives no queue itself: the coordinator must.
    fn sleep_until(
        &self,
        coordinator: &Coordinator,
        attend: impl FnOnce(),
        over: impl Fn(&State) -> bool,
    ) -> Option<MutexGuard<'_, State>> {
        let _waiter = coordinator.begin_blocked_wait();
        attend();
        coordinator.sleep_until(&self.state, &self.freed, |state| &mut state.sleepers, over)
    }

    /// The thread that carries out a transfer of this pipe sleeps in the library.
    pub(super) fn worker_blocked(&self, number: u64, coordinator: &Coordinator) {
        self.stuck.lock().push(number);
        // With the lock, so that who is about to sleep sees it or is woken.
        let sleepers = self.lock().sleepers;
        if sleepers > 0 {
            self.freed.notify_all();
            coordinator.wake_blocked_waiters();
        }
    }

    /// Notes that a worker that slept goes on.
    pub(super) fn worker_resumed(&self, number: u64) {
        // Without the lock of the state, which the thread may have: it has what it slept for.
        let mut stuck = self.stuck.lock();
        if let Some(at) = stuck.iter().position(|other| *other == number) {
            stuck.swap_remove(at);
        }
    }
}
