//! Places and a backend under the model: devices with an event and without, and memory that is
//! copied by threads.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Wake, Waker};

use crate::backend::{Backend, Chunked, Counters, InlineMover, Job, Mover, Offer, OfferQuery, Primitive, Quality};
use crate::error::{Error, ErrorKind, Result};
use crate::locator::{Dram, Endpoint, EndpointHandle, Locator, Persistence, PlaceFacts, Reach};
use crate::machine::Machine;
use crate::memory::{MapOptions, Pages};
use crate::pipe::schedules::device::Device;
use crate::runtime::coordinator::events;
use crate::runtime::{Runtime, RuntimeOptions};
use crate::span::Span;
use crate::sync::{Arc, thread};
use crate::topology::Topology;

/// Bytes of a part.
pub(crate) const CHUNK: u64 = 16;

/// A device as a place.
pub(crate) struct Far {
    pub(crate) device: Device,
    name: &'static str,
}

impl Far {
    /// One with an event; those of one name share a resource.
    pub(crate) fn evented(name: &'static str, bad: Option<u64>) -> Far {
        Far { device: Device::with(Some(events::set_readable), bad), name }
    }

    /// One with an event, that rings the notifiers of its jobs.
    pub(crate) fn ringing(name: &'static str) -> Far {
        Far { device: Device::ringing(events::set_readable), name }
    }

    /// One that somebody has to wait for.
    pub(crate) fn blocking() -> Far {
        Far { device: Device::new(), name: "blocking" }
    }
}

impl Locator for Far {
    fn endpoint(&self) -> Endpoint {
        let facts = PlaceFacts {
            kind: "far",
            name: self.name.to_owned(),
            reach: Reach::Device,
            granularity: 1,
            alignment: 1,
            persistence: Persistence::Volatile,
            len: None,
            node: None,
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Other(Arc::new(self.device.clone())) }
    }
}

/// From devices to memory, and between memories.
struct Model;

impl Backend for Model {
    fn name(&self) -> &'static str {
        "model"
    }

    fn primitives(&self) -> Vec<Primitive> {
        vec![Primitive { name: "model", what: "moves nothing", available: Ok("in tests".into()) }]
    }

    fn offers(&self, _ask: &OfferQuery<'_>) -> Vec<Offer> {
        let quality = Quality {
            latency_ns: 1.0,
            bytes_per_s: 1e9,
            cpu_share: 0.0,
            offload: false,
            fills_processor_cache: false,
            fills_page_cache: false,
            measured: false,
        };
        vec![Offer { primitive: "model", verdict: Ok(quality), why: String::new() }]
    }

    fn open(&self, ask: &OfferQuery<'_>, _primitive: &str) -> Result<Mover> {
        match &ask.source.handle {
            EndpointHandle::Other(any) => match any.downcast_ref::<Device>() {
                Some(device) => Ok(Mover::Queued(Box::new(device.clone()))),
                None => Err(Error::new(ErrorKind::Unsupported, "open", "a stranger")),
            },
            _ => Ok(Mover::Inline(Box::new(Copier))),
        }
    }
}

/// Copies nothing, in parts, and takes its time.
struct Copier;

impl InlineMover for Copier {
    fn transfer(&self, _span: Span) -> Result<()> {
        thread::yield_now();
        Ok(())
    }

    fn parts(&self) -> Option<&dyn Chunked> {
        Some(self)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

impl Chunked for Copier {
    fn transfer_part(&self, part: &mut Job, _whole: u64) -> Result<()> {
        thread::yield_now();
        assert!(part.source.is_some() && part.target.is_some());
        Ok(())
    }
}

/// Of a machine of which nothing is known, read once.
fn topology() -> Topology {
    static NONE: OnceLock<Topology> = OnceLock::new();
    NONE.get_or_init(|| Topology::discover_under(Path::new("/nowhere"))).clone()
}

fn machine() -> Machine {
    Machine::new(topology(), vec![Arc::new(Model)])
}

/// Transfers have parts of [`CHUNK`] bytes; `at_once` of them may be out.
pub(crate) fn config(at_once: u32) -> RuntimeOptions {
    let mut config = RuntimeOptions::new(&machine());
    (config.copiers, config.blocking, config.max_inline_bytes) = (2, 2, 0);
    for policy in [&mut config.device, &mut config.memory] {
        (policy.chunk_bytes, policy.contended_chunk_bytes) = (CHUNK, CHUNK);
        policy.outstanding_chunks = at_once;
    }
    config
}

pub(crate) fn runtime_with(config: RuntimeOptions) -> Runtime {
    Runtime::start_with(&machine(), config).unwrap()
}

pub(crate) fn runtime(at_once: u32) -> Runtime {
    runtime_with(config(at_once))
}

pub(crate) fn dram(len: usize) -> Dram {
    Dram::allocate_with(len, MapOptions { pages: Pages::Small, prefault: false, node: None }).unwrap()
}

/// The `i`th transfer, of a number of parts. It begins where parts do.
pub(crate) fn span(i: u64, parts: u64) -> Span {
    Span { source: i * 4096, target: i * 256, len: parts * CHUNK }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An executor that knows nothing of the runtime.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
