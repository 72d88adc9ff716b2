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

use super::in_flight::InFlightTransfer;
use super::shared_resource::SharedResource;
use super::thread_role;
use crate::error::Result;
use crate::guard::reentry::{self, BlockableWork};
use crate::guard::{self, ForeignCode};
use crate::pipe::Execution;
use crate::pipe::queue::{Part, PartSink};
use crate::process::OwningProcess;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use crate::threads;

pub(crate) struct WorkerPool {
    owner: OwningProcess,
    name: String,
    most: usize,
    /// The core that its threads are bound to.
    core: Option<usize>,
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
    pub(crate) fn new(name: String, most: usize, core: Option<usize>) -> WorkerPool {
        WorkerPool {
            owner: OwningProcess::here(),
            name,
            most: most.max(1),
            core,
            state: Mutex::new(State::default()),
            called: Condvar::new(),
            stopping: AtomicBool::new(false),
            deserted: AtomicBool::new(true),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Threads, at most.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// No thread of it works.
    pub(crate) fn has_no_threads(&self) -> bool {
        self.deserted.load(Ordering::SeqCst)
    }

    /// There is something to do.
    pub(crate) fn request_worker(&self, resource: &Arc<SharedResource>) {
        let mut state = self.lock();
        state.calls += 1;
        if state.idle > 0 {
            self.called.notify_one();
            return;
        }
        if state.at_work() >= self.most {
            return;
        }
        let name = format!("{}-{}", self.name, state.started);
        let weak = Arc::downgrade(resource);
        match threads::spawn(&name, move || Worker(weak).serve()) {
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
                resource.coordinator.troubles.refused(&e, "its work was carried out by who brought it");
                // Those that exist will come to it.
                if nobody {
                    carry_out_all(resource);
                }
            }
        }
    }

    /// A thread of it is about to sleep in foreign code.
    pub(super) fn worker_blocks(&self, resource: &Arc<SharedResource>) {
        let mut state = self.lock();
        state.away += 1;
        self.deserted.store(state.at_work() == 0, Ordering::SeqCst);
        let alone = state.idle == 0;
        drop(state);
        // What is held back, or will be due, waits for another one.
        if alone && resource.has_backlog() {
            self.request_worker(resource);
        }
    }

    /// It goes on.
    pub(super) fn is_back(&self) {
        if !self.owner.is_here() {
            return;
        }
        let mut state = self.lock();
        state.away -= 1;
        self.deserted.store(false, Ordering::SeqCst);
    }

    /// Sleeps until there is a call, or a time comes; false when the thread is to end, because the
    /// worker pool is dismissed or has one too many.
    fn sleep(&self, resource: &SharedResource) -> bool {
        let mut state = self.lock();
        loop {
            if state.at_work() > self.most {
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
            let now = resource.coordinator.now();
            state = match resource.next_deadline() {
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
struct Worker(Weak<SharedResource>);

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(resource) = self.0.upgrade() else { return };
        let Some(workers) = resource.workers.as_ref().filter(|workers| workers.owner.is_here()) else { return };
        let mut state = workers.lock();
        state.alive -= 1;
        // Nobody waits for its end, unless the worker pool was dismissed, and then it is not in
        // there.
        state.threads.retain(|thread| thread.thread().id() != thread::current().id());
        workers.deserted.store(state.at_work() == 0, Ordering::SeqCst);
    }
}

impl Worker {
    fn serve(self) {
        thread_role::is_crew(&self.0);
        if let Some(resource) = self.0.upgrade()
            && let Some(workers) = &resource.workers
            && let Some(core) = workers.core
        {
            // Refused: transfers into the core's cache count themselves as run on the wrong core.
            let _ = crate::machine::bind_to(core);
        }
        loop {
            let Some(resource) = self.0.upgrade() else { return };
            let Some(workers) = &resource.workers else { return };
            carry_out_all(&resource);
            if !workers.owner.is_here() || !workers.sleep(&resource) {
                return;
            }
        }
    }
}

/// Carries out whatever may be carried out now.
fn carry_out_all(resource: &Arc<SharedResource>) {
    while let Some((transfer, at, len)) = resource.next_for_worker() {
        run_part(&transfer, at, len);
        if !resource.coordinator.owner.is_here() {
            // A waker forked, and this is the child.
            return;
        }
    }
}

fn run_part(transfer: &Arc<InFlightTransfer>, at: u64, len: u64) {
    let line = &transfer.line;
    let carried = Arc::new(Carry {
        transfer: transfer.clone(),
        at,
        len,
        made_room: AtomicBool::new(false),
        back: AtomicBool::new(false),
        sleeps: AtomicU32::new(0),
    });
    // Until the transfer has heard of it: what is put off may wait for the transfer.
    let _middle = match line.pipe.execution() {
        Execution::Inline(_) | Execution::Whole(_) => reentry::enter_transfer(transfer.address(), carried.clone()),
        Execution::Queue(_) => reentry::enter_shared_transfer(transfer.address(), carried.clone()),
    };
    let outcome = guard::call(ForeignCode::Mover, || run_transfer(&carried)).unwrap_or_else(|panicked| {
        line.resource.coordinator.troubles.panics().note(&panicked);
        Err(panicked.error("transfer"))
    });
    if !line.resource.coordinator.owner.is_here() {
        // It forked, and this is the child, with this thread alone: what is left is the parent's.
        return guard::abandon();
    }
    let result = match outcome {
        // The queue tells of it.
        Ok(None) => return,
        Ok(Some(result)) => result,
        Err(e) => Err(e),
    };
    carried.came_back(result);
}

/// A part that this thread carries out.
struct Carry {
    transfer: Arc<InFlightTransfer>,
    at: u64,
    len: u64,
    /// The resource counts it as back.
    made_room: AtomicBool,
    /// It is back, though this thread has not returned from all that this made it call.
    back: AtomicBool,
    /// How often this thread is said to sleep in the middle of it.
    sleeps: AtomicU32,
}

impl Carry {
    fn came_back(&self, result: Result<()>) {
        let resource = &self.transfer.line.resource;
        self.back.store(true, Ordering::SeqCst);
        if self.made_room.load(Ordering::SeqCst) {
            resource.finish_part_late(&self.transfer, self.at, self.len, result);
        } else {
            resource.finish_part(&self.transfer, self.at, self.len, result);
        }
    }
}

impl BlockableWork for Carry {
    fn on_sleep(&self) {
        if self.back.load(Ordering::SeqCst) {
            return;
        }
        if !self.made_room.swap(true, Ordering::SeqCst) {
            self.transfer.line.resource.yield_slot(&self.transfer, self.at, self.len);
        }
        self.sleeps.fetch_add(1, Ordering::SeqCst);
        self.transfer.worker_blocked();
    }

    fn on_resume(&self) {
        // Those that began when it was back do not count. The last to begin is the first to end.
        if self.sleeps.load(Ordering::SeqCst) > 0 && !self.back.load(Ordering::SeqCst) {
            self.sleeps.fetch_sub(1, Ordering::SeqCst);
            self.transfer.worker_resumed();
        }
    }
}

/// Carries out a part; None where its queue has told of it already.
fn run_transfer(carried: &Arc<Carry>) -> Result<Option<Result<()>>> {
    let Carry { transfer, at, len, .. } = &**carried;
    let (at, len) = (*at, *len);
    let mut job = transfer.job(at, len)?;
    match transfer.line.pipe.execution() {
        Execution::Inline(inline) => Ok(Some(match inline.parts() {
            Some(parts) => parts.transfer_part(&mut job, transfer.span.len),
            None => inline.transfer(job.span),
        })),
        Execution::Whole(pipe) => Ok(Some(pipe.transfer(job.span))),
        Execution::Queue(queue) => {
            drop(job);
            let told = Arc::new(Told { carried: carried.clone(), told: AtomicBool::new(false) });
            queue.submit_parts([Part { sink: told.clone(), ..transfer.part(at, len)? }]);
            // The mover has no event: this thread waits for it. A queue that breaks tells its
            // parts, too.
            let _ = queue.drive(|| told.told.load(Ordering::Acquire));
            Ok(None)
        }
    }
}

/// A part that a thread of the worker pool waits for.
struct Told {
    carried: Arc<Carry>,
    told: AtomicBool,
}

impl PartSink for Told {
    fn part_done(&self, _at: u64, _len: u64, result: Result<()>) {
        self.carried.came_back(result);
        self.told.store(true, Ordering::Release);
    }

    fn deliveries_done(&self) {
        self.carried.transfer.deliveries_done();
    }
}
