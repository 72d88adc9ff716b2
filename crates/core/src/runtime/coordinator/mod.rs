//! The coordinator looks after transfers that nobody waits for. Its event loop runs on one thread
//! of the runtime, or on one that would sleep otherwise.
//!
//! ```text
//! drive once: sleep until an event is due, handle it                        the thread with the role, and nobody else
//! call out:   callbacks, one after another                                  the runtime's own thread, without the role
//! own thread: call out; has another thread the role?  sleep; else drive once
//! block_on:   poll the future; nothing to poll?  take the role and drive once
//! a thread that sleeps in the library until others' transfers end: if nobody has the role, take it and drive meanwhile
//! stand-in:   while a callback takes longer than STAND_IN_DELAY and nobody has the role, drive
//! ```
//!
//! Code that is not ours never runs while its thread has the role. So a callback or a future may
//! call whatever blocks: the role is free, and the thread that blocks takes it. One that blocks
//! elsewhere is stood in for: a callback by the stand-in, a future by the own thread, which looks
//! after each [`STAND_IN_DELAY`].
//!
//! | file | what it holds |
//! |---|---|
//! | `event_source` | what is looked after, as the coordinator sees it |
//! | `events` | epoll, or a model of it |
//! | `attended` | the table of queues, event sources and resources |
//! | `role` | who may run the event loop |
//! | `mod` | the coordinator: waking it, the role, one turn of the event loop |
//! | `own_thread` | the own thread and the stand-in: callbacks and wakers |
//! | `waiting` | threads of the caller that drive it while they wait |

mod attended;
pub(crate) mod event_source;
#[cfg(not(shuttle))]
pub(crate) mod events;
#[cfg(shuttle)]
#[path = "events_model.rs"]
pub(crate) mod events;
mod own_thread;
mod role;
mod troubles;
mod waiting;

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use crate::error::Result;
use crate::guard::{self, ForeignCode};
use crate::pipe::queue::Queue;
use crate::process::OwningProcess;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use crate::thread_role::{self, DriverRole};
use crate::thread_share::ThreadShare;
use attended::Attended;
use event_source::{AttendedResource, EventSource, Interest};
use events::{Events, WAKE};
use role::{Role, RoleHolder};
use troubles::Troubles;

/// How long a completion whose event was lost stays unheard at most.
const SAFETY_POLL_NS: u64 = 100_000_000;
/// How long foreign code may keep from its work the thread that has it before another one does it.
const STAND_IN_DELAY: Duration = Duration::from_millis(100);

pub(crate) struct Coordinator {
    itself: Weak<Coordinator>,
    pub(crate) owner: OwningProcess,
    events: Events,
    /// Somebody woke the thread that has the role, and it has not noticed yet.
    woken: AtomicBool,
    /// It could not be woken, because its descriptors are gone.
    is_unreachable: AtomicBool,
    /// When it will wake by itself, in nanoseconds since it began.
    sleeps_until: AtomicU64,
    /// When to poll everything that is under way; `u64::MAX` while nothing is.
    safety_poll_at: AtomicU64,
    stopping: AtomicBool,
    /// Threads that sleep until transfers of others end, of which nobody may wait for any.
    blocked_waiters: AtomicU64,
    /// One of them has the role: who ends a transfer must wake it.
    blocked_waiter_drives: AtomicBool,
    /// The own thread sleeps without a limit, though a thread in `block_on` may keep it from its
    /// work.
    own_sleeps_unlimited: AtomicBool,
    attended: Attended,
    role: Mutex<Role>,
    /// For the own thread and those who want the role.
    role_changed: Condvar,
    /// Wakes the stand-in.
    calling_out: Condvar,
    pub(crate) troubles: Troubles,
    /// What each thread of the runtime gets first.
    pub(super) thread_share: Option<std::sync::Arc<dyn ThreadShare>>,
}

/// While it lives, a thread sleeps until transfers of others end, and all that sets out is
/// attended.
pub(crate) struct BlockedWaiter<'a>(&'a Coordinator);

impl Drop for BlockedWaiter<'_> {
    fn drop(&mut self) {
        self.0.blocked_waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Coordinator {
    pub(crate) fn new(thread_share: Option<std::sync::Arc<dyn ThreadShare>>) -> Result<Arc<Coordinator>> {
        let events = Events::new()?;
        Ok(Arc::new_cyclic(|itself| Coordinator {
            itself: itself.clone(),
            owner: OwningProcess::here(),
            events,
            woken: AtomicBool::new(false),
            is_unreachable: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
            safety_poll_at: AtomicU64::new(u64::MAX),
            stopping: AtomicBool::new(false),
            blocked_waiters: AtomicU64::new(0),
            blocked_waiter_drives: AtomicBool::new(false),
            own_sleeps_unlimited: AtomicBool::new(false),
            attended: Attended::default(),
            role: Mutex::new(Role::default()),
            role_changed: Condvar::new(),
            calling_out: Condvar::new(),
            troubles: Troubles::new(),
            thread_share,
        }))
    }

    /// The runtime's clock, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.events.now()
    }

    fn role(&self) -> MutexGuard<'_, Role> {
        self.role.lock()
    }

    pub(crate) fn add_resource(&self, resource: Weak<dyn AttendedResource>) {
        self.attended.add_resource(resource);
    }

    /// Gets to know a queue. It is not looked after until [`arm`](Self::arm) is called.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub(crate) fn add_queue(&self, queue: &Arc<Queue>) -> Result<()> {
        self.attended.add_queue(&self.events, queue)
    }

    /// Forgets a queue, before its descriptor is closed.
    pub(crate) fn remove_queue(&self, queue: &Queue) {
        self.attended.remove_queue(&self.events, queue);
    }

    /// The next event of the queue wakes the coordinator.
    pub(crate) fn arm(&self, queue: &Queue) {
        self.attended.arm(&self.events, queue);
    }

    /// Gets to know another event source, which is kept until it is forgotten, and waits for its
    /// first event.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub(crate) fn add_source(&self, other: Arc<dyn EventSource>) -> Result<()> {
        self.attended.add_source(&self.events, other)?;
        self.wake_own_thread();
        Ok(())
    }

    /// Waits for another event of it.
    pub(crate) fn arm_source(&self, other: &dyn EventSource, interest: Interest) {
        let fd = other.fd();
        // It fails only where it was forgotten, and then nobody waits.
        let _ = self.events.arm(fd, fd.as_raw_fd() as u64, interest);
    }

    /// Forgets it, before its descriptor is closed.
    pub(crate) fn remove_source(&self, other: &dyn EventSource) {
        self.attended.remove_source(&self.events, other);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.attended.clear();
    }

    /// To be called before those are attended that are out already: either these are seen, or who
    /// submits more sees this.
    pub(crate) fn begin_blocked_wait(&self) -> BlockedWaiter<'_> {
        self.blocked_waiters.fetch_add(1, Ordering::SeqCst);
        BlockedWaiter(self)
    }

    /// Whether a thread sleeps until transfers of others end.
    pub(crate) fn has_blocked_waiters(&self) -> bool {
        self.blocked_waiters.load(Ordering::SeqCst) > 0
    }

    /// Something ended for which a blocked waiter may wait that has the role meanwhile.
    pub(crate) fn wake_blocked_waiters(&self) {
        if self.blocked_waiter_drives.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Has everything that is at a device polled within [`SAFETY_POLL_NS`]. Completions are told by
    /// events; this is for one whose event was lost (the kernel gives up what a thread submitted
    /// that ended meanwhile, a notifier among it), and for requests that the kernel had no memory
    /// for when they were submitted.
    pub(crate) fn request_safety_poll(&self) {
        // Under schedules chosen at random a completion that nobody hears of must be found, not
        // healed.
        if cfg!(shuttle) || self.safety_poll_at.load(Ordering::Relaxed) != u64::MAX {
            return;
        }
        let at = self.now() + SAFETY_POLL_NS;
        if self.safety_poll_at.compare_exchange(u64::MAX, at, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.be_awake_at(at);
        }
    }

    /// It must be awake at this time.
    pub(crate) fn be_awake_at(&self, at: u64) {
        if at < self.sleeps_until.load(Ordering::SeqCst) {
            self.wake();
        }
        self.wake_own_thread();
    }

    /// Has the own thread look whether it is needed, where it sleeps without a limit.
    fn wake_own_thread(&self) {
        if self.own_sleeps_unlimited.load(Ordering::SeqCst) {
            drop(self.role());
            self.role_changed.notify_all();
        }
    }

    /// Wakes the thread that has the role.
    pub(crate) fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) && !self.events.call() {
            self.is_unreachable.store(true, Ordering::SeqCst);
        }
    }

    /// Whether the thread that has the role may sleep for good: its descriptors were closed.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.is_unreachable.load(Ordering::SeqCst)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Takes the role, which nobody has.
    fn acquire_role<'a>(&'a self, mut role: MutexGuard<'a, Role>, holder: RoleHolder) -> RoleGuard<'a> {
        role.holder = Some(holder);
        drop(role);
        if holder == RoleHolder::BlockedWaiter {
            self.blocked_waiter_drives.store(true, Ordering::SeqCst);
        }
        let outer = thread_role::has_turn(Some(self.itself.clone()));
        RoleGuard { coordinator: self, outer, _hold: guard::defer_calls() }
    }

    /// Sleeps until somebody gave the role back, who is told to.
    fn want<'a>(&self, mut role: MutexGuard<'a, Role>) -> MutexGuard<'a, Role> {
        role.wanted += 1;
        self.wake();
        let mut role = self.role_changed.wait(role);
        role.wanted -= 1;
        role
    }

    /// Whether something may become due that somebody must handle. (Asked with `role` held, which
    /// nobody takes who holds the table of what is attended.)
    fn has_work(&self) -> bool {
        self.safety_poll_at.load(Ordering::SeqCst) != u64::MAX
            || self.attended.has_others()
            || self.next_time().is_some()
    }

    /// When something is due.
    fn next_time(&self) -> Option<u64> {
        let resources = self.attended.resources();
        let safety_poll = Some(self.safety_poll_at.load(Ordering::SeqCst)).filter(|at| *at != u64::MAX);
        resources.iter().filter_map(|resource| resource.next_for_coordinator()).chain(safety_poll).min()
    }

    /// Does what is due now.
    fn handle_deadlines(&self) {
        let now = self.now();
        let resources = self.attended.resources();
        if self.safety_poll_at.load(Ordering::SeqCst) <= now {
            self.safety_poll_at.store(u64::MAX, Ordering::SeqCst);
            let mut left = false;
            for resource in &resources {
                left |= resource.poll_all();
            }
            if left {
                self.request_safety_poll();
            }
        }
        for resource in resources {
            if resource.next_for_coordinator().is_some_and(|at| at <= now) {
                resource.dispatch();
            }
        }
    }
}

impl DriverRole for Coordinator {
    fn release_role(&self) {
        if !self.owner.is_here() {
            return;
        }
        let mut role = self.role();
        if role.holder == Some(RoleHolder::BlockedWaiter) {
            self.blocked_waiter_drives.store(false, Ordering::SeqCst);
        }
        role.holder = None;
        // The own thread takes it if nobody else does.
        if role.own_sleeps && role.is_for_own_thread() || role.wanted > 0 {
            self.role_changed.notify_all();
        }
    }
}

/// The role: the right to run the event loop, once.
struct RoleGuard<'a> {
    coordinator: &'a Coordinator,
    /// The one that the thread had before.
    outer: Option<Weak<dyn DriverRole>>,
    /// What is not ours is called when the role was given back.
    _hold: guard::CallDeferral,
}

impl Drop for RoleGuard<'_> {
    fn drop(&mut self) {
        let coordinator = self.coordinator;
        let has_it = thread_role::still_has_turn();
        drop(thread_role::has_turn(self.outer.take()));
        // Code that is not ours may have slept meanwhile, and given it back for good.
        if coordinator.owner.is_here() && has_it {
            coordinator.release_role();
        }
    }
}

impl RoleGuard<'_> {
    /// Handles what is due; sleeps, if it may, until something is, or `beside` is readable.
    fn drive_once(self, may_sleep: bool, beside: Option<BorrowedFd<'_>>) {
        let coordinator = self.coordinator;
        // Announced before the resources are asked, so that whoever names an earlier time after
        // that wakes us.
        coordinator.sleeps_until.store(u64::MAX, Ordering::SeqCst);
        let until = if may_sleep { coordinator.next_time() } else { Some(0) };
        if let Some(until) = until {
            coordinator.sleeps_until.store(until, Ordering::SeqCst);
        }
        let ready = coordinator.events.wait(until, beside);
        coordinator.sleeps_until.store(0, Ordering::SeqCst);
        // Nothing of this is foreign, so nothing panics; if it did, the runtime would still have
        // its coordinator.
        let outcome = guard::call(ForeignCode::Thread, || {
            for name in ready {
                if name == WAKE {
                    coordinator.events.called();
                    coordinator.woken.store(false, Ordering::SeqCst);
                    continue;
                }
                coordinator.attended.handle_event(&coordinator.events, name as RawFd);
            }
            coordinator.handle_deadlines();
        });
        if let Err(panicked) = outcome {
            coordinator.troubles.panics().note(&panicked);
        }
    }
}
