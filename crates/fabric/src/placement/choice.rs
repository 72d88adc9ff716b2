//! The choice of a placement, estimated from the measured costs of a channel, with an explanation.

use std::fmt;
use std::time::Instant;

use datapipes_core::threads;
use datapipes_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::{DeviceGraph, DeviceNode, Placement, Wiring};
use crate::channel::{ChannelShape, Head, Trust};
use crate::transport::pair;

/// The costs of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Costs {
    /// The time from one thread's push to the other's receive for a block of a few bytes, in
    /// nanoseconds. It is mostly a wake-up.
    pub wake_ns: f64,
    /// The additional time to push a block of `block_bytes`, in nanoseconds.
    pub push_ns: f64,
    /// The block length of the measurement, in bytes.
    pub block_bytes: usize,
    /// The number of cores that devices and application share.
    pub cores: usize,
    /// The credits of a channel.
    pub credits: u32,
}

impl Costs {
    /// Measures a channel of this shape between two threads. It takes a few milliseconds.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape, and `OutOfMemory`.
    pub fn measure(shape: ChannelShape) -> Result<Costs> {
        let shape = ChannelShape { checked: false, ..shape };
        let small = hop_ns(shape, shape.block_bytes.min(8))?;
        let large = hop_ns(shape, shape.block_bytes)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let push_ns = (large - small).max(0.0);
        Ok(Costs { wake_ns: small, push_ns, block_bytes: shape.block_bytes, cores, credits: shape.credits })
    }
}

/// Half of the median time for sending a block and getting an empty one back.
fn hop_ns(shape: ChannelShape, len: usize) -> Result<f64> {
    const WARM: usize = 8;
    const ROUNDS: usize = 48;
    // SAFETY: this function owns both senders, and uses them only through safe calls of the crate.
    #[allow(unsafe_code)]
    let trust = unsafe { Trust::in_place() };
    let (mut there, mut arrivals) = pair(shape, trust)?;
    let (mut back, mut echoes) = pair(ChannelShape::new(1, 64), trust)?;
    let bytes = vec![1; len];
    let echo = threads::spawn("echo", move || -> Result<()> {
        for _ in 0..WARM + ROUNDS {
            let block = arrivals.receive()?;
            back.send(&[], Head::default())?;
            block.done()?;
        }
        back.drain().map(|_| ())
    })?;
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..WARM + ROUNDS {
        let since = Instant::now();
        there.send(&bytes, Head::default())?;
        echoes.receive()?.done()?;
        if round >= WARM {
            times.push(since.elapsed().as_nanos() as f64);
        }
    }
    threads::join(echo).unwrap_or_else(|lost| Err(lost.error("measure")))?;
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[ROUNDS / 2] / 2.0)
}

/// The estimated cost of a block under a placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Estimate {
    /// The placement.
    pub placement: Placement,
    /// The number of channels.
    pub wires: usize,
    /// The number of consecutive channels on the longest path.
    pub longest: usize,
    /// The time from the source to the end of the longest path, in nanoseconds. The devices'
    /// computation is the same in all placements and left out.
    pub latency_ns: f64,
    /// The time between two blocks of a saturated stream, in nanoseconds.
    pub period_ns: f64,
}

/// The chosen placement, and the estimates of all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Choice {
    /// The best placement.
    pub placement: Placement,
    /// The measured costs.
    pub costs: Costs,
    /// The estimates of all placements, best first.
    pub estimates: Vec<Estimate>,
}

impl Choice {
    /// Chooses by latency, or by rate where latencies are within 5%.
    ///
    /// # Errors
    /// `InvalidInput` for a cycle of edges that does not pass the application.
    pub fn make(edges: &[(DeviceNode, DeviceNode)], costs: &Costs) -> Result<Choice> {
        let mut estimates = Vec::new();
        for placement in Placement::ALL {
            estimates.push(estimate(edges, costs, placement)?);
        }
        estimates.sort_by(|a, b| {
            let close = (a.latency_ns - b.latency_ns).abs() <= 0.05 * a.latency_ns.min(b.latency_ns);
            if close { a.period_ns.total_cmp(&b.period_ns) } else { a.latency_ns.total_cmp(&b.latency_ns) }
        });
        Ok(Choice { placement: estimates[0].placement, costs: *costs, estimates })
    }
}

fn estimate(edges: &[(DeviceNode, DeviceNode)], costs: &Costs, placement: Placement) -> Result<Estimate> {
    let wiring = Wiring::new(edges, placement);
    let hops: Vec<usize> =
        (0..edges.len()).map(|edge| wiring.wires.iter().filter(|w| w.edge == edge).count()).collect();
    let longest = longest(edges, &hops)?;
    let wire_ns = costs.wake_ns + costs.push_ns;
    let wires = wiring.wires.len();
    // In a saturated stream no stage sleeps. Stages run concurrently as far as there are cores for
    // the copies.
    let period_ns = costs.push_ns * (wires as f64 / costs.cores as f64).max(1.0);
    // With one credit a channel waits for the reply to each block.
    let period_ns = if costs.credits == 1 { period_ns.max(2.0 * wire_ns) } else { period_ns };
    Ok(Estimate { placement, wires, longest, latency_ns: longest as f64 * wire_ns, period_ns })
}

/// Returns the largest number of hops on a path that does not pass the application.
fn longest(edges: &[(DeviceNode, DeviceNode)], hops: &[usize]) -> Result<usize> {
    // Distances are relaxed once for each edge. If they still grow then, there is a cycle.
    let mut far: Vec<usize> = hops.to_vec();
    for round in 0..=edges.len() {
        let before = far.clone();
        for (at, (from, _)) in edges.iter().enumerate() {
            let earlier =
                edges.iter().zip(&before).filter(|((_, to), _)| to == from && *from != DeviceGraph::APPLICATION);
            far[at] = hops[at] + earlier.map(|(_, far)| *far).max().unwrap_or(0);
        }
        if far == before {
            return Ok(far.into_iter().max().unwrap_or(0));
        }
        if round == edges.len() {
            break;
        }
    }
    Err(Error::new(ErrorKind::InvalidInput, "choose a placement", "devices send to each other in a circle"))
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.costs;
        writeln!(
            f,
            "measured here: a hop takes {:.1} us, and {:.1} us more with {} bytes; {} cores, {} credits",
            c.wake_ns / 1e3,
            c.push_ns / 1e3,
            c.block_bytes,
            c.cores,
            c.credits
        )?;
        for (at, e) in self.estimates.iter().enumerate() {
            writeln!(
                f,
                "{} {:<26} {} hops on the longest path, {} channels: about {:.1} us a block, one every {:.1} us",
                if at == 0 { "->" } else { "  " },
                e.placement.name(),
                e.longest,
                e.wires,
                e.latency_ns / 1e3,
                e.period_ns / 1e3
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { wake_ns: 10_000.0, push_ns: 40_000.0, block_bytes: 1 << 20, cores: 2, credits: 4 };

    #[test]
    fn longer_chains_gain_more_and_the_reasons_are_told() {
        let (app, a, b) = (DeviceNode(0), DeviceNode(1), DeviceNode(2));
        let choice = Choice::make(&[(app, a), (a, b), (b, app)], &COSTS).unwrap();
        assert_eq!(choice.placement, Placement::DistributedResourceSide);
        let hops: Vec<_> = choice.estimates.iter().map(|e| (e.placement, e.longest)).collect();
        use Placement::{ApplicationSide, CentralResourceSide, DistributedResourceSide};
        assert_eq!(hops, [(DistributedResourceSide, 3), (ApplicationSide, 4), (CentralResourceSide, 6)]);
        let text = choice.to_string();
        assert!(text.contains("-> distributed") && text.contains("2 cores"), "{text}");
        assert!((choice.estimates[0].latency_ns - 150_000.0).abs() < 1.0);
        assert!((choice.estimates[0].period_ns - 60_000.0).abs() < 1.0);
    }

    #[test]
    fn with_one_device_nobody_relays_for_the_application() {
        let (app, a) = (DeviceNode(0), DeviceNode(1));
        let choice = Choice::make(&[(app, a), (a, app)], &COSTS).unwrap();
        assert_eq!(choice.estimates[0].latency_ns, choice.estimates[1].latency_ns);
        assert_eq!(choice.estimates[2].placement, Placement::CentralResourceSide);
        let circle = [(a, DeviceNode(2)), (DeviceNode(2), a)];
        assert_eq!(Choice::make(&circle, &COSTS).unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn costs_are_measured() {
        let costs = Costs::measure(ChannelShape::new(2, 256 << 10)).unwrap();
        // The amounts depend on the machine and its load: with other work on its cores, the time of
        // a copy can disappear in the variation of wake-ups.
        assert!(costs.wake_ns > 0.0 && costs.push_ns >= 0.0 && costs.push_ns.is_finite(), "{costs:?}");
        assert_eq!((costs.block_bytes, costs.credits), (256 << 10, 2));
    }
}
