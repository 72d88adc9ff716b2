//! A transfer that the runtime carries out, part by part.

use std::task::Waker;

use super::pipe_state::PipeState;
use super::thread_role;
use crate::backend::{CompletionNotifier, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, Call, ForeignCode, reentry};
use crate::memory::RawLease;
use crate::pipe::queue::{Part, PartSink};
use crate::span::CheckedSpan;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};

/// On the source and on the target, where they are in memory.
pub(crate) type Leases = (Option<RawLease>, Option<RawLease>);

/// Who is told of the outcome.
pub(crate) enum Callback {
    /// A part of the library, by whoever completes: it neither blocks nor panics.
    Internal(Box<dyn FnOnce(Result<()>) + Send>),
    /// The caller's, which may do anything: by the coordinator's own thread.
    User(Box<dyn FnOnce(Result<()>) + Send>),
}

pub(crate) struct InFlightTransfer {
    pub(crate) line: Arc<PipeState>,
    /// The scheduler's name for it.
    pub(crate) request: u64,
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
    /// Parts at a device or a thread.
    out: u32,
    /// No part will follow.
    released: bool,
    /// The error nearest to the start of the span.
    failure: Option<(u64, Error)>,
    stopped: bool,
    /// Bytes of the parts that came back whole.
    moved: u64,
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
        line: Arc<PipeState>,
        request: u64,
        span: CheckedSpan,
        leases: Leases,
        notifier: Option<Arc<CompletionNotifier>>,
    ) -> Arc<Self> {
        let state = State { source: leases.0.map(Arc::new), target: leases.1.map(Arc::new), ..State::default() };
        Arc::new(InFlightTransfer {
            line,
            request,
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
        self.line.resource.coordinator.owner.check(operation)
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
        let queue = || self.line.pipe.queue().is_some_and(|queue| queue.is_within());
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
            self.line.worker_blocked();
        }
    }

    /// It goes on.
    pub(crate) fn worker_resumed(&self) {
        if self.asleep.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.line.worker_resumed();
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
            self.line.add_attended();
        }
    }

    /// A part goes out.
    pub(crate) fn release(&self, last: bool) {
        let mut state = self.lock();
        state.out += 1;
        state.released |= last;
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
        self.lock().released
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.lock().finished
    }

    /// A part is back. The resource was told already; true where the rest is not worth carrying
    /// out.
    pub(crate) fn part_finished(&self, at: u64, len: u64, result: Result<()>) -> bool {
        let mut state = self.lock();
        state.out -= 1;
        let failed = result.is_err();
        match result {
            Ok(()) => state.moved += len,
            Err(e) => {
                let nearer = state.failure.as_ref().is_none_or(|f| at < f.0);
                if nearer {
                    let done = at.saturating_add(e.bytes_done());
                    state.failure = Some((at, e.with_bytes_done(done)));
                }
            }
        }
        failed && !state.released
    }

    /// What was not released never will be.
    pub(crate) fn drop_unreleased(&self, stopped: bool) {
        let mut state = self.lock();
        state.released = true;
        state.stopped |= stopped;
    }

    /// Ends the transfer if all parts are back: leases go, then whoever waits hears of it. True if
    /// it ended now.
    pub(crate) fn finish_if_idle(&self) -> bool {
        let mut state = self.lock();
        if state.finished || !state.released || state.out > 0 {
            return false;
        }
        state.finished = true;
        if state.attended {
            self.line.end_attended();
        }
        let result = match state.failure.take() {
            Some((_, error)) => Err(error),
            None if state.stopped && state.moved < self.span.len => {
                Err(Error::new(ErrorKind::Interrupted, "transfer", "cancelled by the caller")
                    .with_bytes_done(state.moved))
            }
            None => Ok(()),
        };
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
                self.line.release_slot();
                if waker.is_some() && !thread_role::may_wake(state.registered_by) {
                    // Before it has ended: after that the thread that calls may be stopped.
                    let coordinator = &self.line.resource.coordinator;
                    waker = waker.take().and_then(|waker| coordinator.wake_later(waker));
                }
                self.line.ended(result.is_ok());
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
        let (line, good) = (&self.line, result.is_ok());
        line.release_slot();
        match callback {
            Callback::Internal(callback) => callback(result),
            Callback::User(callback) => {
                line.calls_back();
                let called = Called(line.clone());
                line.resource.coordinator.call_out_later(Box::new(move || {
                    // Counted before it has called back: who drains finds it counted.
                    if let Err(panicked) = guard::call(ForeignCode::Callback, move || callback(result)) {
                        called.0.resource.coordinator.troubles.panics().note(&panicked);
                    }
                    drop(called);
                }));
            }
        }
        line.ended(good);
    }

    /// Calls what is not ours when this thread is in the middle of nothing.
    fn call_later(&self, call: Call) {
        guard::call_or_defer(call, self.line.resource.coordinator.troubles.panics().number());
    }

    fn wake_sleepers(&self) {
        self.changed.notify_all();
        self.line.resource.coordinator.wake_blocked_waiters();
    }

    /// Sleeps until it is finished or has all its parts out.
    pub(crate) fn sleep(&self, until_out: bool) {
        let over = |state: &State| state.finished || until_out && state.released;
        let coordinator = &self.line.resource.coordinator;
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
struct Called(Arc<PipeState>);

impl Drop for Called {
    fn drop(&mut self) {
        self.0.called_back();
    }
}

impl PartSink for InFlightTransfer {
    fn part_done(&self, at: u64, len: u64, result: Result<()>) {
        self.line.resource.finish_part(self, at, len, result);
    }

    fn deliveries_done(&self) {
        self.line.resource.dispatch();
    }
}
