//! What others put and one thread waits for, which does the coordinator's work meanwhile if nobody
//! else does.

use std::collections::VecDeque;

use super::Runtime;
use super::coordinator::Coordinator;
use crate::sync::{Arc, Condvar, Mutex};

pub(crate) struct Inbox<T> {
    coordinator: Arc<Coordinator>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    arrived: VecDeque<T>,
    sleepers: u32,
}

impl<T> Inbox<T> {
    pub(crate) fn new(runtime: &Runtime) -> Inbox<T> {
        Inbox {
            coordinator: runtime.state.coordinator.clone(),
            state: Mutex::new(State { arrived: VecDeque::new(), sleepers: 0 }),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn put(&self, value: T) {
        let mut state = self.state.lock();
        state.arrived.push_back(value);
        let sleepers = state.sleepers;
        drop(state);
        if sleepers > 0 {
            self.changed.notify_all();
            self.coordinator.wake_blocked_waiters();
        }
    }

    /// Sleeps until something is there, and gives all of it. Nothing where foreign code forked
    /// meanwhile and this is the child.
    pub(crate) fn take(&self) -> VecDeque<T> {
        let over = |state: &State<T>| !state.arrived.is_empty();
        let _waiter = self.coordinator.begin_blocked_wait();
        let state = self.coordinator.sleep_until(&self.state, &self.changed, |state| &mut state.sleepers, over);
        state.map(|mut state| std::mem::take(&mut state.arrived)).unwrap_or_default()
    }
}
