//! Threads that carry out what has no queue of its own: copies between memories, routes of two hops, movers that block.
//!
//! They are started when there is work that no idle one can take, up to a number, and sleep when there is none. A thread
//! asks the station before each part, so that a long copy stands in nobody's way for longer than a part takes.

use std::time::Duration;

use super::moving::Moving;
use super::station::Station;
use crate::error::Result;
use crate::pipe::Carrier;
use crate::pipe::queue::{Part, Sink};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::JoinHandle;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use crate::threads;

pub(crate) struct Crew {
    name: String,
    most: usize,
    /// The core that its threads are bound to.
    core: Option<usize>,
    state: Mutex<State>,
    called: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct State {
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    /// Calls that no thread has answered yet.
    calls: u64,
}

impl Crew {
    pub(crate) fn new(name: String, most: usize, core: Option<usize>) -> Crew {
        Crew {
            name,
            most: most.max(1),
            core,
            state: Mutex::new(State::default()),
            called: Condvar::new(),
            stopping: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Threads, at most.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// There is something to do.
    pub(crate) fn call(&self, station: &Arc<Station>) {
        let mut state = self.lock();
        state.calls += 1;
        if state.idle > 0 {
            self.called.notify_one();
        } else if state.threads.len() < self.most {
            let weak = Arc::downgrade(station);
            let name = format!("{}-{}", self.name, state.threads.len());
            match threads::spawn(&name, move || serve(&weak)) {
                Ok(thread) => state.threads.push(thread),
                // Those that exist will come to it; with none at all the caller does the work itself.
                Err(_) if !state.threads.is_empty() => {}
                Err(_) => {
                    drop(state);
                    while let Some((moving, at, len)) = station.next_for_crew() {
                        carry_out(&moving, at, len);
                    }
                }
            }
        }
    }

    /// Sleeps until there is a call, or a time comes; false when the crew is dismissed.
    fn sleep(&self, station: &Station) -> bool {
        let mut state = self.lock();
        loop {
            if state.calls > 0 {
                state.calls -= 1;
                return true;
            }
            if self.stopping.load(Ordering::SeqCst) {
                return false;
            }
            state.idle += 1;
            let now = station.coordinator.now();
            state = match station.next_at() {
                Some(at) if at <= now => {
                    state.idle -= 1;
                    return true;
                }
                Some(at) => {
                    let pause = Duration::from_nanos(at - now);
                    let (state, timeout) =
                        self.called.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() {
                        let mut state = state;
                        state.idle -= 1;
                        return true;
                    }
                    state
                }
                None => self.called.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.idle -= 1;
        }
    }

    /// Ends the threads; they have nothing left to do, because the runtime was drained.
    pub(crate) fn dismiss(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let threads = std::mem::take(&mut self.lock().threads);
        self.called.notify_all();
        for thread in threads {
            // A thread ends by a panic only if a callback of the caller panicked in it; the others go on.
            let _ = thread.join();
        }
    }
}

fn serve(station: &Weak<Station>) {
    if let Some(station) = station.upgrade()
        && let Some(crew) = &station.crew
        && let Some(core) = crew.core
    {
        // Refused: transfers into the core's cache count themselves as run on the wrong core.
        let _ = crate::machine::bind_to(core);
    }
    loop {
        let Some(station) = station.upgrade() else { return };
        let Some(crew) = &station.crew else { return };
        while let Some((moving, at, len)) = station.next_for_crew() {
            carry_out(&moving, at, len);
        }
        if !crew.sleep(&station) {
            return;
        }
    }
}

fn carry_out(moving: &Arc<Moving>, at: u64, len: u64) {
    let line = &moving.line;
    match transfer(moving, at, len) {
        // The queue tells of it.
        Ok(None) => {}
        Ok(Some(result)) => line.station.came_back(moving, at, len, result),
        Err(e) => line.station.came_back(moving, at, len, Err(e)),
    }
}

/// Carries out a part; None where its queue has told of it already.
fn transfer(moving: &Arc<Moving>, at: u64, len: u64) -> Result<Option<Result<()>>> {
    let mut job = moving.job(at, len)?;
    match moving.line.pipe.carrier() {
        Carrier::Inline(inline) => Ok(Some(match inline.parts() {
            Some(parts) => parts.transfer_part(&mut job, moving.span.len),
            None => inline.transfer(job.span),
        })),
        Carrier::Whole(pipe) => Ok(Some(pipe.transfer(job.span))),
        Carrier::Queue(queue) => {
            drop(job);
            let told = Arc::new(Told { moving: moving.clone(), told: AtomicBool::new(false) });
            queue.submit_parts([Part { sink: told.clone(), ..moving.part(at, len)? }]);
            // The mover has no event: this thread waits for it. A queue that breaks tells its parts, too.
            let _ = queue.lead(|| told.told.load(Ordering::Acquire));
            Ok(None)
        }
    }
}

/// A part that a thread of the crew waits for.
struct Told {
    moving: Arc<Moving>,
    told: AtomicBool,
}

impl Sink for Told {
    fn part_done(&self, at: u64, len: u64, result: Result<()>) {
        self.moving.part_done(at, len, result);
        self.told.store(true, Ordering::Release);
    }

    fn all_told(&self) {
        self.moving.all_told();
    }
}
