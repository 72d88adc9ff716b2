//! What a runtime and its shared resources did.

use datapipes_metrics::Histogram;
use serde::{Deserialize, Serialize};

use super::schedule::{PriorityClass, SchedulePolicy, ScheduleStats};

/// What a runtime did and is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RuntimeReport {
    /// Transfers under way.
    pub under_way: u64,
    /// Transfers completed without an error.
    pub completed: u64,
    /// Transfers that failed or were cancelled.
    pub failed: u64,
    /// Panics of foreign code that were caught: callbacks, wakers, closures of graphs, destructors,
    /// movers.
    pub panics: u64,
    /// What the first of them said.
    pub first_panic: Option<String>,
    /// Threads that the kernel refused.
    pub threads_refused: u64,
    /// The first refusal, and what was done instead.
    pub first_refusal: Option<String>,
    /// The shared resources, by place.
    pub resources: Vec<ResourceReport>,
    /// Times of transfers by class, from the call to the end, where they
    /// [are measured](super::RuntimeOptions::measure_latencies).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<ClassLatencies>,
}

/// Times of the transfers of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClassLatencies {
    /// The class.
    pub class: PriorityClass,
    /// The times, of failed transfers too.
    pub times: Histogram,
}

/// What a resource did, and what it is doing (CIDR'23, section 6, principle 4: visible state).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResourceReport {
    /// Its name.
    pub name: String,
    /// How it is shared.
    pub policy: SchedulePolicy,
    /// By class and by pipe.
    pub stats: ScheduleStats,
}
