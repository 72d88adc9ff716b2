//! How long cached items are doubted after a change that may not be over.
//!
//! A call that writes moves the file's times when it begins. Its bytes may arrive much later:
//! gigabytes to a slow device take minutes. A read in between gets old bytes of a file that looks
//! the same afterwards. So the cached items are dropped again each time the age of the change has
//! doubled. However long the write took, old bytes are returned at most for about as long again,
//! and over the life of a file that happens few times.

use std::time::{Duration, Instant};

/// A change of the file, and when items cached since then are dropped.
pub(crate) struct Doubt {
    /// A moment of the monotonic clock, and the age of the change then.
    at: Instant,
    age: Duration,
    /// When the cached items are dropped next. None: never, as far as the clock goes.
    due: Option<Instant>,
    /// The least time between two such moments.
    least: Duration,
    /// The age of the change when cached items were dropped last.
    gone: Duration,
}

impl Doubt {
    /// A doubt about a change that had this age before anything was read.
    pub(crate) fn of_age(now: Instant, age: Duration, least: Duration) -> Doubt {
        Doubt { at: now, age, due: now.checked_add(age.max(least)), least, gone: age }
    }

    /// A doubt about a change that was seen now. The cached items are dropped after `first`.
    pub(crate) fn from_now(now: Instant, first: Duration, least: Duration) -> Doubt {
        Doubt { at: now, age: Duration::ZERO, due: now.checked_add(first), least, gone: Duration::ZERO }
    }

    /// Notes another such change, while the last one is still in doubt.
    pub(crate) fn renew(&mut self, now: Instant, first: Duration) {
        (self.at, self.age, self.gone) = (now, Duration::ZERO, Duration::ZERO);
        // Frequent changes must not postpone the moment.
        let due = now.checked_add(first);
        self.due = [self.due, due].into_iter().flatten().min();
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Notes that the cached items are dropped now.
    pub(crate) fn goes(&mut self, now: Instant) {
        self.gone = self.age.saturating_add(now.saturating_duration_since(self.at));
        self.due = now.checked_add(self.gone.max(self.least));
    }

    /// How long cached items may still be returned before they are dropped: until the change is
    /// twice as old as when the first of them was read.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        let age = self.age.saturating_add(now.saturating_duration_since(self.at));
        self.gone.saturating_mul(2).saturating_sub(age)
    }

    /// Whether all cached items were read when the change had at least this age.
    pub(crate) fn is_settled(&self, age: Duration) -> bool {
        self.gone >= age
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The moments, in milliseconds from the beginning, when items are dropped. It looks each
    /// millisecond, and `each` may renew the doubt first.
    fn gone(doubt: &mut Doubt, until: u32, each: impl Fn(&mut Doubt, u32, Instant)) -> Vec<u32> {
        let start = doubt.at;
        let at = |ms: u32| start + ms * MS;
        let goes = |ms: &u32| {
            each(doubt, *ms, at(*ms));
            let due = doubt.is_due(at(*ms));
            if due {
                doubt.goes(at(*ms));
            }
            due
        };
        (0..until).filter(goes).collect()
    }

    #[test]
    fn cached_items_are_dropped_when_the_age_of_a_change_doubles() {
        let mut doubt = Doubt::from_now(Instant::now(), 20 * MS, 20 * MS);
        let gone = gone(&mut doubt, 100_000, |_, _, _| ());
        assert_eq!(gone, [20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10_240, 20_480, 40_960, 81_920]);
        assert!(doubt.is_settled(81_920 * MS) && !doubt.is_settled(81_921 * MS));
    }

    #[test]
    fn changes_that_come_again_and_again_put_nothing_off_and_cost_no_more() {
        let first = 10_000 * MS;
        let renewed = |doubt: &mut Doubt, ms: u32, now| {
            if ms < 35_000 && ms.is_multiple_of(50) {
                doubt.renew(now, first);
            }
        };
        let mut doubt = Doubt::from_now(Instant::now(), first, first);
        let gone = gone(&mut doubt, 100_000, renewed);
        // The last renewal came after 34,950.
        assert_eq!(gone, [10_000, 20_000, 30_000, 40_000, 50_000, 65_050, 95_150]);
        doubt.renew(doubt.at + 100_000 * MS, first);
        assert!(!doubt.is_settled(MS), "a new one");
    }

    #[test]
    fn an_old_file_is_left_alone_for_as_long_again() {
        let (now, year) = (Instant::now(), Duration::from_secs(365 * 86_400));
        let doubt = Doubt::of_age(now, year, 20 * MS);
        assert!(doubt.is_settled(year) && !doubt.is_due(now + year - MS) && doubt.is_due(now + year));
        assert_eq!(doubt.left(now + year / 2), year / 2);
        assert_eq!(Doubt::from_now(now, MS, MS).left(now), Duration::ZERO);
        assert!(!Doubt::of_age(now, Duration::MAX, 20 * MS).is_due(now + year), "an age beyond the clock");
    }
}
