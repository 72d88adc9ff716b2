//! The engines of one family (DSA, or those of DPDK): their queues, offers, movers and costs.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use datapipes_core::backend::{Job, Knob, Mover, Offer, OfferQuery, Primitive, QueuedMover};
use datapipes_core::locks::Mutex;
use datapipes_core::memory::{Access, MemoryRange};
use datapipes_core::{Dram, Error, ErrorKind, Result, Span};

use crate::cost::{MoveCost, SplitCost};
use crate::discovery::{QueueDiscovery, WorkQueueFacts};
use crate::family::EngineFamily;
use crate::mover::{self, EngineMover, MoveOptions};
use crate::offers::{self, OfferedEngines};
use crate::portal::Portal;
use crate::split::SplitRates;
use crate::work_queue::WorkQueue;

/// Opens the portal of a queue.
pub type PortalOpener = dyn Fn(&WorkQueueFacts) -> Result<Box<dyn Portal>> + Send + Sync;

/// The engines of one family.
pub(crate) struct EngineSet {
    pub(crate) family: &'static EngineFamily,
    pub(crate) found: QueueDiscovery,
    /// Whether devices move the bytes, not a device in software.
    pub(crate) is_offload: bool,
    pub(crate) cost: MoveCost,
    pub(crate) patience: Option<Duration>,
    pub(crate) open_portal: Box<PortalOpener>,
    /// The queues that pipes use at the moment, which others share.
    pub(crate) open: Mutex<Vec<Weak<WorkQueue>>>,
}

impl EngineSet {
    pub(crate) fn new(
        family: &'static EngineFamily,
        found: QueueDiscovery,
        open: impl Fn(&WorkQueueFacts) -> Result<Box<dyn Portal>> + Send + Sync + 'static,
    ) -> EngineSet {
        EngineSet {
            family,
            found,
            is_offload: true,
            cost: MoveCost::ASSUMED,
            patience: None,
            open_portal: Box::new(open),
            open: Mutex::default(),
        }
    }

    /// Opens the best queue for memory on a NUMA node, or shares it with pipes that use it.
    ///
    /// # Errors
    /// `Unavailable` where there is no queue, or none can be opened, with the reasons.
    pub(crate) fn queue(&self, node: Option<u32>) -> Result<Arc<WorkQueue>> {
        let mut queues: Vec<&WorkQueueFacts> = self.found.usable.iter().collect();
        let rank = |facts: &WorkQueueFacts| (node.is_some() && facts.node == node, facts.priority, facts.size);
        queues.sort_by_key(|facts| std::cmp::Reverse(rank(facts)));
        let mut open = self.open.lock();
        open.retain(|queue| queue.strong_count() > 0);
        let mut reasons = self.found.absent.clone();
        for facts in queues {
            let shared =
                open.iter().filter_map(Weak::upgrade).find(|queue| queue.facts() == facts && queue.is_usable());
            if let Some(queue) = shared {
                return Ok(queue);
            }
            match (self.open_portal)(facts) {
                Ok(portal) => {
                    let queue = WorkQueue::new(facts.clone(), portal);
                    let queue = match self.patience {
                        Some(patience) => queue.with_patience(patience),
                        None => queue,
                    };
                    let queue = Arc::new(queue);
                    open.push(Arc::downgrade(&queue));
                    return Ok(queue);
                }
                Err(e) => reasons.push(e.to_string()),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "open", format!("{}: {}", self.family.queue, reasons.join("; "))))
    }

    /// Measures moves by the engine, by a core, and by both together, some milliseconds long.
    ///
    /// # Errors
    /// As [`queue`](Self::queue); the errors of the moves.
    pub(crate) fn measure(&self) -> Result<MoveCost> {
        const SHORT: (usize, u32) = (64, 256);
        const LONG: (usize, u32) = (16 << 20, 4);
        let options =
            MoveOptions { to_cache: false, core_may_help: false, depth: None, request_bytes: None, split: None };
        let queue = self.queue(None)?;
        let (source, target) = (Dram::allocate(LONG.0)?, Dram::allocate(LONG.0)?);
        let run = |mover: &EngineMover, (len, times): (usize, u32)| -> Result<f64> {
            let since = Instant::now();
            for token in 0..u64::from(times) {
                let source = Some(source.memory().range(0, len)?.raw_lease(Access::Read)?);
                let target = Some(target.memory().range(0, len)?.raw_lease(Access::Write)?);
                let span = Span { source: 0, target: 0, len: len as u64 };
                mover.submit(Job { token, span, source, target, notifier: None }).map_err(|(_job, e)| e)?;
                let mut done = Vec::new();
                mover.complete(true, &mut done)?;
                done.into_iter().try_for_each(|done| done.result)?;
            }
            Ok(since.elapsed().as_nanos() as f64 / f64::from(times))
        };
        let rate = |ns: f64| LONG.0 as f64 / ns.max(1.0) * 1e9;
        let mover = EngineMover::new(queue.clone(), options);
        run(&mover, SHORT)?;
        let latency_ns = run(&mover, SHORT)?;
        let bytes_per_s = rate(run(&mover, LONG)? - latency_ns);
        drop(mover);
        let engine = MoveCost { latency_ns, bytes_per_s, measured: true, split: None };
        let core_bytes_per_s = rate(copy_by_core(source.memory(), target.memory(), LONG.1)?);
        // At first as if they did not share the memory's rate; what they reach together is
        // measured.
        let split = SplitCost { core_bytes_per_s, bytes_per_s: bytes_per_s + core_bytes_per_s };
        let split_rates = Some(SplitRates::of(engine, split));
        let both = EngineMover::new(queue, MoveOptions { core_may_help: true, split: split_rates, ..options });
        let together = rate(run(&both, LONG)? - latency_ns);
        Ok(MoveCost { split: Some(SplitCost { bytes_per_s: together, ..split }), ..engine })
    }
}

/// Returns the nanoseconds that a core takes for a copy, in the way in which movers copy.
fn copy_by_core(source: &MemoryRange, target: &MemoryRange, times: u32) -> Result<f64> {
    let (source, target) = (source.raw_lease(Access::Read)?, target.raw_lease(Access::Write)?);
    let since = Instant::now();
    for _ in 0..times {
        mover::copy(&source, &target)?;
    }
    Ok(since.elapsed().as_nanos() as f64 / f64::from(times))
}

impl EngineSet {
    pub(crate) fn primitives(&self) -> Vec<Primitive> {
        offers::primitives(&self.offered())
    }

    pub(crate) fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer> {
        offers::offers(ask, &self.offered())
    }

    fn offered(&self) -> OfferedEngines<'_> {
        OfferedEngines { family: self.family, found: &self.found, cost: self.cost, is_offload: self.is_offload }
    }

    pub(crate) fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover> {
        let known = self.family.primitives.iter().find(|known| known.name == primitive);
        let Some(known) = known.filter(|_| offers::is_served(ask)) else {
            let pair = format!("{primitive} from {} to {}", ask.source.facts.name, ask.target.facts.name);
            return Err(
                Error::new(ErrorKind::Unsupported, "open", pair).with_advice("open only what was offered for the pair")
            );
        };
        let options = MoveOptions {
            to_cache: known.to_cache,
            core_may_help: !ask.constraints.require_offload,
            depth: ask.constraints.queue_depth,
            request_bytes: ask.constraints.request_bytes,
            split: self.cost.split.filter(|_| known.with_core).map(|split| SplitRates::of(self.cost, split)),
        };
        Ok(Mover::Queued(Box::new(EngineMover::new(self.queue(ask.target.facts.node)?, options))))
    }

    pub(crate) fn knobs(&self) -> Vec<Knob> {
        let knob = |queue: &WorkQueueFacts| Knob {
            name: format!("{}_{}", self.family.backend, queue.name),
            value: queue.summary(),
            origin: self.family.origin.to_owned(),
        };
        self.found.usable.iter().map(knob).collect()
    }
}
