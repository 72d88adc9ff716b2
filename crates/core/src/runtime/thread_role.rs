//! Whose thread this is, for what must be done otherwise on a thread of a runtime.

use std::cell::{Cell, RefCell};

use super::coordinator::Coordinator;
use super::shared_resource::SharedResource;
use crate::guard::reentry;
use crate::sync::{Arc, Weak, thread_local};

#[derive(Clone, Default)]
enum ThreadRole {
    /// Of no runtime.
    #[default]
    Elsewhere,
    /// The coordinator's own.
    Own(Weak<Coordinator>),
    /// One of those that carry out a resource's work.
    Crew(Weak<SharedResource>),
}

thread_local! {
    static HERE: RefCell<ThreadRole> = RefCell::new(ThreadRole::default());
    /// The coordinator whose role the thread has.
    static TURN: RefCell<Option<Weak<Coordinator>>> = const { RefCell::new(None) };
    /// The thread is within the poll of a future.
    static POLLS: Cell<bool> = const { Cell::new(false) };
    /// The worker pool knows that the thread sleeps.
    static AWAY: Cell<bool> = const { Cell::new(false) };
}

/// Whether a waker may be called here that a thread registered, by its [`me`]. It may not where
/// somebody waits for something else, or only asks, perhaps in the middle of a lock that the waker
/// wants; nor by the coordinator's own thread in the middle of its work, for which nobody stands
/// in.
pub(super) fn may_wake(registered_by: usize) -> bool {
    let is_crew = || HERE.try_with(|here| matches!(*here.borrow(), ThreadRole::Crew(_))).unwrap_or(false);
    registered_by == me() || POLLS.try_with(Cell::get).unwrap_or(false) || is_crew()
}

/// This thread, among those that live.
pub(super) fn me() -> usize {
    AWAY.try_with(|away| std::ptr::from_ref(away).addr()).unwrap_or(0)
}

/// The thread polls a future until this is dropped: it expects wakers to be called.
pub(super) struct Polls(bool);

pub(super) fn polls() -> Polls {
    Polls(POLLS.try_with(|polls| polls.replace(true)).unwrap_or(true))
}

impl Drop for Polls {
    fn drop(&mut self) {
        let _ = POLLS.try_with(|polls| polls.set(self.0));
    }
}

/// The thread takes a coordinator's role, or has given it back: what it had before.
pub(super) fn has_turn(of: Option<Weak<Coordinator>>) -> Option<Weak<Coordinator>> {
    TURN.try_with(|turn| turn.replace(of)).unwrap_or_default()
}

/// Whether the thread has the role still that it took.
pub(super) fn still_has_turn() -> bool {
    TURN.try_with(|turn| turn.borrow().is_some()).unwrap_or(true)
}

fn set(here: ThreadRole) {
    // A thread that ends needs it no more.
    let _ = HERE.try_with(|h| *h.borrow_mut() = here);
}

fn get() -> ThreadRole {
    HERE.try_with(|h| h.borrow().clone()).unwrap_or_default()
}

/// This thread is the coordinator's own.
pub(super) fn is_own(coordinator: &Arc<Coordinator>) {
    set(ThreadRole::Own(Arc::downgrade(coordinator)));
}

/// This thread carries out the resource's work.
pub(super) fn is_crew(resource: &Weak<SharedResource>) {
    set(ThreadRole::Crew(resource.clone()));
}

/// Whether this thread is the own one of this coordinator.
pub(super) fn is_own_of(coordinator: &Arc<Coordinator>) -> bool {
    matches!(get(), ThreadRole::Own(own) if std::ptr::eq(own.as_ptr(), Arc::as_ptr(coordinator)))
}

/// While it lives, the thread sleeps, and somebody else does its work.
pub(super) struct Sleeps {
    resource: Option<Arc<SharedResource>>,
    _asleep: reentry::SleepScope,
}

/// This thread is about to sleep, in the middle of foreign code perhaps.
///
/// Code that the coordinator's work called keeps nobody else from that work while it sleeps: the
/// role is given back.
pub(super) fn sleeps() -> Sleeps {
    if let Some(coordinator) = has_turn(None).and_then(|coordinator| coordinator.upgrade()) {
        coordinator.release_role();
    }
    let _asleep = reentry::mark_asleep();
    // Within code that it calls while it sleeps it is away already.
    let resource = match get() {
        ThreadRole::Crew(resource) if !AWAY.try_with(|away| away.replace(true)).unwrap_or(true) => resource.upgrade(),
        _ => None,
    };
    if let Some(resource) = &resource
        && let Some(workers) = &resource.workers
    {
        workers.worker_blocks(resource);
    }
    Sleeps { resource, _asleep }
}

impl Drop for Sleeps {
    fn drop(&mut self) {
        if let Some(workers) = self.resource.as_ref().and_then(|resource| resource.workers.as_ref()) {
            workers.is_back();
        }
        if self.resource.is_some() {
            let _ = AWAY.try_with(|away| away.set(false));
        }
    }
}
