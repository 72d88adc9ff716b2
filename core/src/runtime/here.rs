//! Whose thread this is, for what must be done otherwise on a thread of a runtime.

use std::cell::RefCell;

use super::coordinator::Coordinator;
use super::station::Station;
use crate::sync::{Arc, Weak, thread_local};

#[derive(Clone, Default)]
enum Here {
    /// Of no runtime.
    #[default]
    Elsewhere,
    /// The coordinator's own.
    Own(Weak<Coordinator>),
    /// One of those that carry out a station's work.
    Crew(Weak<Station>),
}

thread_local! {
    static HERE: RefCell<Here> = RefCell::new(Here::default());
}

fn set(here: Here) {
    // A thread that ends needs it no more.
    let _ = HERE.try_with(|h| *h.borrow_mut() = here);
}

fn get() -> Here {
    HERE.try_with(|h| h.borrow().clone()).unwrap_or_default()
}

/// This thread is the coordinator's own.
pub(super) fn is_own(coordinator: &Arc<Coordinator>) {
    set(Here::Own(Arc::downgrade(coordinator)));
}

/// This thread carries out the station's work.
pub(super) fn is_crew(station: &Weak<Station>) {
    set(Here::Crew(station.clone()));
}

/// Whether this thread is the own one of this coordinator.
pub(super) fn is_own_of(coordinator: &Arc<Coordinator>) -> bool {
    matches!(get(), Here::Own(own) if std::ptr::eq(own.as_ptr(), Arc::as_ptr(coordinator)))
}

/// While it lives, the thread sleeps, and somebody else does its work.
pub(super) struct Sleeps(Option<Arc<Station>>);

/// This thread is about to sleep, in the middle of foreign code perhaps.
pub(super) fn sleeps() -> Sleeps {
    let Here::Crew(station) = get() else { return Sleeps(None) };
    let station = station.upgrade();
    if let Some(station) = &station
        && let Some(crew) = &station.crew
    {
        crew.goes_away(station);
    }
    Sleeps(station)
}

impl Drop for Sleeps {
    fn drop(&mut self) {
        if let Some(crew) = self.0.as_ref().and_then(|station| station.crew.as_ref()) {
            crew.is_back();
        }
    }
}
