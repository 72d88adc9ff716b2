//! A route and all that was considered for it, as a picture.

use datapipes::Route;
use datapipes::backend::Quality;
use datapipes_metrics::ByteRate;
use datapipes_picture::decision::{self, CandidateVerdict, DecidedHop, Decision, RouteCandidate};

use crate::arguments::units;

/// Draws a route for transfers of a typical length.
pub(super) fn svg(route: &Route, typical_bytes: u64) -> String {
    let mut places = vec![route.source.clone()];
    places.extend(route.hops.iter().map(|hop| hop.to.clone()));
    if let Some(last) = places.last_mut() {
        last.clone_from(&route.target);
    }
    let hops = route.hops.iter().map(|hop| DecidedHop {
        primitive: hop.primitive.into(),
        backend: hop.backend.into(),
        promises: vec![
            rate(&hop.quality),
            latency(&hop.quality),
            format!("{:.2} cores, {}", hop.quality.cpu_share, basis(&hop.quality)),
        ],
        why: hop.why.clone(),
    });
    let is_whole = |from: &str, to: &str| route.hops.len() == 1 && from == route.source && to == route.target;
    let leg = |from: &str, to: &str| if is_whole(from, to) { String::new() } else { format!("{from} to {to}") };
    let chosen = route.hops.iter().map(|hop| RouteCandidate {
        // The whole way has no name, whatever the user calls its ends.
        leg: if route.hops.len() == 1 { String::new() } else { leg(&hop.from, &hop.to) },
        primitive: hop.primitive.into(),
        backend: hop.backend.into(),
        verdict: CandidateVerdict::Chosen,
        estimate_ns: Some(estimate_ns(&hop.quality, typical_bytes)),
        promise: promise(&hop.quality),
        why: hop.why.clone(),
    });
    let rejected = route.rejected.iter().map(|other| RouteCandidate {
        leg: leg(&other.from, &other.to),
        primitive: other.primitive.into(),
        backend: other.backend.into(),
        verdict: if other.quality.is_some() { CandidateVerdict::Slower } else { CandidateVerdict::Refused },
        estimate_ns: other.quality.as_ref().map(|quality| estimate_ns(quality, typical_bytes)),
        promise: other.quality.as_ref().map_or_else(String::new, promise),
        why: other.why.clone(),
    });
    decision::svg(&Decision {
        title: "How the bytes would go, and why".into(),
        remark: format!(
            "transfers of {}; an estimate is the time of an empty transfer and the bytes at the rate",
            units::memory(typical_bytes)
        ),
        places,
        hops: hops.collect(),
        candidates: chosen.chain(rejected).collect(),
    })
}

/// As the planner estimates it.
fn estimate_ns(quality: &Quality, bytes: u64) -> f64 {
    quality.latency_ns + bytes as f64 / quality.bytes_per_s.max(1.0) * 1e9
}

fn rate(quality: &Quality) -> String {
    ByteRate(quality.bytes_per_s).to_string()
}

fn latency(quality: &Quality) -> String {
    format!("{:.1} us", quality.latency_ns / 1e3)
}

fn basis(quality: &Quality) -> &'static str {
    if quality.measured { "measured" } else { "assumed" }
}

fn promise(quality: &Quality) -> String {
    format!("{}, {}, {:.2} cores, {}", rate(quality), latency(quality), quality.cpu_share, basis(quality))
}
