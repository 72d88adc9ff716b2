//! The paper's figure 3, its ranges, and variations of its parameters.

use serde::Serialize;

use super::parameters::{Parameters, Scenario, SimulatedPlacement};
use super::simulation::{Repetitions, SimulationResult, simulate};
use crate::time::Time;

/// The sizes of figure 3, in bytes.
const SIZES: [u64; 6] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10];
/// Larger sizes, which the paper does not have.
const BEYOND: [u64; 5] = [64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20];

/// A range of fractions: 0.45 is 45 % faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ValueRange {
    /// The lowest value.
    pub low: f64,
    /// The highest value.
    pub high: f64,
}

impl ValueRange {
    fn of(values: impl Iterator<Item = f64>) -> ValueRange {
        values.fold(ValueRange { low: f64::INFINITY, high: f64::NEG_INFINITY }, |r, v| ValueRange {
            low: r.low.min(v),
            high: r.high.max(v),
        })
    }
}

/// Ranges like the two that the paper publishes (section 4.3), over 1 to 32 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PublishedRanges {
    /// How much faster the distributed placement is than the application-side one.
    pub than_application: ValueRange,
    /// How much faster the distributed placement is than the central one.
    pub than_central: ValueRange,
}

/// Returns the paper's ranges.
pub fn published() -> PublishedRanges {
    PublishedRanges {
        than_application: ValueRange { low: 0.45, high: 0.67 },
        than_central: ValueRange { low: 0.21, high: 0.28 },
    }
}

/// The results for one block size under the three placements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlacementRow {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Whether figure 3 has this size.
    pub is_published: bool,
    /// The outcomes, in the order of [`SimulatedPlacement::ALL`].
    pub outcomes: [SimulationResult; 3],
    /// `T_application / T_distributed - 1`.
    pub than_application: f64,
    /// `T_central / T_distributed - 1`.
    pub than_central: f64,
}

/// Figure 3 by the model, with larger blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure3 {
    /// The results by size.
    pub rows: Vec<PlacementRow>,
    /// The ranges over the published sizes.
    pub ranges: PublishedRanges,
}

/// Computes latencies over block sizes: 1 to 32 KiB as in the paper, and 64 KiB to 4 MiB beyond it.
/// `shape.block_bytes` is ignored.
pub fn figure_3(parameters: &Parameters, shape: &Scenario) -> Figure3 {
    let sizes = SIZES.iter().map(|&s| (s, true)).chain(BEYOND.iter().map(|&s| (s, false)));
    let rows: Vec<PlacementRow> = sizes
        .map(|(block_bytes, is_published)| {
            let outcomes = three(parameters, &Scenario { block_bytes, ..*shape });
            let faster = |other: SimulationResult| other.latency.as_us() / outcomes[2].latency.as_us() - 1.0;
            let (than_application, than_central) = (faster(outcomes[0]), faster(outcomes[1]));
            PlacementRow { block_bytes, is_published, outcomes, than_application, than_central }
        })
        .collect();
    let of = |value: fn(&PlacementRow) -> f64| ValueRange::of(rows.iter().filter(|r| r.is_published).map(value));
    let ranges = PublishedRanges { than_application: of(|r| r.than_application), than_central: of(|r| r.than_central) };
    Figure3 { rows, ranges }
}

fn three(parameters: &Parameters, shape: &Scenario) -> [SimulationResult; 3] {
    SimulatedPlacement::ALL.map(|placement| simulate(placement, parameters, shape, Repetitions::default()))
}

/// One choice of a parameter, and its results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The choice, for people.
    pub choice: String,
    /// The choice, as a number on the axis.
    pub value: f64,
    /// The outcomes, in the order of [`SimulatedPlacement::ALL`].
    pub outcomes: [SimulationResult; 3],
}

/// A question, and the answers along one axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// The parameter that is varied.
    pub question: String,
    /// The axis with its unit.
    pub axis: &'static str,
    /// Whether the rate is more informative than the latency here.
    pub is_about_rate: bool,
    /// The answers.
    pub points: Vec<Point>,
}

/// Varies the packet size, the round trip across, the length of the chain, the number of pools, and
/// the credits.
pub fn what_ifs(parameters: &Parameters, shape: &Scenario) -> Vec<WhatIf> {
    let kib = |bytes: u64| format!("{} KiB", bytes >> 10);
    let block = Scenario { block_bytes: 32 << 10, ..*shape };
    let packets = [4 << 10, 8 << 10, 16 << 10, 64 << 10u64].map(|packet_bytes| Point {
        choice: kib(packet_bytes),
        value: (packet_bytes >> 10) as f64,
        outcomes: three(&Parameters { packet_bytes, ..*parameters }, &block),
    });
    let trips = [500, 1000, 2000, 4000, 8000, 16000u64].map(|ns| {
        let mut changed = *parameters;
        changed.across.round_trip = Time::ns(ns);
        let choice = format!("{:.1} us", ns as f64 / 1e3);
        Point { choice, value: ns as f64 / 1e3, outcomes: three(&changed, &block) }
    });
    let chains = [1, 2, 3, 4, 6, 8usize].map(|devices| Point {
        choice: devices.to_string(),
        value: devices as f64,
        outcomes: three(parameters, &Scenario { devices, ..block }),
    });
    let pools = [1, 2, 4, 8usize].map(|pools| Point {
        choice: pools.to_string(),
        value: pools as f64,
        outcomes: three(parameters, &Scenario { devices: 8, pools, ..block }),
    });
    let credits = |packet_bytes: u64| {
        [1, 2, 4, 8u32].map(|credits| {
            // As many blocks as the channels take are in flight, so the credits are the only limit.
            let shape = Scenario { credits, in_flight: u32::MAX, block_bytes: 64 << 10, ..*shape };
            let outcomes = three(&Parameters { packet_bytes, ..*parameters }, &shape);
            Point { choice: credits.to_string(), value: f64::from(credits), outcomes }
        })
    };
    let what_if =
        |question: String, axis, is_about_rate, points: Vec<Point>| WhatIf { question, axis, is_about_rate, points };
    vec![
        what_if("larger packets, blocks of 32 KiB".into(), "packet, KiB", false, packets.into()),
        what_if("another round trip across, blocks of 32 KiB".into(), "round trip, us", false, trips.into()),
        what_if("longer chains, blocks of 32 KiB".into(), "devices", false, chains.into()),
        what_if("8 devices over more pools, blocks of 32 KiB".into(), "pools", false, pools.into()),
        what_if("more credits, blocks of 64 KiB, packets of 4 KiB".into(), "credits", true, credits(4 << 10).into()),
        what_if("more credits, blocks of 64 KiB, packets of 64 KiB".into(), "credits", true, credits(64 << 10).into()),
    ]
}
