//! The backend `gpu`: offers for the memory of GPUs, with memory of this process or of a GPU at the
//! other end.

use datapipes_core::backend::{Backend, Mover, Offer, OfferQuery, Primitive, Quality};
use datapipes_core::locator::Endpoint;
use datapipes_core::{Error, ErrorKind, Persistence, Result};

use crate::cost::{self, Way};
use crate::driver::{Driver, library};
use crate::hbm::Hbm;
use crate::mover::{GpuMover, GpuPath, HostSide, may_be_registered};

const UPLOAD: &str = "gpu-upload";
const DOWNLOAD: &str = "gpu-download";
const COPY: &str = "gpu-copy";
const PEER: &str = "gpu-peer";

/// Moves bytes to, from and between the memories of GPUs.
#[derive(Debug, Default)]
pub struct GpuBackend {
    _private: (),
}

impl GpuBackend {
    /// Makes the backend. The driver is loaded when memory of a device is first used.
    pub fn new() -> GpuBackend {
        GpuBackend::default()
    }
}

/// A pair of places that the backend deals with.
enum GpuPair<'a> {
    Upload(&'a Endpoint, Hbm),
    Download(Hbm, &'a Endpoint),
    Between(Hbm, Hbm),
}

impl GpuPair<'_> {
    fn of<'a>(ask: &OfferQuery<'a>) -> Option<GpuPair<'a>> {
        match (Hbm::of(ask.source), Hbm::of(ask.target)) {
            (None, Some(to)) if ask.source.memory().is_some() => Some(GpuPair::Upload(ask.source, to)),
            (Some(from), None) if ask.target.memory().is_some() => Some(GpuPair::Download(from, ask.target)),
            (Some(from), Some(to)) => Some(GpuPair::Between(from, to)),
            _ => None,
        }
    }
}

/// How the bytes of this process's memory are reached, in words.
fn way_of(host: &Endpoint) -> (Way, &'static str) {
    match host.memory().is_some_and(may_be_registered) {
        true => (
            Way::Registered,
            "a copy engine reaches the memory, which is registered in slices of 32 MiB as soon as that costs no more \
             than copies by a core through pinned buffers",
        ),
        false => (Way::Staged, "a core copies through pinned buffers, since the memory may lose pages"),
    }
}

fn offer(primitive: &'static str, verdict: std::result::Result<Quality, String>, why: &str) -> Offer {
    Offer { primitive, verdict, why: why.to_owned() }
}

impl Backend for GpuBackend {
    fn name(&self) -> &'static str {
        "gpu"
    }

    fn primitives(&self) -> Vec<Primitive> {
        let available = library::installed();
        let one = |name, what| Primitive { name, what, available: available.clone() };
        vec![
            one(UPLOAD, "copies memory of this process to memory of a GPU, by its copy engine"),
            one(DOWNLOAD, "copies memory of a GPU to memory of this process, by its copy engine"),
            one(COPY, "copies within the memory of a GPU"),
            one(PEER, "copies from the memory of a GPU to that of another"),
        ]
    }

    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer> {
        match GpuPair::of(ask) {
            None => Vec::new(),
            Some(GpuPair::Upload(host, to)) => {
                let (way, why) = way_of(host);
                vec![offer(UPLOAD, Ok(cost::over_bus(to.on(), way)), why)]
            }
            Some(GpuPair::Download(from, host)) => {
                let (way, why) = way_of(host);
                let verdict = match host.facts.persistence {
                    Persistence::OnCompletion => Err("what is written is not flushed to what survives".to_owned()),
                    _ => Ok(cost::over_bus(from.on(), way)),
                };
                vec![offer(DOWNLOAD, verdict, why)]
            }
            Some(GpuPair::Between(from, to)) => {
                let same = from.device() == to.device();
                let within = match same {
                    true => Ok(cost::within(from.on())),
                    false => Err("the two places are memory of different GPUs".to_owned()),
                };
                let across = match same {
                    true => Err("both places are memory of one GPU".to_owned()),
                    false => Ok(cost::over_bus(from.on(), Way::Registered)),
                };
                vec![
                    offer(COPY, within, "the device copies within its memory"),
                    offer(PEER, across, "the device copies to the other, or the driver does so by way of main memory"),
                ]
            }
        }
    }

    fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover> {
        // In a child nothing more is touched: locks may be held for ever there.
        Driver::get("connect")?;
        let path = match (GpuPair::of(ask), primitive) {
            (Some(GpuPair::Upload(host, to)), UPLOAD) => {
                host.memory().map(|range| GpuPath::Upload(HostSide::of(range, to.on()), to))
            }
            (Some(GpuPair::Download(from, host)), DOWNLOAD) => {
                host.memory().map(|range| GpuPath::Download(from.clone(), HostSide::of(range, from.on())))
            }
            (Some(GpuPair::Between(from, to)), COPY) if from.device() == to.device() => Some(GpuPath::Copy(from, to)),
            (Some(GpuPair::Between(from, to)), PEER) if from.device() != to.device() => Some(GpuPath::Peer(from, to)),
            _ => None,
        };
        let Some(path) = path else {
            let context = format!("{primitive} is not for {:?} and {:?}", ask.source, ask.target);
            return Err(Error::new(ErrorKind::Unsupported, "open", context));
        };
        Ok(Mover::Queued(Box::new(GpuMover::open(path)?)))
    }
}
