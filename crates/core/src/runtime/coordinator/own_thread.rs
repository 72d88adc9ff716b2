//! The coordinator's own thread, which calls the user's callbacks and wakers, and the stand-in,
//! which runs the event loop while one of them takes long.

use std::task::Waker;

use super::role::{ForeignCall, Role, RoleHolder, StandIn};
use super::{Coordinator, RoleGuard, STAND_IN_DELAY};
use crate::guard;
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, MutexGuard};
use crate::thread_role;
use crate::thread_share;
use crate::threads::{self, JoinHandle};

/// How long callbacks are called before somebody handles the events.
const CALL_OUT_NS: u64 = 1_000_000;

impl Coordinator {
    /// What the own thread does.
    pub(crate) fn run(self: &Arc<Self>) {
        self.enter_thread_share();
        let _role = thread_role::enter_own_thread(self);
        loop {
            self.call_out();
            if !self.owner.is_here() {
                // A callback forked, and this is the child: it has one thread, this one, and
                // nothing of this is the child's.
                return;
            }
            match self.role_for_own_thread() {
                Some((role, may_sleep)) => role.drive_once(may_sleep, None),
                None if self.is_over() => return,
                None => {}
            }
        }
    }

    /// It was stopped, and what there was to call was called.
    fn is_over(&self) -> bool {
        self.is_stopping() && !self.role().has_calls()
    }

    /// The role, when nobody else has or is to have it, and whether there is nothing to do but to
    /// sleep; None where there are callbacks to call while another has it, or it is over.
    fn role_for_own_thread(&self) -> Option<(RoleGuard<'_>, bool)> {
        let mut role = self.role();
        let mut overdue = false;
        loop {
            if self.is_stopping() {
                return None;
            }
            if role.is_for_own_thread() || overdue && role.is_free() {
                let may_sleep = !role.has_calls();
                return Some((self.acquire_role(role, RoleHolder::OwnThread), may_sleep));
            }
            if role.has_calls() {
                return None;
            }
            if role.holder == Some(RoleHolder::StandIn) {
                // It stood in for this thread, which is back.
                role = self.want(role);
                continue;
            }
            role.own_sleeps = true;
            // A thread in `block_on` may do something else for long, while there is work.
            self.own_sleeps_unlimited.store(role.is_borrowed, Ordering::SeqCst);
            if role.is_borrowed && self.has_work() {
                self.own_sleeps_unlimited.store(false, Ordering::SeqCst);
                let (back, timeout) = self.role_changed.wait_timeout(role, STAND_IN_DELAY);
                (role, overdue) = (back, timeout.timed_out());
            } else {
                role = self.role_changed.wait(role);
                self.own_sleeps_unlimited.store(false, Ordering::SeqCst);
                overdue = false;
            }
            role.own_sleeps = false;
        }
    }

    /// The own thread ends when it has called what there is to call; so does the stand-in, whose
    /// handle is given.
    pub(crate) fn stop(&self) -> Option<JoinHandle<()>> {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
        let mut role = self.role();
        let stand_in = std::mem::replace(&mut role.stand_in, StandIn::Refused);
        drop(role);
        self.role_changed.notify_all();
        self.calling_out.notify_all();
        match stand_in {
            StandIn::Started(thread) => Some(thread),
            StandIn::None | StandIn::Refused => None,
        }
    }

    /// Has the own thread call a callback.
    pub(crate) fn call_out_later(self: &Arc<Self>, callback: Box<dyn FnOnce() + Send>) {
        let mut role = self.role();
        role.calls.push_back(callback);
        self.have_stand_in(&mut role);
        self.wake_caller(role);
    }

    /// A thread of the runtime begins: it gets the share, if there is one. A refusal is told in the
    /// report, since no work is lost by it.
    pub(crate) fn enter_thread_share(&self) {
        if let Some(share) = &self.thread_share
            && let Err(e) = thread_share::enter(&**share)
        {
            self.troubles.refused(&e, "a thread works without its share");
        }
    }

    /// Has the own thread call a waker, or the stand-in. It is given back where neither can.
    pub(crate) fn wake_later(self: &Arc<Self>, waker: Waker) -> Option<Waker> {
        let mut role = self.role();
        self.have_stand_in(&mut role);
        if role.calling.is_some() && matches!(role.stand_in, StandIn::Refused) {
            return Some(waker);
        }
        role.wakes.push_back(waker);
        self.wake_caller(role);
        None
    }

    /// The thread that calls sees what was put there to be called.
    fn wake_caller(self: &Arc<Self>, role: MutexGuard<'_, Role>) {
        let (asleep, holder) = (role.own_sleeps, role.holder);
        drop(role);
        if asleep {
            self.role_changed.notify_all();
        } else if holder == Some(RoleHolder::OwnThread) && !thread_role::is_own_thread_of(self)
            || holder == Some(RoleHolder::StandIn)
        {
            self.wake();
        }
    }

    /// Calls the callbacks that are there now, unless that takes so long that somebody must handle
    /// the events.
    fn call_out(&self) {
        let begun = self.now();
        let mut role = self.role();
        while let Some(next) = role.next_call() {
            role.called += 1;
            role.calling = Some(role.called);
            let wakes_stand_in = role.stand_in_sleeps;
            drop(role);
            if wakes_stand_in {
                self.calling_out.notify_one();
            }
            match next {
                ForeignCall::Waker(waker) => self.call_waker(waker),
                ForeignCall::Callback(callback) => self.call_back(callback),
            }
            if !self.owner.is_here() {
                return;
            }
            role = self.role();
            role.calling = None;
            if role.has_calls() && self.now() - begun > CALL_OUT_NS {
                return;
            }
        }
    }

    fn call_waker(&self, waker: Waker) {
        guard::call_or_defer(guard::Call::Wake(waker), self.troubles.panics().number());
    }

    /// Calls a callback here, or, within another call, when that one is over.
    fn call_back(&self, callback: Box<dyn FnOnce() + Send>) {
        guard::call_or_defer(guard::Call::Run(callback), self.troubles.panics().number());
    }

    /// Starts the stand-in, once; where the kernel gives no thread, there is none.
    fn have_stand_in(self: &Arc<Self>, role: &mut Role) {
        // The model knows no time.
        if cfg!(shuttle) || !matches!(role.stand_in, StandIn::None) || self.is_stopping() {
            return;
        }
        let coordinator = self.clone();
        role.stand_in = match threads::spawn("dp-stand-in", move || coordinator.stand_in()) {
            Ok(thread) => StandIn::Started(thread),
            Err(e) => {
                self.troubles.refused(&e, "a callback that blocks holds up what nobody waits for");
                StandIn::Refused
            }
        };
    }

    /// What the stand-in does.
    fn stand_in(&self) {
        self.enter_thread_share();
        let mut role = self.role();
        while !self.is_stopping() {
            let Some(within) = role.calling else {
                role.stand_in_sleeps = true;
                role = self.calling_out.wait(role);
                role.stand_in_sleeps = false;
                continue;
            };
            // Nobody notifies meanwhile, but who stops the runtime.
            role = self.calling_out.wait_timeout(role, STAND_IN_DELAY).0;
            while role.calling == Some(within) && !self.is_stopping() {
                if let Some(waker) = role.wakes.pop_front() {
                    drop(role);
                    self.call_waker(waker);
                } else if role.is_free() {
                    self.acquire_role(role, RoleHolder::StandIn).drive_once(true, None);
                } else {
                    break;
                }
                if !self.owner.is_here() {
                    return;
                }
                role = self.role();
            }
        }
    }
}
