//! The share of a copy that goes to the engine where a core copies the rest.
#![deny(clippy::arithmetic_side_effects)]

use crate::cost::{MoveCost, SplitCost};

/// The share of the engine ends at a multiple of this.
const UNIT: f64 = 4096.0;

/// The rates by which a copy is split, so that core and engine end together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SplitRates {
    /// Time of an empty move by the engine, in seconds.
    latency: f64,
    /// Bytes per second of the engine.
    engine: f64,
    /// Bytes per second of a core.
    core: f64,
}

impl SplitRates {
    pub(crate) fn of(cost: MoveCost, split: SplitCost) -> SplitRates {
        SplitRates { latency: cost.latency_ns / 1e9, engine: cost.bytes_per_s, core: split.core_bytes_per_s }
    }

    /// The length from which copies are split: the engine's share then takes as long as its
    /// latency, and the core copies during both.
    #[allow(clippy::arithmetic_side_effects)] // Of floating-point numbers.
    pub(crate) fn smallest(&self) -> f64 {
        self.latency * (self.engine + 2.0 * self.core)
    }

    /// Returns how many bytes of a copy are the engine's, or `None` where it is too short to split.
    ///
    /// The engine ends after `latency + share / engine`, the core after `(len - share) / core`.
    #[allow(clippy::arithmetic_side_effects)] // Of floating-point numbers.
    pub(crate) fn engine_share(&self, len: u64) -> Option<u64> {
        let all = len as f64;
        if all < self.smallest() {
            return None;
        }
        let share = self.engine * (all - self.latency * self.core) / (self.engine + self.core);
        // It is at least 0 and at most `len`: a copy that is split takes longer than the latency.
        let share = ((share / UNIT).round() * UNIT).clamp(0.0, all) as u64;
        Some(share.min(len)).filter(|share| *share > 0 && *share < len)
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use datapipes_testkit::Random;

    #[test]
    fn both_end_together_and_short_copies_are_not_split() {
        let mut random = Random(datapipes_testkit::seed(11));
        let mut split = 0;
        for _ in 0..5000 {
            let between = |random: &mut Random, least: f64, most: f64| {
                least * (most / least).powf((random.next() >> 11) as f64 / (1u64 << 53) as f64)
            };
            let rates = SplitRates {
                latency: between(&mut random, 1e-8, 1e-4),
                engine: between(&mut random, 1e8, 1e11),
                core: between(&mut random, 1e8, 1e11),
            };
            let len = between(&mut random, 1.0, 1e10) as u64;
            let alone = rates.latency + len as f64 / rates.engine;
            match rates.engine_share(len) {
                None => {
                    let too_short = (len as f64) < rates.smallest();
                    // Or the share of one of them is less than a unit.
                    let fastest = rates.core.max(rates.engine) / rates.core.min(rates.engine);
                    assert!(too_short || fastest * UNIT >= len as f64 / 4.0, "{rates:?} {len}");
                }
                Some(share) => {
                    split += 1;
                    assert!(share > 0 && share < len, "{share} of {len}");
                    let engine = rates.latency + share as f64 / rates.engine;
                    let core = (len - share) as f64 / rates.core;
                    let of_a_unit = UNIT / rates.engine + UNIT / rates.core;
                    assert!((engine - core).abs() <= of_a_unit, "{engine} {core} {rates:?} {len}");
                    // Neither alone would have been faster by more than the rounding.
                    let together = engine.max(core);
                    assert!(together <= alone.min(len as f64 / rates.core) + of_a_unit, "{rates:?} {len}");
                }
            }
        }
        assert!(split > 1000, "{split}");
    }

    #[test]
    fn the_shares_are_those_of_the_rates() {
        let rates = SplitRates { latency: 1e-6, engine: 3e10, core: 1e10 };
        assert_eq!(rates.smallest(), 50_000.0);
        assert_eq!(rates.engine_share(49_999), None);
        // Three quarters, less what the core copies within the latency, in pages.
        assert_eq!(rates.engine_share(16 << 20), Some(12_574_720));
    }
}
