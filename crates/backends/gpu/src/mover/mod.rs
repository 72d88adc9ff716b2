//! The mover: jobs go to streams of a device, and end when an event behind them is over.
//!
//! ```text
//! submit:    check -> leases -> short, or pinned?  copies on a stream, and an event behind them
//!                               else               staged: a core copies to or from pinned buffers
//! complete:  ask the oldest events -> what is done -> more of what is staged
//!            nothing?  sleep until shortly before the expected end, ask again for a moment,
//!                      then have the driver ring, and sleep
//! lost:      an event tells an error: all jobs fail, and their leases end where the driver is known
//!            to do nothing any more
//! ```
//!
//! Threads use a mover one at a time, under the lock; a thread that sleeps does so outside of it.
//!
//! | file | what it holds |
//! |---|---|
//! | `path` | what a mover moves between, and its leases |
//! | `lane` | a stream and its jobs |
//! | `jobs` | jobs that are carried out, staged or not |
//! | `bell` | what wakes a thread |

mod bell;
mod jobs;
mod lane;
mod path;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datapipes_core::backend::{Counters, Job, JobCompletion, QueuedMover};
use datapipes_core::locks::{Mutex, MutexGuard};
use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result};

use self::bell::MoverEvents;
use self::jobs::Jobs;
use self::lane::OpenJob;
pub(crate) use self::path::{GpuPath, HostSide, may_be_registered};
use crate::driver::Failure;
use crate::driver::device::{Device, Entered};

/// How long before the expected end a thread that waits begins to ask: what the kernel may be late
/// by when it wakes a thread.
const AWAKE_BEFORE: Duration = Duration::from_micros(120);
/// How long it asks at most, before it sleeps until the driver rings.
const ASKS_FOR: Duration = Duration::from_micros(200);
/// The longest sleep: of a lost device the driver tells nobody.
const MAX_SLEEP: Duration = Duration::from_millis(50);

/// A mover by the streams of a device.
pub(crate) struct GpuMover {
    path: GpuPath,
    device: &'static Device,
    events: MoverEvents,
    /// Whether somebody has asked for the descriptor.
    is_watched: AtomicBool,
    state: Mutex<State>,
    owner: OwningProcess,
}

struct State {
    jobs: Jobs,
    ticks: bool,
}

impl GpuMover {
    /// Makes the streams.
    ///
    /// # Errors
    /// Those of the driver and of making descriptors.
    pub(crate) fn open(path: GpuPath) -> Result<GpuMover> {
        let device = path.device();
        let events = MoverEvents::new()?;
        let jobs = Jobs::new(device, &events)?;
        let state = Mutex::new(State { jobs, ticks: false });
        Ok(GpuMover { path, device, events, is_watched: AtomicBool::new(false), state, owner: OwningProcess::here() })
    }

    /// Takes what is done, and gives the device more of what is staged. `is_prompt` tells that the
    /// jobs were looked at a moment ago, or that the driver rang.
    fn advance(&self, entered: &Result<Entered>, state: &mut State, is_prompt: bool) {
        if state.jobs.are_done() {
            return;
        }
        let entered = match entered {
            Ok(entered) => entered,
            // Where the device is known to be lost, it touches nothing any more.
            Err(error) => return state.jobs.fail_all(error, self.device.is_lost() && !self.is_of_two()),
        };
        if let Err(failure) = state.jobs.advance(entered.driver, &self.path, is_prompt) {
            self.lose(entered, state, failure);
        }
    }

    /// Whether copies are between two devices, so that an error may be the other one's.
    fn is_of_two(&self) -> bool {
        matches!(self.path, GpuPath::Peer(..))
    }

    /// The driver told an error that is not of one job, and all jobs fail. After some errors the
    /// driver has ended the work of this process; after others nobody knows what is still under
    /// way, and then what the jobs lease is never given back.
    fn lose(&self, entered: &Entered, state: &mut State, failure: Failure) {
        let words = entered.driver.functions.words_of(failure.status);
        let why = format!("{} says {words}", failure.call);
        let error = self.device.lost_error("transfer", &why);
        let is_over = jobs::is_lasting(failure) && !self.is_of_two();
        if is_over {
            self.device.lose(why);
        }
        state.jobs.fail_all(&error, is_over);
    }

    /// Leaves the descriptor as it must be while nobody holds the lock: readable as soon as there
    /// is something to do.
    fn leave(&self, state: &mut State) {
        if !self.is_watched.load(Ordering::SeqCst) {
            return;
        }
        if state.jobs.has_finished() {
            self.events.show();
        }
        let open = !state.jobs.are_done();
        if open {
            self.arm(state);
        }
        if open != state.ticks {
            state.ticks = open;
            self.events.set_ticking(open);
        }
    }

    /// Has the driver ring for the oldest jobs. Where it refuses, ticks and sleeps of a limited
    /// length do.
    fn arm(&self, state: &State) {
        if let Ok(entered) = self.device.enter("complete") {
            state.jobs.arm(entered.driver);
        }
    }

    /// Waits outside of the lock until something may be done.
    fn pause<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        entered: &Result<Entered>,
        asked_since: &mut Option<Instant>,
    ) {
        let now = Instant::now();
        let expected = state.jobs.next_expected().unwrap_or(now);
        if let Some(early) = expected.checked_duration_since(now + AWAKE_BEFORE)
            && asked_since.is_none()
        {
            drop(state);
            self.events.wait(early.min(MAX_SLEEP));
            return self.events.clear();
        }
        let since = *asked_since.get_or_insert(now);
        if now.duration_since(since) < ASKS_FOR {
            if let Ok(entered) = entered {
                state.jobs.ask(entered.driver);
            }
            return;
        }
        self.arm(&state);
        drop(state);
        self.events.wait(MAX_SLEEP);
        self.events.clear();
    }
}

impl QueuedMover for GpuMover {
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        if let Some(error) = self.owner.check("transfer").err().or_else(|| self.path.refusal(&job)) {
            return Err((job, error));
        }
        let entered = self.device.enter("transfer");
        let mut state = self.state.lock();
        let holds = self.path.holds(&job).or_else(|e| match e.kind() {
            ErrorKind::Busy => {
                // It may be a transfer that is done, of which nobody took note yet.
                self.advance(&entered, &mut state, false);
                self.path.holds(&job)
            }
            _ => Err(e),
        });
        let (holds, entered) = match (holds, entered) {
            (Ok(holds), Ok(entered)) => (holds, entered),
            (Err(error), _) | (_, Err(error)) => {
                self.leave(&mut state);
                return Err((job, error));
            }
        };
        let open = OpenJob { job, holds, host: None, error: None };
        if let Err(failure) = state.jobs.take(entered.driver, &self.path, open) {
            self.lose(&entered, &mut state, failure);
        }
        self.leave(&mut state);
        Ok(())
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        if !self.is_watched.swap(true, Ordering::SeqCst) {
            self.leave(&mut self.state.lock());
        }
        Some(self.events.descriptor())
    }

    fn complete(&self, wait: bool, done: &mut Vec<JobCompletion>) -> Result<()> {
        self.owner.check("complete")?;
        let before = done.len();
        let mut asked_since = None;
        if self.is_watched.load(Ordering::SeqCst) {
            self.events.clear();
        }
        let entered = self.device.enter("complete");
        loop {
            let mut state = self.state.lock();
            self.advance(&entered, &mut state, asked_since.is_some());
            state.jobs.take_finished(done);
            if done.len() > before || state.jobs.are_done() || !wait {
                self.leave(&mut state);
                return Ok(());
            }
            self.pause(state, &entered, &mut asked_since);
        }
    }

    fn counters(&self) -> Counters {
        self.state.lock().jobs.counters.clone()
    }
}

impl Drop for GpuMover {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // Streams, events and leases are the parent's.
            return std::mem::forget(self.state.get_mut().jobs.take_apart());
        }
        // This ends: each job is done, or the device is lost.
        let mut done = Vec::new();
        while !self.state.get_mut().jobs.are_done() && self.complete(true, &mut done).is_ok() {}
    }
}
