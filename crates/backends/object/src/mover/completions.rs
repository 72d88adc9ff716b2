//! Jobs that are done, the event of the queue, counters.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use datapipes_core::backend::{Counters, JobCompletion};
use datapipes_core::locks::{Condvar, Mutex};
use datapipes_core::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

#[derive(Default)]
struct State {
    done: Vec<JobCompletion>,
    /// Jobs that were admitted and are not done.
    active: u64,
    outstanding: u64,
    counters: Counters,
    busy_since: Option<Instant>,
}

/// What a mover's jobs report to.
pub(super) struct Completions {
    state: Mutex<State>,
    changed: Condvar,
    /// Readable while a job is done that nobody took.
    event: OwnedFd,
}

impl Completions {
    pub(super) fn new() -> Result<Arc<Completions>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::os("open", e.raw_os_error(), "an event of a queue"))?;
        Ok(Arc::new(Completions { state: Mutex::new(State::default()), changed: Condvar::new(), event }))
    }

    pub(super) fn admitted(&self) {
        let mut state = self.state.lock();
        if state.active == 0 {
            state.busy_since = Some(Instant::now());
        }
        state.active += 1;
    }

    /// Notes a request that begins.
    pub(super) fn asked(&self) {
        let mut state = self.state.lock();
        state.outstanding += 1;
        state.counters.requests += 1;
        state.counters.max_outstanding = state.counters.max_outstanding.max(state.outstanding);
    }

    /// Notes a request that ended.
    pub(super) fn answered(&self) {
        let mut state = self.state.lock();
        state.outstanding = state.outstanding.saturating_sub(1);
    }

    /// Notes a request that is made again.
    pub(super) fn again(&self) {
        self.state.lock().counters.retries += 1;
    }

    /// Notes an answer that ended early, whose rest is asked for.
    pub(super) fn short(&self) {
        self.state.lock().counters.short_finished += 1;
    }

    /// Notes a piece that went through a buffer.
    pub(super) fn bounced(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.counters.bounces += 1;
        state.counters.bounced_bytes += bytes;
    }

    /// Files a job that is done. Its leases have ended.
    pub(super) fn finished(&self, job: JobCompletion, bytes: u64) {
        let mut state = self.state.lock();
        match &job.result {
            Ok(()) => state.counters.transfers += 1,
            Err(_) => state.counters.failed += 1,
        }
        state.counters.bytes += bytes;
        state.active = state.active.saturating_sub(1);
        if state.active == 0
            && let Some(since) = state.busy_since.take()
        {
            state.counters.busy_ns += u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
        state.done.push(job);
        // It cannot block: the counter is far from full, as it is emptied with the list.
        let _ = write(&self.event, &1u64.to_ne_bytes());
        drop(state);
        self.changed.notify_all();
    }

    /// Takes what is done.
    pub(super) fn take(&self, wait: bool, done: &mut Vec<JobCompletion>) -> Result<()> {
        let mut state = self.state.lock();
        while wait && state.done.is_empty() && state.active > 0 {
            state = self.changed.wait(state);
        }
        if !state.done.is_empty() {
            done.append(&mut state.done);
            let _ = read(&self.event, &mut [0u8; 8]);
        }
        Ok(())
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn counters(&self) -> Counters {
        self.state.lock().counters.clone()
    }
}
