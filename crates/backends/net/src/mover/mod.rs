//! The mover: jobs go to UCX in pieces, and end when the bytes are where they belong, or with the
//! connection.
//!
//! ```text
//! submit:    check -> job -> pieces while there is room -> UCX
//! complete:  progress -> what is done -> more pieces
//!            nothing?  look again for a moment, then arm UCX's event and sleep
//! lost:      the control connection ends, UCX tells an error, or nothing moved for too long:
//!            the worker of UCX is destroyed, then the leases end, then the jobs fail
//! ```
//!
//! Each mover has a connection of its own, and a holder at the other side. Threads use it one at a
//! time, under the lock. A thread that sleeps does so outside of it; whoever takes its results in
//! the meantime makes the descriptor readable.
//!
//! | file | what it holds |
//! |---|---|
//! | `jobs` | jobs, pieces, batches |
//! | `events` | what wakes a thread |

mod events;
mod jobs;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datapipes_core::backend::{Constraints, Counters, Job, JobCompletion, QueuedMover};
use datapipes_core::locks::{Mutex, MutexGuard};
use datapipes_core::memory::{Access, RawLease};
use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result};
use datapipes_ucx::Armed;

use self::events::{MoverEvents, Ready};
use self::jobs::{Jobs, Window};
use crate::control::messages::EndReason;
use crate::control::settings::RemoteTransport;
use crate::pause::Pause;
use crate::remote::{RemoteLine, RemotePlace};

pub(crate) use self::jobs::{Direction, lost};

/// The pieces of a job, and how many of them are in flight, over a network.
const NETWORK_WINDOW: Window = Window { piece_bytes: 256 << 10, pieces: 8 };
/// The same by shared memory: half of a queue of UCX's (256 elements of 8 KiB), which gives room
/// back by halves. Where a queue is full, nobody is told when it has room again. With the 64
/// elements that UCX has by default, 64 KiB in 4 pieces were as steady and slower, and more in
/// flight meant pauses of milliseconds.
const SHARED_WINDOW: Window = Window { piece_bytes: 128 << 10, pieces: 8 };
/// The most rounds of work for one call.
const MAX_ROUNDS: u32 = 64;
/// The longest sleep of a thread that waits; the shortest is a millisecond.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// How long UCX may have something to do without doing it before a thread sleeps all the same.
const STUCK: Duration = Duration::from_micros(50);
/// The longest sleep until such a thread looks again.
const MAX_STUCK_SLEEP: Duration = Duration::from_millis(4);
/// How long the reason for the end of an export is waited for, when UCX has told of an error.
const REASON: Duration = Duration::from_millis(200);

/// A mover between memory of this process and remote memory.
pub(crate) struct RemoteMover {
    place: Arc<RemotePlace>,
    direction: Direction,
    window: Window,
    events: MoverEvents,
    /// Whether somebody has asked for the descriptor.
    is_watched: AtomicBool,
    state: Mutex<State>,
    owner: OwningProcess,
}

struct State {
    /// `None` after the loss.
    line: Option<RemoteLine>,
    lost: Option<(ErrorKind, String)>,
    jobs: Jobs,
    pause: Pause,
    /// Threads that sleep in `complete`.
    sleepers: usize,
    shows_results: bool,
    ticks: bool,
    /// Since when UCX cannot be armed though it does nothing: a queue of the peer is full.
    stuck_since: Option<Instant>,
    /// Whether UCX's event called a sleeper last, and for nothing so far.
    was_called: bool,
    /// Since when it calls for nothing, as while a connection waits for the peer's answer.
    called_since: Option<Instant>,
    /// When something was last done, or the first job came.
    moved: Instant,
}

impl RemoteMover {
    /// Connects to the memory.
    ///
    /// # Errors
    /// As [`RemotePlace::open`].
    pub(crate) fn open(place: Arc<RemotePlace>, direction: Direction, asked: &Constraints) -> Result<RemoteMover> {
        let line = place.open()?;
        let events = MoverEvents::over(line.memory.event(), std::os::fd::AsFd::as_fd(&line.control.stream))?;
        let usual = match place.facts.transport {
            RemoteTransport::SharedMemory => SHARED_WINDOW,
            RemoteTransport::Network => NETWORK_WINDOW,
        };
        let piece_bytes = asked.request_bytes.map_or(usual.piece_bytes, u64::from).max(1);
        let pieces = asked.queue_depth.map_or(usual.pieces, |depth| depth as usize).clamp(1, 1024);
        let state = State {
            line: Some(line),
            lost: None,
            jobs: Jobs::default(),
            pause: Pause::default(),
            sleepers: 0,
            shows_results: false,
            ticks: false,
            stuck_since: None,
            was_called: false,
            called_since: None,
            moved: Instant::now(),
        };
        Ok(RemoteMover {
            place,
            direction,
            window: Window { piece_bytes, pieces },
            events,
            is_watched: AtomicBool::new(false),
            state: Mutex::new(state),
            owner: OwningProcess::here(),
        })
    }

    /// Lets UCX work, takes what is done, and starts more, for a while.
    fn advance(&self, state: &mut State) {
        let mut rounds = 0;
        let outcome = loop {
            rounds += 1;
            let Some(line) = &mut state.line else { return };
            let worked = line.memory.progress();
            let step = state.jobs.collect(&mut line.memory).and_then(|done| {
                if done {
                    state.moved = Instant::now();
                }
                Ok(state.jobs.start(&mut line.memory, self.direction, self.window)? || done)
            });
            if let Some(status) = line.memory.failure() {
                break Err(line.memory.words_of(status));
            }
            match step {
                Err(why) => break Err(why),
                // Results that somebody waits for go before more work.
                Ok(changed) if changed || worked => {
                    state.pause.worked();
                    (state.stuck_since, state.called_since, state.was_called) = (None, None, false);
                    // A caller that only submits does not move the bytes of others for long.
                    if !state.jobs.finished.is_empty() || rounds >= MAX_ROUNDS {
                        return;
                    }
                }
                Ok(_) => break Ok(()),
            }
        };
        if let Err(why) = outcome {
            self.lose_by_ucx(state, &why);
        }
    }

    /// UCX told an error. The exporter may have said why, or does so in a moment.
    fn lose_by_ucx(&self, state: &mut State, why: &str) {
        let said = state.line.as_mut().and_then(|line| {
            let until = Instant::now() + REASON;
            EndReason::from_bytes(&line.control.receive(until).ok()?)
        });
        match said {
            Some(reason) => self.lose_by_reason(state, Some(reason)),
            None => self.lose(state, ErrorKind::Device, format!("the connection is lost: UCX says {why}")),
        }
    }

    fn lose_by_reason(&self, state: &mut State, reason: Option<EndReason>) {
        let (kind, why) = match reason {
            Some(EndReason::Revoked) => (ErrorKind::PermissionDenied, "the export was revoked"),
            Some(EndReason::HolderEnded) => (ErrorKind::Device, "the process that held the memory has ended"),
            None => (ErrorKind::Device, "the exporter has gone"),
        };
        self.lose(state, kind, why.to_owned());
    }

    /// The end of the connection. Nothing touches the jobs' memory once the connection is dropped;
    /// then their leases end, and then they fail.
    fn lose(&self, state: &mut State, kind: ErrorKind, why: String) {
        // Its descriptors stay in the epoll until they are closed, which this does.
        drop(state.line.take());
        state.jobs.counters.devices_lost += 1;
        state.jobs.fail_all(|| lost(&self.place.name, kind, &why));
        state.lost.get_or_insert((kind, why));
    }

    /// Looks at what was ready: the end of the export, and the end of patience.
    fn look(&self, state: &mut State, ready: Ready) {
        if ready.tick {
            self.events.take_tick();
            if state.jobs.are_done() {
                state.ticks = false;
                self.events.set_ticking(false);
            }
        }
        let Some(line) = &mut state.line else { return };
        if ready.control && line.control.stream.is_readable() {
            let said = line.control.receive(Instant::now() + REASON).ok();
            return self.lose_by_reason(state, said.and_then(|said| EndReason::from_bytes(&said)));
        }
        let patience = self.place.options.patience;
        if !state.jobs.are_done() && state.moved.elapsed() > patience {
            let why = format!("nothing moved for {} s, though the exporter is there", patience.as_secs_f64());
            self.lose(state, ErrorKind::Device, why);
        }
    }

    /// Leaves the descriptor as it must be while nobody holds the lock: readable if there is
    /// something to do now, and else as soon as there is.
    fn leave(&self, state: &mut State) {
        let is_watched = self.is_watched.load(Ordering::SeqCst);
        if !is_watched && state.sleepers == 0 && !state.shows_results {
            return;
        }
        let open = is_watched && state.jobs.finished.is_empty() && !state.jobs.are_done();
        // What UCX has to do already is work for whoever looks next.
        let there_are = (open && !self.is_armed(state)) || !state.jobs.finished.is_empty();
        if there_are != state.shows_results {
            state.shows_results = there_are;
            self.events.show_results(there_are);
        }
        if is_watched && !state.ticks && !state.jobs.are_done() {
            state.ticks = true;
            self.events.set_ticking(true);
        }
    }

    /// Arms UCX's event; false where there is something to do already. UCX also says so as long as
    /// a queue of the peer is full, and the peer may be dead: then somebody has to look now and
    /// then.
    fn is_armed(&self, state: &mut State) -> bool {
        let Some(line) = &mut state.line else { return true };
        match line.memory.arm() {
            Ok(Armed::Yes) => {
                state.stuck_since = None;
                true
            }
            Ok(Armed::Busy) => state.stuck_since.get_or_insert_with(Instant::now).elapsed() > STUCK,
            Err(e) => {
                self.lose(state, ErrorKind::Device, e.to_string());
                true
            }
        }
    }

    /// Sleeps outside of the lock until something happens.
    fn sleep(&self, mut state: MutexGuard<'_, State>, time: Duration) {
        state.sleepers += 1;
        if std::mem::take(&mut state.was_called) {
            state.called_since.get_or_insert_with(Instant::now);
        }
        // As long as it has been stuck, so that the sleeps grow.
        let since = state.stuck_since.or(state.called_since);
        let stuck = since.map(|since| since.elapsed().min(MAX_STUCK_SLEEP));
        let is_stuck = stuck.is_some();
        drop(state);
        let begun = Instant::now();
        if let Some(time) = stuck {
            // UCX's event is of no use: it would wake this thread at once.
            std::thread::sleep(time);
        }
        let ready = self.events.wait(if is_stuck { Duration::ZERO } else { time });
        let mut state = self.state.lock();
        state.sleepers -= 1;
        state.pause.slept(begun.elapsed());
        state.was_called |= ready.ucx;
        self.look(&mut state, ready);
    }

    /// Why a job cannot be taken.
    fn refusal(&self, job: &Job, state: &State) -> Option<Error> {
        if let Some((kind, why)) = &state.lost {
            return Some(lost(&self.place.name, *kind, why));
        }
        let (lease, access, offset) = match self.direction {
            Direction::Put => (&job.source, Access::Read, job.span.target),
            Direction::Get => (&job.target, Access::Write, job.span.source),
        };
        let len = job.span.len;
        let fits =
            |lease: &RawLease| lease.len() as u64 == len && (access == Access::Read || lease.access() == Access::Write);
        if !lease.as_ref().is_some_and(fits) {
            let why = "a job whose lease is missing or does not fit its span";
            return Some(Error::new(ErrorKind::InvalidInput, "transfer", why));
        }
        let whole = self.place.facts.len;
        if offset.checked_add(len).is_none_or(|end| end > whole) {
            let context = format!("{len} bytes at {offset} of {}, which has {whole}", self.place.name);
            return Some(Error::new(ErrorKind::OutOfRange, "transfer", context));
        }
        None
    }
}

impl QueuedMover for RemoteMover {
    fn submit(&self, job: Job) -> std::result::Result<(), (Job, Error)> {
        let mut state = self.state.lock();
        if let Some(error) = self.refusal(&job, &state) {
            return Err((job, error));
        }
        if state.jobs.are_done() {
            state.moved = Instant::now();
        }
        state.jobs.take(job);
        self.advance(&mut state);
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
        let before = done.len();
        let mut time = Duration::from_millis(1);
        loop {
            let mut state = self.state.lock();
            self.advance(&mut state);
            if state.jobs.finished.is_empty() && !wait {
                self.look(&mut state, self.events.wait(Duration::ZERO));
            }
            done.append(&mut state.jobs.finished);
            if done.len() > before || state.jobs.are_done() || !wait {
                self.leave(&mut state);
                return Ok(());
            }
            if state.pause.spins() {
                continue;
            }
            if !self.is_armed(&mut state) || !state.jobs.finished.is_empty() {
                continue;
            }
            // What was shown to others is taken.
            self.leave(&mut state);
            let moved = state.moved;
            self.sleep(state, time.min(self.place.options.patience.max(Duration::from_millis(1))));
            time = if self.state.lock().moved == moved { (time * 2).min(MAX_SLEEP) } else { Duration::from_millis(1) };
        }
    }

    fn counters(&self) -> Counters {
        self.state.lock().jobs.counters.clone()
    }
}

impl Drop for RemoteMover {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // A child has copies of a worker whose queues and threads are its parent's.
            let state = self.state.get_mut();
            std::mem::forget(std::mem::take(&mut state.jobs));
            return std::mem::forget(state.line.take());
        }
        // This ends: each job is done, or the other side is lost, at the latest when patience ends.
        let mut done = Vec::new();
        while !self.state.get_mut().jobs.are_done() && self.complete(true, &mut done).is_ok() {}
    }
}
