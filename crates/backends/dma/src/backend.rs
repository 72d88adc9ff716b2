//! The dsa backend: Intel's engines through the kernel's driver `idxd`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use datapipes_core::Result;
use datapipes_core::backend::{Backend, Knob, Mover, Offer, OfferQuery, Primitive};
use datapipes_core::topology::Topology;

use crate::cost::MoveCost;
use crate::discovery::{QueueDiscovery, WorkQueueFacts};
use crate::engines::EngineSet;
use crate::family::DSA;
use crate::portal::{DevicePortal, Portal};
use crate::work_queue::WorkQueue;

/// Moves bytes between places in memory by Intel's DMA engines.
pub struct DsaBackend(EngineSet);

impl DsaBackend {
    /// Makes the backend for this machine. It looks at sysfs and opens nothing.
    pub fn new(topology: &Topology) -> DsaBackend {
        let topology = topology.clone();
        let open = move |facts: &WorkQueueFacts| {
            DevicePortal::open(facts, &topology).map(|portal| Box::new(portal) as Box<dyn Portal>)
        };
        DsaBackend::with(QueueDiscovery::under(Path::new("/")), open)
    }

    /// Makes the backend for these queues, with another way to open their portals: a model of a
    /// device, in tests.
    pub fn with(
        found: QueueDiscovery,
        open: impl Fn(&WorkQueueFacts) -> Result<Box<dyn Portal>> + Send + Sync + 'static,
    ) -> DsaBackend {
        DsaBackend(EngineSet::new(&DSA, found, open))
    }

    /// The same with these costs, by which the planner compares it with a core.
    #[must_use]
    pub fn with_cost(self, cost: MoveCost) -> DsaBackend {
        DsaBackend(EngineSet { cost, ..self.0 })
    }

    /// The same with the costs that `load` returns, which is called only where there is a queue.
    #[must_use]
    pub fn calibrated_by(self, load: impl FnOnce() -> Option<MoveCost>) -> DsaBackend {
        let cost = if self.0.found.usable.is_empty() { None } else { load() };
        DsaBackend(EngineSet { cost: cost.unwrap_or(self.0.cost), ..self.0 })
    }

    /// The same with another patience of its queues ([`WorkQueue::with_patience`]).
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> DsaBackend {
        DsaBackend(EngineSet { patience: Some(patience), ..self.0 })
    }

    /// The queues that were found, and what is absent.
    pub fn queues(&self) -> &QueueDiscovery {
        &self.0.found
    }

    /// Opens the best queue for memory on a NUMA node, or shares it with pipes that use it.
    ///
    /// # Errors
    /// `Unavailable` where there is no queue, or none can be opened, with the reasons.
    pub fn queue(&self, node: Option<u32>) -> Result<Arc<WorkQueue>> {
        self.0.queue(node)
    }

    /// Measures moves by the engine, by a core, and by both together, some milliseconds long.
    ///
    /// # Errors
    /// As [`queue`](Self::queue); the errors of the moves.
    pub fn measure(&self) -> Result<MoveCost> {
        self.0.measure()
    }
}

impl Backend for DsaBackend {
    fn name(&self) -> &'static str {
        self.0.family.backend
    }

    fn primitives(&self) -> Vec<Primitive> {
        self.0.primitives()
    }

    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer> {
        self.0.offers(ask)
    }

    fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover> {
        self.0.open(ask, primitive)
    }

    fn knobs(&self) -> Vec<Knob> {
        self.0.knobs()
    }
}
