//! The slots of a pipe's queue: how many transfers may be under way, and threads that wait until
//! one ends.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::reentry;
use crate::runtime::coordinator::Coordinator;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

pub(super) struct Slots {
    state: Mutex<State>,
    freed: Condvar,
    /// Transfers under way whose threads sleep in the library, called by what carries them out.
    stuck: AtomicUsize,
}

struct State {
    taken: usize,
    max: usize,
    sleepers: u32,
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

    fn is_so(&self, state: &State, slots: &Slots) -> bool {
        self.at_queue || self.in_transfer && state.taken <= slots.stuck.load(Ordering::SeqCst)
    }
}

impl Slots {
    pub(super) fn new(max: usize) -> Slots {
        Slots {
            state: Mutex::new(State { taken: 0, max: max.max(1), sleepers: 0 }),
            freed: Condvar::new(),
            stuck: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Takes a slot of the pipe's queue. Before it waits for one, it has what is under way attended
    /// by `attend`.
    ///
    /// # Errors
    /// `Busy` where none is free and the caller does not want to wait, or would wait for itself.
    pub(super) fn acquire(
        &self,
        wait: bool,
        pipe: &dyn fmt::Debug,
        coordinator: &Coordinator,
        attend: impl FnOnce(),
    ) -> Result<()> {
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
            let over = |state: &State| state.taken < state.max;
            // What it called meanwhile may have forked.
            state = match self.sleep_until(coordinator, attend, over) {
                Some(state) => state,
                None => return coordinator.owner.check("transfer"),
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
        Ok(())
    }

    /// Gives a slot back.
    pub(super) fn release(&self, coordinator: &Coordinator) {
        let mut state = self.lock();
        state.taken -= 1;
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

    /// Sleeps until no slot is taken. Before that, it has what is under way attended by `attend`.
    pub(super) fn drain(&self, coordinator: &Coordinator, attend: impl FnOnce()) {
        drop(self.sleep_until(coordinator, attend, |state| state.taken == 0));
    }

    /// Sleeps until `over`, or until this thread would wait for itself. It drives no queue itself:
    /// the coordinator must.
    fn sleep_until(
        &self,
        coordinator: &Coordinator,
        attend: impl FnOnce(),
        over: impl Fn(&State) -> bool,
    ) -> Option<MutexGuard<'_, State>> {
        let _waiter = coordinator.begin_blocked_wait();
        attend();
        let self_wait = SelfWait::here();
        let over = |state: &State| over(state) || self_wait.is_so(state, self);
        coordinator.sleep_until(&self.state, &self.freed, |state| &mut state.sleepers, over)
    }

    /// The thread that carries out a transfer of this pipe sleeps in the library.
    pub(super) fn worker_blocked(&self, coordinator: &Coordinator) {
        self.stuck.fetch_add(1, Ordering::SeqCst);
        // With the lock, so that who is about to sleep sees it or is woken.
        let sleepers = self.lock().sleepers;
        if sleepers > 0 {
            self.freed.notify_all();
            coordinator.wake_blocked_waiters();
        }
    }

    /// Notes that a worker that slept goes on.
    pub(super) fn worker_resumed(&self) {
        // Without the lock, which the thread may have: it has what it slept for.
        self.stuck.fetch_sub(1, Ordering::SeqCst);
    }
}
