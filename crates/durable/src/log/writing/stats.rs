//! Statistics of a log.

use datapipes_metrics::{Histogram, Sample, vocabulary};
use serde::Serialize;

/// A distribution of times in figures, which are at most a sixteenth too high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LatencySummary {
    /// The number of times.
    pub count: u64,
    /// The median, in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile, in nanoseconds.
    pub p99_ns: u64,
    /// The 99.9th percentile, in nanoseconds.
    pub p999_ns: u64,
    /// The longest time, in nanoseconds.
    pub max_ns: u64,
}

impl From<&Histogram> for LatencySummary {
    fn from(times: &Histogram) -> LatencySummary {
        LatencySummary {
            count: times.count(),
            p50_ns: times.percentile_ns(50.0),
            p99_ns: times.percentile_ns(99.0),
            p999_ns: times.percentile_ns(99.9),
            max_ns: times.max_ns(),
        }
    }
}

/// The distributions of a log's times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogLatencies {
    /// From append to acknowledgement, for tickets that were waited for.
    pub acknowledged: Histogram,
    /// Writes.
    pub write: Histogram,
    /// Syncs.
    pub sync: Histogram,
    /// Changes to a new segment.
    pub rotation: Histogram,
}

/// The statistics of a log since it was opened.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct LogStats {
    /// Records appended.
    pub records: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Bytes written for them, with headers and marks.
    pub written_bytes: u64,
    /// Batches that became durable; each was one write and one sync.
    pub batches: u64,
    /// Records of the largest batch.
    pub largest_batch: u64,
    /// How often an append waited for room.
    pub waits_for_room: u64,
    /// The number of segments that were begun.
    pub segments_begun: u64,
    /// Times from append to acknowledgement, for tickets that were waited for.
    pub acknowledged: LatencySummary,
    /// Times of writes.
    pub write: LatencySummary,
    /// Times of syncs.
    pub sync: LatencySummary,
    /// Times of the changes to a new segment.
    pub rotation: LatencySummary,
    /// The number of the next record.
    pub next: u64,
    /// All records before this number are durable.
    pub durable_before: u64,
    /// The error for which the log takes no more records.
    pub failed: Option<String>,
    /// The distributions of which the figures above are.
    #[serde(skip)]
    pub latencies: LogLatencies,
}

impl LogStats {
    /// Returns them as samples. The text of a failure is not among them.
    pub fn samples(&self) -> Vec<Sample> {
        let times = &self.latencies;
        vec![
            Sample::new(&vocabulary::LOG_RECORDS, self.records),
            Sample::new(&vocabulary::LOG_PAYLOAD, self.payload_bytes),
            Sample::new(&vocabulary::LOG_WRITTEN, self.written_bytes),
            Sample::new(&vocabulary::LOG_BATCHES, self.batches),
            Sample::new(&vocabulary::LOG_LARGEST_BATCH, self.largest_batch),
            Sample::new(&vocabulary::LOG_WAITS, self.waits_for_room),
            Sample::new(&vocabulary::LOG_SEGMENTS, self.segments_begun),
            Sample::new(&vocabulary::LOG_UNDURABLE, self.next.saturating_sub(self.durable_before)),
            Sample::new(&vocabulary::LOG_FAILED, self.failed.is_some()),
            Sample::new(&vocabulary::LOG_APPEND_TIME, times.acknowledged.clone()),
            Sample::new(&vocabulary::LOG_WRITE_TIME, times.write.clone()),
            Sample::new(&vocabulary::LOG_SYNC_TIME, times.sync.clone()),
            Sample::new(&vocabulary::LOG_ROTATION_TIME, times.rotation.clone()),
        ]
    }
}
