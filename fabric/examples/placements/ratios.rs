//! Like with like: ours and what is written by hand, with the same number of copies, in short turns
//! one right after the other.
//!
//! Each turn gives a ratio of its own, and what is printed is the median of them, with the
//! quarters: on a machine that others use, both of a pair have the same neighbours, which two
//! medians minutes apart do not.

use std::time::Duration;

use datapipes_fabric::control::Session;
use serde_json::json;

use super::{Outcome, SIZES, WAYS, latency, peers, row, throughput};

/// Ours, by its place among the ways, and the one by hand.
const PAIRS: [(&str, usize, &str); 2] =
    [("in place, by ring in place", 0, "ring, in place"), ("private copies, by ring, one copy", 1, "ring, one copy")];
const DISTRIBUTED: usize = 0;
const APPLICATION: usize = 3;

pub(super) fn run(session: &mut Session, small: bool) -> Outcome<()> {
    let (turns, span) = if small { (3, Duration::from_millis(20)) } else { (15, Duration::from_millis(100)) };
    for size in SIZES.into_iter().filter(|size| !small || [64 << 10, 1 << 20].contains(size)) {
        for (name, way, peer) in PAIRS {
            let (mut rates, mut costs, mut best) = (Vec::new(), Vec::new(), [0.0f64; 2]);
            for turn in 0..turns {
                let mut ours = || throughput(session, &WAYS[way], 2, size, span);
                // Who begins has what the turn before left behind: they take turns in that, too.
                let (ours, by_hand) = if turn % 2 == 0 {
                    let ours = ours()?;
                    (ours, peers::throughput(peer, size, span)?)
                } else {
                    let by_hand = peers::throughput(peer, size, span)?;
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
        let mut ratios = Vec::new();
        for _ in 0..turns {
            let (distributed, _) = latency(session, &WAYS[DISTRIBUTED], 2, size, span)?;
            let (application, _) = latency(session, &WAYS[APPLICATION], 2, size, span)?;
            ratios.push(distributed / application);
        }
        let [low, p50, high] = quarters(ratios);
        let figures = json!({ "p50": p50, "p50_low": low, "p50_high": high });
        row("ratio: distributed, by application-side, shared memory", 2, size, figures);
    }
    Ok(())
}

/// The lower quarter, the median, the upper quarter.
fn quarters(mut of: Vec<f64>) -> [f64; 3] {
    of.sort_unstable_by(f64::total_cmp);
    [of.len() / 4, of.len() / 2, of.len() * 3 / 4].map(|at| of[at])
}
