//! The offers for a pair of places, and the reasons against them.

use datapipes_core::Persistence;
use datapipes_core::backend::{Offer, OfferQuery, Primitive, Quality};
use datapipes_core::topology::Size;

use crate::cost::MoveCost;
use crate::discovery::QueueDiscovery;
use crate::family::{EngineFamily, EnginePrimitive};
use crate::split::SplitRates;

/// What offers depend on.
pub(crate) struct OfferedEngines<'a> {
    pub(crate) family: &'static EngineFamily,
    pub(crate) found: &'a QueueDiscovery,
    pub(crate) cost: MoveCost,
    /// Whether devices move the bytes, not a device in software.
    pub(crate) is_offload: bool,
}

pub(crate) fn primitives(engines: &OfferedEngines<'_>) -> Vec<Primitive> {
    let found = engines.found;
    let available = match found.usable.as_slice() {
        [] => Err(found.reason()),
        queues => {
            let queues: Vec<String> = queues.iter().map(|queue| queue.summary()).collect();
            let absent = if found.absent.is_empty() { String::new() } else { format!("; not {}", found.reason()) };
            Ok(format!("{}{absent}", queues.join("; ")))
        }
    };
    let one = |primitive: &EnginePrimitive| Primitive {
        name: primitive.name,
        what: primitive.what,
        available: available.clone(),
    };
    engines.family.primitives.iter().map(one).collect()
}

/// Whether source and target are memory that does not overlap.
pub(crate) fn is_served(ask: &OfferQuery<'_>) -> bool {
    matches!((ask.source.memory(), ask.target.memory()), (Some(source), Some(target)) if !source.overlaps(target))
}

/// The quality of a copy that is shared, from that of the engine's.
fn shared(engine: Quality, cost: MoveCost) -> Result<Quality, String> {
    let Some(split) = cost.split else {
        return Err("the rates of core and engine were not measured: run `dpipe calibrate --redo`".into());
    };
    Ok(Quality { bytes_per_s: split.bytes_per_s, offload: false, ..engine })
}

fn why_shared(cost: MoveCost, otherwise: &str) -> String {
    let Some(split) = cost.split else { return otherwise.to_owned() };
    let rates = SplitRates::of(cost, split);
    format!(
        "from {} an engine ({:.1} GB/s) and a core ({:.1} GB/s) copy so that both end together; never run on hardware",
        Size(rates.smallest().ceil() as u64),
        cost.bytes_per_s / 1e9,
        split.core_bytes_per_s / 1e9
    )
}

pub(crate) fn offers(ask: &OfferQuery<'_>, engines: &OfferedEngines<'_>) -> Vec<Offer> {
    if !is_served(ask) {
        return Vec::new();
    }
    let (cost, found) = (engines.cost, engines.found);
    let verdict = |primitive: &EnginePrimitive| {
        if found.usable.is_empty() {
            return Err(found.reason());
        }
        if ask.target.facts.core.is_some() {
            return Err("an engine writes to memory or the last-level cache, not to a core's cache".into());
        }
        if ask.target.facts.persistence == Persistence::OnCompletion {
            return Err("what an engine writes is not flushed to what survives".into());
        }
        if let Some(why) = (engines.family.refuses)(ask) {
            return Err(why);
        }
        if ask.constraints.fill_processor_cache && !primitive.to_cache {
            return Err("nothing tells the engine to leave the bytes in the processor's caches".into());
        }
        let engine = Quality {
            latency_ns: cost.latency_ns,
            bytes_per_s: cost.bytes_per_s,
            // The thread that waits polls for the answer.
            cpu_share: 1.0,
            offload: engines.is_offload,
            fills_processor_cache: primitive.fills_cache,
            fills_page_cache: false,
            measured: cost.measured,
        };
        if primitive.with_core { shared(engine, cost) } else { Ok(engine) }
    };
    let offer = |primitive: &EnginePrimitive| {
        let why = if primitive.with_core { why_shared(cost, primitive.why) } else { primitive.why.to_owned() };
        Offer { primitive: primitive.name, verdict: verdict(primitive), why }
    };
    engines.family.primitives.iter().map(offer).collect()
}
