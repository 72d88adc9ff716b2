//! How the memory of a job is divided.
//!
//! ```text
//! budget = overhead (program, stacks, rings, heap, checksums, bytes kept between two slots) + pool
//! pool   = output blocks | arena                                  (the input fits)
//!        = output blocks | slot | slot | slot                     (runs are formed)
//!        = output blocks | two buffers for each run and core      (runs are merged)
//! ```

use datapipes_core::{Error, ErrorKind, Result};

use crate::form::slot::MAX_CHUNKS_IN_FLIGHT;
use crate::records::entry::MAX_SLOT;
use crate::runs::checksum;

/// The smallest budget, in bytes: the program itself needs most of it. A smaller one is raised to
/// it.
pub const MIN_MEMORY: u64 = 16 << 20;
/// The most slots that are sorted at once; with more, each would be too small.
const MAX_CONCURRENT_SLOTS: usize = 4;
const MAX_BLOCK: usize = 4 << 20;
const MIN_BLOCK: usize = 64 << 10;
/// The blocks where memory is scarce. There are few of them: a thread fills one while one is
/// written.
/// Short writes cost more than they save there, because the file system notes for each that its
/// blocks are no longer empty. 400 MB in 16 MiB took 4.0 CPU s with 6 such blocks, and 5.0 with 16
/// of 64 KiB (benchmarks/results/2026-11-25-sort-16mib-blocks.md).
const LONG_BLOCK: usize = 256 << 10;
/// The smallest buffer for reading a run. Shorter reads cost more than the passes that they save:
/// 3 GB in 16 MiB took 34 CPU s with buffers of 32 KiB and two threads, 27 with 64 KiB and one, in
/// the same time (benchmarks/results/2026-11-28-sort-16mib.md).
const MIN_BUFFER: usize = 64 << 10;
/// With at most this much memory, there are checksums for less, so that buffers can be small.
const SCARCE_MEMORY: usize = 24 << 20;
/// With fewer runs than this in a pass, another thread costs more than it gains.
const FEW_RUNS: usize = 24;
/// A thread less is better where passes then read and write so much less, as a part of all bytes:
/// 200 MB in 22 MiB took 2.4 CPU s by two threads, which had to repeat half of it, and 1.35 by one.
const WORTH_A_THREAD: f64 = 0.25;
/// Up to so many runs, what passes do is counted run by run.
const MAX_COUNTED: f64 = 65536.0;
/// Small buffers need more checksums. They may take the memory divided by this.
const MAX_SUMS_PART: usize = 12;
/// Arenas start at multiples of this, so that huge pages and registered buffers do not straddle
/// them.
const ARENA_GRAIN: usize = 64 << 10;

/// How the memory of a job is divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) pool: usize,
    pub(crate) block: usize,
    pub(crate) blocks: usize,
    /// Bytes of one read.
    pub(crate) chunk: usize,
    /// Threads that sort and merge. There are fewer than were asked for if the memory is too small
    /// for all.
    pub(crate) threads: usize,
    /// Slots that are sorted at once, each by a share of the threads.
    pub(crate) concurrent_slots: usize,
    /// The offset where the blocks end and the arenas begin.
    pub(crate) arenas_at: usize,
    /// The part of the pool that is useful if records are short. The rest costs nothing until it is
    /// touched.
    useful: usize,
    /// Bytes of spilled runs for each checksum.
    pub(crate) grain: usize,
}

impl Budget {
    /// Divides `memory` bytes among at most `threads`. `total` is the length of the input, if it is
    /// known, and `weight` the bytes that a slot needs for each byte of it, entries included.
    pub(crate) fn new(memory: u64, threads: usize, total: Option<u64>, weight: f64) -> Result<Budget> {
        let memory = usize::try_from(memory.max(MIN_MEMORY)).unwrap_or(usize::MAX);
        let total = total.unwrap_or((memory as u64).saturating_mul(64));
        let sums = usize::try_from(total / MIN_BUFFER as u64).unwrap_or(usize::MAX).saturating_mul(size_of::<u32>());
        let small_grains = memory <= SCARCE_MEMORY && sums <= memory / MAX_SUMS_PART;
        let left = if small_grains { memory - sums } else { memory };
        let among = |threads: usize| {
            let mut budget = Budget::of(left, threads);
            budget.grain = checksum::grain(total, memory, budget.block);
            if small_grains {
                budget.grain = budget.grain.min(MIN_BUFFER);
            }
            budget
        };
        let mut budget = among(threads.max(1));
        let weight = total as f64 * weight;
        while budget.threads > 1 {
            let fewer = among(budget.threads - 1);
            let is_cramped = budget.pool < 2 * budget.arenas_at || budget.is_crowded(weight);
            if !is_cramped && budget.repeated(weight) - fewer.repeated(weight) < WORTH_A_THREAD {
                break;
            }
            budget = fewer;
        }
        if budget.pool < budget.arenas_at + 16 * MIN_BLOCK {
            return Err(Error::new(ErrorKind::OutOfMemory, "sort", format!("{memory} bytes of memory"))
                .with_advice("give more memory (`memory_bytes`)"));
        }
        Ok(budget)
    }

    /// Whether so many threads share the buffers of a merge that a pass takes few runs, although
    /// there are more. Each further level of passes reads and writes everything once more, which
    /// costs more than a thread gains. All slots together would need `weight` bytes.
    fn is_crowded(&self, weight: f64) -> bool {
        let fan_in = self.arenas() / (2 * self.min_buffer() * self.threads);
        let slot = self.arenas() / (self.concurrent_slots + 1);
        fan_in < FEW_RUNS && weight > (fan_in * slot) as f64
    }

    /// What passes before the last one read and write, as a multiple of all bytes. All slots
    /// together would need `weight` bytes.
    fn repeated(&self, weight: f64) -> f64 {
        let fan_in = (self.arenas() / (2 * self.min_buffer() * self.threads)).max(2);
        let slot = self.arenas() / (self.concurrent_slots + 1);
        let runs = (weight / slot as f64).ceil();
        if !runs.is_finite() {
            // Of a stream there is no sample, so nothing is known of its records.
            return 0.0;
        }
        if runs > MAX_COUNTED {
            // So many levels of passes before the last one.
            let levels = std::iter::successors(Some(runs), |left| Some(left / fan_in as f64));
            return levels.take_while(|left| *left > fan_in as f64).count() as f64;
        }
        let mut left = vec![1.0; runs as usize];
        let mut repeated = 0.0;
        while left.len() > fan_in {
            let (mut merged, mut at, mut count) = (Vec::new(), 0, left.len());
            while count > fan_in && at < left.len() {
                let some = (count - fan_in + 1).min(fan_in).min(left.len() - at);
                let sum: f64 = left[at..at + some].iter().sum();
                repeated += if some > 1 { sum } else { 0.0 };
                merged.push(sum);
                (at, count) = (at + some, count - (some - 1));
            }
            merged.extend_from_slice(&left[at..]);
            left = merged;
        }
        repeated / runs.max(1.0)
    }

    fn of(memory: usize, threads: usize) -> Budget {
        let rest = memory.saturating_sub((9 << 20) + threads * (256 << 10) + memory / 256);
        let (block, blocks, chunk) = if memory <= SCARCE_MEMORY {
            (LONG_BLOCK, 2 * threads + 2, MIN_BLOCK)
        } else {
            let blocks = 4 * threads + 8;
            // At most an eighth of the memory is used for output blocks.
            let block = prev_power_of_two(rest / (8 * blocks)).clamp(MIN_BLOCK, MAX_BLOCK);
            (block, blocks, block)
        };
        let pool = rest.saturating_sub(MAX_CHUNKS_IN_FLIGHT * chunk) / 4096 * 4096;
        let arenas_at = (block * blocks).next_multiple_of(ARENA_GRAIN);
        Budget {
            pool,
            block,
            blocks,
            chunk,
            threads,
            concurrent_slots: threads.min(MAX_CONCURRENT_SLOTS),
            arenas_at,
            useful: pool,
            grain: block,
        }
    }

    /// The smallest useful buffer for reading a run.
    pub(crate) fn min_buffer(&self) -> usize {
        MIN_BUFFER.max(self.grain)
    }

    /// The most bytes that are kept on the heap between two slots: the chunks in flight when a slot
    /// is full.
    pub(crate) fn carry(&self) -> usize {
        MAX_CHUNKS_IN_FLIGHT * self.chunk
    }

    /// Limits the useful memory for an input of `total` bytes that does not fit.
    ///
    /// The first touch of memory is slow (0.3 to 1.5 GB/s on virtual machines), so memory that
    /// gains nothing is not touched. Runs need only be so long that one pass merges them with
    /// buffers of a good size. With a pool of W bytes, runs of W/4, N bytes of input, and two
    /// buffers of b bytes for each run and thread, that is 4 N/W * 2 * threads * b = W.
    pub(crate) fn limit(&mut self, total: u64) {
        const GOOD_BUFFER: f64 = 1048576.0;
        let enough = 1.5 * (4.0 * total as f64 * 2.0 * self.threads as f64 * GOOD_BUFFER).sqrt();
        let enough = (enough as usize).max(64 << 20).next_multiple_of(ARENA_GRAIN) + self.arenas_at;
        self.useful = self.pool.min(enough);
    }

    /// Bytes for arenas that are useful if records are short.
    pub(crate) fn arenas(&self) -> usize {
        self.useful - self.arenas_at
    }

    /// The slots: offset and length in the pool. There is one more than are sorted at once.
    pub(crate) fn slots(&self) -> Vec<(usize, usize)> {
        let count = self.concurrent_slots + 1;
        let each = (self.arenas() / count / ARENA_GRAIN * ARENA_GRAIN).min(MAX_SLOT);
        (0..count).map(|i| (self.arenas_at + i * each, each)).collect()
    }

    /// The arena of a single slot: offset and length in the pool.
    pub(crate) fn whole(&self) -> (usize, usize) {
        (self.arenas_at, (self.pool - self.arenas_at).min(MAX_SLOT))
    }
}

fn prev_power_of_two(n: usize) -> usize {
    if n == 0 { 0 } else { 1 << n.ilog2() }
}

/// Bytes of address space that the process may have, if they are limited.
pub(crate) fn address_space() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    [Resource::As, Resource::Data].into_iter().filter_map(|resource| getrlimit(resource).current).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_thread_less_works_where_passes_then_repeat_less() {
        let budget = |mib: u64, total: u64| Budget::new(mib * MIB, 2, Some(total), 1.5).unwrap();
        let one = budget(22, 200_000_000);
        assert_eq!((one.threads, one.repeated(300e6)), (1, 0.0));
        let two = budget(64, 200_000_000);
        assert_eq!((two.threads, two.repeated(300e6)), (2, 0.0));
        // More memory never repeats more than a thread is worth.
        for total in [100_000_000, 1_000_000_000, 10_000_000_000] {
            let mut least = f64::INFINITY;
            for mib in 16..128 {
                let repeated = budget(mib, total).repeated(total as f64 * 1.5);
                assert!(repeated < least + WORTH_A_THREAD, "{mib} MiB for {total}: {repeated}, {least} before");
                least = repeated.min(least);
            }
        }
    }

    #[test]
    fn levels_of_many_runs_are_about_those_that_are_counted() {
        let budget = Budget::new(64 * MIB, 2, None, 1.0).unwrap();
        let slot = (budget.arenas() / (budget.concurrent_slots + 1)) as f64;
        let (few, many) = (budget.repeated(slot * MAX_COUNTED), budget.repeated(slot * (MAX_COUNTED + 1.0)));
        assert!((few - many).abs() <= 1.0, "{few} {many}");
        assert!(budget.repeated(1e30) >= many);
        assert_eq!((budget.repeated(f64::INFINITY), budget.repeated(f64::NAN)), (0.0, 0.0));
    }

    #[test]
    fn a_weight_that_is_not_known_is_no_reason_to_divide_for_ever() {
        for weight in [0.0, f64::INFINITY, f64::NAN] {
            for (mib, total) in [(16, None), (32, Some(u64::MAX)), (1024, Some(0))] {
                let budget = Budget::new(mib * MIB, 64, total, weight).unwrap();
                assert!(budget.threads >= 1, "{weight} {mib} {total:?}");
            }
            // A stream of unknown records in enough memory keeps its threads.
            assert_eq!(Budget::new(1024 * MIB, 2, None, weight).unwrap().threads, 2);
        }
    }
}
