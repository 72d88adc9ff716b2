//! Counters of reads without the lock, hits and misses. A thread that owns a stripe of counters
//! adds to it like to a plain variable.
//!
//! An atomic addition waits for all earlier loads, which are most of the work of a hit. If two
//! threads share the number, it also waits for the cache line. So each thread owns a stripe while
//! it lives. If there are more threads than stripes, the remaining threads share one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::class::{CLASSES, class_of};

/// The number of stripes that threads own. One more is shared.
const OWNED: usize = 16;

/// The stripes in use, one bit each, for all caches of the process.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The stripe of a thread.
struct Mine(Cell<Option<usize>>);

thread_local! {
    static MINE: Mine = const { Mine(Cell::new(None)) };
}

impl Mine {
    #[inline]
    fn stripe(&self) -> usize {
        self.0.get().unwrap_or_else(|| self.take())
    }

    #[cold]
    fn take(&self) -> usize {
        let free = |taken: u64| Some((!taken).trailing_zeros() as usize).filter(|&n| n < OWNED);
        // Acquire: the counts of the stripe's last owner come before.
        let taken = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, |t| free(t).map(|n| t | 1 << n));
        let stripe = taken.ok().and_then(free).unwrap_or(OWNED);
        self.0.set(Some(stripe));
        stripe
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(stripe) = self.0.get().filter(|&n| n < OWNED) {
            TAKEN.fetch_and(!(1 << stripe), Ordering::Release);
        }
    }
}

/// The counts of one stripe: hits, misses, and bytes asked for, by class.
#[derive(Default)]
#[repr(align(128))]
struct Stripe([[AtomicU64; 3]; CLASSES]);

/// The reads of a cache without the lock.
#[derive(Default)]
pub(crate) struct Hits([Stripe; OWNED + 1]);

impl Hits {
    /// The bytes of a cache's counts.
    pub(crate) const BYTES: usize = size_of::<Hits>();

    /// Counts a hit of `len` bytes, or a miss.
    #[inline]
    pub(crate) fn add(&self, len: usize, hit: bool) {
        let stripe = MINE.try_with(Mine::stripe).unwrap_or(OWNED);
        let of = &self.0[stripe].0[usize::from(class_of(len))];
        for (count, more) in [(&of[usize::from(!hit)], 1), (&of[2], len as u64)] {
            if stripe < OWNED {
                count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
            } else {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// Hits, misses, and bytes asked for, by class.
    pub(crate) fn sums(&self) -> [[u64; 3]; CLASSES] {
        std::array::from_fn(|class| {
            std::array::from_fn(|i| {
                self.0.iter().map(|s| s.0[class][i].load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nothing_is_lost_with_more_threads_than_stripes() {
        const THREADS: usize = OWNED + 8;
        const EACH: u64 = if cfg!(miri) { 100 } else { 200_000 };
        let hits = Hits::default();
        // All threads get their stripe before any ends, so some share one.
        let all = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            let add = || {
                hits.add(128, true);
                all.wait();
                (1..EACH).for_each(|i| hits.add(128, i % 2 == 0));
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(add)).collect();
            // It waits for the end of each thread, when the stripe was given back. A scope waits
            // for less.
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
        let reads = THREADS as u64 * EACH;
        assert_eq!(hits.sums()[usize::from(class_of(128))], [reads / 2, reads / 2, 128 * reads]);
        let next = std::thread::spawn(|| MINE.with(Mine::stripe)).join().unwrap();
        assert!(next < OWNED, "those who ended gave their stripes back");
    }
}
