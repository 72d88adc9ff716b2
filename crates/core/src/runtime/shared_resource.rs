//! Where transfers queue: a device, or a group of threads that copy.
//!
//! ```text
//! enter    [state] scheduler.push                                  any thread
//! go_on    [state] scheduler.next -> parts;  queue.submit_parts    any thread       a device
//!          [state] scheduler.next -> part;   copy it               a thread of it   a group of threads
//! came_back[state] scheduler.done;  all parts back? finish         whoever completed
//! ```
//!
//! Who attends: a thread that waits for a transfer completes its queue itself. Otherwise (a future
//! was polled, a callback set, a handle dropped, parts are held back) the coordinator is asked to,
//! by arming the mover's event.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::coordinator::Coordinator;
use super::in_flight::InFlightTransfer;
use super::schedule::{Chunk, Flow, Next, SchedulePolicy, ScheduleStats, Scheduler, ServiceLevel};
use super::worker_pool::WorkerPool;
use crate::error::Result;
use crate::pipe::queue::{Part, Queue};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, Weak};

/// Parts that one look at the scheduler takes, so that the lock is not held long.
const AT_ONCE: usize = 64;

pub(crate) struct SharedResource {
    pub(crate) name: String,
    state: Mutex<State>,
    /// When the scheduler asked to be asked again, in the coordinator's nanoseconds; `u64::MAX` for
    /// never.
    next_at: AtomicU64,
    /// Whether something is held back.
    backlog: AtomicBool,
    pub(crate) coordinator: Arc<Coordinator>,
    /// The threads, where it is a group of them.
    pub(crate) workers: Option<WorkerPool>,
}

struct State {
    scheduler: Scheduler,
    /// Transfers with parts that were not released.
    waiting: HashMap<u64, Arc<InFlightTransfer>>,
    /// The queues of the pipes connected here, for attending.
    queues: Vec<(Flow, Weak<Queue>)>,
}

/// What a resource did, and what it is doing (CIDR'23, section 6, principle 4: visible state).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResourceReport {
    /// Its name.
    pub name: String,
    /// How it is shared.
    pub policy: SchedulePolicy,
    /// By class and by pipe.
    pub stats: ScheduleStats,
}

impl SharedResource {
    pub(crate) fn new(
        name: String,
        policy: SchedulePolicy,
        coordinator: Arc<Coordinator>,
        workers: Option<WorkerPool>,
    ) -> Arc<SharedResource> {
        let state = State { scheduler: Scheduler::new(policy), waiting: HashMap::new(), queues: Vec::new() };
        Arc::new(SharedResource {
            name,
            state: Mutex::new(state),
            next_at: AtomicU64::new(u64::MAX),
            backlog: AtomicBool::new(false),
            coordinator,
            workers,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics while it is held; a poisoned lock guards a state that is whole.
        self.state.lock()
    }

    /// Admits a pipe.
    ///
    /// # Errors
    /// `Unsupported` where its promises cannot be kept beside those given already.
    pub(crate) fn join(&self, service: ServiceLevel, queue: Option<&Arc<Queue>>) -> Result<Flow> {
        let mut state = self.lock();
        let flow = state.scheduler.connect(service)?;
        if let Some(queue) = queue {
            state.queues.push((flow, Arc::downgrade(queue)));
        }
        Ok(flow)
    }

    pub(crate) fn leave(&self, flow: Flow) {
        let mut state = self.lock();
        state.queues.retain(|(f, _)| *f != flow);
        state.scheduler.disconnect(flow);
    }

    /// Queues a transfer and sets out what may go.
    pub(crate) fn enqueue(self: &Arc<Self>, transfer: &Arc<InFlightTransfer>) {
        let line = &transfer.line;
        let mut state = self.lock();
        let len = transfer.span.len + line.misalignment(transfer.span);
        state.waiting.insert(transfer.request, transfer.clone());
        state.scheduler.push(line.flow, transfer.request, len, self.coordinator.now());
        self.backlog.store(true, Ordering::Relaxed);
        match &self.workers {
            Some(workers) => {
                drop(state);
                workers.request_worker(self);
            }
            None => self.dispatch_locked(state),
        }
    }

    /// Whether something is held back.
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog.load(Ordering::Relaxed)
    }

    /// Sets out what may go, where something was held back.
    pub(crate) fn dispatch(self: &Arc<Self>) {
        if self.backlog.load(Ordering::Relaxed) {
            match &self.workers {
                None => self.dispatch_locked(self.lock()),
                // Its threads come by themselves, where there are any.
                Some(workers) if workers.has_no_threads() => workers.request_worker(self),
                Some(_) => {}
            }
        }
    }

    /// A device's parts: as many as the scheduler lets go, each queue's together.
    fn dispatch_locked<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        loop {
            let mut parts: Vec<(Arc<InFlightTransfer>, u64, u64)> = Vec::new();
            let mut full = false;
            while let Some(part) = self.next(&mut state) {
                parts.push(part);
                if parts.len() == AT_ONCE {
                    full = true;
                    break;
                }
            }
            let held_back = state.scheduler.backlog() > 0;
            self.backlog.store(held_back, Ordering::Relaxed);
            drop(state);
            while !parts.is_empty() {
                // Those of the same pipe go together.
                let line = parts[0].0.line.clone();
                let (mine, others): (Vec<_>, Vec<_>) =
                    parts.into_iter().partition(|(transfer, ..)| Arc::ptr_eq(&transfer.line, &line));
                parts = others;
                submit(&line.pipe, mine);
                // Asked after the parts are out: whoever leans on them later attends them itself.
                if let Some(queue) = line.pipe.queue()
                    && (line.has_attended()
                        || self.backlog.load(Ordering::SeqCst)
                        || self.coordinator.has_blocked_waiters())
                {
                    self.coordinator.arm(queue);
                }
            }
            if held_back {
                self.arm_all();
            }
            self.coordinator.request_safety_poll();
            if !full {
                return;
            }
            state = self.lock();
        }
    }

    /// The next part of this resource, as a transfer and a range of it.
    fn next(&self, state: &mut State) -> Option<(Arc<InFlightTransfer>, u64, u64)> {
        let now = self.coordinator.now();
        match state.scheduler.next(now) {
            Next::Chunk(chunk) => Some(take(state, chunk)),
            Next::At(at) => {
                // Before the question when the coordinator wakes up, so that it sees this or is
                // woken.
                self.next_at.store(at, Ordering::SeqCst);
                if self.is_for_coordinator() {
                    self.coordinator.be_awake_at(at);
                }
                None
            }
            Next::Nothing => {
                self.next_at.store(u64::MAX, Ordering::SeqCst);
                None
            }
        }
    }

    /// The next part for a thread of a worker pool.
    pub(crate) fn next_for_worker(&self) -> Option<(Arc<InFlightTransfer>, u64, u64)> {
        let mut state = self.lock();
        let part = self.next(&mut state);
        self.backlog.store(state.scheduler.backlog() > 0, Ordering::Relaxed);
        part
    }

    /// Whether the coordinator has to come back when the scheduler named a time: no thread of a
    /// worker pool will.
    fn is_for_coordinator(&self) -> bool {
        self.workers.as_ref().is_none_or(WorkerPool::has_no_threads)
    }

    /// When the coordinator is to ask again.
    pub(crate) fn next_for_coordinator(&self) -> Option<u64> {
        self.next_deadline().filter(|_| self.is_for_coordinator())
    }

    /// When to ask again, if the scheduler named a time.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        Some(self.next_at.load(Ordering::SeqCst)).filter(|at| *at != u64::MAX)
    }

    /// What carries out a part sleeps in the library, perhaps until others are carried out: its
    /// place is theirs.
    pub(crate) fn yield_slot(self: &Arc<Self>, transfer: &InFlightTransfer, at: u64, len: u64) {
        let mut state = self.lock();
        self.count_out(&mut state, transfer, at, len);
        drop(state);
        if let Some(workers) = &self.workers
            && self.has_backlog()
        {
            workers.request_worker(self);
        }
    }

    /// The scheduler hears that a part is back.
    fn count_out(&self, state: &mut State, transfer: &InFlightTransfer, at: u64, len: u64) {
        // Bytes by which the first part was shorter than what the scheduler cut.
        let misfit = if at == 0 { transfer.line.misalignment(transfer.span) } else { 0 };
        state.scheduler.done(transfer.line.flow, len + misfit, self.coordinator.now());
    }

    /// A part is back, with its result.
    pub(crate) fn finish_part(&self, transfer: &InFlightTransfer, at: u64, len: u64, result: Result<()>) {
        let mut state = self.lock();
        self.count_out(&mut state, transfer, at, len);
        self.is_back(state, transfer, at, len, result);
    }

    /// As [`came_back`](Self::finish_part), for a part that [made room](Self::yield_slot) already.
    pub(crate) fn finish_part_late(&self, transfer: &InFlightTransfer, at: u64, len: u64, result: Result<()>) {
        self.is_back(self.lock(), transfer, at, len, result);
    }

    fn is_back(
        &self,
        mut state: MutexGuard<'_, State>,
        transfer: &InFlightTransfer,
        at: u64,
        len: u64,
        result: Result<()>,
    ) {
        // After that: once its last part is back, another thread may finish the transfer and find
        // the resource at rest.
        if transfer.part_finished(at, len, result) {
            self.drop_unreleased(&mut state, transfer, false);
        }
        drop(state);
        transfer.finish_if_idle();
    }

    /// Holds back what was not released of a transfer, for good.
    pub(crate) fn cancel(&self, transfer: &InFlightTransfer) {
        let mut state = self.lock();
        self.drop_unreleased(&mut state, transfer, true);
        drop(state);
        if !transfer.finish_if_idle() {
            transfer.nudge();
        }
    }

    /// As [`cancel`](Self::cancel), for all that a pipe has here.
    pub(crate) fn cancel_all(&self, flow: Flow) {
        let mut state = self.lock();
        let requests: Vec<u64> = state.scheduler.waiting(flow).collect();
        let mine: Vec<_> = requests.iter().filter_map(|request| state.waiting.get(request).cloned()).collect();
        for transfer in &mine {
            self.drop_unreleased(&mut state, transfer, true);
        }
        drop(state);
        for transfer in mine {
            if !transfer.finish_if_idle() {
                transfer.nudge();
            }
        }
    }

    fn drop_unreleased(&self, state: &mut State, transfer: &InFlightTransfer, stopped: bool) {
        if state.waiting.remove(&transfer.request).is_some() {
            state.scheduler.cancel(transfer.line.flow, transfer.request);
            transfer.drop_unreleased(stopped);
            self.backlog.store(state.scheduler.backlog() > 0, Ordering::Relaxed);
        }
    }

    /// Asks the coordinator to look after everything that is out here.
    pub(crate) fn arm_all(&self) {
        for queue in self.queues() {
            if queue.has_parts() {
                self.coordinator.arm(&queue);
            }
        }
    }

    /// Takes what is done here, whether an event told of it or not; true if something is still out.
    pub(crate) fn poll_all(&self) -> bool {
        // An error is a broken queue, whose parts were told.
        self.queues().into_iter().filter(|queue| queue.has_parts()).fold(false, |left, queue| {
            let more = queue.drive_for_coordinator().unwrap_or(false);
            if more {
                self.coordinator.arm(&queue);
            }
            left | queue.has_parts()
        })
    }

    /// The queues here that have events.
    fn queues(&self) -> Vec<Arc<Queue>> {
        match self.workers {
            Some(_) => Vec::new(),
            None => self.lock().queues.iter().filter_map(|(_, queue)| queue.upgrade()).collect(),
        }
    }

    pub(crate) fn report(&self) -> ResourceReport {
        let state = self.lock();
        ResourceReport {
            name: self.name.clone(),
            policy: state.scheduler.policy().clone(),
            stats: state.scheduler.stats(),
        }
    }
}

/// The transfer of a chunk, and the chunk's range in it.
fn take(state: &mut State, chunk: Chunk) -> (Arc<InFlightTransfer>, u64, u64) {
    let Chunk { request, at, len, last, .. } = chunk;
    let transfer = if last { state.waiting.remove(&request) } else { state.waiting.get(&request).cloned() };
    let Some(transfer) = transfer else { unreachable!("a transfer stays until its last part is released") };
    transfer.release(last);
    let misfit = transfer.line.misalignment(transfer.span);
    let (from, to) = (at.max(misfit) - misfit, (at + len).max(misfit) - misfit);
    (transfer, from, to - from)
}

/// Hands the parts of one pipe to its queue.
fn submit(pipe: &crate::pipe::Pipe, parts: Vec<(Arc<InFlightTransfer>, u64, u64)>) {
    let Some(queue) = pipe.queue() else { unreachable!("only pipes with a queue are connected at a device") };
    let mut ready: Vec<Part> = Vec::with_capacity(parts.len());
    for (transfer, at, len) in parts {
        match transfer.part(at, len) {
            Ok(part) => ready.push(part),
            Err(e) => {
                transfer.line.resource.finish_part(&transfer, at, len, Err(e));
            }
        }
        if transfer.is_all_out() {
            // Who waits for it may complete the queue now.
            transfer.nudge();
        }
    }
    queue.submit_parts(ready);
}
