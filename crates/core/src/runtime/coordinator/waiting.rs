//! Threads of the caller that sleep in the library: each runs the event loop meanwhile if nobody
//! else does.

use std::os::fd::BorrowedFd;

use super::role::RoleHolder;
use super::{Coordinator, RoleGuard};
use crate::guard;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::thread_role;

/// While it lives, a thread sleeps and another has the role.
struct Asleep<'a>(&'a Coordinator);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        if !self.0.owner.is_here() {
            return;
        }
        self.0.role().waiters_asleep -= 1;
    }
}

/// The right of a thread in `block_on` to run the event loop whenever it would sleep.
pub(crate) struct BorrowedDriver<'a>(&'a Coordinator);

impl Drop for BorrowedDriver<'_> {
    fn drop(&mut self) {
        if !self.0.owner.is_here() {
            return;
        }
        self.0.role().is_borrowed = false;
        self.0.role_changed.notify_all();
    }
}

impl Coordinator {
    /// This thread runs the event loop whenever it would sleep; None where another one does so
    /// already.
    pub(crate) fn borrow_driver(&self) -> Option<BorrowedDriver<'_>> {
        let mut role = self.role();
        if std::mem::replace(&mut role.is_borrowed, true) { None } else { Some(BorrowedDriver(self)) }
    }

    /// The role for a thread that is about to sleep; if another has it, a note that this one
    /// sleeps.
    fn role_or_sleep(&self) -> Result<RoleGuard<'_>, Asleep<'_>> {
        let mut role = self.role();
        if !role.is_free() {
            role.waiters_asleep += 1;
            return Err(Asleep(self));
        }
        Ok(self.acquire_role(role, RoleHolder::BlockedWaiter))
    }

    /// Sleeps until `over`, of which `changed` tells, and runs the event loop meanwhile if nobody
    /// else does. While it sleeps it is counted in `sleepers`, and who makes it over calls
    /// [`wake_blocked_waiters`](Self::wake_blocked_waiters) if there are any.
    ///
    /// None, without a look at the lock, where code that it called meanwhile forked, and this is
    /// the child.
    pub(crate) fn sleep_until<'a, T>(
        &self,
        lock: &'a Mutex<T>,
        changed: &Condvar,
        sleepers: impl Fn(&mut T) -> &mut u32,
        mut over: impl FnMut(&T) -> bool,
    ) -> Option<MutexGuard<'a, T>> {
        let mut state = lock.lock();
        if over(&state) {
            return Some(state);
        }
        drop(state);
        // Others may wait for what this thread has put aside, and for the work that it does not do
        // meanwhile.
        guard::run_deferred_before_sleep();
        if !self.owner.is_here() {
            return None;
        }
        let _away = thread_role::sleeps();
        loop {
            let turn = self.role_or_sleep();
            state = lock.lock();
            if over(&state) {
                return Some(state);
            }
            *sleepers(&mut state) += 1;
            match turn {
                Ok(role) => {
                    drop(state);
                    role.drive_once(true, None);
                    if !self.owner.is_here() {
                        return None;
                    }
                    state = lock.lock();
                }
                Err(_asleep) => state = changed.wait(state),
            }
            *sleepers(&mut state) -= 1;
            drop(state);
            guard::run_deferred_before_sleep();
            if !self.owner.is_here() {
                return None;
            }
        }
    }

    /// Sleeps until the descriptor is readable, or an event was handled, and runs the event loop
    /// meanwhile if nobody else does.
    pub(crate) fn sleep_beside(&self, fd: BorrowedFd<'_>) {
        guard::run_deferred_before_sleep();
        if !self.owner.is_here() {
            return;
        }
        let _away = thread_role::sleeps();
        match self.role_or_sleep() {
            Ok(role) => role.drive_once(true, Some(fd)),
            Err(_asleep) => self.events.wait_for(fd),
        }
        guard::run_deferred_before_sleep();
    }
}

impl BorrowedDriver<'_> {
    /// Runs the event loop until `woken`, at least once unless it is so already.
    pub(crate) fn drive(&self, woken: &AtomicBool) {
        let coordinator = self.0;
        guard::run_deferred_before_sleep();
        if !coordinator.owner.is_here() {
            return;
        }
        let _away = thread_role::sleeps();
        let mut role = coordinator.role();
        // Who wakes it after this look makes the turn end.
        while !woken.load(Ordering::SeqCst) {
            if role.holder.is_none() {
                return coordinator.acquire_role(role, RoleHolder::BorrowedDriver).drive_once(true, None);
            }
            role = coordinator.want(role);
        }
    }
}
