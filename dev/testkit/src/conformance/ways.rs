//! Which primitives could carry bytes from one place to another, in one hop or two, by asking the
//! backends.

use std::sync::Arc;

use datapipes_core::backend::{Offer, OfferQuery};
use datapipes_core::locator::{Endpoint, PlaceFacts};
use datapipes_core::{Constraints, Dram, Locator, Machine, Persistence, Result};

/// A way to try.
pub(super) struct TestedRoute {
    /// The primitives, one for each hop.
    pub(super) hops: Vec<&'static str>,
    /// Why one of them does not serve.
    pub(super) refused: Option<String>,
}

/// Every way from `source` to `target` that any backend has an answer for.
pub(super) fn ways(machine: &Machine, source: &Endpoint, target: &Endpoint) -> Result<Vec<TestedRoute>> {
    let direct = offers(machine, source, target);
    if source.memory().is_none() && target.memory().is_some() && target.facts.persistence == Persistence::OnCompletion {
        // What arrives in persistent memory may still lie in the caches: a second hop flushes it.
        let facts = PlaceFacts { persistence: Persistence::AfterSync, ..(*target.facts).clone() };
        let before = Endpoint { facts: Arc::new(facts), handle: target.handle.clone() };
        let mut ways: Vec<TestedRoute> =
            direct.into_iter().map(|o| TestedRoute { hops: vec![o.primitive], refused: o.verdict.err() }).collect();
        // One that is refused alone serves with a flush behind it; then that is what is certified.
        ways.retain(|way| way.refused.is_none());
        ways.extend(both(&offers(machine, source, &before), &offers(machine, &before, target)));
        return Ok(ways);
    }
    if source.memory().is_some() || (target.memory().is_some() && target.facts.core.is_none()) {
        return Ok(direct
            .into_iter()
            .map(|o| TestedRoute { hops: vec![o.primitive], refused: o.verdict.err() })
            .collect());
    }
    if target.memory().is_some() {
        // Into a core's cache: the bytes land in the memory behind it, then their lines are loaded.
        let facts = PlaceFacts { core: None, ..(*target.facts).clone() };
        let behind = Endpoint { facts: Arc::new(facts), handle: target.handle.clone() };
        return Ok(both(&direct, &offers(machine, &behind, target)));
    }
    let middle = Dram::allocate(4096)?.endpoint();
    let mut ways: Vec<TestedRoute> =
        direct.into_iter().map(|o| TestedRoute { hops: vec![o.primitive], refused: o.verdict.err() }).collect();
    ways.extend(both(&offers(machine, source, &middle), &offers(machine, &middle, target)));
    Ok(ways)
}

fn both(first: &[Offer], second: &[Offer]) -> Vec<TestedRoute> {
    let pair = |a: &Offer, b: &Offer| TestedRoute {
        hops: vec![a.primitive, b.primitive],
        refused: [a, b].into_iter().find_map(|o| o.verdict.as_ref().err().map(|why| format!("{}: {why}", o.primitive))),
    };
    first.iter().flat_map(|a| second.iter().map(move |b| pair(a, b))).collect()
}

fn offers(machine: &Machine, source: &Endpoint, target: &Endpoint) -> Vec<Offer> {
    // Some are offered only where they are named, so all are.
    let names = machine.backends().iter().flat_map(|b| b.primitives()).map(|p| p.name.to_owned()).collect();
    let constraints = Constraints::default().only(names);
    let ask = OfferQuery { source, target, constraints: &constraints, topology: machine.topology() };
    machine.backends().iter().flat_map(|b| b.offers(&ask)).collect()
}
