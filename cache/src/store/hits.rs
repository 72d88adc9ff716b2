//! Hits that were served without a lock, counted without one: a thread that owns a stripe adds to
//! it as to a variable.
//!
//! An atomic addition waits for all loads before it, which is what a hit is made of; on numbers
//! that two threads share, also for the line. So a thread is given a stripe that nobody else adds
//! to while it lives; where there are more threads than stripes, the rest share one.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::class::{CLASSES, class_of};

/// Stripes that threads own; one more is shared.
const OWNED: usize = 16;

/// Which stripes are taken, a bit each: of all caches of the process.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A thread's stripe.
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
        // Acquire: what the thread before it counted there comes before.
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

/// What one thread counted: reads and bytes by class.
#[derive(Default)]
#[repr(align(128))]
struct Stripe([[AtomicU64; 2]; CLASSES]);

/// The hits of a cache.
#[derive(Default)]
pub(crate) struct Hits([Stripe; OWNED + 1]);

impl Hits {
    /// Bytes of a cache's counts.
    pub(crate) const BYTES: usize = size_of::<Hits>();

    /// Counts a hit of so many bytes.
    #[inline]
    pub(crate) fn add(&self, len: usize) {
        let stripe = MINE.try_with(Mine::stripe).unwrap_or(OWNED);
        let of = &self.0[stripe].0[usize::from(class_of(len))];
        for (count, more) in of.iter().zip([1, len as u64]) {
            if stripe < OWNED {
                count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
            } else {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// Hits and their bytes, by class.
    pub(crate) fn sums(&self) -> [[u64; 2]; CLASSES] {
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
        // All have their stripe before any ends, so some share one.
        let all = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            let add = || {
                hits.add(128);
                all.wait();
                (1..EACH).for_each(|_| hits.add(128));
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(add)).collect();
            // To the end of each thread, when it has given its stripe back: a scope waits for less.
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
        let reads = THREADS as u64 * EACH;
        assert_eq!(hits.sums()[usize::from(class_of(128))], [reads, 128 * reads]);
        let next = std::thread::spawn(|| MINE.with(Mine::stripe)).join().unwrap();
        assert!(next < OWNED, "those who ended gave their stripes back");
    }
}
