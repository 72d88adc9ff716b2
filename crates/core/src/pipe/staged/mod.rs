//! Pipes to and from a [`Staging`]: a pipe for each of its places, and the places that fill up or
//! fail on the way.
//!
//! ```text
//! start:  parts = the ledger says where; each part goes by its place's pipe, all at once
//! wait:   each part: arrived?  say so to the ledger
//!                    the place is full, or broken, and this is a write?  tell the ledger, which finds another place;
//!                        what did not arrive goes there, from the source, which is leased until all has arrived
//!                    any other error?  that of the transfer, with place and offset
//! ```
//! A handle that is dropped leaves its transfer to the pipe, which sees it through at its next
//! start, or at its end.
#![deny(clippy::arithmetic_side_effects)]

mod order;

pub(crate) use order::by_cost;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::queue::lease;
use super::{Body, Composite, CompositeTransfer, Pipe, PipeReport, PlaceReport, Transfer};
use crate::error::{Error, ErrorKind, Result};
use crate::locator::{Endpoint, EndpointHandle, FilePlace, StagePart as Part, Staging};
use crate::locks::{Mutex, MutexGuard};
use crate::memory::{Access, MemoryRange, RawLease};
use crate::plan::{Planner, Route};
use crate::process::OwningProcess;
use crate::span::{CheckedSpan, Span};

/// Which end of the pipe the staging is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Target,
}

struct Staged {
    staging: Staging,
    side: Side,
    /// The pipes to each place.
    pipes: Vec<Pipe>,
    /// Bytes that arrived, by place.
    arrived: Vec<AtomicU64>,
    /// The other end, where it is memory.
    memory: Option<MemoryRange>,
    /// The source, where it is a file.
    source: Option<Arc<FilePlace>>,
    /// Transfers whose handle was dropped.
    orphans: Mutex<Vec<Moving>>,
    owner: OwningProcess,
}

/// A transfer under way.
struct StagedTransfer {
    staged: Arc<Staged>,
    moving: Mutex<Option<Moving>>,
}

struct Moving {
    span: CheckedSpan,
    legs: VecDeque<Leg>,
    /// Keeps the source as it is until all of it has arrived.
    _source: Option<RawLease>,
    /// How often a part may still move on to another place.
    tries: usize,
    /// The failure nearest to the start: its offset in the span.
    failure: Option<(u64, Error)>,
}

struct Leg {
    part: Part,
    transfer: Transfer,
}

/// The staging among two ends, and which it is; the target's, if both are.
fn staging_of<'a>(source: &'a Endpoint, target: &'a Endpoint) -> Option<(&'a Staging, Side)> {
    let to = target.staging().map(|s| (s, Side::Target));
    to.or_else(|| source.staging().map(|s| (s, Side::Source)))
}

/// The two ends of the pipe by one place of the staging.
fn ends<'a>(
    side: Side,
    place: &'a Endpoint,
    source: &'a Endpoint,
    target: &'a Endpoint,
) -> (&'a Endpoint, &'a Endpoint) {
    match side {
        Side::Source => (place, target),
        Side::Target => (source, place),
    }
}

/// What is open belongs to the process that opened it. (Memory whose stores reach no file is copied
/// for a child, who may use it.)
fn check_process(source: &Endpoint, target: &Endpoint) -> Result<()> {
    [source, target].into_iter().try_for_each(|end| match &end.handle {
        EndpointHandle::File(file) => file.write_observers().check_process("connect"),
        EndpointHandle::Memory(range) => {
            range.stored_file().map_or(Ok(()), |file| file.watchers.check_process("connect"))
        }
        EndpointHandle::Staging(_) => end.staging().map_or(Ok(()), |staging| staging.check_process("connect")),
        EndpointHandle::Reader(_) | EndpointHandle::Other(_) => Ok(()),
    })
}

/// The route between two places of any kind.
pub(crate) fn route(planner: &Planner<'_>, source: &Endpoint, target: &Endpoint) -> Result<Route> {
    check_process(source, target)?;
    let Some((staging, side)) = staging_of(source, target) else {
        return Ok(planner.plan(&source.of_what_it_maps(), &target.of_what_it_maps(), &[])?.route);
    };
    let by_place = staging.ends().map(|(_, place)| {
        let (source, target) = ends(side, place, source, target);
        route(planner, source, target)
    });
    let routes = by_place.collect::<Result<Vec<_>>>()?;
    Ok(together(staging, side, (source, target), routes.iter()))
}

/// Opens the pipe between two places of any kind.
pub(crate) fn connect(planner: &Planner<'_>, source: &Endpoint, target: &Endpoint) -> Result<Pipe> {
    check_process(source, target)?;
    let Some((staging, side)) = staging_of(source, target) else {
        return Pipe::connect(planner, &source.of_what_it_maps(), &target.of_what_it_maps());
    };
    let by_place = staging.ends().map(|(_, place)| {
        let (source, target) = ends(side, place, source, target);
        connect(planner, source, target)
    });
    let pipes = by_place.collect::<Result<Vec<_>>>()?;
    let route = together(staging, side, (source, target), pipes.iter().map(Pipe::route));
    let other = if side == Side::Target { source } else { target };
    let staged = Staged {
        staging: staging.clone(),
        side,
        arrived: pipes.iter().map(|_| AtomicU64::new(0)).collect(),
        pipes,
        memory: other.memory().cloned(),
        source: source.file().cloned(),
        orphans: Mutex::new(Vec::new()),
        owner: OwningProcess::here(),
    };
    Ok(Pipe::new(route, Body::Composite(Arc::new(staged)), (source.clone(), target.clone())))
}

/// The routes by all places as one, each hop with the reason for its place.
fn together<'a>(
    staging: &Staging,
    side: Side,
    (source, target): (&Endpoint, &Endpoint),
    routes: impl Iterator<Item = &'a Route>,
) -> Route {
    let (source, target) = (source.facts.name.clone(), target.facts.name.clone());
    let (hops, rejected) = (Vec::new(), Vec::new());
    let mut whole = Route { source, target, hops, rejected, thread_share: None, transfer_share: None };
    for (place, route) in routes.enumerate() {
        let mut hops = route.hops.clone();
        let name = staging.name_of(place);
        match side {
            Side::Source => hops.iter_mut().take(1).for_each(|hop| hop.from = name.to_owned()),
            Side::Target => hops.iter_mut().rev().take(1).for_each(|hop| hop.to = name.to_owned()),
        }
        for hop in &mut hops {
            hop.why = format!("{name} is {}; {}", staging.rank_of(place), hop.why);
        }
        whole.hops.append(&mut hops);
        whole.rejected.extend(route.rejected.iter().cloned());
    }
    whole
}

impl Composite for Staged {
    fn start(self: Arc<Self>, span: CheckedSpan) -> Result<Box<dyn CompositeTransfer>> {
        self.tend_orphans(false);
        self.check_source(span)?;
        let source = match self.side {
            Side::Target => lease(self.memory.as_ref(), span.source, span.len, Access::Read)?,
            Side::Source => None,
        };
        let tries = self.pipes.len().saturating_add(1).saturating_mul(4);
        let mut moving = Moving { span, legs: VecDeque::new(), _source: source, tries, failure: None };
        if let Err(e) = self.launch(&mut moving, self.range(span)) {
            self.advance(&mut moving, true);
            return Err(e);
        }
        Ok(Box::new(StagedTransfer { staged: self, moving: Mutex::new(Some(moving)) }))
    }

    fn report(&self, route: &Route) -> PipeReport {
        let hops = self.pipes.iter().flat_map(|pipe| pipe.report().hops);
        // The names are those of the whole route, hop by hop.
        let hops = hops.zip(&route.hops).map(|(mut hop, named)| {
            (hop.from, hop.to) = (named.from.clone(), named.to.clone());
            hop
        });
        let mut report = PipeReport::new(route, Vec::new());
        report.hops = hops.collect();
        let uses = self.staging.uses_as_given();
        report.places = uses
            .into_iter()
            .zip(&self.arrived)
            .map(|(used, bytes)| PlaceReport { bytes: bytes.load(Relaxed), place: used })
            .collect();
        report
    }
}

impl Staged {
    /// No places are found for bytes that a file does not have.
    fn check_source(&self, span: CheckedSpan) -> Result<()> {
        let (Side::Target, Some(file)) = (self.side, &self.source) else { return Ok(()) };
        let (has, end) = (file.len()?, span.source.saturating_add(span.len));
        if end <= has || span.len == 0 || !file.len_is_exact()? {
            return Ok(());
        }
        let context = format!("{} bytes of {}, which has {has}", span.len, file.path().display());
        Err(Error::end_of_source("read", context, has.max(span.source)).with_bytes_done(0))
    }

    /// Where a span lies in the staging.
    fn range(&self, span: CheckedSpan) -> Range<u64> {
        let at = if self.side == Side::Target { span.target } else { span.source };
        // The sum is that of a span that was checked.
        at..at.saturating_add(span.len)
    }

    /// How far a part is from the start of a transfer.
    fn within(&self, moving: &Moving, part: &Part) -> u64 {
        // Parts lie within their transfer.
        part.offset.saturating_sub(self.range(moving.span).start)
    }

    /// Starts what lies in a range of the staging, by the pipes of the places where it lies.
    fn launch(&self, moving: &mut Moving, range: Range<u64>) -> Result<()> {
        let parts = match self.side {
            Side::Source => self.staging.readable(range)?,
            Side::Target => self.staging.writable(range)?,
        };
        let mut parts = parts.into_iter();
        while let Some(part) = parts.next() {
            let span = moving.span.part(self.within(moving, &part), part.len).map(|whole| match self.side {
                Side::Source => Span { source: part.at, ..whole.span() },
                Side::Target => Span { target: part.at, ..whole.span() },
            });
            let started = match self.pipes.get(part.place) {
                Some(pipe) => span.and_then(|span| pipe.start(span)),
                None => Err(Error::new(ErrorKind::InvalidInput, "transfer", "a place that the pipe does not know")),
            };
            match started {
                Ok(transfer) => moving.legs.push_back(Leg { part, transfer }),
                Err(e) => {
                    self.staging.land(&[part]);
                    self.staging.land(parts.as_slice());
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Sees to what is done, or, with `wait`, to everything; true when nothing is under way any
    /// more.
    fn advance(&self, moving: &mut Moving, wait: bool) -> bool {
        while let Some(leg) = moving.legs.front() {
            if !wait && !leg.transfer.is_done() {
                return false;
            }
            let Some(Leg { part, transfer }) = moving.legs.pop_front() else { break };
            let result = transfer.wait();
            self.staging.land(std::slice::from_ref(&part));
            let (done, error) = match result {
                Ok(()) => (part.len, None),
                // After an error of the device nothing of the part is trusted; of a full one, what
                // it took.
                Err(e) if e.kind() == ErrorKind::NoSpace => (whole_pages(e.bytes_done().min(part.len)), Some(e)),
                Err(e) => (0, Some(e)),
            };
            self.count(&part, done);
            if let Some(error) = error {
                let rest = part.after(done);
                self.failed(moving, &rest, error);
            }
        }
        true
    }

    /// A part did not arrive: it goes to another place, or the transfer has failed.
    fn failed(&self, moving: &mut Moving, part: &Part, error: Error) {
        let of_place = error.kind() == ErrorKind::NoSpace && self.side == Side::Target
            || error.kind() == ErrorKind::Device && self.is_certainly_of_place(&error);
        let mut refused = None;
        if of_place && self.side == Side::Target && moving.tries > 0 {
            moving.tries = moving.tries.saturating_sub(1);
            self.staging.moves_on(part, &error);
            match self.launch(moving, part.range()) {
                Ok(()) => return,
                Err(e) => refused = Some(e),
            }
        } else if of_place {
            self.staging.failed(part.place, &error);
        }
        let done = if refused.is_some() { 0 } else { error.bytes_done() };
        let at = self.within(moving, part).saturating_add(done);
        if moving.failure.as_ref().is_none_or(|f| at < f.0) {
            moving.failure = Some((at, self.told(part, &error, refused)));
        }
    }

    /// Whether an error of a device is the place's. Only of memory at the other end is it certain
    /// that the error is not its own, and of memory that maps a file only where the kernel says so:
    /// it may have lost a page.
    fn is_certainly_of_place(&self, error: &Error) -> bool {
        let Some(memory) = &self.memory else { return false };
        match error.errno() {
            Some(libc::EFAULT | libc::EHWPOISON) => false,
            Some(_) => true,
            None => !memory.region().maps_file(),
        }
    }

    /// The error of a part as that of the transfer: with the place, and why no other took it.
    fn told(&self, part: &Part, error: &Error, refused: Option<Error>) -> Error {
        let (operation, place) = match self.side {
            Side::Source => ("read", self.staging.name_of(part.place)),
            Side::Target => ("write", self.staging.name_of(part.place)),
        };
        let mut context = format!("{place} at {} (offset {} of the staging): {error}", part.at, part.offset);
        if let Some(refused) = refused {
            context = format!("{context}; and no other place took it: {refused}");
        }
        let told = Error::new(error.kind(), operation, context).with_offset(part.offset);
        match error.errno() {
            Some(errno) => told.with_errno(errno),
            None => told,
        }
    }

    fn count(&self, part: &Part, bytes: u64) {
        if let Some(arrived) = self.arrived.get(part.place) {
            arrived.fetch_add(bytes, Relaxed);
        }
    }

    /// Sees to transfers whose handles were dropped.
    fn tend_orphans(&self, wait: bool) {
        let mut orphans = self.lock_orphans();
        if orphans.is_empty() {
            return;
        }
        let mut mine = std::mem::take(&mut *orphans);
        drop(orphans);
        mine.retain_mut(|moving| !self.advance(moving, wait));
        self.lock_orphans().append(&mut mine);
    }

    fn lock_orphans(&self) -> MutexGuard<'_, Vec<Moving>> {
        self.orphans.lock()
    }
}

/// As many bytes of these as whole pages have.
fn whole_pages(bytes: u64) -> u64 {
    bytes & !4095
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            return;
        }
        self.tend_orphans(true);
    }
}

impl StagedTransfer {
    fn lock(&self) -> MutexGuard<'_, Option<Moving>> {
        self.moving.lock()
    }
}

impl CompositeTransfer for StagedTransfer {
    fn wait(self: Box<Self>) -> Result<()> {
        self.staged.owner.check("wait")?;
        let Some(mut moving) = self.lock().take() else { return Ok(()) };
        self.staged.advance(&mut moving, true);
        match moving.failure {
            None => Ok(()),
            Some((at, error)) => Err(error.with_bytes_done(at)),
        }
    }

    fn is_done(&self) -> bool {
        if !self.staged.owner.is_here() {
            // `wait` says so, at once.
            return true;
        }
        self.lock().as_mut().is_none_or(|moving| self.staged.advance(moving, false))
    }
}

impl Drop for StagedTransfer {
    fn drop(&mut self) {
        if !self.staged.owner.is_here() {
            return;
        }
        if let Some(mut moving) = self.lock().take()
            && !self.staged.advance(&mut moving, false)
        {
            self.staged.lock_orphans().push(moving);
        }
    }
}

impl fmt::Debug for StagedTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagedTransfer({:?})", self.staged.staging)
    }
}
