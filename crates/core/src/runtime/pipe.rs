//! A pipe of a runtime: how a transfer is started.

use std::fmt;
use std::os::fd::BorrowedFd;

use super::coordinator::event_source::{EventSource, Interest};
use super::handle::{self, Handle, Handles};
use super::options::ConnectOptions;
use super::resource::shared_resource::{AT_ONCE, SharedResource};
use super::schedule::{PriorityClass, ServiceLevel};
use super::state::RuntimeState;
use super::transfer::in_flight::{
    AlignmentEnd, Callback, InFlightTransfer, Leases, PartScheduler, PipeParts, PipeState,
};
use super::transfer_meter::TransferRecorders;
use crate::backend::CompletionNotifier;
use crate::error::{Error, ErrorKind, Result};
use crate::guard;
use crate::memory::Access;
use crate::pipe::queue::lease;
use crate::pipe::{Execution, Pipe, PipeReport};
use crate::plan::Route;
use crate::span::{CheckedSpan, Span};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// A pipe of a runtime. Many threads may use it at once.
#[derive(Clone)]
pub struct RuntimePipe {
    state: Arc<PipeState>,
    resource: Arc<SharedResource>,
    runtime: Arc<RuntimeState>,
    /// Whether short transfers may run on the caller.
    at_once: bool,
    /// The number of the one who counts the panics of callbacks of what ran on the caller.
    counts_panics: u32,
    service: ServiceLevel,
}

/// A transfer that was not started because the queue was full.
#[derive(Debug)]
#[non_exhaustive]
pub struct RefusedTransfer {
    /// What was to be moved.
    pub span: Span,
    /// Why it was not.
    pub error: Error,
}

impl fmt::Display for RefusedTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { source, target, len } = self.span;
        write!(f, "the transfer of {len} bytes from {source} to {target} was not started: {}", self.error)
    }
}

impl std::error::Error for RefusedTransfer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<RefusedTransfer> for Error {
    fn from(refused: RefusedTransfer) -> Error {
        refused.error
    }
}

impl RuntimePipe {
    /// A pipe of a runtime, for the service that is asked for.
    ///
    /// # Errors
    /// `Unsupported` where the rate asked for cannot be promised beside what was promised already;
    /// what the kernel says to its event.
    pub(super) fn connect(runtime: Arc<RuntimeState>, pipe: Pipe, options: &ConnectOptions) -> Result<RuntimePipe> {
        let queue = pipe.queue().filter(|queue| queue.event().is_some());
        // Engines are asked whether they are done, and have no event.
        let by_device = queue.is_some() || pipe.route().hops.iter().any(|hop| hop.quality.offload);
        if by_device && pipe.has_share() {
            let context =
                format!("{pipe:?}: a device moves its bytes, and threads serve it in common with other pipes");
            let error = Error::new(ErrorKind::Unsupported, "connect", context);
            return Err(error.with_advice("give the share to the runtime, or connect the pipe without one"));
        }
        let resource = runtime.resource(&pipe)?;
        let coordinator = runtime.coordinator.clone();
        if let Some(queue) = queue {
            coordinator.add_queue(queue)?;
        }
        let service = options.service.clone();
        let flow = resource.join(service.clone(), queue)?;
        // Callers have no part in a share.
        let may_be_inline = runtime.share.is_none() && !pipe.has_share();
        let at_once =
            may_be_inline && resource.workers().is_some() && service.at_most.is_none() && is_memory_copy(&pipe);
        let counts_panics = coordinator.troubles.panics().number();
        let state = PipeState::new(PipeParts {
            alignment: if pipe.ends().1.file().is_some() { AlignmentEnd::Target } else { AlignmentEnd::Source },
            pipe,
            coordinator,
            resource: resource.clone(),
            flow,
            queue: options.queue.unwrap_or(runtime.options.queue),
            counts: runtime.counts.clone(),
            next_request: runtime.next_request.clone(),
            recorders: TransferRecorders::new(
                runtime.latencies.as_ref().map(|latencies| latencies.of(service.class)),
                options.meter.clone(),
            ),
        });
        Ok(RuntimePipe { state: Arc::new(state), resource, runtime, at_once, counts_panics, service })
    }

    /// Starts a transfer; waits for room where the pipe's queue is full.
    ///
    /// # Errors
    /// `OutOfRange`, `Busy` (the bytes are held by somebody else, or the queue is full of transfers
    /// that end only when their callers return, of which this is one): nothing was started.
    #[inline]
    pub fn transfer(&self, span: Span) -> Result<Handle> {
        let span = self.state.pipe.check(span)?;
        datapipes_metrics::event!(Trace, "submit", [class = self.service.class.name(), len_bytes = span.len]);
        if self.runs_inline(span) { self.transfer_inline(span) } else { self.start(span, true) }
    }

    /// Starts a transfer, or gives its span back where the queue is full.
    ///
    /// # Errors
    /// As [`transfer`](Self::transfer), and `Busy` where the queue is full.
    #[allow(clippy::result_large_err)]
    pub fn try_transfer(&self, span: Span) -> std::result::Result<Handle, RefusedTransfer> {
        let started = |span| if self.runs_inline(span) { self.transfer_inline(span) } else { self.start(span, false) };
        self.state.pipe.check(span).and_then(started).map_err(|error| RefusedTransfer { span, error })
    }

    /// Starts transfers, and gives one handle for all. Where the iterator knows its length, up to
    /// 64 spans are taken from it before they go to the device together: one call of the kernel
    /// starts them all. So it must not wait for what it gave. Of other iterators (a channel's, a
    /// filter's) each transfer is started before the next span is asked for.
    ///
    /// # Errors
    /// The first error of starting; what was started before it is carried out. So is what an
    /// iterator gave before it panicked.
    pub fn transfer_all(&self, spans: impl IntoIterator<Item = Span>) -> Result<Handles> {
        start_all(spans.into_iter().map(|span| (self, span)))
    }

    /// Starts transfers, those for a device together, and gives each its handle, or the error of
    /// starting it. Where the iterator panics, nothing is started.
    pub fn transfer_each(&self, spans: impl IntoIterator<Item = Span>) -> Vec<Result<Handle>> {
        let spans: Vec<Span> = spans.into_iter().collect();
        let mut outcomes = Vec::with_capacity(spans.len());
        for together in spans.chunks(AT_ONCE) {
            self.start_together(together, |outcome| {
                outcomes.push(outcome);
                true
            });
        }
        outcomes
    }

    /// Starts transfers, those for a device by one call, until `each` returns false.
    fn start_together(&self, spans: &[Span], mut each: impl FnMut(Result<Handle>) -> bool) {
        // No foreign code runs while something is prepared that nobody has queued: it might wait
        // for that.
        let _hold = guard::defer_calls();
        let mut prepared = Vec::with_capacity(spans.len());
        for span in spans {
            let started = self.state.pipe.check(*span).and_then(|span| match self.runs_inline(span) {
                true => self.transfer_inline(span),
                false => self.prepare_among(span, &mut prepared),
            });
            if !each(started) {
                break;
            }
        }
        self.resource.enqueue(&prepared);
    }

    /// Prepares a transfer that is to go with others.
    fn prepare_among(&self, span: CheckedSpan, prepared: &mut Vec<Arc<InFlightTransfer>>) -> Result<Handle> {
        let transfer = match self.prepare(span, false, None) {
            // No room, or bytes that an earlier one holds: those are started first, for they may
            // end.
            Err(error) if error.kind() == ErrorKind::Busy => {
                self.resource.enqueue(&std::mem::take(prepared));
                self.prepare(span, true, None)?
            }
            other => other?,
        };
        prepared.push(transfer.clone());
        Ok(Handle::transfer(transfer))
    }

    /// Whether it runs on the caller. Beside others that are held back, only what is in a hurry
    /// does.
    #[inline]
    fn runs_inline(&self, span: CheckedSpan) -> bool {
        self.at_once
            && span.len <= self.runtime.options.max_inline_bytes
            && (self.service.class == PriorityClass::Latency || !self.resource.has_backlog())
    }

    /// On the caller: a copy this short is over before another thread would have woken up.
    #[inline]
    fn transfer_inline(&self, span: CheckedSpan) -> Result<Handle> {
        let Execution::Inline(inline) = self.state.execution() else { return self.start(span, true) };
        if self.runtime.closed.load(Ordering::Relaxed) {
            self.runtime.check_open()?;
        }
        let since = self.state.time_of_start();
        match inline.transfer(span.span()) {
            // Nothing was moved: as for the others, the caller hears of it at once, and it does not
            // count.
            Err(e) if matches!(e.kind(), ErrorKind::OutOfRange | ErrorKind::Busy | ErrorKind::InvalidInput) => Err(e),
            result => {
                self.runtime.counts.at_once(result.is_ok());
                self.state.record_since(since, span.len, &result);
                Ok(Handle::finished(result, self.counts_panics))
            }
        }
    }

    fn start(&self, span: CheckedSpan, wait: bool) -> Result<Handle> {
        self.start_ringing(span, wait, None)
    }

    /// As `try_transfer`; `done` is called with the result. Where the device rings the notifier
    /// when it is done, nobody else is woken up for it: whoever hears it looks.
    #[allow(clippy::result_large_err)]
    pub(crate) fn try_transfer_notifying(
        &self,
        span: Span,
        notifier: &Arc<CompletionNotifier>,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> std::result::Result<(), RefusedTransfer> {
        let started = |span| match self.runs_inline(span) {
            true => self.transfer_inline(span),
            false => self.start_ringing(span, false, Some(notifier.clone())),
        };
        match self.state.pipe.check(span).and_then(started) {
            Ok(handle) => {
                handle.call_back(Callback::Internal(Box::new(done)), notifier.rings() == 0);
                Ok(())
            }
            Err(error) => Err(RefusedTransfer { span, error }),
        }
    }

    fn start_ringing(
        &self,
        span: CheckedSpan,
        wait: bool,
        notifier: Option<Arc<CompletionNotifier>>,
    ) -> Result<Handle> {
        // What setting out may complete on this thread is told when all is out.
        let _hold = guard::defer_calls();
        let transfer = self.prepare(span, wait, notifier)?;
        self.resource.enqueue(std::slice::from_ref(&transfer));
        Ok(Handle::transfer(transfer))
    }

    /// Makes a transfer with a slot and its leases, which the resource does not know yet.
    fn prepare(
        &self,
        span: CheckedSpan,
        wait: bool,
        notifier: Option<Arc<CompletionNotifier>>,
    ) -> Result<Arc<InFlightTransfer>> {
        self.runtime.check_open()?;
        // A look at the device may complete others.
        let _hold = guard::defer_calls();
        let pipe = &self.state;
        let start = pipe.acquire_slot(wait)?;
        // Again, after it is counted: either this sees that the runtime was shut down, or who shuts
        // it down waits for this.
        let leases = match self.runtime.check_open().and_then(|()| self.leases(span)) {
            Ok(leases) => leases,
            Err(e) => {
                pipe.count_refused(start);
                return Err(e);
            }
        };
        Ok(InFlightTransfer::new(pipe.clone(), start, span, leases, notifier))
    }

    /// Leases for the whole of a transfer, where its parts can work under them.
    fn leases(&self, span: CheckedSpan) -> Result<Leases> {
        let pipe = &self.state.pipe;
        match pipe.execution() {
            Execution::Queue(queue) => match queue.leases(span.span()) {
                Err(e) if e.kind() == ErrorKind::Busy => {
                    // A transfer whose handle was dropped may be done, with nobody to take note of
                    // it.
                    self.look();
                    queue.leases(span.span())
                }
                leases => leases,
            },
            Execution::Inline(inline) if inline.parts().is_some() => {
                let (source, target) = pipe.ends();
                let source = lease(source.memory(), span.source, span.len, Access::Read)?;
                let target = lease(target.memory(), span.target, span.len, Access::Write)?;
                Ok((source, target))
            }
            // These lease for themselves, part by part.
            Execution::Inline(_) | Execution::Whole(_) => Ok((None, None)),
        }
    }

    /// Whether [`try_transfer`](Self::try_transfer) would find room now.
    pub fn has_room(&self) -> bool {
        self.is_here() && self.state.has_room()
    }

    fn is_here(&self) -> bool {
        self.runtime.coordinator.owner.is_here()
    }

    /// Whether this is the process that connected it.
    ///
    /// # Errors
    /// `Forked` in a child.
    pub(crate) fn check_process(&self, operation: &'static str) -> Result<()> {
        self.runtime.coordinator.owner.check(operation)
    }

    /// Transfers under way.
    pub fn under_way(&self) -> usize {
        if self.is_here() { self.state.taken() } else { 0 }
    }

    /// As [`Handle::on_done`], for parts of the library: called by whoever completes.
    pub(crate) fn on_done_here(handle: Handle, done: impl FnOnce(Result<()>) + Send + 'static) {
        handle.call_back(Callback::Internal(Box::new(done)), true);
    }

    /// The coordinator, for who sleeps until something of this pipe is done.
    pub(crate) fn sleep_beside(&self, fd: BorrowedFd<'_>) {
        self.runtime.coordinator.sleep_beside(fd);
    }

    /// Has the coordinator look after a descriptor.
    pub(crate) fn add_attended(&self, other: Arc<dyn EventSource>) -> Result<()> {
        self.runtime.coordinator.add_source(other)
    }

    pub(crate) fn attend(&self, other: &dyn EventSource, interest: Interest) {
        self.runtime.coordinator.arm_source(other, interest);
    }

    pub(crate) fn forget(&self, other: &dyn EventSource) {
        self.runtime.coordinator.remove_source(other);
    }

    /// Stops everything that is under way as far as it was not begun: those transfers end as
    /// `Interrupted`. What a device or a thread has of them already is carried out; this does not
    /// wait for it.
    pub(crate) fn cancel_all(&self) {
        self.resource.cancel_all(self.state.flow);
    }

    /// The coordinator completes what is under way at this pipe's resource.
    pub(crate) fn attend_all(&self) {
        self.resource.arm_all();
    }

    /// Takes what the device is done with, without blocking.
    fn look(&self) {
        handle::poll_device(&self.state);
    }

    /// As [`look`](Self::look), also where another thread is at it: what was done before this call
    /// is told when it returns, or will be by a thread that sleeps until something is done.
    pub(crate) fn look_for_sure(&self) {
        handle::poll_device_synced(&self.state);
    }

    /// Returns when the transfers of this pipe have ended that were under way when it was called.
    /// Others may be started meanwhile, and are not waited for. Within what carries out a transfer
    /// it does as [`Runtime::drain`](crate::runtime::Runtime::drain).
    pub fn drain(&self) {
        if self.is_here() {
            self.state.drain();
        }
    }

    /// The route, with reasons.
    pub fn route(&self) -> &Route {
        self.state.pipe.route()
    }

    /// The service it was admitted for.
    pub fn service(&self) -> &ServiceLevel {
        &self.service
    }

    /// What really happened so far.
    pub fn report(&self) -> PipeReport {
        self.state.pipe.report()
    }
}

impl fmt::Debug for RuntimePipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runtime{:?}", self.state.pipe)
    }
}

/// Whether it copies between memories, on the caller where that is short.
fn is_memory_copy(pipe: &Pipe) -> bool {
    let (source, target) = pipe.ends();
    matches!(pipe.execution(), Execution::Inline(_)) && source.memory().is_some() && target.memory().is_some()
}

/// Starts transfers, those of a pipe that follow each other together.
pub(super) fn start_all<'a>(transfers: impl Iterator<Item = (&'a RuntimePipe, Span)>) -> Result<Handles> {
    let (mut gathered, mut handles) = (Gathered(Vec::new()), Vec::new());
    // One that does not know its length may wait for what it gave.
    let at_once = match transfers.size_hint() {
        (least, Some(most)) if least == most => AT_ONCE,
        _ => 1,
    };
    // The iterator is the caller's: nothing is held while it runs.
    for transfer in transfers {
        gathered.0.push(transfer);
        if gathered.0.len() == at_once {
            gathered.start(&mut handles)?;
        }
    }
    gathered.start(&mut handles)?;
    Ok(Handles::new(handles))
}

/// Transfers that an iterator gave, and that are not started yet.
struct Gathered<'a>(Vec<(&'a RuntimePipe, Span)>);

impl Gathered<'_> {
    fn start(&mut self, handles: &mut Vec<Handle>) -> Result<()> {
        let transfers = std::mem::take(&mut self.0);
        transfers.chunk_by(|(one, _), (next, _)| std::ptr::eq(*one, *next)).try_for_each(|of_pipe| {
            let spans: Vec<Span> = of_pipe.iter().map(|(_, span)| *span).collect();
            let Some((pipe, _)) = of_pipe.first() else { return Ok(()) };
            let mut first_error = Ok(());
            pipe.start_together(&spans, |outcome| match outcome {
                Ok(handle) => {
                    handles.push(handle);
                    true
                }
                Err(error) => {
                    first_error = Err(error);
                    false
                }
            });
            first_error
        })
    }
}

impl Drop for Gathered<'_> {
    /// The iterator panicked: what it gave before is carried out.
    fn drop(&mut self) {
        // Nobody is there to hear of an error.
        let _ = self.start(&mut Vec::new());
    }
}
