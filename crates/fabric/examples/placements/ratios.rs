//! Fair comparisons: our ways and others with the same number of copies, in short consecutive
//! turns: rings written by hand and, with `FABRIC_PEERS=PROGRAM`, iceoryx2
//! (`benchmarks/peers/fabric`).
//!
//! Each turn gives a ratio. The median of the ratios is printed, with the quartiles. On a shared
//! machine both of a pair run under the same load, unlike two medians minutes apart.

use std::process::Command;
use std::time::Duration;

use datapipes_fabric::control::Session;
use serde_json::json;

use super::{Outcome, SIZES, WAYS, latency, peers, row, throughput};

/// Our way, by its index, and the other one.
const PAIRS: [(&str, usize, Peer); 4] = [
    ("in place, by ring in place", 0, Peer::ByHand("ring, in place")),
    ("private copies, by ring, one copy", 1, Peer::ByHand("ring, one copy")),
    ("in place, by iceoryx2 in place", 0, Peer::Program("in-place")),
    ("private copies, by iceoryx2, one copy", 1, Peer::Program("one-copy")),
];
/// The variable that names the program of `benchmarks/peers/fabric`. Without it these pairs are
/// left out.
const PROGRAM: &str = "FABRIC_PEERS";

#[derive(Clone, Copy)]
enum Peer {
    ByHand(&'static str),
    /// The way of `benchmarks/peers/fabric` with this name.
    Program(&'static str),
}

impl Peer {
    fn is_there(self) -> bool {
        matches!(self, Peer::ByHand(_)) || std::env::var_os(PROGRAM).is_some()
    }

    /// The throughput in 10^9 bytes a second, and the processor time for a gigabyte.
    fn throughput(self, size: usize, span: Duration) -> Outcome<(f64, f64)> {
        let way = match self {
            Peer::ByHand(kind) => return peers::throughput(kind, size, span),
            Peer::Program(way) => way,
        };
        let program = std::env::var_os(PROGRAM).ok_or(PROGRAM)?;
        let output = Command::new(program).args([way, &size.to_string(), &span.as_millis().to_string()]).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let figures: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let figure = |name: &str| figures[name].as_f64().ok_or("a figure is missing");
        Ok((figure("gb_s")?, figure("cpu_s_per_gb")?))
    }
}
const DISTRIBUTED: usize = 0;
const APPLICATION: usize = 3;

pub(super) fn run(session: &mut Session, small: bool) -> Outcome<()> {
    let (turns, span) = if small { (3, Duration::from_millis(20)) } else { (15, Duration::from_millis(100)) };
    for size in SIZES.into_iter().filter(|size| !small || [64 << 10, 1 << 20].contains(size)) {
        for (name, way, peer) in PAIRS.into_iter().filter(|(.., peer)| peer.is_there()) {
            let (mut rates, mut costs, mut best) = (Vec::new(), Vec::new(), [0.0f64; 2]);
            for turn in 0..turns {
                let mut ours = || throughput(session, &WAYS[way], 2, size, span);
                // The first one runs in the state that the previous turn left behind, so they
                // alternate.
                let (ours, by_hand) = if turn % 2 == 0 {
                    let ours = ours()?;
                    (ours, peer.throughput(size, span)?)
                } else {
                    let by_hand = peer.throughput(size, span)?;
                    (ours()?, by_hand)
                };
                rates.push(ours.0 / by_hand.0);
                costs.push(ours.1 / by_hand.1);
                best = [best[0].max(ours.0), best[1].max(by_hand.0)];
            }
            let ([low, rate, high], [_, cpu, _]) = (quarters(rates), quarters(costs));
            let figures = json!({
                "rate": rate, "rate_low": low, "rate_high": high, "cpu": cpu, "best_gb_s": best[0], "peer_best_gb_s": best[1],
            });
            row(&format!("ratio: {name}"), 2, size, figures);
        }
        let (mut ratios, mut distributed_us, mut application_us) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..turns {
            let (distributed, _) = latency(session, &WAYS[DISTRIBUTED], 2, size, span)?;
            let (application, _) = latency(session, &WAYS[APPLICATION], 2, size, span)?;
            ratios.push(distributed / application);
            distributed_us.push(distributed);
            application_us.push(application);
        }
        let ([low, p50, high], [_, distributed, _], [_, application, _]) =
            (quarters(ratios), quarters(distributed_us), quarters(application_us));
        let figures = json!({
            "p50": p50, "p50_low": low, "p50_high": high, "distributed_us": distributed, "application_us": application,
        });
        row("ratio: distributed, by application-side, shared memory", 2, size, figures);
    }
    Ok(())
}

/// The lower quartile, the median and the upper quartile.
fn quarters(mut of: Vec<f64>) -> [f64; 3] {
    of.sort_unstable_by(f64::total_cmp);
    [of.len() / 4, of.len() / 2, of.len() * 3 / 4].map(|at| of[at])
}
