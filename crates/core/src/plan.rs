//! Planning: from the offers of the backends to a route, with the reasons.
//!
//! ```text
//! ways(source, target):
//!     direct:      source -> target                       one hop
//!     placement, where the source is not memory:
//!                  source -> memory behind a cache -> its lines into the core
//!                  source -> persistent memory -> its lines flushed
//!     by bounce:   source -> memory of the pipe -> target where neither end is memory
//! take the way with the shortest estimate for a typical transfer; keep every refusal
//! ```

use std::fmt;
use std::sync::Arc;

use datapipes_metrics::ByteRate;
use serde::Serialize;

pub use crate::backend::Constraints;
use crate::backend::{Backend, Offer, OfferQuery, Quality};
use crate::error::{Error, ErrorKind, Result};
use crate::locator::{Dram, Endpoint, Locator, Persistence, PlaceFacts, Reach};
use crate::memory::{MapOptions, Pool};
use crate::topology::Topology;

/// The bounce buffers of a pipe between two places outside memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BounceBuffers {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

/// Between places of this machine: one is filled while another is emptied.
const NEAR: BounceBuffers = BounceBuffers { count: 2, bytes: 4 << 20 };
/// Where a core copies on one side and a device that is quicker moves the bytes on the other: the
/// buffers stay in the core's own cache, and the device needs no more at a time. On a processor
/// with 2 MiB of it and a GPU, 1 MiB each was faster than 4 MiB or 512 KiB.
const COPIED: BounceBuffers = BounceBuffers { count: 2, bytes: 1 << 20 };
/// Where a hop has a long latency: so much is under way that the latency is hidden at 1 GB/s and 50
/// ms, in pieces for which a server is worth asking.
const DISTANT: BounceBuffers = BounceBuffers { count: 8, bytes: 8 << 20 };
/// The latency, in nanoseconds, from which a hop is distant: no device of a machine is that slow.
const DISTANT_NS: f64 = 1e6;
/// The most memory, in bytes, that a pipe between two places outside memory allocates where both
/// are of this machine. Where one is at a server it is 64 MiB.
pub const STAGED_BYTES: usize = NEAR.count * NEAR.bytes;

impl BounceBuffers {
    /// Those that suit two hops.
    fn of(up: &Leg, down: &Leg) -> BounceBuffers {
        if up.quality.latency_ns.max(down.quality.latency_ns) >= DISTANT_NS {
            DISTANT
        } else if is_quicker_than_copy(up, down) || is_quicker_than_copy(down, up) {
            COPIED
        } else {
            NEAR
        }
    }
}

/// Whether a device moves the bytes of one hop at least as fast as a core copies those of the
/// other. (A disk needs more under way than a small buffer has, whatever its rate.)
fn is_quicker_than_copy(one: &Leg, other: &Leg) -> bool {
    let is_of_file = [&one.source, &one.target].iter().any(|end| end.facts.reach == Reach::File);
    let (device, copy) = (&one.quality, &other.quality);
    !is_of_file && device.offload && !copy.offload && device.bytes_per_s >= copy.bytes_per_s
}

/// Bytes of a transfer whose length nobody named.
const TYPICAL_LEN: u64 = 1 << 20;

/// One step of a route.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Hop {
    /// The place that the bytes come from.
    pub from: String,
    /// The place that they go to.
    pub to: String,
    /// The backend that moves them.
    pub backend: &'static str,
    /// The primitive that moves them.
    pub primitive: &'static str,
    /// Why this primitive was chosen.
    pub why: String,
    /// Its expected latency, rate and side effects.
    pub quality: Quality,
}

/// A primitive that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Rejected {
    /// The place that the bytes would come from.
    pub from: String,
    /// The place that they would go to.
    pub to: String,
    /// The backend that was asked.
    pub backend: &'static str,
    /// The primitive that was rejected.
    pub primitive: &'static str,
    /// Why it was rejected.
    pub why: String,
    /// What it would have been like, where it could have served: latency, rate and side effects.
    pub quality: Option<Quality>,
}

/// The route of a pipe: hops with reasons, and the rejected primitives.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Route {
    /// The place that the bytes come from.
    pub source: String,
    /// The place that they go to.
    pub target: String,
    /// The hops, in order.
    pub hops: Vec<Hop>,
    /// The primitives that were not chosen, with reasons.
    pub rejected: Vec<Rejected>,
    /// What the threads of the pipe's runtime get of caches and memory bandwidth, where they have a
    /// share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_share: Option<String>,
    /// What threads get while they carry out a transfer, where the pipe has a share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer_share: Option<String>,
}

impl Route {
    /// The primitives' names, in order.
    pub fn primitives(&self) -> Vec<&'static str> {
        self.hops.iter().map(|h| h.primitive).collect()
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} -> {}", self.source, self.target)?;
        for (i, hop) in self.hops.iter().enumerate() {
            let q = &hop.quality;
            writeln!(f, "  {}. {} ({}): {} -> {}", i + 1, hop.primitive, hop.backend, hop.from, hop.to)?;
            writeln!(f, "     because {}", hop.why)?;
            writeln!(
                f,
                "     {}, {:.1} us, {:.2} core seconds a second ({})",
                ByteRate(q.bytes_per_s),
                q.latency_ns / 1e3,
                q.cpu_share,
                if q.measured { "measured" } else { "assumed" }
            )?;
        }
        if let Some(share) = &self.thread_share {
            writeln!(f, "  threads of the runtime: {share}")?;
        }
        if let Some(share) = &self.transfer_share {
            writeln!(f, "  threads during a transfer: {share}")?;
        }
        for r in &self.rejected {
            write!(f, "  not {} ({}", r.primitive, r.backend)?;
            if (&r.from, &r.to) != (&self.source, &self.target) {
                write!(f, ", {} -> {}", r.from, r.to)?;
            }
            writeln!(f, "): {}", r.why)?;
        }
        Ok(())
    }
}

/// A hop, and what opening it needs.
pub(crate) struct Leg {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) source: Endpoint,
    pub(crate) target: Endpoint,
    pub(crate) offer: Offer,
    pub(crate) quality: Quality,
}

/// How the legs of a plan follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteShape {
    /// One leg moves the bytes.
    Direct,
    /// The second leg works in place on the bytes that the first leg brought.
    Placement,
    /// The bytes go through buffers of the pipe.
    Bounce,
}

pub(crate) struct Plan {
    pub(crate) shape: RouteShape,
    pub(crate) legs: Vec<Leg>,
    pub(crate) route: Route,
    /// The buffers, for [`RouteShape::Bounce`].
    pub(crate) bounce: Vec<Dram>,
    /// The source and the target of the whole route.
    pub(crate) ends: (Endpoint, Endpoint),
}

/// A primitive that was offered but could not be opened.
pub(crate) struct Unopened {
    pub(crate) primitive: &'static str,
    pub(crate) why: String,
}

/// Which of the caller's demands apply to a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demands {
    /// All demands apply.
    Movement,
    /// Only denied primitives count: loading lines into a cache or flushing them moves nothing
    /// between places.
    Placement,
}

/// What planning needs to know about the machine.
pub(crate) struct Planner<'a> {
    pub(crate) backends: &'a [Arc<dyn Backend>],
    pub(crate) topology: &'a Topology,
    pub(crate) constraints: &'a Constraints,
}

impl Planner<'_> {
    /// Returns the best route whose primitives are not among those that failed to open.
    pub(crate) fn plan(&self, source: &Endpoint, target: &Endpoint, failed: &[Unopened]) -> Result<Plan> {
        self.check_names()?;
        let mut rejected = Vec::new();
        let mut ways: Vec<(RouteShape, Vec<Leg>, Vec<Dram>)> = Vec::new();

        if let Some(leg) = self.best(source, target, (Demands::Movement, failed), &mut rejected) {
            // Bytes that do not come from memory arrive in the memory behind the cache. A second
            // leg loads their lines.
            if target.facts.core.is_some() && source.memory().is_none() {
                let landed = behind_cache(target);
                if let Some(placement) = self.best(&landed, target, (Demands::Placement, failed), &mut rejected) {
                    ways.push((RouteShape::Placement, vec![leg, placement], Vec::new()));
                }
            } else {
                ways.push((RouteShape::Direct, vec![leg], Vec::new()));
            }
        }
        // What a device or the kernel writes to persistent memory may still lie in the caches. A
        // second leg flushes it.
        if source.memory().is_none()
            && target.memory().is_some()
            && target.facts.persistence == Persistence::OnCompletion
        {
            let landed = before_flush(target);
            let leg = self.best(source, &landed, (Demands::Movement, failed), &mut rejected);
            let flush = self.best(&landed, target, (Demands::Placement, failed), &mut rejected);
            if let (Some(leg), Some(flush)) = (leg, flush) {
                ways.push((RouteShape::Placement, vec![leg, flush], Vec::new()));
            }
        }
        if source.memory().is_none() && target.memory().is_none() {
            let mut sizes = NEAR;
            loop {
                let whole = sizes.count * sizes.bytes;
                let pool = Pool::new(whole, MapOptions { prefault: false, ..MapOptions::default() })?;
                let buffers =
                    (0..sizes.count).map(|_| Dram::from_pool(&pool, sizes.bytes)).collect::<Result<Vec<_>>>()?;
                // The hops end at the whole region, so that one pair of movers serves all buffers.
                let middle = Dram::over(pool.region().range(0, whole)?).endpoint();
                let up = self.best(source, &middle, (Demands::Movement, failed), &mut rejected);
                let down = self.best(&middle, target, (Demands::Movement, failed), &mut rejected);
                let (Some(up), Some(down)) = (up, down) else { break };
                let suited = BounceBuffers::of(&up, &down);
                if suited == sizes || sizes == DISTANT {
                    ways.push((RouteShape::Bounce, vec![up, down], buffers));
                    break;
                }
                sizes = suited;
            }
        }

        let len = self.constraints.typical_len.unwrap_or(TYPICAL_LEN).max(1);
        let estimate = |(shape, legs, _): &(RouteShape, Vec<Leg>, Vec<Dram>)| estimate_ns(*shape, legs, len);
        ways.sort_by(|a, b| estimate(a).total_cmp(&estimate(b)));
        let mut ways = ways.into_iter();
        let Some((shape, legs, bounce)) = ways.next() else {
            return Err(self.refuse(source, target, &rejected));
        };
        let fastest = estimate_ns(shape, &legs, len);
        for (shape, slower, _) in ways {
            let why = format!(
                "estimated {:.1} us for {len} bytes by {}, {:.1} us by {}",
                estimate_ns(shape, &slower, len) / 1e3,
                primitives(&slower),
                fastest / 1e3,
                primitives(&legs)
            );
            rejected.extend(slower.iter().map(|leg| leg.rejected(why.clone())));
        }
        let taken: Vec<_> = legs.iter().map(|l| l.offer.primitive).collect();
        rejected.retain(|r| !taken.contains(&r.primitive));
        let mut seen = Vec::new();
        rejected.retain(|r| {
            let new = !seen.contains(&(r.primitive, r.why.clone()));
            seen.push((r.primitive, r.why.clone()));
            new
        });
        let hops = legs.iter().map(Leg::hop).collect();
        let route = Route {
            source: source.facts.name.clone(),
            target: target.facts.name.clone(),
            hops,
            rejected,
            thread_share: None,
            transfer_share: None,
        };
        Ok(Plan { shape, legs, route, bounce, ends: (source.clone(), target.clone()) })
    }

    /// Checks that the primitives that the caller names exist: a misspelt one would be used
    /// although it was denied.
    fn check_names(&self) -> Result<()> {
        let Constraints { only, deny, .. } = self.constraints;
        if only.is_empty() && deny.is_empty() {
            return Ok(());
        }
        let known: Vec<_> = self.backends.iter().flat_map(|backend| backend.primitives()).map(|p| p.name).collect();
        for (knob, names) in [("only", only), ("deny", deny)] {
            if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
                let context = format!("{knob}: there is no primitive {name:?}");
                return Err(Error::new(ErrorKind::InvalidInput, "connect", context)
                    .with_advice(format!("name some of {}", known.join(", "))));
            }
        }
        Ok(())
    }

    /// Returns the best offer for one leg that meets the constraints, and adds the others to
    /// `rejected`.
    fn best(
        &self,
        source: &Endpoint,
        target: &Endpoint,
        (demands, failed): (Demands, &[Unopened]),
        rejected: &mut Vec<Rejected>,
    ) -> Option<Leg> {
        let ask = OfferQuery { source, target, constraints: self.constraints, topology: self.topology };
        let mut legs: Vec<Leg> = Vec::new();
        for backend in self.backends {
            for offer in backend.offers(&ask) {
                let verdict = offer.verdict.clone().and_then(|q| self.meets(&offer, &q, demands).map(|()| q));
                let unopened = failed.iter().find(|failed| failed.primitive == offer.primitive);
                let verdict = match unopened {
                    Some(failed) => Err(format!("it was offered and could not be opened: {}", failed.why)),
                    None => verdict,
                };
                match verdict {
                    Ok(quality) => legs.push(Leg {
                        backend: backend.clone(),
                        source: source.clone(),
                        target: target.clone(),
                        offer,
                        quality,
                    }),
                    Err(why) => rejected.push(Rejected {
                        from: source.facts.name.clone(),
                        to: target.facts.name.clone(),
                        backend: backend.name(),
                        primitive: offer.primitive,
                        why,
                        quality: None,
                    }),
                }
            }
        }
        let len = self.constraints.typical_len.unwrap_or(TYPICAL_LEN).max(1);
        let ns = |leg: &Leg| leg_ns(&leg.quality, len);
        let best = legs.iter().enumerate().min_by(|a, b| ns(a.1).total_cmp(&ns(b.1))).map(|(i, _)| i)?;
        let best = legs.swap_remove(best);
        for leg in &legs {
            rejected.push(leg.rejected(format!(
                "estimated {:.1} us for {len} bytes, {} {:.1} us ({})",
                ns(leg) / 1e3,
                best.offer.primitive,
                ns(&best) / 1e3,
                leg.offer.why
            )));
        }
        Some(best)
    }

    fn meets(&self, offer: &Offer, quality: &Quality, demands: Demands) -> std::result::Result<(), String> {
        let c = self.constraints;
        let name = offer.primitive;
        if c.deny.iter().any(|p| p == name) {
            return Err("the caller denied it".into());
        }
        if demands == Demands::Placement {
            return Ok(());
        }
        if !c.only.is_empty() && !c.only.iter().any(|p| p == name) {
            return Err(format!("only {} was asked for", c.only.join(", ")));
        }
        if c.require_offload && !quality.offload {
            return Err("offload is required, and this uses a core".into());
        }
        if c.bypass_page_cache && quality.fills_page_cache {
            return Err("it goes through the page cache, which the caller wants bypassed".into());
        }
        if c.bypass_processor_cache && quality.fills_processor_cache {
            return Err("it displaces the processor's caches, which the caller wants bypassed".into());
        }
        if c.fill_processor_cache && !quality.fills_processor_cache {
            return Err("it leaves the bytes outside the processor's caches, where the caller wants them".into());
        }
        if let Some(rate) = c.at_least
            && quality.bytes_per_s < rate
        {
            return Err(format!("{}, less than the {} required", ByteRate(quality.bytes_per_s), ByteRate(rate)));
        }
        Ok(())
    }

    fn refuse(&self, source: &Endpoint, target: &Endpoint, rejected: &[Rejected]) -> Error {
        let pair = format!("{} to {}", source.facts.name, target.facts.name);
        if rejected.is_empty() {
            return Error::new(
                ErrorKind::Unsupported,
                "connect",
                format!("{pair}: no backend moves bytes between them"),
            )
            .with_advice("go through dram with two pipes");
        }
        let reasons: Vec<_> = rejected.iter().map(|r| format!("{}: {}", r.primitive, r.why)).collect();
        Error::new(ErrorKind::Unsupported, "connect", format!("{pair}: {}", reasons.join("; ")))
            .with_advice("relax the constraints to what one of these can do")
    }
}

impl Leg {
    fn hop(&self) -> Hop {
        Hop {
            from: self.source.facts.name.clone(),
            to: self.target.facts.name.clone(),
            backend: self.backend.name(),
            primitive: self.offer.primitive,
            why: self.offer.why.clone(),
            quality: self.quality.clone(),
        }
    }

    fn rejected(&self, why: String) -> Rejected {
        Rejected {
            from: self.source.facts.name.clone(),
            to: self.target.facts.name.clone(),
            backend: self.backend.name(),
            primitive: self.offer.primitive,
            why,
            quality: Some(self.quality.clone()),
        }
    }
}

/// The primitives of a way, in order.
fn primitives(legs: &[Leg]) -> String {
    legs.iter().map(|leg| leg.offer.primitive).collect::<Vec<_>>().join(" and ")
}

fn leg_ns(quality: &Quality, len: u64) -> f64 {
    quality.latency_ns + len as f64 / quality.bytes_per_s.max(1.0) * 1e9
}

fn estimate_ns(shape: RouteShape, legs: &[Leg], len: u64) -> f64 {
    let each = legs.iter().map(|l| leg_ns(&l.quality, len));
    match shape {
        // The two legs of a bounce overlap except for the first buffer.
        RouteShape::Bounce => each.fold(0.0, f64::max) * 1.1,
        RouteShape::Direct | RouteShape::Placement => each.sum(),
    }
}

/// Returns the memory behind a cache as a place of its own.
fn behind_cache(cache: &Endpoint) -> Endpoint {
    let facts = PlaceFacts {
        kind: "dram",
        core: None,
        name: format!("memory behind {}", cache.facts.name),
        ..(*cache.facts).clone()
    };
    Endpoint { facts: Arc::new(facts), handle: cache.handle.clone() }
}

/// Returns persistent memory as seen by a mover that does not flush: the bytes survive only after a
/// flush.
fn before_flush(place: &Endpoint) -> Endpoint {
    let facts = PlaceFacts {
        persistence: Persistence::AfterSync,
        name: format!("{} before the flush", place.facts.name),
        ..(*place.facts).clone()
    };
    Endpoint { facts: Arc::new(facts), handle: place.handle.clone() }
}

#[cfg(test)]
mod tests;
