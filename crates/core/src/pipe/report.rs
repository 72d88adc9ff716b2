//! What really happened, so that a claim can be checked.

use std::fmt;

use datapipes_metrics::{ByteRate, Label, Sample};
use serde::Serialize;

use crate::backend::Counters;
use crate::locator::PlaceUse;
use crate::plan::Route;

/// From this many bytes on, bounces cost enough to say how they are avoided.
const LONG: u64 = 1 << 20;

/// What one hop did.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HopReport {
    /// Name of the source.
    pub from: String,
    /// Name of the target.
    pub to: String,
    /// The primitive.
    pub primitive: &'static str,
    /// Its counters.
    pub counters: Counters,
}

/// What a pipe moved to or from a place of a staging.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PlaceReport {
    /// The place, and what became of it (by all pipes of the staging).
    #[serde(flatten)]
    pub place: PlaceUse,
    /// Bytes that this pipe moved there, or from there.
    pub bytes: u64,
}

/// What a pipe did since it was connected.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PipeReport {
    /// Name of the source.
    pub source: String,
    /// Name of the target.
    pub target: String,
    /// The hops, in order.
    pub hops: Vec<HopReport>,
    /// By place, where one end is a staging.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<PlaceReport>,
    /// Where the pipe has a share: how often a thread completed a transfer without it, or kept it
    /// afterwards.
    #[serde(skip_serializing_if = "is_zero")]
    pub share_troubles: u64,
    /// The first of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_share_trouble: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // The serializer's signature.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl PipeReport {
    pub(crate) fn new(route: &Route, counters: Vec<Counters>) -> Self {
        let hops = route.hops.iter().zip(counters).map(|(hop, counters)| HopReport {
            from: hop.from.clone(),
            to: hop.to.clone(),
            primitive: hop.primitive,
            counters,
        });
        PipeReport {
            source: route.source.clone(),
            target: route.target.clone(),
            hops: hops.collect(),
            places: Vec::new(),
            share_troubles: 0,
            first_share_trouble: None,
        }
    }

    /// Returns what it did as samples, by step of the route. They do not name its places, which may
    /// be paths of somebody: `pipe` is what the caller calls it.
    pub fn samples(&self, pipe: &str) -> Vec<Sample> {
        let primitives: Vec<&str> = self.hops.iter().map(|hop| hop.primitive).collect();
        let route = primitives.join(" > ");
        let of = |(before, hop): (usize, &HopReport)| {
            let step = (before + 1).to_string();
            hop.counters.samples(&[
                (Label::Product, "pipe"),
                (Label::Pipe, pipe),
                (Label::Route, &route),
                (Label::Step, &step),
                (Label::Primitive, hop.primitive),
            ])
        };
        self.hops.iter().enumerate().flat_map(of).collect()
    }

    /// Bytes that arrived at the target.
    pub fn bytes(&self) -> u64 {
        if !self.places.is_empty() {
            return self.places.iter().map(|p| p.bytes).sum();
        }
        self.hops.last().map_or(0, |h| h.counters.bytes)
    }
}

impl fmt::Display for PipeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} -> {}", self.source, self.target)?;
        for p in &self.places {
            write!(f, "  {} ({}): {} bytes", p.place.place, p.place.reason, p.bytes)?;
            match &p.place.left {
                Some(why) => writeln!(f, "; {why}")?,
                None => writeln!(f)?,
            }
        }
        if let Some(first) = &self.first_share_trouble {
            writeln!(f, "  the share of the transfers failed {} times, first: {first}", self.share_troubles)?;
        }
        for hop in &self.hops {
            let c = &hop.counters;
            let rate = ByteRate::of(c.bytes, c.busy_ns as f64 / 1e9);
            writeln!(
                f,
                "  {}: {} bytes in {} transfers, {:.2} s, {rate}",
                hop.primitive,
                c.bytes,
                c.transfers,
                c.busy_ns as f64 / 1e9
            )?;
            let facts = [
                ("requests", c.requests),
                ("system calls", c.system_calls),
                ("bytes past the page cache", c.direct_bytes),
                ("bytes through the page cache", c.cached_bytes),
                ("requests on registered memory", c.fixed_buffer_hits),
                ("requests on other memory", c.fixed_buffer_misses),
                ("bounces", c.bounces),
                ("bytes bounced", c.bounced_bytes),
                ("short requests finished", c.short_finished),
                ("retries", c.retries),
                ("requests refused past the page cache and made through it", c.direct_refused),
                ("requests that the kernel had no thread for, made by the caller", c.queue_refused),
                ("bytes that the device left and a core copied", c.core_finished_bytes),
                ("bytes that a core copied as its share", c.core_share_bytes),
                ("devices lost", c.devices_lost),
                ("most outstanding", c.max_outstanding),
                ("failed", c.failed),
                ("on the wrong core", c.wrong_core),
            ];
            let said: Vec<_> = facts.iter().filter(|f| f.1 > 0).map(|(what, n)| format!("{what} {n}")).collect();
            if !said.is_empty() {
                writeln!(f, "    {}", said.join(", "))?;
            }
            // A transfer bounces its two edges at most, if file and memory agree modulo the block.
            if c.bounced_bytes > c.bytes / 2 && c.bytes >= LONG {
                writeln!(f, "    advice: most bytes bounced; `Dram::allocate_for` places memory so that they do not")?;
            }
        }
        Ok(())
    }
}
