//! Counting transfers, at a cost that a copy of 64 bytes can bear.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use datapipes_core::{Counters, Result};

/// Transfers of at least this length are timed.
const MIN_TIMED_BYTES: usize = 64 << 10;

/// The counters of a mover. Short transfers are counted in one word, so that each costs one atomic
/// addition.
#[derive(Default)]
pub(super) struct Tally {
    /// Short transfers: their number in the upper bits, their bytes in the lower [`SHORT_BITS`].
    short: AtomicU64,
    transfers: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    busy_ns: AtomicU64,
    wrong_core: AtomicU64,
}

/// Lengths below [`MIN_TIMED_BYTES`] fit in 16 bits, so the bytes of up to 2^24 transfers fit in 40
/// bits.
const SHORT_BITS: u32 = 40;
/// At this number of short transfers the word is emptied.
const SHORT_FULL: u64 = 1 << 22;

impl Tally {
    /// Runs a transfer of `len` bytes and counts it.
    #[inline]
    pub(super) fn count(&self, len: usize, transfer: impl FnOnce() -> Result<()>) -> Result<()> {
        if len >= MIN_TIMED_BYTES {
            return self.timed(len, transfer);
        }
        let result = transfer();
        if result.is_ok() {
            let word = self.short.fetch_add((1 << SHORT_BITS) + len as u64, Ordering::Relaxed);
            if word >> SHORT_BITS >= SHORT_FULL {
                self.empty_short();
            }
        } else {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// It is not inlined: a timed transfer is long enough for a call, and the path of short ones
    /// stays short.
    #[inline(never)]
    fn timed(&self, len: usize, transfer: impl FnOnce() -> Result<()>) -> Result<()> {
        let started = Instant::now();
        let result = transfer();
        self.busy_ns.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        if result.is_ok() {
            self.transfers.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        } else {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// Moves the word into the counters. The swap empties it, so nothing is counted twice.
    #[cold]
    fn empty_short(&self) {
        let word = self.short.swap(0, Ordering::Relaxed);
        self.transfers.fetch_add(word >> SHORT_BITS, Ordering::Relaxed);
        self.bytes.fetch_add(word & ((1 << SHORT_BITS) - 1), Ordering::Relaxed);
    }

    /// Counts a transfer into the cache of `core` that runs on another core.
    #[inline]
    pub(super) fn check_core(&self, core: Option<usize>) {
        if let Some(core) = core
            && rustix::thread::sched_getcpu() != core
        {
            self.wrong_core.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counters(&self) -> Counters {
        self.empty_short();
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters::default()
            .transfers(of(&self.transfers))
            .failed(of(&self.failed))
            .bytes(of(&self.bytes))
            .busy_ns(of(&self.busy_ns))
            .wrong_core(of(&self.wrong_core))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_short_transfers_never_overflows() {
        let tally = Tally::default();
        let longest = MIN_TIMED_BYTES - 1;
        let times = SHORT_FULL + 10;
        for _ in 0..times {
            tally.count(longest, || Ok(())).unwrap();
        }
        let counters = tally.counters();
        assert_eq!((counters.transfers, counters.bytes), (times, times * longest as u64));
        assert_eq!(counters.busy_ns, 0);
    }

    #[test]
    fn long_transfers_are_timed() {
        let tally = Tally::default();
        let pause = || {
            std::thread::sleep(std::time::Duration::from_millis(2));
            Ok(())
        };
        tally.count(MIN_TIMED_BYTES, pause).unwrap();
        assert!(tally.counters().busy_ns >= 2_000_000);
    }
}
