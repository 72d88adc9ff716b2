//! Who looks after transfers that nobody waits for: one thread of the runtime, or one that would
//! sleep otherwise.
//!
//! ```text
//! turn:       sleep until an event is due, see to it                        whoever has the role, and nobody else
//! call out:   callbacks, one after another                                  the runtime's own thread, without the role
//! own thread: call out; has another thread the role?  sleep; else turn
//! block_on:   poll the future; nothing to poll?  take the role and turn
//! a thread that sleeps in the library until others' transfers end: if nobody has the role, take it and turn meanwhile
//! stand-in:   while a callback takes longer than STAND_IN_DELAY and nobody has the role, turn
//! ```
//!
//! Code that is not ours never runs while its thread has the role. So a callback or a future may
//! call whatever blocks: the role is free, and the thread that blocks takes it. One that blocks
//! elsewhere is stood in for: a callback by the stand-in, a future by the own thread, which looks
//! after each [`STAND_IN_DELAY`].

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::task::Waker;
use std::time::Duration;

use super::events::{Events, WAKE};
use super::shared_resource::SharedResource;
use super::thread_role;
use super::troubles::Troubles;
use crate::error::{Error, Result};
use crate::guard::{self, ForeignCode};
use crate::pipe::queue::Queue;
use crate::process::OwningProcess;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread::JoinHandle;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use crate::threads;

/// How long a completion whose event was lost stays unheard at most.
const SAFETY_POLL_NS: u64 = 100_000_000;
/// How long callbacks are called before somebody sees to the events.
const CALL_OUT_NS: u64 = 1_000_000;
/// How long foreign code may keep from its work the thread that has it before another one does it.
const STAND_IN_DELAY: Duration = Duration::from_millis(100);

pub(crate) struct Coordinator {
    itself: Weak<Coordinator>,
    pub(crate) owner: OwningProcess,
    events: Events,
    /// Somebody asked who has the role to wake up, and it has not yet.
    woken: AtomicBool,
    /// When it will wake by itself, in nanoseconds since it began.
    sleeps_until: AtomicU64,
    /// When to look at everything that is under way; `u64::MAX` while nothing is.
    safety_poll_at: AtomicU64,
    stopping: AtomicBool,
    /// Threads that sleep until transfers of others end, of which nobody may wait for any.
    leaning: AtomicU64,
    /// One of them has the role: who ends a transfer must wake it.
    leaner_turns: AtomicBool,
    /// The own thread sleeps without a limit, though a thread in `block_on` may keep it from its
    /// work.
    sleeps_deep: AtomicBool,
    watched: Mutex<Watched>,
    role: Mutex<Role>,
    /// For the own thread and those who want the role.
    role_changed: Condvar,
    /// For the stand-in.
    calling_out: Condvar,
    pub(crate) troubles: Troubles,
}

/// Who may do the coordinator's work.
#[derive(Default)]
struct Role {
    taken: Option<Taken>,
    /// Threads that want it and for whom it is to be given back.
    wanted: usize,
    /// A thread in `block_on` takes it when it would sleep, so the own thread leaves it alone.
    guest: bool,
    /// Callbacks for the own thread to call.
    calls: VecDeque<Box<dyn FnOnce() + Send>>,
    /// Wakers for it to call before them; for the stand-in, while a callback keeps it.
    wakes: VecDeque<Waker>,
    /// The own thread is within a callback: the how manieth.
    calling: Option<u64>,
    called: u64,
    /// The own thread sleeps, because another has the role.
    own_sleeps: bool,
    /// Threads that sleep until transfers of others end, while another has the role.
    leaners_asleep: usize,
    stand_in: StandIn,
    /// It sleeps until the own thread is within a callback.
    stand_in_sleeps: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Own,
    Guest,
    Leaner,
    StandIn,
}

#[derive(Default)]
enum StandIn {
    /// Nobody asked for a callback yet.
    #[default]
    None,
    Started(JoinHandle<()>),
    /// The kernel gave no thread.
    Refused,
}

/// Says that a thread sleeps until transfers of others end: while there is one, all that sets out
/// is attended.
pub(crate) struct BlockedWaiter<'a>(&'a Coordinator);

impl Drop for BlockedWaiter<'_> {
    fn drop(&mut self) {
        self.0.leaning.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The role: the right to do the coordinator's work, once.
struct RoleGuard<'a> {
    coordinator: &'a Coordinator,
    /// The one that the thread had before.
    outer: Option<Weak<Coordinator>>,
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

impl Role {
    /// There is something to call.
    fn has_calls(&self) -> bool {
        !(self.calls.is_empty() && self.wakes.is_empty())
    }

    /// What is to be called next.
    fn next_call(&mut self) -> Option<Foreigner> {
        self.wakes.pop_front().map(Foreigner::Waker).or_else(|| self.calls.pop_front().map(Foreigner::Callback))
    }

    /// A guest takes it by itself when it would sleep, but where another thread sleeps it may be
    /// away for long.
    fn is_for_own_thread(&self) -> bool {
        self.taken.is_none() && self.wanted == 0 && (!self.guest || self.leaners_asleep > 0)
    }
}

/// What the own thread calls.
enum Foreigner {
    Waker(Waker),
    Callback(Box<dyn FnOnce() + Send>),
}

/// Says that a thread sleeps while another has the role.
struct Asleep<'a>(&'a Coordinator);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        if !self.0.owner.is_here() {
            return;
        }
        self.0.role().leaners_asleep -= 1;
    }
}

/// A thread in `block_on`.
pub(crate) struct BorrowedDriver<'a>(&'a Coordinator);

impl Drop for BorrowedDriver<'_> {
    fn drop(&mut self) {
        if !self.0.owner.is_here() {
            return;
        }
        self.0.role().guest = false;
        self.0.role_changed.notify_all();
    }
}

#[derive(Default)]
struct Watched {
    /// By descriptor.
    entries: HashMap<RawFd, Entry>,
    resources: Vec<Weak<SharedResource>>,
    /// Entries that are not queues.
    others: usize,
}

struct Entry {
    whom: EventTarget,
    armed: bool,
}

enum EventTarget {
    Queue(Weak<Queue>),
    Other(Arc<dyn EventSource>),
}

/// What an event is to say of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// There is something to read, or the other end is closed.
    Read,
    /// There is room to write.
    Write,
}

/// Something else with a descriptor that the coordinator looks after.
pub(crate) trait EventSource: Send + Sync {
    /// The descriptor.
    fn fd(&self) -> BorrowedFd<'_>;

    /// What was asked for is so. It is not told again unless it asks again.
    fn ready(self: Arc<Self>);

    /// The runtime is gone: nobody looks after it any more.
    fn runtime_gone(&self);
}

impl Coordinator {
    pub(crate) fn new() -> Result<Arc<Coordinator>> {
        let events = Events::new()?;
        Ok(Arc::new_cyclic(|itself| Coordinator {
            itself: itself.clone(),
            owner: OwningProcess::here(),
            events,
            woken: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
            safety_poll_at: AtomicU64::new(u64::MAX),
            stopping: AtomicBool::new(false),
            leaning: AtomicU64::new(0),
            leaner_turns: AtomicBool::new(false),
            sleeps_deep: AtomicBool::new(false),
            watched: Mutex::new(Watched::default()),
            role: Mutex::new(Role::default()),
            role_changed: Condvar::new(),
            calling_out: Condvar::new(),
            troubles: Troubles::new(),
        }))
    }

    /// The runtime's clock.
    pub(crate) fn now(&self) -> u64 {
        self.events.now()
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock()
    }

    fn role(&self) -> MutexGuard<'_, Role> {
        self.role.lock()
    }

    pub(crate) fn add_resource(&self, resource: &Arc<SharedResource>) {
        self.watched().resources.push(Arc::downgrade(resource));
    }

    /// Gets to know a queue. It is not looked after until [`attend`](Self::arm) is called.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub(crate) fn add_queue(&self, queue: &Arc<Queue>) -> Result<()> {
        let Some(fd) = queue.event() else { return Ok(()) };
        let mut watched = self.watched();
        self.events
            .add(fd, fd.as_raw_fd() as u64, None)
            .map_err(|e| Error::os("connect", e.raw_os_error(), "epoll_ctl of a queue's event"))?;
        watched.entries.insert(fd.as_raw_fd(), Entry { whom: EventTarget::Queue(Arc::downgrade(queue)), armed: false });
        Ok(())
    }

    /// Forgets a queue, before its descriptor is closed.
    pub(crate) fn remove_queue(&self, queue: &Queue) {
        let Some(fd) = queue.event() else { return };
        let mut watched = self.watched();
        watched.entries.remove(&fd.as_raw_fd());
        // It was added; were it not, there would be nothing to remove.
        let _ = self.events.remove(fd);
    }

    /// The next event of the queue wakes the coordinator.
    pub(crate) fn arm(&self, queue: &Queue) {
        let Some(fd) = queue.event() else { return };
        let mut watched = self.watched();
        let Some(entry) = watched.entries.get_mut(&fd.as_raw_fd()) else { return };
        if !std::mem::replace(&mut entry.armed, true) {
            // It fails only for a descriptor that was not added, and this one is in the table.
            let _ = self.events.arm(fd, fd.as_raw_fd() as u64, Interest::Read);
        }
    }

    /// To be called before those are attended that are out already: either these are seen, or who
    /// submits more sees this.
    pub(crate) fn begin_blocked_wait(&self) -> BlockedWaiter<'_> {
        self.leaning.fetch_add(1, Ordering::SeqCst);
        BlockedWaiter(self)
    }

    /// Whether somebody leans on the coordinator.
    pub(crate) fn has_blocked_waiters(&self) -> bool {
        self.leaning.load(Ordering::SeqCst) > 0
    }

    /// Has everything that is at a device looked at within [`SAFETY_POLL_NS`]. Completions are told
    /// by events; this is for one whose event was lost (the kernel gives up what a thread submitted
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
        self.stir();
    }

    /// The own thread is to see whether it is needed.
    fn stir(&self) {
        if self.sleeps_deep.load(Ordering::SeqCst) {
            drop(self.role());
            self.role_changed.notify_all();
        }
    }

    /// Wakes who has the role.
    pub(crate) fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            self.events.call();
        }
    }

    /// Something ended for which a thread may wait that has the role meanwhile.
    pub(crate) fn wake_blocked_waiters(&self) {
        if self.leaner_turns.load(Ordering::SeqCst) {
            self.wake();
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

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// What the own thread does.
    pub(crate) fn run(self: &Arc<Self>) {
        thread_role::is_own(self);
        loop {
            self.call_out();
            if !self.owner.is_here() {
                // A callback forked, and this is the child: it has one thread, this one, and
                // nothing of this is the child's.
                return;
            }
            match self.turn_of_own_thread() {
                Some((turn, may_sleep)) => turn.drive_once(may_sleep, None),
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
    fn turn_of_own_thread(&self) -> Option<(RoleGuard<'_>, bool)> {
        let mut role = self.role();
        let mut overdue = false;
        loop {
            if self.is_stopping() {
                return None;
            }
            if role.is_for_own_thread() || overdue && role.taken.is_none() && role.wanted == 0 {
                let may_sleep = !role.has_calls();
                return Some((self.acquire_role(role, Taken::Own), may_sleep));
            }
            if role.has_calls() {
                return None;
            }
            if role.taken == Some(Taken::StandIn) {
                // It stood in for this thread, which is back.
                role = self.want(role);
                continue;
            }
            role.own_sleeps = true;
            // A guest may do something else for long, while there is work.
            self.sleeps_deep.store(role.guest, Ordering::SeqCst);
            if role.guest && self.has_work() {
                self.sleeps_deep.store(false, Ordering::SeqCst);
                let (back, timeout) = self.role_changed.wait_timeout(role, STAND_IN_DELAY);
                (role, overdue) = (back, timeout.timed_out());
            } else {
                role = self.role_changed.wait(role);
                self.sleeps_deep.store(false, Ordering::SeqCst);
                overdue = false;
            }
            role.own_sleeps = false;
        }
    }

    /// Gives the role back, which this thread has.
    pub(super) fn release_role(&self) {
        if !self.owner.is_here() {
            return;
        }
        let mut role = self.role();
        if role.taken == Some(Taken::Leaner) {
            self.leaner_turns.store(false, Ordering::SeqCst);
        }
        role.taken = None;
        // The own thread takes it if nobody else does.
        if role.own_sleeps && role.is_for_own_thread() || role.wanted > 0 {
            self.role_changed.notify_all();
        }
    }

    /// Takes the role, which nobody has.
    fn acquire_role<'a>(&'a self, mut role: MutexGuard<'a, Role>, as_whom: Taken) -> RoleGuard<'a> {
        role.taken = Some(as_whom);
        drop(role);
        if as_whom == Taken::Leaner {
            self.leaner_turns.store(true, Ordering::SeqCst);
        }
        let outer = thread_role::has_turn(Some(self.itself.clone()));
        RoleGuard { coordinator: self, outer, _hold: guard::defer_calls() }
    }

    /// Whether something may become due that somebody must see to. (Asked with `role` held, which
    /// nobody takes who holds `watched`.)
    fn has_work(&self) -> bool {
        self.safety_poll_at.load(Ordering::SeqCst) != u64::MAX
            || self.watched().others > 0
            || self.next_time().is_some()
    }

    /// Sleeps until somebody gave the role back, who is told to.
    fn want<'a>(&self, mut role: MutexGuard<'a, Role>) -> MutexGuard<'a, Role> {
        role.wanted += 1;
        self.wake();
        let mut role = self.role_changed.wait(role);
        role.wanted -= 1;
        role
    }

    /// Has the own thread call a callback.
    pub(crate) fn call_out_later(self: &Arc<Self>, callback: Box<dyn FnOnce() + Send>) {
        let mut role = self.role();
        role.calls.push_back(callback);
        self.have_stand_in(&mut role);
        self.is_to_call(role);
    }

    /// Has the own thread call a waker, or who stands in for it. It is given back where neither
    /// can.
    pub(crate) fn wake_later(self: &Arc<Self>, waker: Waker) -> Option<Waker> {
        let mut role = self.role();
        self.have_stand_in(&mut role);
        if role.calling.is_some() && matches!(role.stand_in, StandIn::Refused) {
            return Some(waker);
        }
        role.wakes.push_back(waker);
        self.is_to_call(role);
        None
    }

    /// What was put there to be called is seen by who calls it.
    fn is_to_call(self: &Arc<Self>, role: MutexGuard<'_, Role>) {
        let (asleep, taken) = (role.own_sleeps, role.taken);
        drop(role);
        if asleep {
            self.role_changed.notify_all();
        } else if taken == Some(Taken::Own) && !thread_role::is_own_of(self) || taken == Some(Taken::StandIn) {
            self.wake();
        }
    }

    fn call_waker(&self, waker: Waker) {
        guard::call_or_defer(guard::Call::Wake(waker), self.troubles.panics().number());
    }

    /// Somebody stands in for the own thread where a callback keeps it; where the kernel gives no
    /// thread, nobody does.
    fn have_stand_in(self: &Arc<Self>, role: &mut Role) {
        // The model knows no time.
        if cfg!(shuttle) || !matches!(role.stand_in, StandIn::None) || self.is_stopping() {
            return;
        }
        let stands_in = self.clone();
        role.stand_in = match threads::spawn("dp-stand-in", move || stands_in.stand_in()) {
            Ok(thread) => StandIn::Started(thread),
            Err(e) => {
                self.troubles.refused(&e, "a callback that blocks holds up what nobody waits for");
                StandIn::Refused
            }
        };
    }

    /// Calls the callbacks that are there now, unless that takes so long that somebody must see to
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
                Foreigner::Waker(waker) => self.call_waker(waker),
                Foreigner::Callback(callback) => self.call_now(callback),
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

    /// Calls a callback here, or, within another call, when that one is over.
    pub(crate) fn call_now(&self, callback: Box<dyn FnOnce() + Send>) {
        guard::call_or_defer(guard::Call::Run(callback), self.troubles.panics().number());
    }

    /// What the stand-in does.
    fn stand_in(&self) {
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
                } else if role.taken.is_none() && role.wanted == 0 {
                    self.acquire_role(role, Taken::StandIn).drive_once(true, None);
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

    /// This thread does the work whenever it would sleep; None where another one does so already.
    pub(crate) fn borrow_driver(&self) -> Option<BorrowedDriver<'_>> {
        let mut role = self.role();
        if std::mem::replace(&mut role.guest, true) { None } else { Some(BorrowedDriver(self)) }
    }

    /// The role for a thread that is about to sleep; if another has it, a note that this one
    /// sleeps.
    fn turn_or_sleep(&self) -> Result<RoleGuard<'_>, Asleep<'_>> {
        let mut role = self.role();
        if role.taken.is_some() || role.wanted > 0 {
            role.leaners_asleep += 1;
            return Err(Asleep(self));
        }
        Ok(self.acquire_role(role, Taken::Leaner))
    }

    /// Sleeps until `over`, of which `changed` tells, and does the work meanwhile if nobody else
    /// does. While it sleeps it is counted in `sleepers`, and who makes it over calls
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
            let turn = self.turn_or_sleep();
            state = lock.lock();
            if over(&state) {
                return Some(state);
            }
            *sleepers(&mut state) += 1;
            match turn {
                Ok(turn) => {
                    drop(state);
                    turn.drive_once(true, None);
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

    /// Sleeps until the descriptor is readable, or something was seen to, and does the work
    /// meanwhile if nobody else does.
    pub(crate) fn sleep_beside(&self, fd: BorrowedFd<'_>) {
        guard::run_deferred_before_sleep();
        if !self.owner.is_here() {
            return;
        }
        let _away = thread_role::sleeps();
        match self.turn_or_sleep() {
            Ok(turn) => turn.drive_once(true, Some(fd)),
            Err(_asleep) => self.events.wait_for(fd),
        }
        guard::run_deferred_before_sleep();
    }

    fn handle_event(&self, fd: RawFd) {
        let mut watched = self.watched();
        let Some(entry) = watched.entries.get_mut(&fd) else { return };
        entry.armed = false;
        let queue = match &entry.whom {
            EventTarget::Queue(queue) => queue.upgrade(),
            EventTarget::Other(other) => {
                let other = other.clone();
                drop(watched);
                return other.ready();
            }
        };
        drop(watched);
        let Some(queue) = queue else { return };
        // An error is a broken queue, whose parts were told.
        if queue.drive_for_coordinator().unwrap_or(false) {
            self.arm(&queue);
        }
    }

    /// Gets to know something else with a descriptor, which is kept until it is forgotten, and
    /// waits for its first event.
    ///
    /// # Errors
    /// What `epoll_ctl` says.
    pub(crate) fn add_source(&self, other: Arc<dyn EventSource>) -> Result<()> {
        let raw = other.fd().as_raw_fd();
        let mut watched = self.watched();
        self.events
            .add(other.fd(), raw as u64, Some(Interest::Read))
            .map_err(|e| Error::os("connect", e.raw_os_error(), "epoll_ctl of a descriptor"))?;
        watched.entries.insert(raw, Entry { whom: EventTarget::Other(other), armed: true });
        watched.others += 1;
        drop(watched);
        self.stir();
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
        let mut watched = self.watched();
        let entry = watched.entries.remove(&other.fd().as_raw_fd());
        if entry.is_some() {
            watched.others -= 1;
            let _ = self.events.remove(other.fd());
        }
        drop(watched);
        // Dropped without the lock: it may be the last one, with a pipe in it.
        drop(entry);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let mut watched = self.watched();
        let entries = std::mem::take(&mut watched.entries);
        watched.others = 0;
        drop(watched);
        for entry in entries.into_values() {
            if let EventTarget::Other(other) = entry.whom {
                other.runtime_gone();
            }
        }
    }

    fn next_time(&self) -> Option<u64> {
        let mut watched = self.watched();
        watched.resources.retain(|resource| resource.strong_count() > 0);
        let resources: Vec<_> = watched.resources.iter().filter_map(Weak::upgrade).collect();
        drop(watched);
        let second_look = Some(self.safety_poll_at.load(Ordering::SeqCst)).filter(|at| *at != u64::MAX);
        resources.iter().filter_map(|resource| resource.next_for_coordinator()).chain(second_look).min()
    }

    /// Looks after what is due now.
    fn handle_deadlines(&self) {
        let now = self.now();
        let resources: Vec<_> = self.watched().resources.iter().filter_map(Weak::upgrade).collect();
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

impl RoleGuard<'_> {
    /// Sees to what is due; sleeps, if it may, until something is, or `beside` is readable.
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
                coordinator.handle_event(name as RawFd);
            }
            coordinator.handle_deadlines();
        });
        if let Err(panicked) = outcome {
            coordinator.troubles.panics().note(&panicked);
        }
    }
}

impl BorrowedDriver<'_> {
    /// Does the work until `woken`, at least once unless it is so already.
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
            if role.taken.is_none() {
                return coordinator.acquire_role(role, Taken::Guest).drive_once(true, None);
            }
            role = coordinator.want(role);
        }
    }
}
