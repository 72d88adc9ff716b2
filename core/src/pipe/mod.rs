//! Go: a pipe from one place to another (CIDR'23, section 5.2).
//!
//! There is one submit path and one completion path (`queue.rs`); the blocking flavor is a thin face on it. A transfer
//! between two memories has no queue: it is one call to the primitive, on the caller's core.

mod batch;
mod chain;
pub(crate) mod queue;
mod report;
pub(crate) mod staged;
mod watched;

pub use batch::{Batch, Finished};
pub use report::{HopReport, PlaceReport, Report};

use std::fmt;
use std::sync::Arc;

use crate::backend::{Ask, Constraints, Inline, Mover};
use crate::error::Result;
use crate::locator::Endpoint;
use crate::plan::{Leg, Plan, Route, Shape};
use crate::span::Span;
use crate::topology::Topology;
use chain::Chain;
use queue::Queue;
use staged::{Flight, Staged};

/// A one-way connection of two places. It holds the route that was chosen at connect.
///
/// Many threads may use one pipe at once. A pipe that is dropped waits for what it started.
pub struct Pipe {
    route: Route,
    body: Body,
    source: Endpoint,
    target: Endpoint,
}

/// What the runtime works with.
pub(crate) enum Carrier<'a> {
    /// A primitive that runs on the caller.
    Inline(&'a dyn Inline),
    /// A queue.
    Queue(&'a Arc<Queue>),
    /// Only the pipe as a whole: a route of several hops.
    Whole(&'a Pipe),
}

enum Body {
    Inline(Box<dyn Inline>),
    Queued(Arc<Queue>),
    Chain(Chain),
    Staged(Arc<Staged>),
}

/// A transfer that was started. Dropping it neither cancels the transfer nor frees its memory.
#[must_use = "a started transfer is complete when `wait` returns"]
#[derive(Debug)]
pub struct Transfer(State);

#[derive(Debug)]
enum State {
    Finished(Result<()>),
    Pending { queue: Arc<Queue>, token: u64 },
    Staged(Box<Flight>),
}

impl Transfer {
    /// Waits until the bytes are there.
    ///
    /// # Errors
    /// The transfer's own error, with the bytes done before it.
    pub fn wait(mut self) -> Result<()> {
        match std::mem::replace(&mut self.0, State::Finished(Ok(()))) {
            State::Finished(result) => result,
            State::Pending { queue, token } => queue.wait(token),
            State::Staged(flight) => flight.wait(),
        }
    }

    /// Whether [`wait`](Self::wait) would return at once. It asks the device, and does not block.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            State::Finished(_) => true,
            State::Pending { queue, token } => queue.is_done(*token),
            State::Staged(flight) => flight.is_done(),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let State::Pending { queue, token } = &self.0 {
            queue.forget(*token);
        }
    }
}

impl Pipe {
    pub(crate) fn open(plan: Plan, constraints: &Constraints, topology: &Topology) -> Result<Pipe> {
        let mut movers = Vec::with_capacity(plan.legs.len());
        for leg in &plan.legs {
            let ask = Ask { source: &leg.source, target: &leg.target, constraints, topology };
            let mover = leg.backend.open(&ask, leg.offer.primitive)?;
            movers.push((watched::watched(mover, &leg.target), leg));
        }
        let (source, target) = plan.ends;
        let body = match (plan.shape, movers.len()) {
            (Shape::Direct, 1) => match movers.pop() {
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
        Ok(Pipe { route: plan.route, body, source, target })
    }

    /// Moves a span; returns when the bytes are there.
    ///
    /// # Errors
    /// `OutOfRange`, `Busy`, `EndOfFile` where the source is shorter, `NoSpace`, `Device`; I/O errors carry errno, offset and
    /// the bytes done.
    #[inline]
    pub fn transfer(&self, span: Span) -> Result<()> {
        match &self.body {
            Body::Inline(inline) => inline.transfer(span),
            Body::Queued(queue) => queue.wait(queue.submit(span)?),
            Body::Chain(chain) => chain.transfer(span),
            Body::Staged(staged) => staged.start(span)?.wait(),
        }
    }

    /// Starts a transfer. Where the route has no queue, it is complete on return.
    ///
    /// # Errors
    /// `OutOfRange`, `Busy`: nothing was started.
    pub fn start(&self, span: Span) -> Result<Transfer> {
        Ok(Transfer(match &self.body {
            Body::Inline(inline) => State::Finished(inline.transfer(span)),
            Body::Queued(queue) => State::Pending { token: queue.submit(span)?, queue: queue.clone() },
            Body::Chain(chain) => State::Finished(chain.transfer(span)),
            Body::Staged(staged) => State::Staged(Box::new(staged.start(span)?)),
        }))
    }

    /// The two ends.
    pub(crate) fn ends(&self) -> (&Endpoint, &Endpoint) {
        (&self.source, &self.target)
    }

    pub(crate) fn carrier(&self) -> Carrier<'_> {
        match &self.body {
            Body::Inline(inline) => Carrier::Inline(&**inline),
            Body::Queued(queue) => Carrier::Queue(queue),
            Body::Chain(_) | Body::Staged(_) => Carrier::Whole(self),
        }
    }

    /// The queue, where the route is one.
    pub(crate) fn queue(&self) -> Option<&Arc<Queue>> {
        match &self.body {
            Body::Queued(queue) => Some(queue),
            Body::Inline(_) | Body::Chain(_) | Body::Staged(_) => None,
        }
    }

    /// The route, with reasons.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// What really happened so far.
    pub fn report(&self) -> Report {
        let counters = match &self.body {
            Body::Inline(inline) => vec![inline.counters()],
            Body::Queued(queue) => vec![queue.counters()],
            Body::Chain(chain) => chain.counters(),
            Body::Staged(staged) => return staged.report(&self.route),
        };
        Report::new(&self.route, counters)
    }
}

fn queue_of(queued: Box<dyn crate::backend::Queued>, leg: &Leg) -> Arc<Queue> {
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
