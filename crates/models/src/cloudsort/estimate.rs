//! The estimate: each phase is as long as its busiest resource.

use serde::Serialize;

use super::inputs::{CloudInput as C, CloudSortInputs, InputLevel};

const GIGA: f64 = 1e9;

/// A resource of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PhaseResource {
    /// The processors of a node.
    Processor,
    /// What comes to a node.
    NetworkIn,
    /// What a node sends.
    NetworkOut,
    /// The object store.
    ObjectStore,
    /// The disk of a node.
    Disk,
}

impl PhaseResource {
    /// Returns a name for a table.
    pub fn name(self) -> &'static str {
        match self {
            PhaseResource::Processor => "processor",
            PhaseResource::NetworkIn => "network in",
            PhaseResource::NetworkOut => "network out",
            PhaseResource::ObjectStore => "object store",
            PhaseResource::Disk => "disk",
        }
    }
}

/// A phase: how long it would last if only one resource were slow, for each.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CloudSortPhase {
    /// Its name.
    pub name: &'static str,
    /// Seconds by resource.
    pub resources: Vec<(PhaseResource, f64)>,
    /// The busiest resource.
    pub bound: PhaseResource,
    /// Its seconds, with the slack.
    pub seconds: f64,
}

impl CloudSortPhase {
    fn of(name: &'static str, resources: Vec<(PhaseResource, f64)>, slack: f64) -> CloudSortPhase {
        let first = (PhaseResource::Processor, 0.0);
        let (bound, longest) = resources.iter().copied().fold(first, |a, b| if b.1 > a.1 { b } else { a });
        CloudSortPhase { name, resources, bound, seconds: longest / (1.0 - slack) }
    }
}

/// What a sort takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CloudSortEstimate {
    /// Map and shuffle, and reduce.
    pub phases: Vec<CloudSortPhase>,
    /// The seconds that are expected to go into doing again what nodes took with them.
    pub lost_seconds: f64,
    /// All seconds.
    pub seconds: f64,
    /// Dollars for nodes and what stands beside them.
    pub machine_dollars: f64,
    /// Dollars for requests.
    pub request_dollars: f64,
    /// All dollars.
    pub dollars: f64,
}

/// Estimates a sort with all inputs at one level.
pub fn estimate(inputs: &CloudSortInputs, level: InputLevel) -> CloudSortEstimate {
    let of = |input: C| inputs.value(input, level);
    let nodes = inputs.nodes.max(1) as f64;
    let share = inputs.bytes as f64 / GIGA / nodes;
    // What a node has for others.
    let away = share * (nodes - 1.0) / nodes;
    let processors = of(C::Processors) * of(C::ProcessorShare) * of(C::ProcessorSpeed);
    let map = CloudSortPhase::of(
        "map and shuffle",
        vec![
            (
                PhaseResource::Processor,
                (share * (of(C::ObjectSeconds) + of(C::SortSeconds) + of(C::MergeSeconds))
                    + away * of(C::ExchangeSeconds))
                    / processors,
            ),
            (PhaseResource::NetworkIn, (share + away) / of(C::Network)),
            (PhaseResource::NetworkOut, away / of(C::Network)),
            (PhaseResource::ObjectStore, share / of(C::ObjectStore)),
            (PhaseResource::Disk, share / of(C::DiskWrite)),
        ],
        of(C::Slack),
    );
    let reduce = CloudSortPhase::of(
        "reduce",
        vec![
            (PhaseResource::Processor, share * (of(C::MergeSeconds) + of(C::ObjectSeconds)) / processors),
            (PhaseResource::NetworkOut, share / of(C::Network)),
            (PhaseResource::ObjectStore, share / of(C::ObjectStore)),
            (PhaseResource::Disk, share / of(C::DiskRead)),
        ],
        of(C::Slack),
    );
    let working = map.seconds + reduce.seconds;
    // A node that is lost half-way has taken what it sorted and merged: its share of the map phase
    // is done again by the others, after its loss is known.
    let losses = of(C::Losses) / 1000.0 * nodes * working / 3600.0;
    let lost_seconds = losses * (of(C::Detection) + map.seconds / (nodes - 1.0).max(1.0));
    let seconds = working + lost_seconds + of(C::Fixed);
    let machine_dollars = (nodes * of(C::NodePrice) + of(C::OtherPrice)) * seconds / 3600.0;
    let request_dollars = inputs.bytes as f64 / GIGA * of(C::RequestPrice);
    CloudSortEstimate {
        phases: vec![map, reduce],
        lost_seconds,
        seconds,
        machine_dollars,
        request_dollars,
        dollars: machine_dollars + request_dollars,
    }
}
