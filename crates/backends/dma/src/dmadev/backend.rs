//! The dmadev backend: it starts DPDK when it is first asked, where the program wants that.

use std::ops::Range;
use std::sync::OnceLock;

use datapipes_core::backend::{Backend, Knob, Mover, Offer, OfferQuery, Primitive};
use datapipes_core::{Error, ErrorKind, Result};

use super::device::{self, OpenDevice};
use super::environment::{Environment, VARIABLE};
use super::portal::{DevicePages, DmadevPortal};
use crate::cost::MoveCost;
use crate::discovery::{QueueDiscovery, WorkQueueFacts};
use crate::engines::EngineSet;
use crate::family::DMADEV;
use crate::portal::Portal;

/// Loads what the device of this name costs.
type LoadCost = dyn Fn(&str) -> Option<MoveCost> + Send + Sync;

/// Moves bytes between places in memory by engines that DPDK drives.
pub struct DmadevBackend {
    /// The arguments for DPDK, where the program wants it.
    arguments: Option<Vec<String>>,
    software_counts: bool,
    load: Box<LoadCost>,
    /// Known once DPDK was started or refused.
    engines: OnceLock<EngineSet>,
}

impl DmadevBackend {
    /// Makes the backend as the variable `DATAPIPES_DMADEV` says: it holds DPDK's arguments,
    /// separated by blanks. Without it, DPDK is not loaded.
    ///
    /// Nothing is loaded or started before the backend is first asked for its primitives or offers.
    pub fn from_environment() -> DmadevBackend {
        let arguments = std::env::var(VARIABLE).ok();
        DmadevBackend::with(arguments.map(|text| text.split_whitespace().map(str::to_owned).collect()))
    }

    /// Makes the backend with these arguments for DPDK, such as `--no-huge` and
    /// `--vdev=dma_skeleton`.
    ///
    /// DPDK starts once in a process, with the arguments that come first.
    pub fn with_arguments(arguments: Vec<String>) -> DmadevBackend {
        DmadevBackend::with(Some(arguments))
    }

    fn with(arguments: Option<Vec<String>>) -> DmadevBackend {
        DmadevBackend { arguments, software_counts: false, load: Box::new(|_| None), engines: OnceLock::new() }
    }

    /// The same, but DPDK's device in software (`dma_skeleton`) counts as an engine where a
    /// caller requires one. For tests of what requires an engine.
    #[must_use]
    pub fn counting_software_devices(self) -> DmadevBackend {
        // What was found is found again, with this.
        DmadevBackend { software_counts: true, engines: OnceLock::new(), ..self }
    }

    /// The same with the costs that `load` returns for a device's name. It is called only where
    /// there is a device, and the first one's costs count for all.
    #[must_use]
    pub fn calibrated_by(self, load: impl Fn(&str) -> Option<MoveCost> + Send + Sync + 'static) -> DmadevBackend {
        DmadevBackend { load: Box::new(load), engines: OnceLock::new(), ..self }
    }

    /// The devices that were found, and what is absent. It starts DPDK, where the program wants it.
    pub fn devices(&self) -> &QueueDiscovery {
        &self.engines().found
    }

    /// Measures moves by the engine, by a core, and by both together, some milliseconds long.
    ///
    /// # Errors
    /// `Unavailable` where there is no device, or it cannot be opened; the errors of the moves.
    pub fn measure(&self) -> Result<MoveCost> {
        self.engines().measure()
    }

    fn engines(&self) -> &EngineSet {
        self.engines.get_or_init(|| {
            let started = match &self.arguments {
                None => Err(format!("DPDK is not started unless {VARIABLE} holds its arguments")),
                Some(arguments) => Environment::start(arguments),
            };
            let (found, has_engine) = match &started {
                Ok(environment) => device::discover(environment),
                Err(why) => (QueueDiscovery { usable: Vec::new(), absent: vec![why.clone()] }, false),
            };
            let cost = found.usable.first().and_then(|device| (self.load)(&device.name));
            let open = move |facts: &WorkQueueFacts| open(started.clone(), facts);
            let engines = EngineSet::new(&DMADEV, found, open);
            let is_offload = has_engine || self.software_counts;
            EngineSet { is_offload, cost: cost.unwrap_or(engines.cost), ..engines }
        })
    }
}

fn open(
    environment: std::result::Result<&'static Environment, String>,
    facts: &WorkQueueFacts,
) -> Result<Box<dyn Portal>> {
    let environment = environment.map_err(|why| Error::new(ErrorKind::Unavailable, "open", why))?;
    if !environment.is_here() {
        let why = "DPDK was started by a parent of this process";
        return Err(Error::new(ErrorKind::Forked, "open", why));
    }
    let device = OpenDevice::open(environment, &facts.name)?;
    Ok(Box::new(DmadevPortal::new(device, PagesOfProcess(environment), facts.size)))
}

/// The pages that all engines of the process share.
struct PagesOfProcess(&'static Environment);

impl DevicePages for PagesOfProcess {
    fn hold(&self, bytes: Range<usize>) -> std::result::Result<Vec<usize>, String> {
        self.0.hold_pages(bytes)
    }

    fn release(&self, held: &[usize]) {
        self.0.release_pages(held);
    }
}

impl Backend for DmadevBackend {
    fn name(&self) -> &'static str {
        DMADEV.backend
    }

    fn primitives(&self) -> Vec<Primitive> {
        self.engines().primitives()
    }

    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer> {
        self.engines().offers(ask)
    }

    fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover> {
        self.engines().open(ask, primitive)
    }

    fn knobs(&self) -> Vec<Knob> {
        self.engines().knobs()
    }
}
