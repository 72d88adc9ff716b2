//! The record of changing bytes, which keeps cache and file consistent (Pipette, section 3.1.3, and
//! beyond).
//!
//! ```text
//! writer: begin(range): version + 1 for its stripes; the range is active; cached items of it go
//!         ... the bytes change ...
//!         end(range)
//! reader: stamp = versions of its stripes; wait while an active range overlaps; read the device
//!         stamp unchanged?  the bytes are of one moment: return and cache them; otherwise repeat
//! ```
//! Cached items are removed when a change begins, and none is added while it lasts, so a hit never
//! returns old bytes. A read of the device is valid only if nothing changed from before it began
//! until after it ended, so its bytes are always of one moment.
//!
//! A version covers a stripe, so a read is also repeated for changes beside it. A read that was
//! repeated often names its range ([`Writes::insist`]): then only changes of these bytes count, and
//! a writer that can wait lets it finish first.

use std::collections::BTreeMap;
use std::ops::Range;
use std::task::Waker;
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, drop_waker, wake_all};

/// The number of versions. Each stripe of 64 KiB uses one of them.
const STRIPES: usize = 256;
pub(crate) const STRIPE: u64 = 64 << 10;

/// The versions of a range at some moment: its stripes, and the sum of their versions. Versions
/// only grow, so sums over the same stripes are equal only if all versions are. Sums over different
/// stripes cannot be compared, so stamps of ranges with different stripes are never equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    sum: u64,
    first: u16,
    count: u16,
}

#[cfg(all(test, not(shuttle)))]
impl Stamp {
    /// The sum alone. No decision may depend on it.
    pub(crate) fn sum(self) -> u64 {
        self.sum
    }
}

/// The changes in progress, and those who wait for their end.
#[derive(Default)]
struct Active {
    changes: Vec<Range<u64>>,
    /// The futures that wait for the end of a change, by ticket, with one waker each.
    sleepers: BTreeMap<u64, Sleeper>,
    insisting: Vec<Named>,
    next: u64,
}

impl Active {
    fn is_changing(&self, range: &Range<u64>) -> bool {
        self.changes.iter().any(|r| overlap(r, range))
    }
}

/// The wait of a future for the end of changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    ticket: u64,
    pub(crate) since: Instant,
}

/// A waiting future.
struct Sleeper {
    since: Instant,
    waker: Waker,
}

/// The named range of a read that was repeated often.
struct Named {
    number: u64,
    range: Range<u64>,
    /// Whether writers that can wait must wait for it.
    waits: bool,
    has_changed: bool,
}

/// Since when, and for which bytes, a read checks for changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Since {
    /// Changes of the stripes of its range.
    Versions(Stamp),
    /// Changes of its range, which it has named.
    Named(u64),
}

/// The changes of one file.
pub(crate) struct Writes {
    versions: Box<[AtomicU64]>,
    active: Mutex<Active>,
    count: AtomicUsize,
    over: Condvar,
}

impl Default for Writes {
    fn default() -> Writes {
        Writes {
            versions: (0..STRIPES).map(|_| AtomicU64::new(0)).collect(),
            active: Mutex::default(),
            count: AtomicUsize::new(0),
            over: Condvar::new(),
        }
    }
}

/// The first stripe of a range, and the number of its stripes.
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
    /// Notes that a range is about to change. The caller then removes the cached items of it.
    /// Returns the new versions, if no other change of the range is in progress.
    pub(crate) fn begin(&self, range: &Range<u64>) -> Option<Stamp> {
        let mut active = self.active.lock();
        let alone = !active.is_changing(range);
        active.changes.push(range.clone());
        active.insisting.iter_mut().for_each(|named| named.has_changed |= overlap(&named.range, range));
        // The count comes before the versions: a reader that sees old versions and a count of zero
        // read before this change.
        self.count.fetch_add(1, Ordering::SeqCst);
        for stripe in stripes(range) {
            self.versions[stripe].fetch_add(1, Ordering::SeqCst);
        }
        alone.then(|| self.stamp(range))
    }

    /// Ends a change, and wakes those who wait for that on this thread.
    pub(crate) fn end(&self, range: &Range<u64>) {
        wake_all(self.end_silently(range));
    }

    /// Ends a change. Returns the wakers that the caller must wake.
    #[must_use]
    pub(crate) fn end_silently(&self, range: &Range<u64>) -> Vec<Waker> {
        let mut active = self.active.lock();
        if let Some(at) = active.changes.iter().position(|r| r == range) {
            active.changes.swap_remove(at);
            self.count.fetch_sub(1, Ordering::SeqCst);
            self.over.notify_all();
        }
        let sleepers = std::mem::take(&mut active.sleepers);
        drop(active);
        sleepers.into_values().map(|sleeper| sleeper.waker).collect()
    }

    /// Whether a byte of the range is changing. If so, `waker` is woken at the end of a change. A
    /// caller that asks again passes the same `waits`; only its last waker is kept. A caller that
    /// stops waiting calls [`wait_no_more`](Self::wait_no_more).
    pub(crate) fn wake_when_quiet(&self, range: &Range<u64>, waker: &Waker, waits: &mut Option<Waits>) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            // The thread that ended the last change has taken all wakers.
            *waits = None;
            return false;
        }
        // Wakers are foreign code: none is cloned or dropped under the lock.
        let waker = waker.clone();
        let mut active = self.active.lock();
        let is_changing = active.is_changing(range);
        let left = if is_changing {
            let mine = *waits.get_or_insert_with(|| {
                active.next += 1;
                Waits { ticket: active.next - 1, since: Instant::now() }
            });
            let before = active.sleepers.insert(mine.ticket, Sleeper { since: mine.since, waker });
            [before.map(|sleeper| sleeper.waker), None]
        } else {
            let before = waits.take().and_then(|mine| active.sleepers.remove(&mine.ticket));
            [before.map(|sleeper| sleeper.waker), Some(waker)]
        };
        drop(active);
        left.into_iter().flatten().for_each(drop_waker);
        is_changing
    }

    /// Removes a wait, so that its waker is not woken any more.
    pub(crate) fn wait_no_more(&self, waits: Waits) {
        let left = self.active.lock().sleepers.remove(&waits.ticket);
        left.into_iter().for_each(|sleeper| drop_waker(sleeper.waker));
    }

    /// Returns the wakers that have waited longer than `patience`. The caller wakes them.
    #[must_use]
    pub(crate) fn overdue(&self, patience: Duration) -> Vec<Waker> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut active = self.active.lock();
        let is_overdue = |sleeper: &Sleeper| sleeper.since.elapsed() >= patience;
        let overdue: Vec<u64> =
            active.sleepers.iter().filter(|(_, s)| is_overdue(s)).map(|(ticket, _)| *ticket).collect();
        let overdue: Vec<Sleeper> = overdue.iter().filter_map(|ticket| active.sleepers.remove(ticket)).collect();
        drop(active);
        overdue.into_iter().map(|sleeper| sleeper.waker).collect()
    }

    /// The error for a wait that exceeded its patience.
    pub(crate) fn busy(range: &Range<u64>) -> Error {
        let len = range.end - range.start;
        Error::new(ErrorKind::Busy, "read", format!("{len} bytes are being written"))
            .with_offset(range.start)
            .with_advice("wait for the transfer that writes there")
    }

    /// Names the range of a read that was repeated often, at a moment when no byte of it is
    /// changing. With `waits`, writers that can wait must wait for it, because a thread is reading.
    ///
    /// # Errors
    /// As [`wait_quiet`](Self::wait_quiet).
    pub(crate) fn insist(&self, range: &Range<u64>, waits: bool, patience: Duration) -> Result<u64> {
        let mut active = self.quiet(range, patience)?;
        let number = active.next;
        active.next += 1;
        active.insisting.push(Named { number, range: range.clone(), waits, has_changed: false });
        Ok(number)
    }

    /// Whether no byte of a read's range began to change since then.
    #[inline]
    pub(crate) fn is_same(&self, range: &Range<u64>, since: Since) -> bool {
        match since {
            Since::Versions(stamp) => self.unchanged(range, stamp),
            Since::Named(number) => self.is_untouched(number),
        }
    }

    /// Whether no byte of the range began to change since it was named.
    fn is_untouched(&self, number: u64) -> bool {
        self.active.lock().insisting.iter().any(|named| named.number == number && !named.has_changed)
    }

    /// Ends a read that named its range.
    pub(crate) fn leave(&self, number: u64) {
        self.active.lock().insisting.retain(|named| named.number != number);
        self.over.notify_all();
    }

    /// Waits before a change until no read that named its range earlier covers a byte of `range`,
    /// at most for `patience`.
    pub(crate) fn let_readers_go(&self, range: &Range<u64>, patience: Duration) {
        let started = Instant::now();
        let mut active = self.active.lock();
        let before = active.next;
        let is_before = |named: &Named| named.waits && named.number < before && overlap(&named.range, range);
        while active.insisting.iter().any(is_before) {
            let left = patience.saturating_sub(started.elapsed());
            if left.is_zero() && cfg!(not(shuttle)) {
                return;
            }
            active = self.sleep(active, left);
        }
    }

    #[cfg(not(shuttle))]
    fn sleep<'a>(&self, active: MutexGuard<'a, Active>, left: Duration) -> MutexGuard<'a, Active> {
        self.over.wait_timeout(active, left).0
    }

    /// The model has no time: a sleeper is woken, or the model reports that it never is.
    #[cfg(shuttle)]
    fn sleep<'a>(&self, active: MutexGuard<'a, Active>, _left: Duration) -> MutexGuard<'a, Active> {
        self.over.wait(active)
    }

    /// The versions now.
    #[inline]
    pub(crate) fn stamp(&self, range: &Range<u64>) -> Stamp {
        let (first, count) = first_and_count(range);
        let sum = stripes(range).map(|s| self.versions[s].load(Ordering::SeqCst)).fold(0, u64::wrapping_add);
        Stamp { sum, first: first as u16, count: count as u16 }
    }

    /// Whether no byte of the range began to change since the stamp was taken.
    #[inline]
    pub(crate) fn unchanged(&self, range: &Range<u64>, since: Stamp) -> bool {
        self.stamp(range) == since
    }

    /// As [`unchanged`](Self::unchanged), where the range itself was announced once more since.
    pub(crate) fn unchanged_but_once(&self, range: &Range<u64>, since: Stamp) -> bool {
        self.stamp(range) == Stamp { sum: since.sum.wrapping_add(u64::from(since.count)), ..since }
    }

    /// Whether a byte of the range is changing.
    pub(crate) fn is_changing(&self, range: &Range<u64>) -> bool {
        self.count.load(Ordering::SeqCst) != 0 && self.active.lock().is_changing(range)
    }

    /// Whether any byte is changing.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Waits until no byte of the range is changing.
    ///
    /// # Errors
    /// `Busy` after `patience`: a transfer into the range was started and not finished.
    pub(crate) fn wait_quiet(&self, range: &Range<u64>, patience: Duration) -> Result<()> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        self.quiet(range, patience).map(drop)
    }

    /// Waits until no byte of the range is changing, and returns the locked changes.
    fn quiet(&self, range: &Range<u64>, patience: Duration) -> Result<MutexGuard<'_, Active>> {
        let started = Instant::now();
        let mut active = self.active.lock();
        while active.is_changing(range) {
            let left = patience.saturating_sub(started.elapsed());
            if left.is_zero() && cfg!(not(shuttle)) {
                return Err(Writes::busy(range));
            }
            active = self.sleep(active, left);
        }
        Ok(active)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn versions_show_overlapping_changes() {
        let writes = Writes::default();
        let before = writes.stamp(&(0..200_000));
        // It is alone: a later change makes a difference.
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
    fn a_named_range_notices_changes_of_its_own_bytes_only() {
        let writes = Writes::default();
        let change = |range: Range<u64>| {
            writes.begin(&range);
            writes.end(&range);
        };
        let named = writes.insist(&(100..200), true, Duration::ZERO).unwrap();
        [0..100, 200..300, 5000..6000].into_iter().for_each(change);
        assert!(writes.is_untouched(named));
        change(199..201);
        assert!(!writes.is_untouched(named));
        writes.let_readers_go(&(200..300), Duration::MAX);
        let started = Instant::now();
        writes.let_readers_go(&(150..300), Duration::from_millis(5));
        assert!(started.elapsed() >= Duration::from_millis(5), "it is waited for");
        writes.leave(named);
        writes.let_readers_go(&(150..300), Duration::MAX);
        assert!(!writes.is_untouched(named), "who left is not there");
        writes.begin(&(150..151));
        assert_eq!(writes.insist(&(100..200), true, Duration::ZERO).unwrap_err().kind(), ErrorKind::Busy);
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
