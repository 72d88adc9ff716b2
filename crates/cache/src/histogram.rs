//! Latency histograms with log-linear buckets, as in HdrHistogram. Every figure is exact to a
//! sixteenth.

use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Buckets for each power of two.
const STEPS: u64 = 16;
/// The number of buckets: one for each value below `STEPS`, and `STEPS` for each power of two
/// above.
const BUCKETS: usize = ((u64::BITS - STEPS.ilog2() + 1) as u64 * STEPS) as usize;

/// Returns the bucket of a time.
fn bucket(ns: u64) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let power = ns.ilog2() - STEPS.ilog2();
    (u64::from(power + 1) * STEPS + (ns >> power) - STEPS) as usize
}

/// Returns the largest time of a bucket.
fn largest(bucket: usize) -> u64 {
    let (power, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    match power.checked_sub(1) {
        None => step,
        Some(power) => ((STEPS + step) << power) + ((1 << power) - 1),
    }
}

/// The counters that threads update.
pub(crate) struct Counting {
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl Default for Counting {
    fn default() -> Counting {
        Counting { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), sum_ns: AtomicU64::new(0) }
    }
}

impl Counting {
    pub(crate) fn add(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Histogram {
        let counts = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).enumerate();
        let buckets = counts.filter(|&(_, n)| n > 0).map(|(at, n)| (largest(at), n)).collect();
        Histogram { buckets, sum_ns: self.sum_ns.load(Ordering::Relaxed) }
    }
}

/// A distribution of call durations. Each time stands for those up to a sixteenth below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The longest time of each non-empty bucket in nanoseconds, ascending, and its number of
    /// calls.
    buckets: Vec<(u64, u64)>,
    sum_ns: u64,
}

impl Histogram {
    /// The number of calls.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, n)| n).sum()
    }

    /// The time that this percentage of calls did not exceed, in nanoseconds; 0 without calls.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let rank = (self.count() as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil().max(1.0) as u64;
        let mut before = 0;
        let reached = self.buckets.iter().find(|(_, n)| {
            before += n;
            before >= rank
        });
        reached.or(self.buckets.last()).map_or(0, |&(ns, _)| ns)
    }

    /// The mean time, in nanoseconds; 0 without calls.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count()).unwrap_or(0)
    }

    /// The longest time, in nanoseconds; 0 without calls.
    pub fn max_ns(&self) -> u64 {
        self.buckets.last().map_or(0, |&(ns, _)| ns)
    }

    /// The non-empty buckets: the longest time of each in nanoseconds, ascending, and its number of
    /// calls.
    pub fn buckets(&self) -> &[(u64, u64)] {
        &self.buckets
    }

    /// Adds the calls of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        for &(ns, n) in &other.buckets {
            match self.buckets.binary_search_by_key(&ns, |&(ns, _)| ns) {
                Ok(at) => self.buckets[at].1 += n,
                Err(at) => self.buckets.insert(at, (ns, n)),
            }
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }
}

/// The latencies of reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Latencies {
    /// Reads whose bytes were cached.
    pub hits: Histogram,
    /// Reads that needed the device, waited for another thread's read, or failed.
    pub misses: Histogram,
}

impl Latencies {
    /// Adds the calls of another one.
    pub fn add(&mut self, other: &Latencies) {
        self.hits.add(&other.hits);
        self.misses.add(&other.misses);
    }
}

/// Latencies, measured on demand: nothing is allocated or counted before that.
#[derive(Default)]
pub(crate) struct Measuring {
    on: AtomicBool,
    of: OnceLock<[Counting; 2]>,
}

impl Measuring {
    #[inline]
    pub(crate) fn are_measured(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn measure(&self, on: bool) {
        if on {
            self.of.get_or_init(Default::default);
        }
        self.on.store(on, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, hit: bool, time: Duration) {
        if let Some([hits, misses]) = self.of.get() {
            if hit { hits } else { misses }.add(time);
        }
    }

    pub(crate) fn now(&self) -> Option<Latencies> {
        self.of.get().map(|[hits, misses]| Latencies { hits: hits.now(), misses: misses.now() })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_bucket_exact_to_a_sixteenth() {
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(largest(BUCKETS - 1), u64::MAX);
        let mut last = 0;
        for power in 0..64 {
            for near in [0u64, 1, 5, 1 << 20] {
                let ns = (1u64 << power).saturating_add(near >> (20 - power.min(20)));
                let told = largest(bucket(ns));
                assert!(told >= ns && (told - ns) as f64 <= ns as f64 / 16.0, "{ns}: {told}");
            }
            assert!(bucket(1 << power) > last || power == 0);
            last = bucket(1 << power);
        }
        for at in 1..BUCKETS {
            assert_eq!((bucket(largest(at)), bucket(largest(at - 1) + 1)), (at, at));
        }
    }

    #[test]
    fn figures_are_those_of_all_that_was_added() {
        let (one, two) = (Counting::default(), Counting::default());
        (1..=900u64).for_each(|us| one.add(Duration::from_micros(us)));
        (901..=1000u64).for_each(|us| two.add(Duration::from_micros(us)));
        let mut sum = one.now();
        sum.add(&two.now());
        assert_eq!(sum.count(), 1000);
        for (percent, us) in [(50.0, 500), (99.0, 990), (99.9, 999), (100.0, 1000), (0.0, 1)] {
            let told = sum.percentile_ns(percent);
            assert!(told >= us * 1000 && told <= us * 1000 * 17 / 16, "{percent}: {told}");
        }
        assert_eq!(sum.mean_ns(), 500_500);
        assert!(sum.buckets().windows(2).all(|w| w[0].0 < w[1].0));
        assert_eq!(Histogram::default().percentile_ns(50.0), 0);
    }
}
