//! Distributions of times with log-linear buckets, as in HdrHistogram: each power of two has
//! sixteen buckets, so every figure is at most a sixteenth too high.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

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

/// Returns the time in the middle of the bucket whose largest time is given.
fn middle(largest_ns: u64) -> u64 {
    match largest_ns < STEPS {
        true => largest_ns,
        false => largest_ns - ((1 << (largest_ns.ilog2() - STEPS.ilog2())) - 1) / 2,
    }
}

/// Counts times, from any number of threads: one relaxed atomic addition a time, in 8 KiB of
/// memory.
pub struct Recorder(Box<[AtomicU64]>);

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Recorder {
    /// Counts a time.
    #[inline]
    pub fn record(&self, time: Duration) {
        self.record_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts a time in nanoseconds.
    #[inline]
    pub fn record_ns(&self, ns: u64) {
        self.0[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns what was counted so far. A time that is counted meanwhile may be in it or not.
    pub fn histogram(&self) -> Histogram {
        let counts: Vec<u64> = self.0.iter().map(|b| b.load(Ordering::Relaxed)).collect();
        Histogram::of_counts(&counts)
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Recorder").field(&self.histogram()).finish()
    }
}

/// A distribution of times. Each figure is exact to a sixteenth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The longest time of each non-empty bucket in nanoseconds, ascending, and its number of
    /// times.
    buckets: Vec<(u64, u64)>,
}

impl Histogram {
    /// The number of times.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// The time that this percentage of times did not exceed, in nanoseconds; 0 without times.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let rank = (self.count() as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil().max(1.0) as u64;
        let mut before = 0u64;
        let reached = self.buckets.iter().find(|(_, n)| {
            before = before.saturating_add(*n);
            before >= rank
        });
        reached.or(self.buckets.last()).map_or(0, |&(ns, _)| ns)
    }

    /// The sum of the times in nanoseconds, as if each was in the middle of its bucket: exact to a
    /// thirty-second.
    pub fn sum_ns(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, &(ns, n)| sum.saturating_add(middle(ns).saturating_mul(n)))
    }

    /// The mean time, in nanoseconds, to a thirty-second; 0 without times.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns().checked_div(self.count()).unwrap_or(0)
    }

    /// The longest time, in nanoseconds; 0 without times.
    pub fn max_ns(&self) -> u64 {
        self.buckets.last().map_or(0, |&(ns, _)| ns)
    }

    /// The non-empty buckets: the longest time of each in nanoseconds, ascending, and its number of
    /// times.
    pub fn buckets(&self) -> &[(u64, u64)] {
        &self.buckets
    }

    /// The length of [`counts`](Self::counts).
    pub const BUCKETS: usize = BUCKETS;

    /// How often each bucket was counted, the empty ones too, as one process gives a histogram to
    /// another.
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = vec![0; BUCKETS];
        self.buckets.iter().for_each(|&(ns, n)| counts[bucket(ns)] = n);
        counts
    }

    /// Makes a histogram of the [`counts`](Self::counts) of one. Any numbers give one: counts that
    /// are missing are 0, and those behind the last bucket are left out.
    pub fn of_counts(counts: &[u64]) -> Histogram {
        let counts = counts.iter().copied().take(BUCKETS).enumerate();
        Histogram { buckets: counts.filter(|&(_, n)| n > 0).map(|(at, n)| (largest(at), n)).collect() }
    }

    /// The number of times below a power of two of nanoseconds. It is exact: no bucket goes across
    /// one.
    pub(crate) fn below_power(&self, power: u32) -> u64 {
        let below = self.buckets.iter().take_while(|(ns, _)| ns >> power == 0);
        below.fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// Adds the times of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        for &(ns, n) in &other.buckets {
            match self.buckets.binary_search_by_key(&ns, |&(ns, _)| ns) {
                Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(n),
                Err(at) => self.buckets.insert(at, (ns, n)),
            }
        }
    }
}

#[cfg(test)]
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
                assert!(middle(told).abs_diff(ns) as f64 <= ns as f64 / 32.0, "{ns}: {}", middle(told));
                assert_eq!(bucket(middle(told)), bucket(ns));
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
        let (one, two) = (Recorder::default(), Recorder::default());
        (1..=900u64).for_each(|us| one.record(Duration::from_micros(us)));
        (901..=1000u64).for_each(|us| two.record(Duration::from_micros(us)));
        let mut sum = one.histogram();
        sum.add(&two.histogram());
        assert_eq!(sum.count(), 1000);
        for (percent, us) in [(50.0, 500), (99.0, 990), (99.9, 999), (100.0, 1000), (0.0, 1)] {
            let told = sum.percentile_ns(percent);
            assert!(told >= us * 1000 && told <= us * 1000 * 17 / 16, "{percent}: {told}");
        }
        assert!(sum.mean_ns().abs_diff(500_500) <= 500_500 / 32, "{}", sum.mean_ns());
        assert!(sum.buckets().windows(2).all(|w| w[0].0 < w[1].0));
        assert_eq!(Histogram::default().percentile_ns(50.0), 0);
    }

    #[test]
    fn another_process_can_make_it_of_its_counts() {
        let recorder = Recorder::default();
        [0, 15, 16, 1_000_000, u64::MAX].into_iter().for_each(|ns| recorder.record_ns(ns));
        let histogram = recorder.histogram();
        let counts = histogram.counts();
        assert_eq!(counts.len(), Histogram::BUCKETS);
        assert_eq!(Histogram::of_counts(&counts), histogram);
        assert_eq!(Histogram::of_counts(&[]), Histogram::default());
        // What nobody counted so does no harm.
        let odd = Histogram::of_counts(&vec![u64::MAX; 2 * BUCKETS]);
        assert_eq!((odd.buckets().len(), odd.count(), odd.max_ns()), (BUCKETS, u64::MAX, u64::MAX));
        assert_eq!(odd.percentile_ns(99.0), 0);
    }

    #[test]
    fn threads_count_together() {
        let recorder = Recorder::default();
        std::thread::scope(|scope| {
            for ns in 0..4 {
                let recorder = &recorder;
                scope.spawn(move || (0..10_000).for_each(|_| recorder.record_ns(ns)));
            }
        });
        assert_eq!(recorder.histogram().buckets(), [(0, 10_000), (1, 10_000), (2, 10_000), (3, 10_000)]);
    }
}
