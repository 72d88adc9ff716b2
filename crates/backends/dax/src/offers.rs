//! The offers for a pair of places, and the reasons against the other primitives.
//!
//! ```text
//! both memory, at least one not volatile, or a file's pages: what may lose pages is guarded
//!     the same bytes, before and after they are flushed     pmem-flush
//!     share bytes, from a core's cache to what survives     pmem-flush
//!     share bytes, else from or to a core's cache           nothing: the cpu backend places lines
//!     else, target not volatile, or only it a file's pages  pmem-store, and the two it picks from
//!     else                                                  pmem-load, pmem-load-nt
//! ```

use datapipes_core::backend::{Offer, OfferQuery, Primitive, Quality};
use datapipes_core::{Endpoint, Persistence};

use crate::instructions::{Flush, FlushInstructions};
use crate::mover::Work;
use crate::store::{Load, MIN_STREAM_BYTES, Store};

pub(crate) const STORE: &str = "pmem-store";
pub(crate) const STORE_NT: &str = "pmem-store-nt";
pub(crate) const STORE_WRITE_BACK: &str = "pmem-store-writeback";
pub(crate) const LOAD: &str = "pmem-load";
pub(crate) const LOAD_NT: &str = "pmem-load-nt";
pub(crate) const FLUSH: &str = "pmem-flush";

/// How two places are related, if this backend serves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// Bytes that lie in the caches are to survive.
    Flush,
    Store,
    Load,
}

impl Relation {
    pub(crate) fn of(ask: &OfferQuery<'_>) -> Option<Relation> {
        let (source, target) = (ask.source.memory()?, ask.target.memory()?);
        let from_cache = ask.source.facts.core.is_some() && ask.target.facts.core.is_none();
        let persistence = |end: &Endpoint| end.facts.persistence;
        match (persistence(ask.source), persistence(ask.target)) {
            (Persistence::Volatile, Persistence::Volatile) if source.overlaps(target) => None,
            (Persistence::Volatile, Persistence::Volatile) if source.region().maps_file() => Some(Relation::Load),
            (Persistence::Volatile, Persistence::Volatile) if target.region().maps_file() => Some(Relation::Store),
            (Persistence::Volatile, Persistence::Volatile) => None,
            (Persistence::AfterSync, Persistence::OnCompletion) if source.same_bytes(target) => Some(Relation::Flush),
            (_, Persistence::OnCompletion) if from_cache && source.overlaps(target) => Some(Relation::Flush),
            _ if source.overlaps(target) && (from_cache || ask.target.facts.core.is_some()) => None,
            (_, Persistence::Volatile) => Some(Relation::Load),
            _ => Some(Relation::Store),
        }
    }

    /// Returns the work of a primitive that was offered for it.
    pub(crate) fn work(self, primitive: &str, bypass: bool) -> Option<Work> {
        match (self, primitive) {
            (Relation::Flush, FLUSH) => Some(Work::Flush),
            // If caches are to be bypassed, short stores bypass them too.
            (Relation::Store, STORE) if bypass => Some(Work::Store(Store::Stream)),
            (Relation::Store, STORE) => Some(Work::Store(Store::BySize)),
            (Relation::Store, STORE_NT) => Some(Work::Store(Store::Stream)),
            (Relation::Store, STORE_WRITE_BACK) => Some(Work::Store(Store::WriteBack)),
            (Relation::Load, LOAD) => Some(Work::Load(Load::Ordinary)),
            (Relation::Load, LOAD_NT) => Some(Work::Load(Load::Past)),
            _ => None,
        }
    }
}

pub(crate) fn primitives(instructions: &FlushInstructions) -> Vec<Primitive> {
    let flush = || instructions.flush().map(|f| format!("CPUID: {}{}", f.name(), instructions.absent()));
    let stream = || instructions.width().map(|w| format!("CPUID: {}{}", w.name(), instructions.absent()));
    let one = |name, what, available| Primitive { name, what, available };
    vec![
        one(STORE, "store to persistent memory, flushed and fenced, in the best way for the length", flush()),
        one(STORE_NT, "store whole blocks past the caches, the ends written back", stream().and_then(|_| flush())),
        one(STORE_WRITE_BACK, "ordinary stores to persistent memory, each line written back", flush()),
        one(LOAD, "load from persistent memory through the caches", stream()),
        one(LOAD_NT, "load from persistent memory past the caches", stream()),
        one(FLUSH, "write lines in the caches back to persistent memory, in place", flush()),
    ]
}

/// Makes a quality from figures that users of first-generation persistent memory published; nothing
/// was measured here.
fn quality(latency_ns: f64, bytes_per_s: f64, fills_processor_cache: bool) -> Quality {
    Quality {
        latency_ns,
        bytes_per_s,
        cpu_share: 1.0,
        offload: false,
        fills_processor_cache,
        fills_page_cache: false,
        measured: false,
    }
}

pub(crate) fn offers(ask: &OfferQuery<'_>, relation: Relation, instructions: &FlushInstructions) -> Vec<Offer> {
    let flush = instructions.flush().map(|f| f.name());
    let width = instructions.width().map(|w| w.name());
    let (flush_name, width_name) = (flush.clone().unwrap_or("none"), width.clone().unwrap_or("none"));
    let both = || flush.clone().and(width.clone());
    // Where the bytes are to be in the caches, each line must stay when it is written back.
    let keeps = |flush: Result<&'static str, String>| match instructions.flush() {
        Ok(other) if ask.constraints.fill_processor_cache && other != Flush::Clwb => {
            Err(format!("{} drops the lines from the caches, where the caller wants them", other.name()))
        }
        _ => flush,
    };
    let emulated = if ask.target.facts.persistence == Persistence::AfterSync && relation == Relation::Store {
        "; the place is emulated: stored bytes survive once they are synced"
    } else if relation == Relation::Load && ask.source.facts.persistence == Persistence::AfterSync {
        "; the source is emulated, a file in the page cache"
    } else {
        ""
    };
    let absent = instructions.absent();
    let offer = |primitive, verdict: Result<Quality, String>, why: String| Offer {
        primitive,
        verdict,
        why: format!("{why}{emulated}{absent}"),
    };
    let (bypass, fill) = (ask.constraints.bypass_processor_cache, ask.constraints.fill_processor_cache);
    match relation {
        Relation::Flush => {
            let why = format!("the bytes came without a flush: every line is written back ({flush_name}) and fenced");
            vec![offer(FLUSH, keeps(flush).map(|_| quality(100.0, 20e9, false)), why)]
        }
        Relation::Store => vec![
            offer(
                STORE,
                match fill {
                    true => Err("whole blocks go past the caches, where the caller wants them".into()),
                    false => both().map(|_| quality(100.0, 2.3e9, !bypass)),
                },
                match bypass {
                    true => {
                        format!("caches are to be bypassed: every whole block by {width_name} stores past them, fenced")
                    }
                    false => format!(
                        "below {MIN_STREAM_BYTES} bytes ordinary stores and {flush_name}, else whole blocks of 256 bytes by \
                         {width_name} stores past the caches; fenced"
                    ),
                },
            ),
            offer(
                STORE_NT,
                both().map(|_| quality(200.0, 2.3e9, false)),
                format!(
                    "whole blocks of 256 bytes by {width_name} stores past the caches, the ends by {flush_name}; fenced"
                ),
            ),
            offer(
                STORE_WRITE_BACK,
                keeps(both()).map(|_| quality(100.0, 1.5e9, true)),
                format!("ordinary stores, each line written back by {flush_name}; fenced"),
            ),
        ],
        Relation::Load => {
            let past = if ask.target.facts.core.is_some() {
                Err("its stores bypass the caches: the lines would not be in the core's cache".into())
            } else {
                width.clone().map(|_| quality(350.0, 6e9, false))
            };
            vec![
                offer(
                    LOAD,
                    width.map(|_| quality(300.0, 6.5e9, true)),
                    "ordinary loads and stores, which a bad page ends with an error: the bytes are in the caches afterwards"
                        .into(),
                ),
                offer(LOAD_NT, past, format!("prefetched past the caches, stored past them by {width_name}")),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_processor_that_is_not_known_everything_is_absent_with_a_reason() {
        let primitives = primitives(&FlushInstructions::default());
        assert_eq!(primitives.len(), 6);
        assert!(primitives.iter().all(|p| p.available.as_ref().is_err_and(|why| !why.is_empty())));
    }

    #[test]
    fn missing_instructions_are_named() {
        let best = FlushInstructions::detect(&datapipes_core::topology::Topology::discover().cpu);
        if best.flush().is_err() {
            return println!("NOT APPLICABLE: missing_instructions_are_named: {}", best.flush().unwrap_err());
        }
        let plain = best.without(&["avx512f", "avx2", "clwb", "clflushopt"]);
        let found = primitives(&plain)[0].available.clone().unwrap();
        assert_eq!(found, "CPUID: CLFLUSH; absent: CLWB, CLFLUSHOPT, AVX-512, AVX2");
    }

    #[test]
    fn a_flush_that_drops_lines_does_not_fill_the_caches() {
        use datapipes_core::{Constraints, Dram, Locator};

        let topology = datapipes_core::topology::Topology::discover();
        let best = FlushInstructions::detect(&topology.cpu);
        if best.flush() != Ok(Flush::Clwb) {
            return println!("SKIPPED: a_flush_that_drops_lines_does_not_fill_the_caches: no CLWB here");
        }
        let (source, target) = (Dram::allocate(64).unwrap().endpoint(), Dram::allocate(64).unwrap().endpoint());
        for (fills, instructions, met) in [
            (true, best, true),
            (true, best.without(&["clwb"]), false),
            (true, best.without(&["clwb", "clflushopt"]), false),
            (false, best.without(&["clwb"]), true),
        ] {
            let constraints = Constraints::default().fill_processor_cache(fills);
            let ask = OfferQuery { source: &source, target: &target, constraints: &constraints, topology: &topology };
            for (relation, primitive) in [(Relation::Flush, FLUSH), (Relation::Store, STORE_WRITE_BACK)] {
                let offers = offers(&ask, relation, &instructions);
                let offer = offers.iter().find(|offer| offer.primitive == primitive).unwrap();
                assert_eq!(offer.verdict.is_ok(), met, "{primitive}, {instructions:?}: {:?}", offer.verdict);
                if let Err(why) = &offer.verdict {
                    assert!(why.contains("drops the lines"), "{why}");
                }
            }
        }
    }
}
