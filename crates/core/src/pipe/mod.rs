//! Go: a pipe from one place to another (CIDR'23, section 5.2).
//!
//! There is one submit path and one completion path (`queue.rs`); the blocking flavor is a thin
//! face on it. A transfer between two memories has no queue: it is one call to the primitive, on
//! the caller's core.

mod batch;
mod chain;
mod many;
pub(crate) mod queue;
mod report;
pub(crate) mod staged;
mod watched;

pub use batch::{Batch, Finished};
pub use report::{HopReport, PipeReport, PlaceReport};

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use datapipes_metrics::trace::{TraceLevel, follows};

use crate::backend::{Constraints, Counters, InlineMover, Mover, OfferQuery};
use crate::error::{Error, ErrorKind, Result};
use crate::locator::{Endpoint, EndpointHandle};
use crate::plan::{Leg, Plan, Planner, Route, RouteShape, Unopened};
use crate::process::OwningProcess;
use crate::span::{Begins, Bounds, CheckedSpan, MAX_OFFSET, Span};
use crate::thread_share::{LentShare, TransferShare};
use crate::topology::Topology;
use chain::Chain;
use queue::Queue;

/// A one-way connection of two places. It holds the route that was chosen at connect.
///
/// Many threads may use one pipe at once. A pipe that is dropped waits for what it started. In a
/// child that was made by `fork` it moves nothing (`Forked`), says that nothing was moved, and
/// waits for nothing.
///
/// ```
/// use datapipes::{Dram, Span, Ssd};
///
/// fn main() -> datapipes::Result<()> {
///     let machine = datapipes::discover();
///     let memory = Dram::allocate(1 << 20)?;
///     memory.lease_mut()?.fill(7);
///     let file = Ssd::unlinked_in(std::env::temp_dir())?;
///     let back = Dram::allocate(1 << 20)?;
///
///     let down = machine.connect(&memory, &file)?;
///     let up = machine.connect(&file, &back)?;
///     let all = Span { source: 0, target: 0, len: 1 << 20 };
///     down.transfer(all)?; // returns when all bytes were moved
///     up.transfer(all)?;
///     assert_eq!(back.lease()?[12_345], 7);
///     println!("{}", up.report()); // what really happened
///     Ok(())
/// }
/// ```
pub struct Pipe {
    route: Route,
    body: Body,
    source: Endpoint,
    target: Endpoint,
    bounds: Bounds,
    owner: OwningProcess,
    share: Option<Arc<TransferShare>>,
}

/// What the runtime works with.
pub(crate) enum Execution<'a> {
    /// A primitive that runs on the caller.
    Inline(&'a dyn InlineMover),
    /// A queue.
    Queue(&'a Arc<Queue>),
    /// Only the pipe as a whole: a route of several hops.
    Whole(&'a Pipe),
}

enum Body {
    Inline(Box<dyn InlineMover>),
    Queued(Arc<Queue>),
    Chain(Chain),
    Composite(Arc<dyn Composite>),
}

/// Several pipes that are used as one.
trait Composite: Send + Sync {
    /// Starts a transfer.
    fn start(self: Arc<Self>, span: CheckedSpan) -> Result<Box<dyn CompositeTransfer>>;

    /// What really happened so far, of a pipe with this route.
    fn report(&self, route: &Route) -> PipeReport;
}

/// A transfer of several pipes. If it is dropped, they see to it.
trait CompositeTransfer: fmt::Debug + Send + Sync {
    /// Waits for the whole transfer.
    fn wait(self: Box<Self>) -> Result<()>;

    /// Whether `wait` would return at once.
    fn is_done(&self) -> bool;
}

/// A transfer that was started. Dropping it neither cancels the transfer nor frees its memory.
#[must_use = "a started transfer is complete when `wait` returns"]
#[derive(Debug)]
pub struct Transfer {
    state: State,
    /// What the thread gets that completes it.
    share: Option<Arc<TransferShare>>,
}

#[derive(Debug)]
enum State {
    Done(Result<()>),
    Pending { queue: Arc<Queue>, token: u64 },
    Composite(Box<dyn CompositeTransfer>),
}

impl Transfer {
    /// Waits until the bytes are there.
    ///
    /// # Errors
    /// The transfer's own error, with the bytes done before it.
    pub fn wait(mut self) -> Result<()> {
        let _lent = self.share.as_ref().and_then(|share| share.lend_if_possible());
        match std::mem::replace(&mut self.state, State::Done(Ok(()))) {
            State::Done(result) => result,
            State::Pending { queue, token } => queue.wait(token),
            State::Composite(transfer) => transfer.wait(),
        }
    }

    /// Whether [`wait`](Self::wait) would return at once. It asks the device, and does not block.
    pub fn is_done(&self) -> bool {
        // Who asks an engine or several pipes may find that the rest is to be copied here.
        let may_copy = match &self.state {
            State::Done(_) => false,
            State::Pending { queue, .. } => queue.event().is_none(),
            State::Composite(_) => true,
        };
        let share = self.share.as_ref().filter(|_| may_copy);
        let _lent = share.and_then(|share| share.lend_if_possible());
        match &self.state {
            State::Done(_) => true,
            State::Pending { queue, token } => queue.is_done(*token),
            State::Composite(transfer) => transfer.is_done(),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let State::Pending { queue, token } = &self.state {
            queue.forget(*token);
        }
    }
}

impl Pipe {
    /// Opens the best route. Where a primitive that was offered cannot be opened (no descriptor is
    /// left, say, or a filter came since it was asked for), the next best route is taken, which
    /// says so.
    ///
    /// # Errors
    /// What planning says; what opening met first, if nothing can be opened.
    pub(crate) fn connect(planner: &Planner<'_>, source: &Endpoint, target: &Endpoint) -> Result<Pipe> {
        let mut failed: Vec<Unopened> = Vec::new();
        let mut first = None;
        loop {
            let plan = match (planner.plan(source, target, &failed), first.take()) {
                (Ok(plan), error) => {
                    first = error;
                    plan
                }
                (Err(_), Some(error)) => return Err(error),
                (Err(error), None) => return Err(error),
            };
            match Pipe::open(plan, planner.constraints, planner.topology) {
                Ok(pipe) => return Ok(pipe),
                // Who is at fault: the next would be refused the same.
                Err((_, error)) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::OutOfRange) => {
                    return Err(first.unwrap_or(error));
                }
                Err((primitive, error)) => {
                    failed.push(Unopened { primitive, why: error.to_string() });
                    first.get_or_insert(error);
                }
            }
        }
    }

    /// Opens a route; an error comes with the primitive that it was met at.
    fn open(plan: Plan, constraints: &Constraints, topology: &Topology) -> Result<Pipe, (&'static str, Error)> {
        let mut movers = Vec::with_capacity(plan.legs.len());
        for leg in &plan.legs {
            let ask = OfferQuery { source: &leg.source, target: &leg.target, constraints, topology };
            let primitive = leg.offer.primitive;
            let mover = leg.backend.open(&ask, primitive).map_err(|error| (primitive, error))?;
            movers.push((watched::watched(mover, &leg.target), leg));
        }
        let (source, target) = plan.ends;
        let body = match (plan.shape, movers.len()) {
            (RouteShape::Direct, 1) => match movers.pop() {
                Some((Mover::Inline(inline), _)) => Body::Inline(inline),
                Some((Mover::Queued(queued), leg)) => Body::Queued(queue_of(queued, leg)),
                None => unreachable!("the match is on a length of 1"),
            },
            (shape, _) => {
                let stages = movers.into_iter().map(|(mover, leg)| match mover {
                    Mover::Inline(inline) => chain::Stage::Inline(inline),
                    Mover::Queued(queued) => chain::Stage::Queued(queue_of(queued, leg)),
                });
                Body::Chain(Chain::new(shape, stages.collect(), plan.bounce))
            }
        };
        Ok(Pipe::new(plan.route, body, (source, target)))
    }

    fn new(route: Route, body: Body, (source, target): (Endpoint, Endpoint)) -> Pipe {
        // All that was opened or mapped of one file shares its watchers.
        let one_region = match (source.memory(), target.memory()) {
            (Some(source), Some(target)) => source.region().id() == target.region().id(),
            _ => false,
        };
        let one_file = match (source.watched(), target.watched()) {
            (Some((a, from)), Some((b, to))) if !one_region && Arc::ptr_eq(a, b) => {
                Some(Begins { source: from, target: to })
            }
            _ => None,
        };
        let bounds = Bounds { source: end_of(&source), target: end_of(&target), one_file };
        Pipe { route, body, source, target, bounds, owner: OwningProcess::here(), share: None }
    }

    /// The span, if it lies within both ends and this is the process that connected them: the door
    /// of every flavor. What is behind it cuts without looking again.
    ///
    /// # Errors
    /// `OutOfRange`; `InvalidInput` for a span of one file that overlaps itself; `Forked`.
    #[inline]
    pub(crate) fn check(&self, span: Span) -> Result<CheckedSpan> {
        self.owner.check("transfer")?;
        self.bounds.check(span).ok_or_else(|| self.outside(span))
    }

    #[cold]
    fn outside(&self, span: Span) -> Error {
        let fits = Bounds { one_file: None, ..self.bounds }.check(span).is_some();
        if fits && self.bounds.is_over_itself(span) {
            let context = format!("{span:?} overlaps itself in {}", self.source.facts.name);
            return Error::new(ErrorKind::InvalidInput, "transfer", context)
                .with_advice("move no more bytes than lie between the two offsets, or go by way of memory");
        }
        let within = |at: u64, end: u64| at.checked_add(span.len).is_some_and(|last| last <= end);
        let (at, end, place, side) = match within(span.source, self.bounds.source) {
            false => (span.source, self.bounds.source, &self.source, "from"),
            true => (span.target, self.bounds.target, &self.target, "to"),
        };
        let why = match end {
            MAX_OFFSET => "beyond the last offset that the kernel knows".to_owned(),
            end => format!("which ends at {end}"),
        };
        let context = format!("{} bytes at {at} {side} {}, {why}", span.len, place.facts.name);
        Error::new(ErrorKind::OutOfRange, "transfer", context)
    }

    /// Moves a span; returns when the bytes are there.
    ///
    /// # Errors
    /// `OutOfRange`, `Busy`, `EndOfFile` where the source is shorter, `NoSpace`, `Device`; I/O
    /// errors carry errno, offset and the bytes done.
    #[inline]
    pub fn transfer(&self, span: Span) -> Result<()> {
        let span = self.check(span)?;
        if follows(TraceLevel::Trace) { self.move_traced(span) } else { self.move_now(span) }
    }

    #[inline]
    fn move_now(&self, span: CheckedSpan) -> Result<()> {
        let _lent = self.lend()?;
        match &self.body {
            Body::Inline(inline) => inline.transfer(span.span()),
            Body::Queued(queue) => queue.wait(queue.submit(span.span())?),
            Body::Chain(chain) => chain.transfer(span),
            Body::Composite(pipes) => pipes.clone().start(span)?.wait(),
        }
    }

    #[cold]
    fn move_traced(&self, span: CheckedSpan) -> Result<()> {
        let route = self.route.primitives().join(" > ");
        let traced = datapipes_metrics::span!(Trace, "transfer", [route = route, len_bytes = span.len], empty: []);
        let result = self.move_now(span);
        traced.ended(result.is_ok());
        result
    }

    /// Starts a transfer. Where the route has no queue, it is complete on return.
    ///
    /// # Errors
    /// `OutOfRange`, `Busy`: nothing was started.
    pub fn start(&self, span: Span) -> Result<Transfer> {
        let span = self.check(span)?;
        let _lent = self.lend()?;
        let state = match &self.body {
            Body::Inline(inline) => State::Done(inline.transfer(span.span())),
            Body::Queued(queue) => State::Pending { token: queue.submit(span.span())?, queue: queue.clone() },
            Body::Chain(chain) => State::Done(chain.transfer(span)),
            Body::Composite(pipes) => State::Composite(pipes.clone().start(span)?),
        };
        let share = if matches!(state, State::Done(_)) { None } else { self.share.clone() };
        Ok(Transfer { state, share })
    }

    /// A descriptor that is readable when transfers that were started may be done: for programs
    /// that wait for several things, and then ask [`Transfer::is_done`] of each that they started
    /// here. It is only waited for: neither read nor written. `None` where the route has no queue
    /// with one.
    ///
    /// # Errors
    /// `Forked` in a child of the process that connected the pipe.
    pub fn event(&self) -> Result<Option<BorrowedFd<'_>>> {
        self.owner.check("watch")?;
        Ok(self.queue().and_then(|queue| queue.event()))
    }

    /// The two ends.
    pub(crate) fn ends(&self) -> (&Endpoint, &Endpoint) {
        (&self.source, &self.target)
    }

    pub(crate) fn execution(&self) -> Execution<'_> {
        match &self.body {
            Body::Inline(inline) => Execution::Inline(&**inline),
            Body::Queued(queue) => Execution::Queue(queue),
            Body::Chain(_) | Body::Composite(_) => Execution::Whole(self),
        }
    }

    /// The queue, where the route is one.
    pub(crate) fn queue(&self) -> Option<&Arc<Queue>> {
        match &self.body {
            Body::Queued(queue) => Some(queue),
            Body::Inline(_) | Body::Chain(_) | Body::Composite(_) => None,
        }
    }

    /// The route, with reasons.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// Notes in the route what the threads that serve the pipe get.
    pub(crate) fn note_threads(&mut self, share: &str) {
        self.route.thread_share = Some(share.to_owned());
    }

    /// The same pipe, whose transfers run with a share; `keeps_bytes` where that is how its bytes
    /// are kept out of the rest of the cache.
    pub(crate) fn with_share(mut self, share: Arc<TransferShare>, keeps_bytes: bool) -> Pipe {
        let why = match keeps_bytes {
            true => " (the bytes stay in this part of the cache, since no primitive can bypass the caches)",
            false => "",
        };
        self.route.transfer_share = Some(format!("{}{why}", share.summary()));
        self.share = Some(share);
        self
    }

    pub(crate) fn has_share(&self) -> bool {
        self.share.is_some()
    }

    /// Gives this thread the pipe's share, if it has one, until the result is dropped.
    #[inline]
    pub(crate) fn lend(&self) -> Result<Option<LentShare<'_>>> {
        self.share.as_ref().map(|share| share.lend()).transpose()
    }

    /// Whether a transfer that is started ([`start`](Self::start)) goes on by itself, as it does
    /// where there is an [`event`](Self::event) of its end. Otherwise the thread that starts it may
    /// carry it out, as by `pread`.
    pub fn is_queued(&self) -> bool {
        self.queue().is_some_and(|queue| queue.event().is_some())
    }

    /// Whether all loads and stores of a transfer are those of the thread that calls `transfer`.
    pub(crate) fn is_carried_out_by_caller(&self) -> bool {
        // Pages of a file come by the disk, and a place that reads itself has threads of its own.
        if self.source.memory().is_none() || self.target.memory().is_none() {
            return false;
        }
        match &self.body {
            Body::Inline(_) => true,
            Body::Chain(chain) => chain.is_inline(),
            Body::Queued(_) | Body::Composite(_) => false,
        }
    }

    /// What really happened so far.
    pub fn report(&self) -> PipeReport {
        if !self.owner.is_here() {
            return PipeReport::new(&self.route, self.route.hops.iter().map(|_| Counters::default()).collect());
        }
        let counters = match &self.body {
            Body::Inline(inline) => vec![inline.counters()],
            Body::Queued(queue) => vec![queue.counters()],
            Body::Chain(chain) => chain.counters(),
            Body::Composite(pipes) => return self.with_troubles(pipes.report(&self.route)),
        };
        self.with_troubles(PipeReport::new(&self.route, counters))
    }

    fn with_troubles(&self, mut report: PipeReport) -> PipeReport {
        if let Some(share) = &self.share {
            (report.share_troubles, report.first_share_trouble) = share.troubles();
        }
        report
    }
}

/// Where a place ends for spans. That a file may end before is found out by the transfer.
fn end_of(place: &Endpoint) -> u64 {
    match &place.handle {
        EndpointHandle::Memory(range) => range.len() as u64,
        EndpointHandle::Other(_) => place.facts.len.map_or(MAX_OFFSET, |len| len.min(MAX_OFFSET)),
        EndpointHandle::File(_) | EndpointHandle::Staging(_) | EndpointHandle::Reader(_) => MAX_OFFSET,
    }
}

fn queue_of(queued: Box<dyn crate::backend::QueuedMover>, leg: &Leg) -> Arc<Queue> {
    Arc::new(Queue::new(queued, leg.source.memory().cloned(), leg.target.memory().cloned()))
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipe({} -> {} by {:?})", self.route.source, self.route.target, self.route.primitives())
    }
}

#[cfg(all(test, shuttle))]
pub(crate) mod schedules;
#[cfg(test)]
mod tests;
