//! Where transfers queue: a device, or a group of threads that copy.
//!
//! ```text
//! enqueue      [state] scheduler.push                                  any thread
//! dispatch     [state] scheduler.next -> parts;  queue.submit_parts    any thread           a device
//!              [state] scheduler.next -> part;   run it                a worker thread      a group of threads
//! finish_part  [state] scheduler.done;  all parts back? finish         whoever completed
//! ```
//!
//! Who attends: a thread that waits for a transfer completes its queue itself. Otherwise (a future
//! was polled, a callback set, a handle dropped, parts are held back) the coordinator is asked to,
//! by arming the mover's event.

use std::collections::HashMap;

use super::worker_pool::{WorkerPool, WorkerThreads};
use crate::error::Result;
use crate::pipe::queue::{Part, PartSink, Queue};
use crate::runtime::coordinator::Coordinator;
use crate::runtime::coordinator::event_source::AttendedResource;
use crate::runtime::report::ResourceReport;
use crate::runtime::schedule::{Chunk, Flow, Next, SchedulePolicy, Scheduler, ServiceLevel};
use crate::runtime::transfer::in_flight::{InFlightTransfer, PartScheduler};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, Weak};

/// Parts that one look at the scheduler takes, so that the lock is not held long; transfers that
/// are started together.
pub(crate) const AT_ONCE: usize = 64;

pub(crate) struct SharedResource {
    name: String,
    state: Mutex<State>,
    /// When the scheduler asked to be asked again, in the coordinator's nanoseconds; `u64::MAX` for
    /// never.
    next_at: AtomicU64,
    /// Whether something is held back.
    backlog: AtomicBool,
    pub(crate) coordinator: Arc<Coordinator>,
    /// The threads, where it is a group of them.
    workers: Option<Arc<WorkerPool>>,
}

struct State {
    scheduler: Scheduler,
    /// Transfers with parts that were not released.
    waiting: HashMap<u64, Arc<InFlightTransfer>>,
    /// The queues of the pipes connected here, for attending.
    queues: Vec<(Flow, Weak<Queue>)>,
}

impl SharedResource {
    pub(crate) fn new(
        name: String,
        policy: SchedulePolicy,
        coordinator: Arc<Coordinator>,
        threads: Option<WorkerThreads>,
    ) -> Arc<SharedResource> {
        let state = State { scheduler: Scheduler::new(policy), waiting: HashMap::new(), queues: Vec::new() };
        Arc::new_cyclic(|itself: &Weak<SharedResource>| SharedResource {
            name,
            state: Mutex::new(state),
            next_at: AtomicU64::new(u64::MAX),
            backlog: AtomicBool::new(false),
            workers: threads.map(|threads| WorkerPool::new(threads, itself.clone(), coordinator.clone())),
            coordinator,
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

    /// The threads, where it is a group of them.
    pub(crate) fn workers(&self) -> Option<&WorkerPool> {
        self.workers.as_deref()
    }

    /// Queues transfers and starts what may go.
    pub(crate) fn enqueue(&self, transfers: &[Arc<InFlightTransfer>]) {
        if transfers.is_empty() {
            return;
        }
        let mut state = self.lock();
        for transfer in transfers {
            let pipe = &transfer.pipe;
            let len = transfer.span.len + pipe.misalignment(transfer.span);
            state.waiting.insert(transfer.request, transfer.clone());
            state.scheduler.push(pipe.flow, transfer.request, len, self.coordinator.now());
        }
        self.backlog.store(true, Ordering::Relaxed);
        match &self.workers {
            Some(workers) => {
                drop(state);
                transfers.iter().for_each(|_| workers.request_worker());
            }
            None => self.dispatch_locked(state),
        }
    }

    /// Whether something is held back.
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog.load(Ordering::Relaxed)
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
                let pipe = parts[0].0.pipe.clone();
                let (mine, others): (Vec<_>, Vec<_>) =
                    parts.into_iter().partition(|(transfer, ..)| Arc::ptr_eq(&transfer.pipe, &pipe));
                parts = others;
                let Some(queue) = pipe.queue() else {
                    unreachable!("only pipes with a queue are connected at a device")
                };
                self.submit(queue, mine);
                // Asked after the parts are out: whoever waits for them later attends them itself.
                if pipe.has_attended() || self.backlog.load(Ordering::SeqCst) || self.coordinator.has_blocked_waiters()
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
        self.workers.as_ref().is_none_or(|workers| workers.has_no_threads())
    }

    /// When to ask again, if the scheduler named a time.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        Some(self.next_at.load(Ordering::SeqCst)).filter(|at| *at != u64::MAX)
    }

    /// What carries out a part sleeps in the library, perhaps until others are carried out: its
    /// place is theirs.
    pub(crate) fn yield_slot(&self, transfer: &InFlightTransfer, at: u64, len: u64) {
        let mut state = self.lock();
        self.count_out(&mut state, transfer, at, len);
        drop(state);
        if let Some(workers) = &self.workers
            && self.has_backlog()
        {
            workers.request_worker();
        }
    }

    /// The scheduler hears that a part is back.
    fn count_out(&self, state: &mut State, transfer: &InFlightTransfer, at: u64, len: u64) {
        // Bytes by which the first part was shorter than what the scheduler cut.
        let misfit = if at == 0 { transfer.pipe.misalignment(transfer.span) } else { 0 };
        state.scheduler.done(transfer.pipe.flow, len + misfit, self.coordinator.now());
    }

    /// As [`finish_part`](PartScheduler::finish_part), for a part that
    /// [gave its slot back](Self::yield_slot) already.
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

    /// As [`cancel`](PartScheduler::cancel), for all that a pipe has here.
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
            state.scheduler.cancel(transfer.pipe.flow, transfer.request);
            transfer.drop_unreleased(stopped);
            self.backlog.store(state.scheduler.backlog() > 0, Ordering::Relaxed);
        }
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

    /// Hands the parts of one pipe to its queue.
    fn submit(&self, queue: &Queue, parts: Vec<(Arc<InFlightTransfer>, u64, u64)>) {
        let mut ready: Vec<Part> = Vec::with_capacity(parts.len());
        for (transfer, at, len) in parts {
            match transfer.part(at, len) {
                Ok(part) => ready.push(part),
                Err(e) => self.finish_part(&transfer, at, len, Err(e)),
            }
            if transfer.is_all_out() {
                // Who waits for it may complete the queue now.
                transfer.nudge();
            }
        }
        queue.submit_parts(ready);
    }
}

impl PartSink for InFlightTransfer {
    fn part_done(&self, at: u64, len: u64, result: Result<()>) {
        self.pipe.resource.finish_part(self, at, len, result);
    }

    fn deliveries_done(&self) {
        self.pipe.resource.dispatch();
    }
}

impl PartScheduler for SharedResource {
    fn finish_part(&self, transfer: &InFlightTransfer, at: u64, len: u64, result: Result<()>) {
        let mut state = self.lock();
        self.count_out(&mut state, transfer, at, len);
        self.is_back(state, transfer, at, len, result);
    }

    fn dispatch(&self) {
        if self.backlog.load(Ordering::Relaxed) {
            match &self.workers {
                None => self.dispatch_locked(self.lock()),
                // Its threads come by themselves, where there are any.
                Some(workers) if workers.has_no_threads() => workers.request_worker(),
                Some(_) => {}
            }
        }
    }

    fn cancel(&self, transfer: &InFlightTransfer) {
        let mut state = self.lock();
        self.drop_unreleased(&mut state, transfer, true);
        drop(state);
        if !transfer.finish_if_idle() {
            transfer.nudge();
        }
    }

    fn arm_all(&self) {
        for queue in self.queues() {
            if queue.has_parts() {
                self.coordinator.arm(&queue);
            }
        }
    }

    fn leave(&self, flow: Flow) {
        let mut state = self.lock();
        state.queues.retain(|(f, _)| *f != flow);
        state.scheduler.disconnect(flow);
    }
}

impl AttendedResource for SharedResource {
    fn next_for_coordinator(&self) -> Option<u64> {
        self.next_deadline().filter(|_| self.is_for_coordinator())
    }

    fn dispatch(&self) {
        PartScheduler::dispatch(self);
    }

    fn poll_all(&self) -> bool {
        // An error is a broken queue, whose parts were told.
        self.queues().into_iter().filter(|queue| queue.has_parts()).fold(false, |left, queue| {
            let more = queue.drive_for_coordinator().unwrap_or(false);
            if more {
                self.coordinator.arm(&queue);
            }
            left | queue.has_parts()
        })
    }
}

/// The transfer of a chunk, and the chunk's range in it.
fn take(state: &mut State, chunk: Chunk) -> (Arc<InFlightTransfer>, u64, u64) {
    let Chunk { request, at, len, last, .. } = chunk;
    let transfer = if last { state.waiting.remove(&request) } else { state.waiting.get(&request).cloned() };
    let Some(transfer) = transfer else { unreachable!("a transfer stays until its last part is released") };
    transfer.release(last);
    let misfit = transfer.pipe.misalignment(transfer.span);
    let (from, to) = (at.max(misfit) - misfit, (at + len).max(misfit) - misfit);
    (transfer, from, to - from)
}
