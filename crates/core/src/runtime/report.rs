//! What a runtime and its shared resources did.

use std::time::Duration;

use datapipes_metrics::{Histogram, Label, Sample, vocabulary};
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
    /// What its threads get of caches and memory bandwidth, where they
    /// [have a share](super::RuntimeOptions::thread_share).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_share: Option<String>,
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

impl RuntimeReport {
    /// Returns it as samples.
    pub fn samples(&self) -> Vec<Sample> {
        let ended = |n: u64, outcome| Sample::new(&vocabulary::RUNTIME_TRANSFERS, n).label(Label::Outcome, outcome);
        let mut samples = vec![
            ended(self.completed, "completed"),
            ended(self.failed, "failed"),
            Sample::new(&vocabulary::RUNTIME_UNDER_WAY, self.under_way),
            Sample::new(&vocabulary::RUNTIME_PANICS, self.panics),
            Sample::new(&vocabulary::RUNTIME_THREADS_REFUSED, self.threads_refused),
        ];
        samples.extend(
            self.latencies.iter().map(|of| {
                Sample::new(&vocabulary::TRANSFER_TIME, of.times.clone()).label(Label::Class, of.class.name())
            }),
        );
        samples.extend(self.resources.iter().flat_map(ResourceReport::samples));
        samples
    }
}

impl ResourceReport {
    /// Returns it as samples, by class and by pipe.
    fn samples(&self) -> Vec<Sample> {
        let stats = &self.stats;
        let on_device = |sample: Sample| sample.label(Label::Device, self.name.clone());
        let ns = Duration::from_nanos;
        let mut samples = Vec::new();
        for of in &stats.classes {
            let served = &of.served;
            let all = [
                Sample::new(&vocabulary::DEVICE_BYTES, served.bytes),
                Sample::new(&vocabulary::DEVICE_CHUNKS, served.chunks),
                Sample::new(&vocabulary::DEVICE_LONGEST_WAIT, ns(served.longest_wait_ns)),
                Sample::new(&vocabulary::DEVICE_THROTTLED, ns(served.throttled_ns)),
                Sample::new(&vocabulary::DEVICE_OUTSTANDING, of.outstanding_bytes),
                Sample::new(&vocabulary::DEVICE_MINIMUM_SHARE, of.minimum_share),
            ];
            samples.extend(all.map(|sample| on_device(sample).label(Label::Class, of.class.name())));
        }
        let all = [
            Sample::new(&vocabulary::DEVICE_WAITING, stats.requests),
            Sample::new(&vocabulary::DEVICE_OUTSTANDING_CHUNKS, stats.outstanding_chunks),
            Sample::new(&vocabulary::DEVICE_MOST_OUTSTANDING, stats.most_outstanding_bytes),
            Sample::new(&vocabulary::DEVICE_PROMISED, stats.promised),
            Sample::new(&vocabulary::DEVICE_PAST_CAP, stats.past_contended_cap),
        ];
        samples.extend(all.map(on_device));
        for flow in &stats.flows {
            let served = &flow.served;
            let all = [
                Sample::new(&vocabulary::FLOW_BYTES, served.bytes),
                Sample::new(&vocabulary::FLOW_LONGEST_WAIT, ns(served.longest_wait_ns)),
                Sample::new(&vocabulary::FLOW_THROTTLED, ns(served.throttled_ns)),
                Sample::new(&vocabulary::FLOW_OUTSTANDING, flow.outstanding_bytes),
                Sample::new(&vocabulary::FLOW_WAITING, flow.requests),
            ];
            let of_flow = |sample| {
                on_device(sample)
                    .label(Label::Pipe, flow.index.to_string())
                    .label(Label::Class, flow.service.class.name())
            };
            samples.extend(all.map(of_flow));
        }
        samples
    }
}
