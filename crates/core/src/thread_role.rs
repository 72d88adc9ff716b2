//! What the current thread is to a runtime, for what must be done otherwise on a thread of a
//! runtime.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;

use crate::guard::reentry;
use crate::sync::{Arc, Weak, thread_local};

/// A coordinator, as a thread sees it that has its role.
pub(crate) trait DriverRole: Send + Sync {
    /// Gives the role back, which this thread has.
    fn release_role(&self);
}

/// A worker pool, as a thread of it sees it.
pub(crate) trait WorkerGroup: Send + Sync {
    /// This thread is about to sleep in foreign code.
    fn worker_blocks(&self);

    /// This thread goes on after it slept.
    fn worker_resumes(&self);
}

#[derive(Clone, Default)]
enum ThreadRole {
    /// The thread belongs to no runtime.
    #[default]
    Elsewhere,
    /// A coordinator's own thread.
    Own(Weak<dyn DriverRole>),
    /// A thread of a worker pool.
    Worker(Weak<dyn WorkerGroup>),
}

// None of them has a destructor. A thread that calls `exit` loses variables with destructors before
// the handlers of `atexit` run, and those may close a runtime.
thread_local! {
    /// Emptied at the end of the thread's function, by [`EnteredRole`].
    static HERE: ManuallyDrop<RefCell<ThreadRole>> = const { ManuallyDrop::new(RefCell::new(ThreadRole::Elsewhere)) };
    /// The coordinator whose role the thread has. Empty when it is given back.
    static TURN: ManuallyDrop<RefCell<Option<Weak<dyn DriverRole>>>> =
        const { ManuallyDrop::new(RefCell::new(None)) };
    /// The thread is within the poll of a future.
    static POLLS: Cell<bool> = const { Cell::new(false) };
    /// The worker pool knows that the thread sleeps.
    static AWAY: Cell<bool> = const { Cell::new(false) };
}

/// Whether a waker may be called here that a thread registered, by its [`me`]. It may not where
/// somebody waits for something else, or only asks, perhaps in the middle of a lock that the waker
/// wants; nor by the coordinator's own thread in the middle of its work, for which nobody stands
/// in.
pub(crate) fn may_wake(registered_by: usize) -> bool {
    let is_worker = || HERE.try_with(|here| matches!(*here.borrow(), ThreadRole::Worker(_))).unwrap_or(false);
    registered_by == me() || POLLS.try_with(Cell::get).unwrap_or(false) || is_worker()
}

/// This thread, among those that live.
pub(crate) fn me() -> usize {
    AWAY.try_with(|away| std::ptr::from_ref(away).addr()).unwrap_or(0)
}

/// The thread polls a future until this is dropped: it expects wakers to be called.
pub(crate) struct Polls(bool);

pub(crate) fn polls() -> Polls {
    Polls(POLLS.try_with(|polls| polls.replace(true)).unwrap_or(true))
}

impl Drop for Polls {
    fn drop(&mut self) {
        let _ = POLLS.try_with(|polls| polls.set(self.0));
    }
}

/// The thread takes a coordinator's role, or has given it back: what it had before.
pub(crate) fn has_turn(of: Option<Weak<dyn DriverRole>>) -> Option<Weak<dyn DriverRole>> {
    TURN.try_with(|turn| turn.replace(of)).unwrap_or_default()
}

/// Whether the thread has the role still that it took.
pub(crate) fn still_has_turn() -> bool {
    TURN.try_with(|turn| turn.borrow().is_some()).unwrap_or(true)
}

/// What the thread is until this is dropped, at the end of its function.
#[must_use]
pub(crate) struct EnteredRole(());

impl Drop for EnteredRole {
    fn drop(&mut self) {
        drop(replace(ThreadRole::Elsewhere));
    }
}

fn enter(here: ThreadRole) -> EnteredRole {
    drop(replace(here));
    EnteredRole(())
}

fn replace(here: ThreadRole) -> Option<ThreadRole> {
    HERE.try_with(|h| h.replace(here)).ok()
}

fn get() -> ThreadRole {
    HERE.try_with(|h| h.borrow().clone()).unwrap_or_default()
}

/// This thread is the coordinator's own.
pub(crate) fn enter_own_thread<D: DriverRole + 'static>(coordinator: &Arc<D>) -> EnteredRole {
    let coordinator: Weak<D> = Arc::downgrade(coordinator);
    enter(ThreadRole::Own(coordinator))
}

/// Whether this thread is the own one of this coordinator.
pub(crate) fn is_own_thread_of<D: DriverRole>(coordinator: &Arc<D>) -> bool {
    matches!(get(), ThreadRole::Own(own) if std::ptr::addr_eq(own.as_ptr(), Arc::as_ptr(coordinator)))
}

/// This thread is one of the worker pool.
pub(crate) fn enter_worker(pool: Weak<dyn WorkerGroup>) -> EnteredRole {
    enter(ThreadRole::Worker(pool))
}

/// While it lives, the thread sleeps, and somebody else does its work.
pub(crate) struct Sleeps {
    pool: Option<Arc<dyn WorkerGroup>>,
    _asleep: reentry::SleepScope,
}

/// This thread is about to sleep, in the middle of foreign code perhaps.
///
/// Code that the coordinator's work called keeps nobody else from that work while it sleeps: the
/// role is given back.
pub(crate) fn sleeps() -> Sleeps {
    if let Some(coordinator) = has_turn(None).and_then(|coordinator| coordinator.upgrade()) {
        coordinator.release_role();
    }
    let _asleep = reentry::mark_asleep();
    // Within code that it calls while it sleeps it is away already.
    let pool = match get() {
        ThreadRole::Worker(pool) if !AWAY.try_with(|away| away.replace(true)).unwrap_or(true) => pool.upgrade(),
        _ => None,
    };
    if let Some(pool) = &pool {
        pool.worker_blocks();
    }
    Sleeps { pool, _asleep }
}

impl Drop for Sleeps {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.worker_resumes();
            let _ = AWAY.try_with(|away| away.set(false));
        }
    }
}
