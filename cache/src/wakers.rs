//! Who wakes futures on behalf of the pool's own thread.
//!
//! A waker is code of others and may block: an executor's queue is full, a lock is held. The thread
//! that takes events and ends the time to live of all files runs none. A thread is started where
//! there is somebody to be woken, and ends when nobody is. One that is kept by a waker is left to
//! it, and another takes its place.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::sync::{Arc, Mutex, lock, wake_all};

/// A waker that takes longer keeps its thread.
const KEPT: Duration = Duration::from_millis(50);

/// Who is to be woken.
#[derive(Default)]
pub(crate) struct Wakers(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Waker>,
    /// The thread that wakes, by number, and since when it is at one waker.
    thread: Option<(u64, Instant)>,
    threads: u64,
}

impl Wakers {
    /// Has them woken. It waits for nobody.
    pub(crate) fn hand(self: &Arc<Wakers>, wakers: Vec<Waker>) {
        if !wakers.is_empty() {
            lock(&self.0).waiting.extend(wakers);
            self.look_after();
        }
    }

    /// Starts a thread where some wait and none wakes them; called now and then.
    pub(crate) fn look_after(self: &Arc<Wakers>) {
        let mut state = lock(&self.0);
        let is_at_it = state.thread.is_some_and(|(_, since)| since.elapsed() < KEPT);
        if state.waiting.is_empty() || is_at_it {
            return;
        }
        state.threads += 1;
        let number = state.threads;
        state.thread = Some((number, Instant::now()));
        let own = self.clone();
        let started = std::thread::Builder::new().name("fine-wake".into()).spawn(move || own.run(number));
        if started.is_err() {
            // Tried again the next time.
            state.thread = None;
        }
    }

    fn run(&self, number: u64) {
        loop {
            let mut state = lock(&self.0);
            if state.thread.is_none_or(|(of, _)| of != number) {
                return;
            }
            let Some(waker) = state.waiting.pop_front() else {
                state.thread = None;
                return;
            };
            state.thread = Some((number, Instant::now()));
            drop(state);
            wake_all([waker]);
        }
    }
}
