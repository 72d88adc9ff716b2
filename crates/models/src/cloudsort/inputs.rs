//! The inputs of the model: what each is, how bad or good it may be, and where it is from.

use serde::Serialize;

/// Where a number is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputOrigin {
    /// It was measured with this project, on another processor than the model's.
    Measured,
    /// Its vendor or a paper publishes it.
    Published,
    /// It is a guess, whose range says how much of one.
    Assumed,
}

impl InputOrigin {
    /// Returns a name for a table.
    pub fn name(self) -> &'static str {
        match self {
            InputOrigin::Measured => "measured",
            InputOrigin::Published => "published",
            InputOrigin::Assumed => "assumed",
        }
    }
}

/// An input of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CloudInput {
    /// Virtual processors of a node.
    Processors,
    /// The share of their time that the tasks get.
    ProcessorShare,
    /// The speed of one, as a multiple of those that the rates were measured on.
    ProcessorSpeed,
    /// Processor time to sort a gigabyte and to cut it.
    SortSeconds,
    /// Processor time to merge a gigabyte, once.
    MergeSeconds,
    /// Processor time to move a gigabyte from one node's store to another's, both ends together.
    ExchangeSeconds,
    /// Processor time to get a gigabyte of objects or to put it.
    ObjectSeconds,
    /// The network of a node, each way.
    Network,
    /// What a node gets from the object store, or puts there.
    ObjectStore,
    /// Reads of a node's disk.
    DiskRead,
    /// Writes of a node's disk.
    DiskWrite,
    /// How much of a phase its busiest resource is idle: starts, waits, uneven parts.
    Slack,
    /// Nodes that are lost, in a thousand hours of a node.
    Losses,
    /// Time until the loss of a node is known.
    Detection,
    /// Time to plan, sample and publish.
    Fixed,
    /// The price of a node.
    NodePrice,
    /// The price of the head, of disks and of stored objects, by the hour.
    OtherPrice,
    /// Requests of the object store for each gigabyte that is sorted, in dollars.
    RequestPrice,
}

/// How an input is chosen from its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputLevel {
    /// As bad as it may be.
    Worst,
    /// As it probably is.
    Likely,
    /// As good as it may be.
    Best,
}

/// An input with its range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UncertainInput {
    /// The input that this is.
    pub input: CloudInput,
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// As bad as it may be.
    pub worst: f64,
    /// As it probably is.
    pub likely: f64,
    /// As good as it may be.
    pub best: f64,
    /// Where it is from.
    pub origin: InputOrigin,
    /// Its source in words.
    pub source: &'static str,
}

impl UncertainInput {
    /// Returns its value.
    pub fn at(&self, level: InputLevel) -> f64 {
        match level {
            InputLevel::Worst => self.worst,
            InputLevel::Likely => self.likely,
            InputLevel::Best => self.best,
        }
    }
}

/// Everything that the model is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CloudSortInputs {
    /// The nodes that sort.
    pub nodes: u64,
    /// The bytes to sort.
    pub bytes: u64,
    /// The inputs with ranges.
    pub inputs: Vec<UncertainInput>,
}

impl CloudSortInputs {
    /// Returns the inputs of the record: 100 TB on 40 nodes of the type i4i.4xlarge.
    pub fn record() -> CloudSortInputs {
        CloudSortInputs { nodes: 40, bytes: 100_000_000_000_000, inputs: RANGES.to_vec() }
    }

    /// Returns an input at a level; 0 if it is not among them.
    pub fn value(&self, input: CloudInput, level: InputLevel) -> f64 {
        self.inputs.iter().find(|one| one.input == input).map_or(0.0, |one| one.at(level))
    }

    /// Gives an input this value at every level.
    #[must_use]
    pub fn with(mut self, input: CloudInput, value: f64) -> CloudSortInputs {
        for one in self.inputs.iter_mut().filter(|one| one.input == input) {
            (one.worst, one.likely, one.best) = (value, value, value);
        }
        self
    }

    /// Multiplies an input at every level.
    #[must_use]
    pub fn scaled(mut self, input: CloudInput, factor: f64) -> CloudSortInputs {
        for one in self.inputs.iter_mut().filter(|one| one.input == input) {
            (one.worst, one.likely, one.best) = (one.worst * factor, one.likely * factor, one.best * factor);
        }
        self
    }
}

const fn input(
    (input, name, unit): (CloudInput, &'static str, &'static str),
    [worst, likely, best]: [f64; 3],
    origin: InputOrigin,
    source: &'static str,
) -> UncertainInput {
    UncertainInput { input, name, unit, worst, likely, best, origin, source }
}

use CloudInput as C;
use InputOrigin::{Assumed, Measured, Published};

/// The rates were measured on an AMD EPYC of family 25, model 1, between two raylets of one machine
/// (`benchmarks/results`, the records named here).
const RANGES: [UncertainInput; 18] = [
    input((C::Processors, "processors", "vCPU"), [16.0; 3], Published, "i4i.4xlarge: 16 vCPU, 128 GiB"),
    input((C::ProcessorShare, "processor-share", ""), [0.7, 0.85, 0.95], Assumed, "the rest is Ray and the system"),
    input(
        (C::ProcessorSpeed, "processor-speed", "times"),
        [0.6, 0.85, 1.1],
        Assumed,
        "Ice Lake, two threads a core, beside the processor of the rates",
    ),
    input(
        (C::SortSeconds, "sort-seconds", "s/GB"),
        [2.4, 1.8, 1.6],
        Measured,
        "task `dpipe-sort`, from a file (2026-11-26-sort-ray)",
    ),
    input(
        (C::MergeSeconds, "merge-seconds", "s/GB"),
        [1.0, 0.6, 0.5],
        Measured,
        "task `dpipe-merge`, to a file (2026-11-26-sort-ray)",
    ),
    input(
        (C::ExchangeSeconds, "exchange-seconds", "s/GB"),
        [4.6, 0.7, 0.6],
        Measured,
        "direct, from node to node (2026-11-29-sort-ray); at worst by Ray's store (2026-11-26-sort-ray)",
    ),
    input(
        (C::ObjectSeconds, "object-seconds", "s/GB"),
        [1.5, 0.8, 0.3],
        Assumed,
        "TLS, checksums and copies of a client in Rust",
    ),
    input(
        (C::Network, "network", "GB/s"),
        [1.17, 2.5, 3.1],
        Published,
        "i4i.4xlarge: 9.375 Gbit/s always, up to 25 Gbit/s",
    ),
    input((C::ObjectStore, "object-store", "GB/s"), [1.0, 2.0, 3.0], Assumed, "many connections, several prefixes"),
    input((C::DiskRead, "disk-read", "GB/s"), [1.4, 2.2, 2.8], Assumed, "one Nitro SSD of 3.75 TB"),
    input((C::DiskWrite, "disk-write", "GB/s"), [0.9, 1.4, 1.8], Assumed, "one Nitro SSD of 3.75 TB"),
    input((C::Slack, "slack", ""), [0.35, 0.2, 0.1], Assumed, "the first Exoshuffle paper: 82% of its bound"),
    input((C::Losses, "losses", "in 1000 node hours"), [5.0, 0.5, 0.0], Assumed, ""),
    input((C::Detection, "detection", "s"), [60.0, 30.0, 10.0], Assumed, "Ray's health checks"),
    input((C::Fixed, "fixed", "s"), [60.0, 30.0, 15.0], Assumed, "the driver, the sample, the rename"),
    input((C::NodePrice, "node-price", "$/h"), [1.373; 3], Published, "on demand, us-west-2, 2022"),
    input((C::OtherPrice, "other-price", "$/h"), [6.0, 5.0, 4.0], Assumed, "head, disks, the objects' storage"),
    input(
        (C::RequestPrice, "request-price", "$/GB"),
        [0.00016, 0.00008, 0.00005],
        Assumed,
        "gets of 16 MiB at $0.0004, puts of 100 MB at $0.005 a thousand",
    ),
];
