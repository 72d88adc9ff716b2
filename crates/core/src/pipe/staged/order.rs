//! The order of a staging's places by what it costs to write there and to read it back.

use super::route;
use crate::error::Result;
use crate::locator::{Dram, Locator, Staging};
use crate::memory::{MapOptions, Pages};
use crate::plan::{Planner, Route};

/// The length whose way is judged, where the caller names no typical one: about what a job moves at
/// once.
const PIECE: u64 = 4 << 20;
/// A place with less than this is taken last: it would only be asked and left.
const ROOM: u64 = 1 << 20;
/// Costs that differ by less count as the same.
const ALIKE: f64 = 1.05;

struct Judged {
    place: usize,
    ns: f64,
    measured: bool,
    ways: String,
    free: Option<u64>,
}

/// Puts the places in the order of their costs; those of the same cost share a tier and take turns.
pub(crate) fn by_cost(planner: &Planner<'_>, staging: &Staging) -> Result<()> {
    let len = planner.constraints.typical_len.unwrap_or(PIECE).max(1);
    let memory =
        Dram::allocate_with(PIECE as usize, MapOptions { pages: Pages::Huge, prefault: false, node: None })?.endpoint();
    let mut judged = Vec::new();
    for (place, (_, end)) in staging.ends().enumerate() {
        let (there, back) = (route(planner, &memory, end)?, route(planner, end, &memory)?);
        judged.push(Judged {
            place,
            ns: cost(&there, len) + cost(&back, len),
            measured: there.hops.iter().chain(&back.hops).all(|hop| hop.quality.measured),
            ways: format!("{}, back by {}", there.primitives().join(" and "), back.primitives().join(" and ")),
            free: staging.free_bytes(place),
        });
    }
    let poor = |j: &Judged| j.free.is_some_and(|free| free < ROOM);
    judged.sort_by(|a, b| poor(a).cmp(&poor(b)).then(a.ns.total_cmp(&b.ns)));
    let mut ranks = vec![(0, String::new()); judged.len()];
    let mut tier = 0usize;
    for (i, j) in judged.iter().enumerate() {
        if let Some(before) = i.checked_sub(1).and_then(|i| judged.get(i))
            && (j.ns > before.ns * ALIKE || poor(j) != poor(before))
        {
            tier = tier.saturating_add(1);
        }
        if let Some(rank) = ranks.get_mut(j.place) {
            *rank = (tier, reason(j, tier, len, poor(j)));
        }
    }
    staging.rank(ranks);
    Ok(())
}

fn cost(route: &Route, len: u64) -> f64 {
    route.hops.iter().map(|hop| hop.quality.latency_ns + len as f64 / hop.quality.bytes_per_s.max(1.0) * 1e9).sum()
}

fn reason(j: &Judged, tier: usize, len: u64, poor: bool) -> String {
    let figures = if j.measured { "measured" } else { "assumed" };
    let free = match j.free {
        Some(free) => format!("{free} bytes free"),
        None => "free space not known".to_owned(),
    };
    let poor = if poor { ", which is next to nothing" } else { "" };
    let number = tier.saturating_add(1);
    format!("number {number} by cost: {:.0} us for {len} bytes by {} ({figures}), {free}{poor}", j.ns / 1e3, j.ways)
}
