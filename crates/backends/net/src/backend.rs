//! The backend `net`: offers for remote memory on one side and memory of this process on the other.

use datapipes_core::backend::{Backend, Mover, Offer, OfferQuery, Primitive, Quality};
use datapipes_core::locator::Endpoint;
use datapipes_core::{Constraints, Error, ErrorKind, Persistence, Result};
use datapipes_ucx::Ucx;

use crate::control::settings::{RemoteRights, RemoteTransport};
use crate::direct::{DirectMover, peer};
use crate::mover::{Direction, RemoteMover};
use crate::remote::RemotePlace;

const PUT: &str = "ucx-put";
const GET: &str = "ucx-get";
const VM_PUT: &str = "vm-put";
const VM_GET: &str = "vm-get";

/// Moves bytes between memory of this process and memory that other processes export.
#[derive(Debug, Default)]
pub struct UcxBackend {
    _private: (),
}

impl UcxBackend {
    /// Makes the backend. UCX is loaded when a [`Remote`](crate::Remote) is connected.
    pub fn new() -> UcxBackend {
        UcxBackend::default()
    }
}

/// Returns the remote place of a pair, and the direction seen from this process.
fn remote_of(ask: &OfferQuery<'_>) -> Option<(std::sync::Arc<RemotePlace>, Direction)> {
    match (ask.source.memory(), ask.target.memory()) {
        (Some(_), None) => Some((RemotePlace::of(ask.target)?, Direction::Put)),
        (None, Some(_)) => Some((RemotePlace::of(ask.source)?, Direction::Get)),
        _ => None,
    }
}

/// Why UCX must not use this memory, if it must not.
fn refusal(local: &Endpoint) -> Option<&'static str> {
    let region = local.memory()?.region();
    if region.maps_file() {
        return Some("a page that the file loses would end the process while UCX copies");
    }
    if region.is_shared() {
        return Some("memory that others share may lose pages while UCX copies: go through memory of this process");
    }
    None
}

/// Why bytes are not sure to be in the processor's caches, where the caller wants them there: a
/// network card that does not write to the caches (DDIO) writes to memory.
fn past_cache(transport: RemoteTransport, constraints: &Constraints) -> Option<&'static str> {
    let is_unknown = constraints.fill_processor_cache && transport == RemoteTransport::Network;
    is_unknown.then_some("whether a network card writes to the processor's caches is not known")
}

impl Backend for UcxBackend {
    fn name(&self) -> &'static str {
        "net"
    }

    fn primitives(&self) -> Vec<Primitive> {
        let available = Ucx::installed();
        let one = |name, what| Primitive { name, what, available: available.clone() };
        let by_kernel = match peer::absence() {
            None => Ok("system calls of this kernel".to_owned()),
            Some(why) => Err(why),
        };
        let direct = |name, what| Primitive { name, what, available: by_kernel.clone() };
        vec![
            direct(VM_PUT, "writes memory that another process of this machine exports, by the kernel"),
            direct(VM_GET, "reads memory that another process of this machine exports, by the kernel"),
            one(PUT, "writes memory that another process exports, by UCX"),
            one(GET, "reads memory that another process exports, by UCX"),
        ]
    }

    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer> {
        let Some((place, direction)) = remote_of(ask) else { return Vec::new() };
        let (by_ucx, by_kernel, local) = match direction {
            Direction::Put => (PUT, VM_PUT, ask.source),
            Direction::Get => (GET, VM_GET, ask.target),
        };
        let (latency_ns, bytes_per_s, how) = match place.facts.transport {
            RemoteTransport::SharedMemory => (20_000.0, 3e9, "shared memory"),
            RemoteTransport::Network => (60_000.0, 1e9, "a network transport"),
        };
        let quality = Quality {
            latency_ns,
            bytes_per_s,
            // This process's thread copies, also over TCP. With RDMA it would not.
            cpu_share: 1.0,
            offload: false,
            fills_processor_cache: true,
            fills_page_cache: false,
            measured: false,
        };
        let forbidden = match local.facts.persistence {
            _ if direction == Direction::Put && place.facts.rights == RemoteRights::Read => {
                Some("the key permits reading only")
            }
            Persistence::OnCompletion if direction == Direction::Get => {
                Some("what is written is not flushed to what survives")
            }
            _ => None,
        };
        let verdict = |quality, refusal: Option<&str>| match forbidden.or(refusal) {
            Some(why) => Err(why.to_owned()),
            None => Ok(quality),
        };
        let mut offers = vec![Offer {
            primitive: by_ucx,
            verdict: verdict(
                quality.clone(),
                refusal(local)
                    .or_else(|| past_cache(place.facts.transport, ask.constraints))
                    .or_else(|| Ucx::installed().err().map(|_| "UCX is not installed")),
            ),
            why: format!("UCX reaches the memory by {how}"),
        }];
        if place.facts.transport == RemoteTransport::SharedMemory {
            let quality = Quality { latency_ns: 1_000.0, bytes_per_s: 8e9, ..quality };
            offers.push(Offer {
                primitive: by_kernel,
                verdict: verdict(quality, peer::absence().map(|_| "the kernel does not copy between processes here")),
                why: "the kernel copies between this process and the holder, once".to_owned(),
            });
        }
        offers
    }

    fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover> {
        let Some((place, direction)) = remote_of(ask) else {
            let context = format!("{primitive} is for remote memory and memory of this process");
            return Err(Error::new(ErrorKind::Unsupported, "open", context));
        };
        if matches!(primitive, VM_PUT | VM_GET) {
            let local = if direction == Direction::Put { ask.source } else { ask.target };
            // `remote_of` found that it is memory.
            let Some(local) = local.memory() else {
                return Err(Error::new(ErrorKind::Unsupported, "open", format!("{primitive} is for memory")));
            };
            return Ok(Mover::Inline(Box::new(DirectMover::open(place, direction, local.clone())?)));
        }
        Ok(Mover::Queued(Box::new(RemoteMover::open(place, direction, ask.constraints)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_not_promised_to_fill_the_caches() {
        let fill = Constraints::default().fill_processor_cache(true);
        assert!(past_cache(RemoteTransport::Network, &fill).is_some());
        assert!(past_cache(RemoteTransport::SharedMemory, &fill).is_none());
        assert!(past_cache(RemoteTransport::Network, &Constraints::default()).is_none());
    }
}
