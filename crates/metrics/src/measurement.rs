//! What a measurement is.

use serde::Serialize;

/// How a measurement changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasurementKind {
    /// A sum that only grows, from the beginning of what is measured.
    Counter,
    /// The value of this moment, or of something that has ended.
    Gauge,
    /// A distribution of times.
    Histogram,
}

impl MeasurementKind {
    /// Its word in Prometheus' text.
    pub const fn as_str(self) -> &'static str {
        match self {
            MeasurementKind::Counter => "counter",
            MeasurementKind::Gauge => "gauge",
            MeasurementKind::Histogram => "histogram",
        }
    }
}

/// In what a value is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Things, which the name says.
    Count,
    /// Bytes.
    Bytes,
    /// Pages of memory.
    Pages,
    /// Seconds.
    Seconds,
    /// Bytes in a second.
    BytesPerSecond,
    /// A part of a whole, from 0 to 1.
    Ratio,
}

impl Unit {
    /// What names of measurements in this unit end with, before `_total`.
    pub const fn suffix(self) -> &'static str {
        match self {
            Unit::Count => "",
            Unit::Bytes => "_bytes",
            Unit::Pages => "_pages",
            Unit::Seconds => "_seconds",
            Unit::BytesPerSecond => "_bytes_per_second",
            Unit::Ratio => "_ratio",
        }
    }
}

/// What distinguishes the values of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Label {
    /// The product whose pipe it is: `pipe` for a program's own, `sort`, ...
    Product,
    /// What transfers compete for: `memory`, `core 3`, `blocking`, `device 259:0`.
    Device,
    /// The pipe: its number in a scheduler, or its role in a product (`input`, `spill`, ...).
    Pipe,
    /// The primitives of a route, in order.
    Route,
    /// The step of a route, from 1.
    Step,
    /// The primitive.
    Primitive,
    /// The priority class.
    Class,
    /// What came of it, or of the command so far.
    Outcome,
    /// Who makes the events that are counted: `thread`, `machine`.
    Scope,
    /// The most bytes of an item of a size class of the cache.
    Capacity,
    /// How a read of the cache finds its bytes: `bytes`, `sectors`, `blocks`.
    Path,
    /// Who changed a file: `inside` or `outside` the process.
    Origin,
    /// The phase of a sort.
    Phase,
    /// The way of the bytes: `in` or `out`.
    Direction,
    /// The number of a client in the service's log.
    Client,
    /// The command of `dpipe`: `sort`, `log append`.
    Command,
    /// Which of several runs of a command: the name of its file of metrics. All samples of such a
    /// file have it, whatever they measure.
    Run,
}

impl Label {
    /// Every label.
    pub const ALL: [Label; 17] = [
        Label::Product,
        Label::Device,
        Label::Pipe,
        Label::Route,
        Label::Step,
        Label::Primitive,
        Label::Class,
        Label::Outcome,
        Label::Scope,
        Label::Capacity,
        Label::Path,
        Label::Origin,
        Label::Phase,
        Label::Direction,
        Label::Client,
        Label::Command,
        Label::Run,
    ];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Label::Product => "product",
            Label::Device => "device",
            Label::Pipe => "pipe",
            Label::Route => "route",
            Label::Step => "step",
            Label::Primitive => "primitive",
            Label::Class => "class",
            Label::Outcome => "outcome",
            Label::Scope => "scope",
            Label::Capacity => "capacity",
            Label::Path => "path",
            Label::Origin => "origin",
            Label::Phase => "phase",
            Label::Direction => "direction",
            Label::Client => "client",
            Label::Command => "command",
            Label::Run => "run",
        }
    }

    /// What it says, in a line.
    pub const fn help(self) -> &'static str {
        match self {
            Label::Product => "Whose pipe it is: `pipe` for a program's own and those of `dpipe copy`, `sort`",
            Label::Device => "What transfers compete for: `memory`, `core 3`, `blocking`, `device 259:0`",
            Label::Pipe => {
                "The pipe: its number in a scheduler, its role (`input`, `copy`, `comparison`), or a channel with its \
                 placement (`distributed resource-side 1`)"
            }
            Label::Route => "The primitives of a route, in order",
            Label::Step => "The step of a route, from 1; the pipes of a sort have none",
            Label::Primitive => "The primitive",
            Label::Class => "The priority class",
            Label::Outcome => {
                "What came of it: `completed`, `failed`, `hit`, `miss`; of requests also `refused`, `cut`; of a \
                 command also `running`, `mismatch`, `interrupted`"
            }
            Label::Scope => "Who makes the events that are counted: `thread`, `machine`",
            Label::Capacity => "The most bytes of an item of a size class of the cache",
            Label::Path => "How a read of the cache finds its bytes: `bytes`, `sectors`, `blocks`",
            Label::Origin => "Who changed a file: `inside` or `outside` the process",
            Label::Phase => "The phase of a sort or of the save of a checkpoint",
            Label::Direction => "The way of the bytes: `in` or `out`",
            Label::Client => "The number of a client in the service's log",
            Label::Command => "The command of `dpipe`: `sort`, `log append`",
            Label::Run => {
                "The name of the file of metrics that it stands in, without `.prom`; on all samples of the file"
            }
        }
    }
}

/// What is measured, and under which name.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Measurement {
    /// Its name, as Prometheus' conventions have it.
    pub name: &'static str,
    /// Whether it is a sum, a value of the moment, or a distribution.
    pub kind: MeasurementKind,
    /// The unit of its values.
    pub unit: Unit,
    /// The labels that its samples may have.
    pub labels: &'static [Label],
    /// What it is, in a line.
    pub help: &'static str,
}
