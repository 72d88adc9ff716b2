//! The cpu backend: its offers, and the movers that it opens.

use std::sync::{Arc, LazyLock};

use datapipes_core::backend::{Backend, Knob, Mover, Offer, OfferQuery, Primitive};
use datapipes_core::locator::Reader;
use datapipes_core::memory::MemoryRange;
use datapipes_core::topology::Topology;
use datapipes_core::{Error, ErrorKind, Persistence, Result};

use crate::calibration::Calibration;
use crate::instructions::CopyInstructions;
use crate::kernel::{Copier, Kernel, LineInstruction, LineOp};
use crate::mover::{CopyMover, Ends, InPlaceAction, InPlaceMover, ReadMover};
use crate::offers::{self, COPY_BY_SIZE, LEAVE, LOAD, READ, Relation};

/// The prefetch distance for routes that bypass the caches, where calibration found prefetching no
/// faster.
const BYPASS_PREFETCH_BYTES: usize = 512;

/// Moves bytes between places in memory by instructions of the caller's core.
pub struct CpuBackend {
    instructions: CopyInstructions,
    calibration: LazyLock<Calibration, Box<dyn FnOnce() -> Calibration + Send>>,
}

impl CpuBackend {
    /// Makes the backend for the processor of this topology, with these costs. An instruction
    /// counts only if this processor's CPUID reports it too.
    pub fn new(topology: &Topology, calibration: Calibration) -> CpuBackend {
        CpuBackend::calibrated_by(topology, || calibration)
    }

    /// As [`new`](Self::new), with costs that are loaded when the first pipe is planned. A short
    /// program may plan none.
    pub fn calibrated_by(topology: &Topology, costs: impl FnOnce() -> Calibration + Send + 'static) -> CpuBackend {
        let calibration = LazyLock::new(Box::new(costs) as Box<dyn FnOnce() -> Calibration + Send>);
        CpuBackend { instructions: CopyInstructions::detect(&topology.cpu), calibration }
    }

    /// The costs that it decides by.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    fn copier(&self, ask: &OfferQuery<'_>, primitive: &str) -> Option<Copier> {
        let prefetch = self.calibration.prefetch_bytes;
        if primitive != COPY_BY_SIZE {
            return Copier::fixed(Kernel::from_name(primitive)?, prefetch, &self.instructions);
        }
        if ask.constraints.bypass_processor_cache {
            let kernel = self.calibration.non_temporal_kernel(&self.instructions)?;
            // Without prefetchnta, lines of the source would displace others, even if those of the
            // target do not.
            let prefetch = if prefetch == 0 { BYPASS_PREFETCH_BYTES } else { prefetch };
            return Copier::fixed(kernel, prefetch, &self.instructions);
        }
        Some(self.calibration.by_size(&self.instructions, offers::is_for_cache(ask)))
    }

    fn placement(&self, primitive: &str) -> Option<InPlaceAction> {
        let lines = |op| LineInstruction::new(op, &self.instructions).map(InPlaceAction::HandBack);
        match primitive {
            LOAD => Some(InPlaceAction::Load),
            LEAVE => Some(InPlaceAction::Leave),
            _ => [LineOp::Demote, LineOp::WriteBack, LineOp::Flush]
                .into_iter()
                .find(|op| op.name() == primitive)
                .and_then(lines),
        }
    }
}

/// The two memories of a query; `None` where an end is not memory.
fn memories<'a>(ask: &OfferQuery<'a>) -> Option<(&'a MemoryRange, &'a MemoryRange)> {
    Some((ask.source.memory()?, ask.target.memory()?))
}

/// A source that reads its own bytes, and the memory that it is to read into.
fn reads_itself<'a>(ask: &OfferQuery<'a>) -> Option<(&'a Arc<dyn Reader>, &'a MemoryRange)> {
    Some((ask.source.reader()?, ask.target.memory()?))
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn primitives(&self) -> Vec<Primitive> {
        offers::primitives(&self.instructions)
    }

    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer> {
        match memories(ask) {
            Some((source, target)) => {
                offers::offers(ask, Relation::of(ask, source, target), &self.calibration, &self.instructions)
            }
            None if reads_itself(ask).is_some() => vec![offers::read(ask)],
            None => Vec::new(),
        }
    }

    fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover> {
        let refuse = |why: &str| {
            let pair = format!("{} from {} to {}: {why}", primitive, ask.source.facts.name, ask.target.facts.name);
            Error::new(ErrorKind::Unavailable, "open", pair)
        };
        if let Some((source, target)) = reads_itself(ask)
            && primitive == READ
        {
            return Ok(Mover::Inline(Box::new(ReadMover::new(source.clone(), target.clone()))));
        }
        let (source, target) = memories(ask).ok_or_else(|| refuse("both must be memory"))?;
        let target_keeps = ask.target.facts.persistence == Persistence::OnCompletion;
        let target_core = ask.target.facts.core;
        let ends = Ends { source: source.clone(), target: target.clone(), target_core, target_keeps };
        match Relation::of(ask, source, target) {
            Relation::Separate => {
                let copier = self.copier(ask, primitive).ok_or_else(|| refuse("this processor lacks it"))?;
                Ok(Mover::Inline(Box::new(CopyMover::new(ends, copier))))
            }
            Relation::Persistent => Err(refuse("one of them is persistent, and this primitive does not flush")),
            Relation::Load | Relation::HandBack => {
                let placement = self.placement(primitive).ok_or_else(|| refuse("this processor lacks it"))?;
                // Only spans that are not in place are copied. Their target is a cache, or no cache
                // is wanted.
                let copier = self.calibration.by_size(&self.instructions, ask.target.facts.core.is_some());
                Ok(Mover::Inline(Box::new(InPlaceMover::new(ends, placement, copier))))
            }
        }
    }

    fn knobs(&self) -> Vec<Knob> {
        self.calibration.knobs()
    }
}
