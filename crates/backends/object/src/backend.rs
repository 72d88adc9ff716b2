//! What is offered for a pair of places.

use std::sync::Arc;

use datapipes_core::backend::{Backend, Knob, Mover, Offer, OfferQuery, Primitive, Quality};
use datapipes_core::locator::{Endpoint, EndpointHandle};
use datapipes_core::{Error, ErrorKind, Persistence, Result};

use crate::costs::ASSUMED_RATE;
use crate::mover::{ObjectMover, RequestSettings};
use crate::options::ObjectOptions;
use crate::place::{ObjectPlace, Side};

const GET: &str = "object-get";
const PUT: &str = "object-put";

/// Seconds of a core for a byte, assumed: the kernel copies it once, and the mover once.
const CORE_SECONDS_PER_BYTE: f64 = 0.35e-9;
/// The most ranges or parts of one job that are under way at once.
const MAX_DEPTH: u32 = 256;

/// Moves bytes between objects and memory.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ObjectBackend {}

impl ObjectBackend {
    /// Makes the backend. Connections and credentials are those of the objects.
    pub fn new() -> ObjectBackend {
        ObjectBackend {}
    }
}

/// An object among the ends of a pipe.
fn object_of(end: &Endpoint) -> Option<Arc<ObjectPlace>> {
    match &end.handle {
        EndpointHandle::Other(place) => place.clone().downcast().ok(),
        _ => None,
    }
}

/// The object of a pair whose other end is memory, and whether it is the source.
fn ends(ask: &OfferQuery<'_>) -> Option<(Arc<ObjectPlace>, bool)> {
    if let (Some(object), Some(_)) = (object_of(ask.source), ask.target.memory()) {
        return Some((object, true));
    }
    Some((object_of(ask.target).filter(|_| ask.source.memory().is_some())?, false))
}

fn quality(object: &ObjectPlace, ask: &OfferQuery<'_>, reads: bool) -> std::result::Result<(Quality, String), String> {
    let (pace, latency, how) = match (&object.side, reads) {
        (Side::Source(pinned), true) => {
            // What the network wrote may lie in the processor's caches.
            if ask.target.facts.persistence == Persistence::OnCompletion {
                return Err("it does not flush bytes that arrive in persistent memory".into());
            }
            (&object.client.reads, Some(pinned.latency), pinned.pin())
        }
        (Side::Target(_), false) => {
            (&object.client.writes, None, "in parts, which appear as one object when it is published")
        }
        (Side::Source(_), false) => return Err("the object is open for reading only".into()),
        (Side::Target(_), true) => return Err("the object is being written, and has no bytes to read yet".into()),
    };
    let (seen, level) = (pace.rate(), pace.level());
    let rate = if seen > 0.0 { seen } else { ASSUMED_RATE * f64::from(level) };
    let quality = Quality {
        latency_ns: latency.map_or(20e6, |latency| latency.as_nanos() as f64),
        bytes_per_s: rate,
        cpu_share: (rate * CORE_SECONDS_PER_BYTE).min(1.0),
        offload: false,
        fills_processor_cache: true,
        fills_page_cache: false,
        measured: seen > 0.0,
    };
    Ok((quality, format!("up to {level} requests at once, by the rates seen; {how}")))
}

impl Backend for ObjectBackend {
    fn name(&self) -> &'static str {
        "object"
    }

    fn primitives(&self) -> Vec<Primitive> {
        let available = || Ok("asked of the server for each object".to_owned());
        vec![
            Primitive {
                name: GET,
                what: "ranged reads of an object, in parallel, at one version",
                available: available(),
            },
            Primitive { name: PUT, what: "parts of an object that appears as a whole", available: available() },
        ]
    }

    fn offers(&self, ask: &OfferQuery<'_>) -> Vec<Offer> {
        let Some((object, reads)) = ends(ask) else { return Vec::new() };
        let (verdict, why) = match quality(&object, ask, reads) {
            Ok((quality, why)) => (Ok(quality), why),
            Err(why) => (Err(why.clone()), why),
        };
        vec![Offer { primitive: if reads { GET } else { PUT }, verdict, why }]
    }

    fn open(&self, ask: &OfferQuery<'_>, primitive: &str) -> Result<Mover> {
        let found = ends(ask).filter(|(_, reads)| primitive == if *reads { GET } else { PUT });
        let Some((object, reads)) = found else {
            let context = format!("{primitive} from {} to {}", ask.source.facts.name, ask.target.facts.name);
            return Err(Error::new(ErrorKind::Unsupported, "open", context)
                .with_advice("open only what was offered for the pair"));
        };
        quality(&object, ask, reads).map_err(|why| Error::new(ErrorKind::Unsupported, "open", why))?;
        let (options, constraints) = (&object.client.options, ask.constraints);
        let settings = RequestSettings {
            read_bytes: constraints.request_bytes.map(u64::from).or(options.read_bytes),
            depth: constraints.queue_depth.unwrap_or(options.connections).clamp(1, MAX_DEPTH) as usize,
        };
        Ok(Mover::Queued(Box::new(ObjectMover::new(object, settings)?)))
    }

    fn knobs(&self) -> Vec<Knob> {
        let usual = ObjectOptions::default();
        let knob = |name: &str, value: String| Knob { name: name.to_owned(), value, origin: "default".to_owned() };
        vec![
            knob("connections", format!("4 to {}, by the rates seen", usual.connections)),
            knob("read_bytes", "8 MiB to 64 MiB, by the times seen".to_owned()),
            knob("part_bytes", "8 MiB; more from 78 GiB on".to_owned()),
            knob("retries", usual.retries.to_string()),
        ]
    }
}
