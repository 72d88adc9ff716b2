//! Which bytes change when: the consistency of cache and file (Pipette, section 3.1.3, and beyond it).
//!
//! ```text
//! writer: begin(range): version + 1 for its stripes, the range is active;  cached items of the range go
//!         ... the bytes change ...
//!         end(range)
//! reader: stamp = versions of its stripes;  wait while an active range overlaps;  read the device
//!         stamp still the same?  the bytes are of one moment: give them out, keep them;  otherwise again
//! ```
//! Cached items are removed when a change begins and none is added while it lasts, so a hit is never of the past. A read of
//! the device is valid only if nothing changed from before it began until after it ended, so it is never of two moments.

use std::ops::Range;
use std::task::Waker;
use std::time::{Duration, Instant};

use datapipes_core::Result;
#[cfg(not(shuttle))]
use datapipes_core::{Error, ErrorKind};

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, PoisonError, lock};

/// Versions; a stripe of 64 KiB has one of them.
const STRIPES: usize = 256;
pub(crate) const STRIPE: u64 = 64 << 10;

/// The versions of a range at some moment: which stripes it has, and the sum of their versions. Versions only grow, so sums
/// over the same stripes are equal only if all versions are. Sums over different stripes say nothing about each other, so
/// stamps of ranges with different stripes are never equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    sum: u64,
    first: u16,
    count: u16,
}

#[cfg(all(test, not(shuttle)))]
impl Stamp {
    /// The sum alone, by which nothing may be decided.
    pub(crate) fn sum(self) -> u64 {
        self.sum
    }
}

/// The changes of one file.
pub(crate) struct Writes {
    versions: Box<[AtomicU64]>,
    active: Mutex<Vec<Range<u64>>>,
    count: AtomicUsize,
    over: Condvar,
    /// Who waits for the end of a change without a thread. Locked only while `active` is.
    wakers: Mutex<Vec<Waker>>,
}

impl Default for Writes {
    fn default() -> Writes {
        Writes {
            versions: (0..STRIPES).map(|_| AtomicU64::new(0)).collect(),
            active: Mutex::new(Vec::new()),
            count: AtomicUsize::new(0),
            over: Condvar::new(),
            wakers: Mutex::default(),
        }
    }
}

/// The first stripe of a range, and how many it has.
#[inline]
fn first_and_count(range: &Range<u64>) -> (u64, u64) {
    let (first, last) = (range.start / STRIPE, range.end.saturating_sub(1).max(range.start) / STRIPE);
    match (last - first).saturating_add(1) {
        count if count >= STRIPES as u64 => (0, STRIPES as u64),
        count => (first % STRIPES as u64, count),
    }
}

#[inline]
fn stripes(range: &Range<u64>) -> impl Iterator<Item = usize> + use<> {
    let (first, count) = first_and_count(range);
    (0..count).map(move |i| ((first + i) % STRIPES as u64) as usize)
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Writes {
    /// A range is about to change. The caller removes what is cached of it after this. Returns the versions from now on, if
    /// no other change of the range is under way.
    pub(crate) fn begin(&self, range: &Range<u64>) -> Option<Stamp> {
        let mut active = lock(&self.active);
        let alone = !active.iter().any(|r| overlap(r, range));
        active.push(range.clone());
        // Before the versions: who reads them unchanged and finds nobody active came before this.
        self.count.fetch_add(1, Ordering::SeqCst);
        for stripe in stripes(range) {
            self.versions[stripe].fetch_add(1, Ordering::SeqCst);
        }
        alone.then(|| self.stamp(range))
    }

    /// The change is over.
    pub(crate) fn end(&self, range: &Range<u64>) {
        let mut active = lock(&self.active);
        if let Some(at) = active.iter().position(|r| r == range) {
            active.swap_remove(at);
            self.count.fetch_sub(1, Ordering::SeqCst);
            self.over.notify_all();
        }
        let wakers = std::mem::take(&mut *lock(&self.wakers));
        drop(active);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether a byte of the range is changing; if so, `waker` is woken when a change is over.
    pub(crate) fn wake_when_quiet(&self, range: &Range<u64>, waker: &Waker) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let active = lock(&self.active);
        let changing = active.iter().any(|r| overlap(r, range));
        if changing {
            lock(&self.wakers).push(waker.clone());
        }
        changing
    }

    /// The versions now.
    #[inline]
    pub(crate) fn stamp(&self, range: &Range<u64>) -> Stamp {
        let (first, count) = first_and_count(range);
        let sum = stripes(range).map(|s| self.versions[s].load(Ordering::SeqCst)).fold(0, u64::wrapping_add);
        Stamp { sum, first: first as u16, count: count as u16 }
    }

    /// Whether nothing of the range began to change since the stamp was taken.
    #[inline]
    pub(crate) fn unchanged(&self, range: &Range<u64>, since: Stamp) -> bool {
        self.stamp(range) == since
    }

    /// The same, where the range itself was announced once more since.
    pub(crate) fn unchanged_but_once(&self, range: &Range<u64>, since: Stamp) -> bool {
        self.stamp(range) == Stamp { sum: since.sum.wrapping_add(u64::from(since.count)), ..since }
    }

    /// Whether a byte of the range is changing.
    pub(crate) fn is_changing(&self, range: &Range<u64>) -> bool {
        self.count.load(Ordering::SeqCst) != 0 && lock(&self.active).iter().any(|r| overlap(r, range))
    }

    /// Whether anything is changing.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Waits until nothing of the range is changing.
    ///
    /// # Errors
    /// `Busy` after `patience`: a transfer into the range was started, and nobody saw to its end.
    pub(crate) fn wait_quiet(&self, range: &Range<u64>, patience: Duration) -> Result<()> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let started = Instant::now();
        let mut active = lock(&self.active);
        while active.iter().any(|r| overlap(r, range)) {
            #[cfg(not(shuttle))]
            {
                let left = patience.saturating_sub(started.elapsed());
                if left.is_zero() {
                    let len = range.end - range.start;
                    return Err(Error::new(ErrorKind::Busy, "read", format!("{len} bytes that are being written"))
                        .offset(range.start)
                        .advice("wait for the transfer that writes there"));
                }
                active = self.over.wait_timeout(active, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            #[cfg(shuttle)]
            {
                let _ = (patience, started);
                active = self.over.wait(active).unwrap_or_else(PoisonError::into_inner);
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn versions_tell_who_was_there() {
        let writes = Writes::default();
        let before = writes.stamp(&(0..200_000));
        // Alone: what changes after it is told from it.
        let first = writes.begin(&(100..200));
        assert!(first.is_some_and(|s| writes.unchanged(&(100..200), s)));
        assert!(writes.begin(&(200..300)).is_some(), "beside each other is not over each other");
        assert!(writes.begin(&(150..151)).is_none(), "the first one is under way there, and may be the later one");
        assert!(writes.begin(&(0..u64::MAX)).is_none());
        assert!(writes.is_changing(&(299..300)) && !writes.unchanged(&(0..200_000), before));
        for range in [0..u64::MAX, 150..151, 200..300, 100..200] {
            assert!(writes.any());
            writes.end(&range);
        }
        assert!(!writes.any() && !writes.is_changing(&(0..u64::MAX)));
        let alone = writes.begin(&(150..151)).unwrap();
        assert!(!writes.unchanged_but_once(&(150..151), alone));
        writes.begin(&(150..151));
        assert!(writes.unchanged_but_once(&(150..151), alone));
        writes.begin(&(0..1));
        assert!(!writes.unchanged_but_once(&(150..151), alone), "a neighbour in the same stripe counts as well");
    }

    #[test]
    fn stamps_of_different_stripes_are_never_equal() {
        let writes = Writes::default();
        let (first, both) = (0..STRIPE, 0..2 * STRIPE);
        assert_ne!(writes.stamp(&first), writes.stamp(&both), "though both sums are 0");
        assert_ne!(writes.stamp(&first), writes.stamp(&(STRIPE..2 * STRIPE)));
        assert_eq!(writes.stamp(&first), writes.stamp(&(5..6)), "of the same stripe");
        assert_eq!(writes.stamp(&(7..u64::MAX)), writes.stamp(&(0..u64::MAX)), "all stripes are all stripes");
    }

    #[test]
    fn every_byte_of_a_range_has_its_version() {
        for (range, expected) in
            [(0..1, 1), (0..STRIPE, 1), (STRIPE - 1..STRIPE + 1, 2), (5..5, 1), (0..u64::MAX, STRIPES)]
        {
            assert_eq!(stripes(&range).count(), expected, "{range:?}");
        }
        let wraps: Vec<_> = stripes(&(STRIPE * 255..STRIPE * 257)).collect();
        assert_eq!(wraps, [255, 0]);
    }
}
