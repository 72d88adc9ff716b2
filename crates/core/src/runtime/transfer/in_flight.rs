//! One transfer that the runtime carries out, part by part, and the pipe that it is of.

use std::task::Waker;

use super::parts::Parts;
use super::slots::Slots;
use super::transfer_counts::TransferCounts;
use crate::backend::{CompletionNotifier, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, Call, ForeignCode, reentry};
use crate::memory::RawLease;
use crate::pipe::queue::{Part, Queue};
use crate::pipe::{Execution, Pipe};
use crate::runtime::coordinator::Coordinator;
use crate::runtime::schedule::Flow;
use crate::runtime::transfer_meter::TransferRecorders;
use crate::span::CheckedSpan;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use crate::thread_role;
use crate::thread_share::LentShare;

/// On the source and on the target, where they are in memory.
pub(crate) type Leases = (Option<RawLease>, Option<RawLease>);

/// The shared resource where the parts of transfers queue, as the transfers of a pipe see it.
pub(crate) trait PartScheduler: Send + Sync {
    /// A part is back, with its result.
    fn finish_part(&self, transfer: &InFlightTransfer, at: u64, len: u64, result: Result<()>);

    /// Starts what may go, where something was held back.
    fn dispatch(&self);

    /// Holds back what was not released of a transfer, for good.
    fn cancel(&self, transfer: &InFlightTransfer);

    /// Asks the coordinator to look after everything that is out.
    fn arm_all(&self);

    /// A pipe is gone.
    fn leave(&self, flow: Flow);
}

/// Which offset parts are aligned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AlignmentEnd {
    Source,
    Target,
}

/// Transfers that begin off this are cut so that their later parts begin on it.
const ALIGN: u64 = 4096;

/// What the transfers of one pipe of the runtime have in common.
pub(crate) struct PipeState {
    pub(crate) pipe: Pipe,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) resource: Arc<dyn PartScheduler>,
    /// Its transfers, for the scheduler.
    pub(crate) flow: Flow,
    /// Parts begin at multiples of a part's length in the file, not in the transfer.
    alignment: AlignmentEnd,
    slots: Slots,
    /// Transfers under way for which no thread waits.
    attended: AtomicU64,
    counts: Arc<TransferCounts>,
    next_request: Arc<AtomicU64>,
    /// Who records transfers and their times, where somebody does.
    recorders: Option<TransferRecorders>,
}

/// When a transfer began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferStart {
    /// Its number among the transfers of its pipe.
    number: u64,
    /// The drains of the runtime that began before it.
    drains_before: u32,
    /// By the runtime's clock, where times are measured.
    since_ns: Option<u64>,
}

/// What a pipe is connected to at a runtime.
pub(crate) struct PipeParts {
    pub(crate) pipe: Pipe,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) resource: Arc<dyn PartScheduler>,
    pub(crate) flow: Flow,
    pub(crate) alignment: AlignmentEnd,
    /// Transfers under way, at most.
    pub(crate) queue: usize,
    pub(crate) counts: Arc<TransferCounts>,
    /// The next number for a transfer, in all of the runtime.
    pub(crate) next_request: Arc<AtomicU64>,
    /// Who records transfers and their times, where somebody does.
    pub(in crate::runtime) recorders: Option<TransferRecorders>,
}

impl PipeState {
    pub(crate) fn new(parts: PipeParts) -> PipeState {
        let PipeParts { pipe, coordinator, resource, flow, alignment, queue, counts, next_request, recorders } = parts;
        PipeState {
            pipe,
            coordinator,
            resource,
            flow,
            alignment,
            slots: Slots::new(queue),
            attended: AtomicU64::new(0),
            counts,
            next_request,
            recorders,
        }
    }

    pub(crate) fn execution(&self) -> Execution<'_> {
        self.pipe.execution()
    }

    /// Gives this thread the pipe's share, if it has one, until the result is dropped.
    pub(crate) fn lend(&self) -> Result<Option<LentShare<'_>>> {
        self.pipe.lend()
    }

    /// The queue, where the route is one.
    pub(crate) fn queue(&self) -> Option<&Arc<Queue>> {
        self.pipe.queue()
    }

    /// Bytes by which a transfer begins after a border of parts.
    pub(crate) fn misalignment(&self, span: CheckedSpan) -> u64 {
        match self.alignment {
            AlignmentEnd::Source => span.source % ALIGN,
            AlignmentEnd::Target => span.target % ALIGN,
        }
    }

    /// Takes a slot of the pipe's queue, for a transfer that is to be started.
    ///
    /// # Errors
    /// `Busy` where it is full and the caller does not want to wait.
    pub(crate) fn acquire_slot(&self, wait: bool) -> Result<TransferStart> {
        let since_ns = self.time_of_start();
        let number = self.slots.acquire(wait, &self.pipe, &self.coordinator, || self.resource.arm_all())?;
        if let Some(recorders) = &self.recorders {
            recorders.began();
        }
        Ok(TransferStart { number, drains_before: self.counts.began(), since_ns })
    }

    /// The time, where times are measured.
    #[inline]
    pub(crate) fn time_of_start(&self) -> Option<u64> {
        self.recorders.is_some().then(|| self.coordinator.now())
    }

    /// Records a transfer of so many bytes that began then and has ended.
    #[inline]
    pub(crate) fn record_since(&self, since_ns: Option<u64>, len: u64, result: &Result<()>) {
        if let (Some(recorders), Some(since)) = (&self.recorders, since_ns) {
            recorders.record(self.coordinator.now().saturating_sub(since), len, result);
        }
    }

    /// A transfer that had a slot is not under way any more.
    #[inline]
    fn left(&self) {
        if let Some(recorders) = &self.recorders {
            recorders.left();
        }
    }

    /// Gives the slot back.
    fn release_slot(&self, start: TransferStart) {
        self.slots.release(start.number, &self.coordinator);
    }

    /// A transfer that had a slot was not started after all.
    pub(crate) fn count_refused(&self, start: TransferStart) {
        self.release_slot(start);
        self.left();
        self.counts.ended(None, start.drains_before, &self.coordinator);
    }

    /// A transfer that gave its slot back is finished.
    fn ended(&self, good: bool, start: TransferStart) {
        self.counts.ended(Some(good), start.drains_before, &self.coordinator);
    }

    /// Whether another transfer would be taken now.
    pub(crate) fn has_room(&self) -> bool {
        self.slots.has_room()
    }

    /// Transfers under way.
    pub(crate) fn taken(&self) -> usize {
        self.slots.taken()
    }

    /// Sleeps until the transfers of this pipe have ended that are under way now.
    pub(crate) fn drain(&self) {
        self.slots.drain(&self.coordinator, || self.resource.arm_all());
    }

    /// Whether parts that set out must be attended.
    pub(crate) fn has_attended(&self) -> bool {
        self.attended.load(Ordering::SeqCst) > 0
    }

    /// The thread that carries out a transfer of this pipe sleeps in the library.
    fn worker_blocked(&self, start: TransferStart) {
        self.slots.worker_blocked(start.number, &self.coordinator);
        self.counts.worker_blocked(start.drains_before, &self.coordinator);
    }

    /// Notes that a worker that slept goes on.
    fn worker_resumed(&self, start: TransferStart) {
        self.slots.worker_resumed(start.number);
        self.counts.worker_resumed(start.drains_before);
    }
}

impl Drop for PipeState {
    fn drop(&mut self) {
        // The epoll instance is the parent's, too, and the resource has a lock.
        if !self.coordinator.owner.is_here() {
            return;
        }
        if let Some(queue) = self.pipe.queue() {
            self.coordinator.remove_queue(queue);
        }
        self.resource.leave(self.flow);
    }
}

/// Who is told of the outcome.
pub(crate) enum Callback {
    /// A part of the library, by whoever completes: it neither blocks nor panics.
    Internal(Box<dyn FnOnce(Result<()>) + Send>),
    /// The caller's, which may do anything: by the coordinator's own thread.
    User(Box<dyn FnOnce(Result<()>) + Send>),
}

pub(crate) struct InFlightTransfer {
    pub(crate) pipe: Arc<PipeState>,
    /// The scheduler's name for it.
    pub(crate) request: u64,
    start: TransferStart,
    pub(crate) span: CheckedSpan,
    notifier: Option<Arc<CompletionNotifier>>,
    state: Mutex<State>,
    changed: Condvar,
    /// Threads that carry out parts of it and sleep in the library.
    asleep: AtomicU32,
}

#[derive(Default)]
struct State {
    /// What keeps others from the bytes until all parts are back.
    source: Option<Arc<RawLease>>,
    target: Option<Arc<RawLease>>,
    parts: Parts,
    finished: bool,
    outcome: Option<Result<()>>,
    waker: Option<Waker>,
    /// The thread that registered it.
    registered_by: usize,
    callback: Option<Callback>,
    sleepers: u32,
    /// Counted as one that the coordinator sees to.
    attended: bool,
}

impl InFlightTransfer {
    pub(crate) fn new(
        pipe: Arc<PipeState>,
        start: TransferStart,
        span: CheckedSpan,
        leases: Leases,
        notifier: Option<Arc<CompletionNotifier>>,
    ) -> Arc<Self> {
        let state = State { source: leases.0.map(Arc::new), target: leases.1.map(Arc::new), ..State::default() };
        Arc::new(InFlightTransfer {
            request: pipe.next_request.fetch_add(1, Ordering::Relaxed),
            pipe,
            start,
            span,
            notifier,
            state: Mutex::new(state),
            changed: Condvar::new(),
            asleep: AtomicU32::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics while it is held; a poisoned lock guards a state that is whole.
        self.state.lock()
    }

    /// Whether this is the process that started it.
    ///
    /// # Errors
    /// `Forked` in a child.
    #[inline]
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        self.pipe.coordinator.owner.check(operation)
    }

    /// It, among what a thread is in the middle of.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Foreign code that carries it out may not wait for it.
    ///
    /// # Errors
    /// `InvalidInput` there.
    #[inline]
    pub(crate) fn check_reentry(&self, operation: &'static str) -> Result<()> {
        let queue = || self.pipe.queue().is_some_and(|queue| queue.is_within());
        if !reentry::is_in_operation() || !(reentry::is_within(self.address()) || queue()) {
            return Ok(());
        }
        self.refuse_reentry(operation)
    }

    #[cold]
    fn refuse_reentry(&self, operation: &'static str) -> Result<()> {
        let why = "it was called by what carries the transfer out, which ends when that has returned";
        Err(Error::new(ErrorKind::InvalidInput, operation, why)
            .with_advice("leave the wait to another thread, or to a callback"))
    }

    /// A thread that carries out a part of it sleeps in the library.
    pub(crate) fn worker_blocked(&self) {
        if self.asleep.fetch_add(1, Ordering::SeqCst) == 0 {
            self.pipe.worker_blocked(self.start);
        }
    }

    /// Notes that a worker that slept goes on.
    pub(crate) fn worker_resumed(&self) {
        if self.asleep.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.pipe.worker_resumed(self.start);
        }
    }

    /// No thread waits for it: from now on the coordinator sees to it. False if it is finished.
    pub(crate) fn leave_to_coordinator(&self) -> bool {
        let mut state = self.lock();
        self.leave(&mut state);
        !state.finished
    }

    fn leave(&self, state: &mut State) {
        if !state.finished && !std::mem::replace(&mut state.attended, true) {
            // Before what is out already is attended.
            self.pipe.attended.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A part goes out.
    pub(crate) fn release(&self, last: bool) {
        self.lock().parts.release(last);
    }

    /// The part of `len` bytes at `at`, with its leases.
    ///
    /// # Errors
    /// None in practice: parts lie within their transfer.
    #[deny(clippy::arithmetic_side_effects)]
    pub(crate) fn job(&self, at: u64, len: u64) -> Result<Job> {
        let state = self.lock();
        let span = self.span.part(at, len)?.span();
        let part = |lease: &Option<Arc<RawLease>>| match lease {
            Some(lease) => lease.part(at, len).map(Some),
            None => Ok(None),
        };
        Ok(Job {
            token: self.request,
            span,
            source: part(&state.source)?,
            target: part(&state.target)?,
            notifier: None,
        })
    }

    pub(crate) fn part(self: &Arc<Self>, at: u64, len: u64) -> Result<Part> {
        let Job { span, source, target, .. } = self.job(at, len)?;
        // The last request of a part is that of the transfer only where there is one part.
        let notifier = self.notifier.clone().filter(|_| len == self.span.len);
        Ok(Part { at, span, source, target, sink: self.clone(), notifier })
    }

    /// Whether every part is on its way or back, so that waiting for the mover is waiting for this.
    pub(crate) fn is_all_out(&self) -> bool {
        self.lock().parts.is_released()
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.lock().finished
    }

    /// A part is back. The resource was told already; true where the rest is not worth carrying
    /// out.
    pub(crate) fn part_finished(&self, at: u64, len: u64, result: Result<()>) -> bool {
        self.lock().parts.finish_part(at, len, result)
    }

    /// What was not released never will be.
    pub(crate) fn drop_unreleased(&self, stopped: bool) {
        self.lock().parts.drop_unreleased(stopped);
    }

    /// Ends the transfer if all parts are back: leases go, then whoever waits hears of it. True if
    /// it ended now.
    pub(crate) fn finish_if_idle(&self) -> bool {
        let mut state = self.lock();
        if state.finished || !state.parts.is_over() {
            return false;
        }
        state.finished = true;
        if state.attended {
            self.pipe.attended.fetch_sub(1, Ordering::SeqCst);
        }
        let result = state.parts.outcome(self.span.len);
        self.pipe.record_since(self.start.since_ns, self.span.len, &result);
        self.pipe.left();
        let (source, target) = (state.source.take(), state.target.take());
        let (mut waker, callback) = (state.waker.take(), state.callback.take());
        // Memory that ends with its lease may have a keeper of the caller's, who is called below,
        // with the waker.
        let _hold = guard::defer_calls();
        drop((source, target));
        match callback {
            Some(callback) => {
                drop(state);
                self.call(callback, result);
            }
            None => {
                self.pipe.release_slot(self.start);
                if waker.is_some() && !thread_role::may_wake(state.registered_by) {
                    // Before it has ended: after that the thread that calls may be stopped.
                    let coordinator = &self.pipe.coordinator;
                    waker = waker.take().and_then(|waker| coordinator.wake_later(waker));
                }
                self.pipe.ended(result.is_ok(), self.start);
                state.outcome = Some(result);
                let sleepers = state.sleepers;
                drop(state);
                if sleepers > 0 {
                    self.wake_sleepers();
                }
            }
        }
        if let Some(waker) = waker {
            self.call_later(Call::Wake(waker));
        }
        true
    }

    /// Its place is free first, so that the callback can start another transfer; who drains waits
    /// for the callback.
    fn call(&self, callback: Callback, result: Result<()>) {
        let (pipe, good) = (&self.pipe, result.is_ok());
        pipe.release_slot(self.start);
        match callback {
            Callback::Internal(callback) => callback(result),
            Callback::User(callback) => {
                let counted = pipe.counts.calls_back(self.start.drains_before);
                let called = Called(pipe.clone(), counted);
                pipe.coordinator.call_out_later(Box::new(move || {
                    // Counted before it has called back: who drains finds it counted.
                    if let Err(panicked) = guard::call(ForeignCode::Callback, move || callback(result)) {
                        called.0.coordinator.troubles.panics().note(&panicked);
                    }
                    drop(called);
                }));
            }
        }
        pipe.ended(good, self.start);
    }

    /// Calls what is not ours when this thread is in the middle of nothing.
    fn call_later(&self, call: Call) {
        guard::call_or_defer(call, self.pipe.coordinator.troubles.panics().number());
    }

    fn wake_sleepers(&self) {
        self.changed.notify_all();
        self.pipe.coordinator.wake_blocked_waiters();
    }

    /// Sleeps until it is finished or has all its parts out.
    pub(crate) fn sleep(&self, until_out: bool) {
        let over = |state: &State| state.finished || until_out && state.parts.is_released();
        let coordinator = &self.pipe.coordinator;
        drop(coordinator.sleep_until(&self.state, &self.changed, |state| &mut state.sleepers, over));
    }

    /// Those who sleep until all parts are out look again.
    pub(crate) fn nudge(&self) {
        let sleepers = self.lock().sleepers;
        if sleepers > 0 {
            self.wake_sleepers();
        }
    }

    /// The result, once.
    pub(crate) fn take(&self) -> Option<Result<()>> {
        self.lock().outcome.take()
    }

    /// The result, or the waker is kept. Wakers are cloned and dropped without the lock: that is
    /// foreign code.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<Result<()>> {
        let mut state = self.lock();
        if let Some(result) = state.outcome.take() {
            return Some(result);
        }
        if !state.waker.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            drop(state);
            let mine = waker.clone();
            state = self.lock();
            if let Some(result) = state.outcome.take() {
                drop(state);
                self.call_later(Call::Drop(Box::new(mine)));
                return Some(result);
            }
            let before = state.waker.replace(mine);
            state.registered_by = thread_role::me();
            self.leave(&mut state);
            drop(state);
            if let Some(before) = before {
                self.call_later(Call::Drop(Box::new(before)));
            }
            return None;
        }
        state.registered_by = thread_role::me();
        self.leave(&mut state);
        None
    }

    /// Nobody polls any more.
    pub(crate) fn forget_waker(&self) {
        let waker = self.lock().waker.take();
        if let Some(waker) = waker {
            self.call_later(Call::Drop(Box::new(waker)));
        }
    }

    /// Keeps the callback, or gives it back with the result. `attended` says that the coordinator
    /// sees to it from now on.
    pub(crate) fn call_back(&self, callback: Callback, attended: bool) -> Option<(Callback, Result<()>)> {
        let mut state = self.lock();
        if let Some(result) = state.outcome.take() {
            return Some((callback, result));
        }
        state.callback = Some(callback);
        if attended {
            self.leave(&mut state);
        }
        None
    }
}

/// A callback that is to be called counts until this is dropped.
struct Called(Arc<PipeState>, u32);

impl Drop for Called {
    fn drop(&mut self) {
        self.0.counts.called_back(self.1, &self.0.coordinator);
    }
}
