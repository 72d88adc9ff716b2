//! Threads that wake futures for the pool's maintenance thread.
//!
//! A waker is foreign code and may block, for example on a full queue of an executor or on a lock.
//! The thread that takes events and applies the time to live for all files calls none. A thread is
//! started when there is a waker to call, and ends when there is none. If a waker blocks that
//! thread, another one takes its place.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use datapipes_core::threads;

use crate::sync::{Arc, Mutex, wake_all};

/// A waker that takes longer than this keeps its thread.
const KEPT: Duration = Duration::from_millis(50);

/// The wakers that are to be called.
#[derive(Default)]
pub(crate) struct Wakers(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Waker>,
    /// The number of the waking thread, and since when it has been in one waker.
    thread: Option<(u64, Instant)>,
    threads: u64,
}

impl Wakers {
    /// Has the wakers called by another thread. It does not block.
    pub(crate) fn hand(self: &Arc<Wakers>, wakers: Vec<Waker>) {
        if !wakers.is_empty() {
            self.0.lock().waiting.extend(wakers);
            self.look_after();
        }
    }

    /// Starts a thread if wakers wait and no thread calls them. It is called now and then.
    pub(crate) fn look_after(self: &Arc<Wakers>) {
        let mut state = self.0.lock();
        let is_at_it = state.thread.is_some_and(|(_, since)| since.elapsed() < KEPT);
        if state.waiting.is_empty() || is_at_it {
            return;
        }
        state.threads += 1;
        let number = state.threads;
        state.thread = Some((number, Instant::now()));
        let own = self.clone();
        let started = threads::spawn("fine-wake", move || own.run(number));
        if started.is_err() {
            // The next call tries again.
            state.thread = None;
        }
    }

    fn run(&self, number: u64) {
        loop {
            let mut state = self.0.lock();
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
