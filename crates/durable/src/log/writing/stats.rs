//! Statistics of a log.

use std::time::Duration;

use serde::Serialize;

/// Slots in each power of two.
const PARTS: usize = 8;
/// Powers of two: up to 2^40 ns, a quarter of an hour.
const POWERS: usize = 40;

/// Times by size, at a resolution of an eighth of a power of two.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Box<[u64; PARTS * POWERS]>,
    total: u64,
    most: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: Box::new([0; PARTS * POWERS]), total: 0, most: 0 }
    }
}

fn slot(ns: u64) -> usize {
    if ns < PARTS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2();
    let part = (ns >> (power - 3)) as usize & (PARTS - 1);
    ((power as usize - 2) * PARTS + part).min(PARTS * POWERS - 1)
}

/// The largest time that falls into a slot.
fn top(slot: usize) -> u64 {
    if slot < PARTS {
        return slot as u64;
    }
    let power = slot / PARTS + 2;
    ((PARTS as u64 + (slot % PARTS) as u64 + 1) << (power - 3)) - 1
}

impl Histogram {
    pub(crate) fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[slot(ns)] += 1;
        self.total += 1;
        self.most = self.most.max(ns);
    }

    /// The time, in nanoseconds, that `share` of all times do not exceed.
    fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted.max(1) {
                return top(slot).min(self.most);
            }
        }
        self.most
    }

    pub(crate) fn times(&self) -> LatencySummary {
        if self.total == 0 {
            return LatencySummary::default();
        }
        LatencySummary {
            count: self.total,
            p50_ns: self.quantile(0.5),
            p99_ns: self.quantile(0.99),
            p999_ns: self.quantile(0.999),
            max_ns: self.most,
        }
    }
}

/// A distribution of times; quantiles are at most an eighth too high.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_in_order_and_know_their_top() {
        let mut last = 0;
        for ns in (0..100_000).chain([1 << 30, (1 << 39) - 1]) {
            let s = slot(ns);
            assert!(s >= last && ns <= top(s), "{ns} {s} {}", top(s));
            assert!(top(s) - ns <= ns / 8, "{ns} {}", top(s));
            last = s;
        }
        assert_eq!(slot(u64::MAX), PARTS * POWERS - 1);
    }

    #[test]
    fn quantiles() {
        let mut h = Histogram::default();
        assert_eq!(h.times(), LatencySummary::default());
        (1..=1000).for_each(|us| h.add(Duration::from_micros(us)));
        let t = h.times();
        assert!((500_000..=562_500).contains(&t.p50_ns) && (990_000..=1_000_000).contains(&t.p99_ns), "{t:?}");
        assert_eq!((t.count, t.max_ns), (1000, 1_000_000));
    }
}
