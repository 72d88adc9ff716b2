//! A transfer of the runtime in the caller's hand.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::transfer::in_flight::{Callback, InFlightTransfer, PipeState};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, reentry};
use crate::pipe::Execution;
use crate::thread_role;

/// A transfer that the runtime carries out. It is a future, for any executor; it can be waited for,
/// tested, cancelled, or told to call back.
///
/// Where wakers run: on a thread of the runtime; within a poll of any future of the library; or on
/// the thread that registered them, whatever it calls there. A thread of the caller's that waits
/// for something else, or asks, is never made to run a waker, so it may hold a lock that the waker
/// wants while a device has its transfer.
///
/// A waker must not block for long nonetheless: it holds up other wakers and callbacks. Where
/// threads of the runtime carry transfers out (copies between memories, primitives that block), one
/// of those threads calls the waker and carries out nothing else meanwhile. So who waits for such a
/// transfer must hold no lock that a waker of another such transfer wants: with as many such wakers
/// as threads ([`RuntimeOptions::copiers`](super::RuntimeOptions::copiers),
/// [`RuntimeOptions::blocking`](super::RuntimeOptions::blocking)) all wait for ever. (Handing
/// wakers to another thread there made an awaited copy of 128 KiB two to four times as slow.)
/// Destructors of memory's keepers run on whichever thread drops the last reference.
///
/// Dropping it neither cancels the transfer nor frees its memory: the runtime carries it out, and
/// its result is lost.
#[must_use = "a transfer is complete when its handle says so; dropping the handle only forgets the result"]
pub struct Handle(State);

enum State {
    /// It was complete when it was started. A panic of its callback is counted by who has this
    /// number.
    Finished(Result<()>, u32),
    Moving(Arc<InFlightTransfer>),
    /// The result was given away.
    Taken,
}

/// What became of a transfer that was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It was complete before it could be stopped.
    Completed,
    /// It was stopped. Some of its parts were moved, not necessarily the first ones.
    Stopped {
        /// Bytes that were moved.
        bytes_moved: u64,
    },
}

impl Handle {
    pub(super) fn finished(result: Result<()>, counts_panics: u32) -> Handle {
        Handle(State::Finished(result, counts_panics))
    }

    pub(super) fn transfer(transfer: Arc<InFlightTransfer>) -> Handle {
        Handle(State::Moving(transfer))
    }

    /// Waits until the bytes are there. The thread completes the pipe's queue itself, as in the
    /// blocking flavor.
    ///
    /// # Errors
    /// The transfer's own error, with the bytes done before it; `InvalidInput` where the result was
    /// already given, by a poll, and within what carries the transfer out (a
    /// [`Reader`](crate::locator::Reader)), which would wait for itself.
    pub fn wait(mut self) -> Result<()> {
        match std::mem::replace(&mut self.0, State::Taken) {
            State::Finished(result, _) => result,
            State::Taken => Err(given()),
            State::Moving(transfer) => {
                transfer.check_process("wait")?;
                self.wait_for(&transfer, "wait")?;
                transfer.take().unwrap_or_else(|| Err(given()))
            }
        }
    }

    /// Whether [`wait`](Self::wait) would return at once. It does not block.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            State::Finished(..) | State::Taken => true,
            // In a child `wait` would fail, at once.
            State::Moving(transfer) if transfer.check_process("wait").is_err() => true,
            State::Moving(transfer) => {
                poll_device(&transfer.pipe);
                transfer.is_finished()
            }
        }
    }

    /// Has `callback` called with the result, once: by a thread of the runtime, or, where the
    /// transfer is complete already, by this one before `on_done` returns (within another callback:
    /// when that one has returned).
    ///
    /// A callback may call everything, and block: that holds up other callbacks, and nothing else.
    /// (Where the kernel refuses the thread that stands in for it, it holds up what nobody waits
    /// for; the runtime's report says so.) Within a callback, draining waits for transfers, not for
    /// callbacks. A panic of it is caught, and counted in the runtime's report.
    pub fn on_done(mut self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        if let State::Finished(..) = self.0
            && let State::Finished(result, counts_panics) = std::mem::replace(&mut self.0, State::Taken)
        {
            return guard::call_or_defer_callback(move || callback(result), counts_panics);
        }
        self.call_back(Callback::User(Box::new(callback)), true);
    }

    /// As [`on_done`](Self::on_done). The coordinator completes the transfer only if it is to
    /// attend to it.
    pub(super) fn call_back(mut self, callback: Callback, attended: bool) {
        match std::mem::replace(&mut self.0, State::Taken) {
            State::Finished(result, counts_panics) => call_now(callback, result, counts_panics),
            State::Taken => call_now(callback, Err(given()), 0),
            State::Moving(transfer) if transfer.check_process("wait").is_err() => {
                call_now(callback, transfer.check_process("wait"), 0);
            }
            State::Moving(transfer) => match transfer.call_back(callback, attended) {
                Some((callback, result)) => {
                    call_now(callback, result, transfer.pipe.coordinator.troubles.panics().number());
                }
                None if attended => attend(&transfer),
                None => {}
            },
        }
    }

    /// Returns when it is finished; where that cannot be waited for, the runtime has it as if its
    /// handle had been dropped.
    fn wait_for(&mut self, transfer: &Arc<InFlightTransfer>, operation: &'static str) -> Result<()> {
        let waited = wait_for(transfer, operation);
        if waited.is_err() {
            self.0 = State::Moving(transfer.clone());
        }
        waited
    }

    /// Stops the transfer as far as it was not begun, and returns when no device or thread touches
    /// its bytes any more.
    ///
    /// # Errors
    /// The transfer's own error, if it failed by itself; `InvalidInput` within what carries it out,
    /// which would wait for itself.
    pub fn cancel(mut self) -> Result<Cancelled> {
        match std::mem::replace(&mut self.0, State::Taken) {
            State::Finished(result, _) => result.map(|()| Cancelled::Completed),
            State::Taken => Err(given()),
            State::Moving(transfer) => {
                transfer.check_process("cancel")?;
                transfer.pipe.resource.cancel(&transfer);
                self.wait_for(&transfer, "cancel")?;
                match transfer.take().unwrap_or_else(|| Err(given())) {
                    Ok(()) => Ok(Cancelled::Completed),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {
                        Ok(Cancelled::Stopped { bytes_moved: e.bytes_done() })
                    }
                    Err(e) => Err(e),
                }
            }
        }
    }
}

/// Calls back for a transfer that is complete.
fn call_now(callback: Callback, result: Result<()>, counts_panics: u32) {
    match callback {
        Callback::Internal(callback) => callback(result),
        Callback::User(callback) => {
            guard::call_or_defer_callback(move || callback(result), counts_panics);
        }
    }
}

/// Returns when it is finished.
///
/// # Errors
/// `InvalidInput` within what carries it out.
fn wait_for(transfer: &Arc<InFlightTransfer>, operation: &'static str) -> Result<()> {
    if reentry::is_in_operation() && !transfer.is_finished() {
        // This thread sleeps, as all do who are called by what carries out a transfer: others may
        // have to know.
        transfer.check_reentry(operation)?;
        let resource = &transfer.pipe.resource;
        let _waiter = transfer.pipe.coordinator.begin_blocked_wait();
        resource.arm_all();
        transfer.sleep(false);
        transfer.check_process(operation)?;
    }
    while !transfer.is_finished() {
        match transfer.pipe.execution() {
            Execution::Queue(queue) if queue.event().is_some() => {
                if !transfer.is_all_out() {
                    transfer.pipe.resource.arm_all();
                    transfer.sleep(true);
                } else {
                    match queue.drive(|| transfer.is_finished()) {
                        Ok(false) => {}
                        Ok(true) => transfer.pipe.coordinator.arm(queue),
                        Err(e) if e.kind() == ErrorKind::Forked => {}
                        // A broken queue has told its parts; what was not released fails when it
                        // is.
                        Err(_) => transfer.sleep(false),
                    }
                }
            }
            _ => transfer.sleep(false),
        }
        // What was called meanwhile may have forked, and a child may look at nothing that has a
        // lock.
        transfer.check_process(operation)?;
    }
    Ok(())
}

/// Takes what is done, without blocking.
pub(super) fn poll_device(pipe: &PipeState) {
    if let Execution::Queue(queue) = pipe.execution()
        && queue.event().is_some()
        && queue.try_drive().unwrap_or(false)
    {
        pipe.coordinator.arm(queue);
    }
}

/// As `look`, also where another thread is at it.
pub(super) fn poll_device_synced(pipe: &PipeState) {
    if let Execution::Queue(queue) = pipe.execution()
        && queue.event().is_some()
        && queue.try_drive_synced().unwrap_or(false)
    {
        pipe.coordinator.arm(queue);
    }
}

/// The coordinator completes it, to whom it was left.
fn attend(transfer: &InFlightTransfer) {
    if let Execution::Queue(queue) = transfer.pipe.execution() {
        transfer.pipe.coordinator.arm(queue);
    }
}

fn given() -> Error {
    Error::new(ErrorKind::InvalidInput, "wait", "the result of this transfer was already given")
}

impl Future for Handle {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let State::Moving(transfer) = &self.0 else {
            return match std::mem::replace(&mut self.0, State::Taken) {
                State::Finished(result, _) => Poll::Ready(result),
                _ => Poll::Ready(Err(given())),
            };
        };
        if let Err(forked) = transfer.check_process("wait") {
            self.0 = State::Taken;
            return Poll::Ready(Err(forked));
        }
        if let Err(e) = transfer.check_reentry("wait")
            && !transfer.is_finished()
        {
            self.0 = State::Taken;
            return Poll::Ready(Err(e));
        }
        let polls = thread_role::polls();
        poll_device(&transfer.pipe);
        drop(polls);
        match transfer.poll(context.waker()) {
            Some(result) => {
                self.0 = State::Taken;
                Poll::Ready(result)
            }
            None => {
                // After the waker is known: an event that is due already fires at once.
                attend(transfer);
                Poll::Pending
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let State::Moving(transfer) = &self.0
            && transfer.check_process("wait").is_ok()
        {
            if transfer.leave_to_coordinator() {
                attend(transfer);
            }
            transfer.forget_waker();
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            State::Finished(result, _) => write!(f, "Handle({result:?})"),
            State::Taken => f.write_str("Handle(result given)"),
            State::Moving(transfer) => write!(f, "Handle({:?} of {:?})", transfer.span, transfer.pipe.pipe),
        }
    }
}

/// Transfers of one call, as one future.
#[must_use = "the transfers are complete when `wait` returns"]
#[derive(Debug)]
pub struct Handles(Vec<Handle>);

impl Handles {
    pub(super) fn new(handles: Vec<Handle>) -> Handles {
        Handles(handles)
    }

    /// The transfers, each by itself.
    pub fn into_each(self) -> Vec<Handle> {
        self.0
    }

    /// Waits for all of them.
    ///
    /// # Errors
    /// The first error, in the order of the spans; the others are waited for nevertheless.
    pub fn wait(self) -> Result<()> {
        self.0.into_iter().map(Handle::wait).fold(Ok(()), Result::and)
    }
}

impl Future for Handles {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut pending = false;
        for handle in &mut self.0 {
            if let State::Moving(_) = &handle.0 {
                match Pin::new(&mut *handle).poll(context) {
                    Poll::Ready(result) => handle.0 = State::Finished(result, 0),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            return Poll::Pending;
        }
        let handles = std::mem::take(&mut self.0);
        Poll::Ready(handles.into_iter().map(Handle::wait).fold(Ok(()), Result::and))
    }
}
