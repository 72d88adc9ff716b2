//! `pread` and `pwrite` on the caller's thread, for machines where io_uring is refused.
//!
//! A job is done when `submit` returns; `complete` returns its result. Many threads may submit at
//! once, and each carries out its own job. (Rejected: a pool of threads, which would hide that this
//! primitive has no queue.)
//!
//! Unsafe code: system calls with addresses that jobs lease or that are bounce buffers.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use datapipes_core::backend::{Counters, Job, JobCompletion, QueuedMover};
use datapipes_core::locks::{Condvar, Mutex, MutexGuard};
use datapipes_core::{Error, Result};

use super::jobs::{IoRequest, JobTable};
use super::request_plan::Direction;
use super::site::MoverContext;

#[derive(Default)]
struct State {
    done: Vec<JobCompletion>,
    counters: Counters,
    /// The number of threads inside `submit`.
    active: u64,
    busy_since: Option<Instant>,
}

/// The engine that uses blocking system calls.
pub(crate) struct Blocking {
    site: Arc<MoverContext>,
    state: Mutex<State>,
    changed: Condvar,
    calls: AtomicU64,
}

impl Blocking {
    pub(crate) fn new(site: MoverContext) -> Self {
        let calls = AtomicU64::new(0);
        Blocking { site: Arc::new(site), state: Mutex::new(State::default()), changed: Condvar::new(), calls }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Makes a request on the caller's thread. The result is like that of the kernel's queues: bytes,
/// or a negative errno.
pub(super) fn run_blocking(site: &MoverContext, piece: &IoRequest, calls: &AtomicU64) -> i32 {
    calls.fetch_add(1, Ordering::Relaxed);
    let (fd, len) = (site.fd(piece.lane), piece.len as usize);
    let at = piece.file_at.cast_signed();
    // SAFETY: the memory is leased by the request's job or is the request's own bounce buffer. Both
    // outlive the call, because the request is finished after it. The descriptor lives as long as
    // the site.
    let n = unsafe {
        match site.rules.direction {
            Direction::Read => libc::pread(fd, std::ptr::with_exposed_provenance_mut(piece.address), len, at),
            Direction::Write => libc::pwrite(fd, std::ptr::with_exposed_provenance(piece.address), len, at),
        }
    };
    if n < 0 {
        return -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    }
    // Requests are shorter than 2 GiB.
    i32::try_from(n).unwrap_or(i32::MAX)
}

impl QueuedMover for Blocking {
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        let mut jobs = JobTable::new(self.site.clone());
        jobs.admit(job)?;
        let mut state = self.lock();
        if state.active == 0 {
            state.busy_since = Some(Instant::now());
        }
        state.active += 1;
        let active = state.active;
        drop(state);
        while let Some(piece) = jobs.next_request() {
            let result = run_blocking(&self.site, &piece, &self.calls);
            jobs.finish_request(piece, result);
        }
        let mut state = self.lock();
        // Each thread keeps one request outstanding. The time is measured for all of them together,
        // below.
        jobs.counters.max_outstanding = if jobs.counters.requests > 0 { active } else { 0 };
        jobs.counters.busy_ns = 0;
        jobs.counters.fixed_buffer_misses = 0;
        state.counters.add(&jobs.counters);
        state.done.append(&mut jobs.done);
        state.active -= 1;
        if state.active == 0
            && let Some(since) = state.busy_since.take()
        {
            state.counters.busy_ns += u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    fn complete(&self, wait: bool, done: &mut Vec<JobCompletion>) -> Result<()> {
        let mut state = self.lock();
        while wait && state.done.is_empty() && state.active > 0 {
            state = self.changed.wait(state);
        }
        done.append(&mut state.done);
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.lock().counters.clone().system_calls(self.calls.load(Ordering::Relaxed))
    }
}
