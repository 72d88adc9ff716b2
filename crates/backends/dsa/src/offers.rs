//! The offers for a pair of places, and the reasons against them.

use datapipes_core::Persistence;
use datapipes_core::backend::{Offer, OfferQuery, Primitive, Quality};
use datapipes_core::topology::Size;

use crate::cost::MoveCost;
use crate::discovery::QueueDiscovery;
use crate::split::SplitRates;

pub(crate) const MOVE: &str = "dsa-move";
pub(crate) const MOVE_TO_CACHE: &str = "dsa-move-to-cache";
pub(crate) const WITH_CORE: &str = "dsa-and-core";

pub(crate) fn primitives(found: &QueueDiscovery) -> Vec<Primitive> {
    let available = match found.usable.as_slice() {
        [] => Err(found.reason()),
        queues => {
            let queues: Vec<String> = queues.iter().map(|queue| queue.summary()).collect();
            let absent = if found.absent.is_empty() { String::new() } else { format!("; not {}", found.reason()) };
            Ok(format!("{}{absent}", queues.join("; ")))
        }
    };
    let one = |name, what| Primitive { name, what, available: available.clone() };
    vec![
        one(MOVE, "copy by a DMA engine (Intel DSA) into memory (never run on hardware)"),
        one(MOVE_TO_CACHE, "copy by a DMA engine (Intel DSA) into the last-level cache (never run on hardware)"),
        one(WITH_CORE, "copy by a DMA engine (Intel DSA) and a core, each its share (never run on hardware)"),
    ]
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

fn why_shared(cost: MoveCost) -> String {
    let Some(split) = cost.split else { return "an engine and a core copy; never run on hardware".into() };
    let rates = SplitRates::of(cost, split);
    format!(
        "from {} an engine ({:.1} GB/s) and a core ({:.1} GB/s) copy so that both end together; never run on hardware",
        Size(rates.smallest().ceil() as u64),
        cost.bytes_per_s / 1e9,
        split.core_bytes_per_s / 1e9
    )
}

pub(crate) fn offers(ask: &OfferQuery<'_>, found: &QueueDiscovery, cost: MoveCost) -> Vec<Offer> {
    if !is_served(ask) {
        return Vec::new();
    }
    let verdict = |to_cache: bool| {
        if found.usable.is_empty() {
            return Err(found.reason());
        }
        if ask.target.facts.core.is_some() {
            return Err("an engine writes to memory or the last-level cache, not to a core's cache".into());
        }
        if ask.target.facts.persistence == Persistence::OnCompletion {
            return Err("what an engine writes is not flushed to what survives".into());
        }
        Ok(Quality {
            latency_ns: cost.latency_ns,
            bytes_per_s: cost.bytes_per_s,
            // The thread that waits polls for the answer.
            cpu_share: 1.0,
            offload: true,
            fills_processor_cache: to_cache,
            fills_page_cache: false,
            measured: cost.measured,
        })
    };
    let why = |into: &str| format!("an engine copies {into}; never run on hardware");
    vec![
        Offer { primitive: MOVE, verdict: verdict(false), why: why("past the caches") },
        Offer {
            primitive: MOVE_TO_CACHE,
            verdict: verdict(true),
            why: why("and leaves the lines in the last-level cache"),
        },
        Offer {
            primitive: WITH_CORE,
            verdict: verdict(true).and_then(|quality| shared(quality, cost)),
            why: why_shared(cost),
        },
    ]
}
