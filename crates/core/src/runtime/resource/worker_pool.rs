//! Threads that carry out what has no queue of its own: copies between memories, routes of two
//! hops, movers that block.
//!
//! They are started when there is work that no idle one can take, up to a number, and sleep when
//! there is none. A thread asks the resource before each part, so that a long copy stands in
//! nobody's way for longer than a part takes.
//!
//! A thread of a worker pool may be made to sleep by foreign code that it calls (a waker that waits
//! for a transfer). It counts as away then, and another one takes its place. Where the kernel gives
//! no thread, whoever brings the work carries it out, and the coordinator what is due later.

use std::time::Duration;

use crate::process::OwningProcess;
use crate::runtime::coordinator::Coordinator;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use crate::thread_role::{self, WorkerGroup};
use crate::threads::{self, JoinHandle};

/// Where a worker pool's work comes from.
pub(crate) trait WorkSource: Send + Sync {
    /// Carries out whatever may be carried out now, on this thread.
    fn carry_out_all(self: Arc<Self>);

    /// Whether something is held back.
    fn has_backlog(&self) -> bool;

    /// When to ask again, in the coordinator's nanoseconds, if the scheduler named a time.
    fn next_deadline(&self) -> Option<u64>;
}

/// Which threads a worker pool may have.
pub(crate) struct WorkerThreads {
    /// What their names begin with.
    pub(crate) name: String,
    /// Threads, at most.
    pub(crate) max: usize,
    /// The core that they are bound to.
    pub(crate) core: Option<usize>,
}

pub(crate) struct WorkerPool {
    itself: Weak<WorkerPool>,
    owner: OwningProcess,
    threads: WorkerThreads,
    source: Weak<dyn WorkSource>,
    coordinator: Arc<Coordinator>,
    state: Mutex<State>,
    called: Condvar,
    stopping: AtomicBool,
    /// No thread of it works: none was to be had, or all are away.
    deserted: AtomicBool,
}

#[derive(Default)]
struct State {
    threads: Vec<JoinHandle<()>>,
    /// Threads that have not ended.
    alive: usize,
    /// Threads that sleep in foreign code.
    away: usize,
    idle: usize,
    /// Calls that no thread has answered yet.
    calls: u64,
    started: u64,
}

impl State {
    fn at_work(&self) -> usize {
        self.alive - self.away
    }
}

impl WorkerPool {
    /// A pool without a thread; they are started when there is work.
    pub(crate) fn new(
        threads: WorkerThreads,
        source: Weak<dyn WorkSource>,
        coordinator: Arc<Coordinator>,
    ) -> Arc<WorkerPool> {
        let threads = WorkerThreads { max: threads.max.max(1), ..threads };
        Arc::new_cyclic(|itself| WorkerPool {
            itself: itself.clone(),
            owner: OwningProcess::here(),
            threads,
            source,
            coordinator,
            state: Mutex::new(State::default()),
            called: Condvar::new(),
            stopping: AtomicBool::new(false),
            deserted: AtomicBool::new(true),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// No thread of it works.
    pub(crate) fn has_no_threads(&self) -> bool {
        self.deserted.load(Ordering::SeqCst)
    }

    /// There is something to do.
    pub(crate) fn request_worker(&self) {
        let mut state = self.lock();
        state.calls += 1;
        if state.idle > 0 {
            self.called.notify_one();
            return;
        }
        if state.at_work() >= self.threads.max {
            return;
        }
        // Whoever asks holds it.
        let Some(pool) = self.itself.upgrade() else { return };
        let name = format!("{}-{}", self.threads.name, state.started);
        match threads::spawn(&name, move || Worker(pool).serve()) {
            Ok(thread) => {
                // With the lock, so that it is not idle, and has not ended, before it is counted.
                state.alive += 1;
                state.started += 1;
                state.threads.push(thread);
                self.deserted.store(false, Ordering::SeqCst);
            }
            Err(e) => {
                let nobody = state.at_work() == 0;
                drop(state);
                self.coordinator.troubles.refused(&e, "its work was carried out by who brought it");
                // Those that exist will come to it.
                if nobody && let Some(source) = self.source.upgrade() {
                    source.carry_out_all();
                }
            }
        }
    }

    /// Sleeps until there is a call, or a time comes; false when the thread is to end, because the
    /// worker pool is dismissed or has one too many.
    fn sleep(&self, source: &dyn WorkSource) -> bool {
        let mut state = self.lock();
        loop {
            if state.at_work() > self.threads.max {
                return false;
            }
            if state.calls > 0 {
                state.calls -= 1;
                return true;
            }
            if self.stopping.load(Ordering::SeqCst) {
                return false;
            }
            state.idle += 1;
            let now = self.coordinator.now();
            state = match source.next_deadline() {
                Some(at) if at <= now => {
                    state.idle -= 1;
                    return true;
                }
                Some(at) => {
                    let pause = Duration::from_nanos(at - now);
                    let (state, timeout) = self.called.wait_timeout(state, pause);
                    if timeout.timed_out() {
                        let mut state = state;
                        state.idle -= 1;
                        return true;
                    }
                    state
                }
                None => self.called.wait(state),
            };
            state.idle -= 1;
        }
    }

    /// Ends the threads; they have nothing left to do, because the runtime was drained. With
    /// `wait`, returns when they have ended.
    pub(crate) fn shut_down(&self, wait: bool) {
        self.stopping.store(true, Ordering::SeqCst);
        let threads = std::mem::take(&mut self.lock().threads);
        self.called.notify_all();
        if wait {
            for thread in threads {
                // Foreign code that panicked in it was caught; were it ours, others would go on.
                let _ = threads::join(thread);
            }
        }
    }
}

impl WorkerGroup for WorkerPool {
    fn worker_blocks(&self) {
        let mut state = self.lock();
        state.away += 1;
        self.deserted.store(state.at_work() == 0, Ordering::SeqCst);
        let alone = state.idle == 0;
        drop(state);
        // What is held back, or will be due, waits for another one.
        if alone && self.source.upgrade().is_some_and(|source| source.has_backlog()) {
            self.request_worker();
        }
    }

    fn worker_resumes(&self) {
        if !self.owner.is_here() {
            return;
        }
        let mut state = self.lock();
        state.away -= 1;
        self.deserted.store(false, Ordering::SeqCst);
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            // Handles of threads that this process does not have.
            let state = self.state.get_mut();
            std::mem::take(&mut state.threads).into_iter().for_each(std::mem::forget);
        }
    }
}

/// A thread of a worker pool. It counts until this is dropped, however it ends.
struct Worker(Arc<WorkerPool>);

impl Drop for Worker {
    fn drop(&mut self) {
        let pool = &self.0;
        if !pool.owner.is_here() {
            return;
        }
        let mut state = pool.lock();
        state.alive -= 1;
        // Nobody waits for its end, unless the worker pool was dismissed, and then it is not in
        // there.
        state.threads.retain(|thread| !thread.is_this());
        pool.deserted.store(state.at_work() == 0, Ordering::SeqCst);
    }
}

impl Worker {
    fn serve(self) {
        let pool = &self.0;
        pool.coordinator.enter_thread_share();
        let _role = thread_role::enter_worker(pool.itself.clone());
        if let Some(core) = pool.threads.core {
            // Refused: transfers into the core's cache count themselves as run on the wrong core.
            let _ = crate::machine::bind_to(core);
        }
        loop {
            let Some(source) = pool.source.upgrade() else { return };
            source.clone().carry_out_all();
            if !pool.owner.is_here() || !pool.sleep(&*source) {
                return;
            }
        }
    }
}
