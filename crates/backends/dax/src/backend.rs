//! The dax backend: its offers for a pair of places, and the movers that it opens.

use datapipes_core::backend::{Backend, Knob, Mover, Offer, OfferQuery, Primitive};
use datapipes_core::topology::Topology;
use datapipes_core::{Error, ErrorKind, Result};

use crate::guard::Guarded;
use crate::instructions::FlushInstructions;
use crate::mover::DaxMover;
use crate::offers::{self, Relation};

/// Moves bytes into, out of and between places in persistent memory by instructions of the caller's
/// core.
///
/// ```
/// use std::sync::Arc;
/// use datapipes_core::{Dram, Machine, Pmem, PmemOptions, Span, topology::Topology};
/// # let path = std::env::temp_dir().join(format!("datapipes-doc-dax-{}", std::process::id()));
/// let topology = Topology::discover();
/// let dax = datapipes_dax::DaxBackend::new(&topology);
/// let machine = Machine::new(topology, vec![Arc::new(dax)]);
/// let pmem = Pmem::open_with(&path, PmemOptions::default().len(1 << 20).emulated(true))?;
/// let dram = Dram::allocate(1 << 20)?;
/// dram.lease_mut()?.fill(7);
/// # if cfg!(target_arch = "x86_64") {
/// let pipe = machine.connect(&dram, &pmem)?;
/// pipe.transfer(Span { source: 0, target: 100, len: 10_000 })?;
/// assert_eq!(pmem.memory().to_vec()?[99..102], [0, 7, 7]);
/// assert!(pipe.route().to_string().contains("emulated"));
/// # }
/// # std::fs::remove_file(&path).map_err(|e| datapipes_core::Error::io("remove", e, "a file"))?;
/// # Ok::<(), datapipes_core::Error>(())
/// ```
pub struct DaxBackend {
    instructions: FlushInstructions,
}

impl DaxBackend {
    /// Makes the backend for the processor of this topology. An instruction counts only if this
    /// processor's CPUID reports it too. Nothing is installed in the process before a pipe is
    /// opened.
    pub fn new(topology: &Topology) -> DaxBackend {
        DaxBackend { instructions: FlushInstructions::detect(&topology.cpu) }
    }
}

impl Backend for DaxBackend {
    fn name(&self) -> &'static str {
        "dax"
    }

    fn primitives(&self) -> Vec<Primitive> {
        offers::primitives(&self.instructions)
    }

    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer> {
        Relation::of(ask).map_or_else(Vec::new, |relation| offers::offers(ask, relation, &self.instructions))
    }

    fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover> {
        let refuse = |why: &str| {
            let pair = format!("{} from {} to {}: {why}", primitive, ask.source.facts.name, ask.target.facts.name);
            Error::new(ErrorKind::Unsupported, "open", pair).with_advice("open only what was offered for the pair")
        };
        let relation = Relation::of(ask).ok_or_else(|| refuse("neither is persistent memory"))?;
        let work = relation.work(primitive, ask.constraints.bypass_processor_cache);
        let work = work.ok_or_else(|| refuse("it was not offered"))?;
        let guarded = Guarded::new(&self.instructions)?;
        let mover = DaxMover::new(guarded, work, ask.source, ask.target);
        Ok(Mover::Inline(Box::new(mover.ok_or_else(|| refuse("both must be memory"))?)))
    }

    fn knobs(&self) -> Vec<Knob> {
        let knob = |name: &str, value: Result<&'static str, String>| Knob {
            name: name.to_owned(),
            value: value.map_or_else(|why| format!("none: {why}"), str::to_owned),
            origin: "by CPUID".to_owned(),
        };
        vec![
            knob("pmem_flush", self.instructions.flush().map(|f| f.name())),
            knob("pmem_store", self.instructions.width().map(|w| w.name())),
        ]
    }
}
