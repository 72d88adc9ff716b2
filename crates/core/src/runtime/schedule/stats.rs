//! What a scheduler shows of itself.

use serde::{Deserialize, Serialize};

use super::service::{PriorityClass, ServiceLevel};

/// What a flow or a class has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Served {
    /// Bytes released to the resource.
    pub bytes: u64,
    /// Chunks released to the resource.
    pub chunks: u64,
    /// The longest time between a request's arrival and the release of its first chunk.
    pub longest_wait_ns: u64,
    /// How long requests were there and only `at_most` stood in their way.
    pub throttled_ns: u64,
}

impl Served {
    pub(super) fn count(&mut self, bytes: u64, wait_ns: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.chunks += 1;
        self.longest_wait_ns = self.longest_wait_ns.max(wait_ns);
    }

    /// Saturates: a clock that jumps back and forth can say anything.
    pub(super) fn throttled(&mut self, ns: u64) {
        self.throttled_ns = self.throttled_ns.saturating_add(ns);
    }
}

/// A flow now and since it was connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FlowStats {
    /// Its position; taken over by another flow after it is gone.
    pub index: u32,
    /// What it asked for.
    pub service: ServiceLevel,
    /// Requests of which something is not released yet.
    pub requests: usize,
    /// Bytes at the resource.
    pub outstanding_bytes: u64,
    /// Whether it waits for its limit.
    pub throttled: bool,
    /// What it has had.
    pub served: Served,
}

/// A class now and since the scheduler was made, flows that are gone included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClassStats {
    /// The class.
    pub class: PriorityClass,
    /// The part of the bytes it has while it has work, whatever the others do.
    pub minimum_share: f64,
    /// Bytes at the resource.
    pub outstanding_bytes: u64,
    /// What it has had.
    pub served: Served,
}

/// A resource as its scheduler sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ScheduleStats {
    /// By class, the most urgent first.
    pub classes: Vec<ClassStats>,
    /// The connected flows.
    pub flows: Vec<FlowStats>,
    /// Requests of which something is not released yet.
    pub requests: u64,
    /// Bytes at the resource.
    pub outstanding_bytes: u64,
    /// Chunks at the resource.
    pub outstanding_chunks: u32,
    /// The most bytes that were at the resource at once.
    pub most_outstanding_bytes: u64,
    /// Bytes/s promised to the connected flows together.
    pub promised: f64,
    /// Chunks that were let past the cap of contended bytes, for a promised rate or a minimum
    /// share.
    pub past_contended_cap: u64,
}
