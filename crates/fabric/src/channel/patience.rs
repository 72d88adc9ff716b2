//! How long, and in which way, a thread waits.

use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind};

/// The longest time until a waiter looks at everything again, whatever was signalled.
const SLICE: Duration = Duration::from_millis(100);

/// How long to wait for the other side, and whether the waiting thread owns its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The time after which the wait fails with `Busy`. The channel stays usable.
    pub limit: Duration,
    /// Whether to spin instead of sleeping. It is only for a thread that owns its core: with more
    /// processes than cores this was 28 times slower than sleeping.
    pub own_core: bool,
}

impl Patience {
    /// Does not wait at all.
    pub const NONE: Patience = Patience { limit: Duration::ZERO, own_core: false };

    /// Sleeps until the channel ends: the other side closes it or dies, it is revoked, or the
    /// controller ends. It is for parties that only pass on data, such as devices and relays. The
    /// application decides when the next party is too slow, so that the path of blocks changes
    /// times but never results.
    pub const UNTIL_ENDED: Patience = Patience::up_to(Duration::MAX);

    /// Sleeps, up to `limit`.
    pub const fn up_to(limit: Duration) -> Patience {
        Patience { limit, own_core: false }
    }

    /// Sleeps, up to this number of seconds.
    pub const fn seconds(seconds: u64) -> Patience {
        Patience::up_to(Duration::from_secs(seconds))
    }
}

impl Default for Patience {
    /// Returns ten seconds of sleep.
    fn default() -> Self {
        Patience::seconds(10)
    }
}

/// One wait in progress.
pub(crate) struct Waiting {
    patience: Patience,
    since: Option<Instant>,
}

impl Waiting {
    pub(crate) fn new(patience: Patience) -> Waiting {
        Waiting { patience, since: None }
    }

    /// The time for the next sleep, or None when the patience is over. The clock starts with the
    /// first call.
    pub(crate) fn slice(&mut self) -> Option<Duration> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if cfg!(shuttle) {
            return Some(SLICE);
        }
        let left = self.patience.limit.checked_sub(since.elapsed()).filter(|left| !left.is_zero())?;
        Some(left.min(SLICE))
    }

    pub(crate) fn own_core(&self) -> bool {
        self.patience.own_core && !cfg!(shuttle)
    }

    pub(crate) fn over(&self, operation: &'static str, what: &str) -> Error {
        let context = format!("{what} within {:?}", self.patience.limit);
        Error::new(ErrorKind::Busy, operation, context)
            .with_advice("the other side is slow, stopped or stuck: wait again, or revoke the channel")
    }
}

/// An adaptive spin before sleeping. It spins longer where that would have saved a sleep, hardly at
/// all where it would not, and never longer than the measured cost of a sleep. So the total cost is
/// at most twice the optimum. It has no constants of a processor, because the duration of a pause
/// or a wake-up differs by a factor of ten between processors.
///
/// If both sides share a core, a sleep ends soon because it lets the other side run, and spinning
/// never finds anything. So after spinning in vain for the cost of a sleep, a thread sleeps without
/// spinning a number of times, which doubles each time.
pub(crate) struct AdaptiveSpin {
    budget: Duration,
    /// The shortest recent sleep that an event ended.
    sleep_cost: Duration,
    /// Whether the last spin used all of its budget and found nothing.
    in_vain: bool,
    /// The number of next sleeps without a spin before them.
    blind: u32,
    /// The next value of `blind`.
    next_blind: u32,
}

impl AdaptiveSpin {
    /// Looks before the clock is read.
    const FIRST_LOOKS: u32 = 4;
    /// Looks between two readings of the clock.
    const LOOKS: u32 = 8;
    /// A budget below this counts as none. It is about the cost of reading the clock.
    const MIN_GUESS: Duration = Duration::from_nanos(100);
    /// The most consecutive sleeps without a spin. The cost of a retried spin is negligible among
    /// them.
    const MAX_BLIND: u32 = 256;
    /// The assumed cost of a sleep before the first measurement.
    const ASSUMED: Duration = Duration::from_micros(5);

    pub(crate) fn new() -> AdaptiveSpin {
        let (budget, sleep_cost) = (Duration::ZERO, AdaptiveSpin::ASSUMED);
        AdaptiveSpin { budget, sleep_cost, in_vain: false, blind: 0, next_blind: 1 }
    }

    /// Calls `look` for a while. Returns what it found, if anything.
    pub(crate) fn look<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if cfg!(shuttle) {
            return look();
        }
        for _ in 0..AdaptiveSpin::FIRST_LOOKS {
            if let Some(found) = look() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        self.in_vain = false;
        if self.budget.is_zero() || self.blind > 0 {
            return None;
        }
        let since = Instant::now();
        loop {
            for _ in 0..AdaptiveSpin::LOOKS {
                if let Some(found) = look() {
                    self.next_blind = 1;
                    return Some(found);
                }
                std::hint::spin_loop();
            }
            if since.elapsed() >= self.budget {
                self.in_vain = true;
                return None;
            }
        }
    }

    /// The awaited event came after the last look and before the sleep began: a slightly longer
    /// spin would have found it. The duration does not show the cost of a sleep.
    pub(crate) fn just_missed(&mut self) {
        self.in_vain = false;
        (self.blind, self.next_blind) = (0, 1);
        self.budget = (self.budget.max(AdaptiveSpin::MIN_GUESS) * 2).min(self.sleep_cost);
    }

    /// Notes that the awaited event ended a sleep of this duration.
    pub(crate) fn slept(&mut self, took: Duration) {
        // The old cost is forgotten slowly, because the cost of a sleep depends on the machine's
        // load.
        self.sleep_cost = took.min(self.sleep_cost + self.sleep_cost / 16 + AdaptiveSpin::MIN_GUESS);
        if self.blind > 0 {
            self.blind -= 1;
            return;
        }
        if std::mem::take(&mut self.in_vain) && self.budget >= self.sleep_cost {
            self.blind = self.next_blind;
            self.next_blind = (self.next_blind * 2).min(AdaptiveSpin::MAX_BLIND);
            return;
        }
        self.budget = if took < self.sleep_cost * 2 {
            // It came soon after the sleep began: a slightly longer spin would have found it.
            (self.budget.max(AdaptiveSpin::MIN_GUESS) * 2).min(self.sleep_cost)
        } else if self.budget > AdaptiveSpin::MIN_GUESS {
            self.budget / 2
        } else {
            Duration::ZERO
        };
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    /// Two sides share a core: each sleep ends at once, because it lets the other side run.
    #[test]
    fn it_stops_looking_where_sleeping_is_what_helps_and_tries_again_where_that_changes() {
        let mut spin = AdaptiveSpin::new();
        let mut wait = |finds: bool| {
            let mut looks = 0;
            let found = spin.look(|| {
                looks += 1;
                (finds && looks > AdaptiveSpin::FIRST_LOOKS).then_some(())
            });
            if found.is_none() {
                spin.slept(Duration::from_micros(3));
            }
            (looks > AdaptiveSpin::FIRST_LOOKS, found.is_some())
        };
        let looked = (0..10_000).filter(|_| wait(false).0).count();
        assert!((1..200).contains(&looked), "{looked} of 10000 times");
        // Now spinning helps: after a while each spin finds something.
        for _ in 0..300 {
            wait(true);
        }
        assert!((0..100).all(|_| wait(true) == (true, true)));
    }

    /// The two sides have a core each, and the awaited event often comes between the last look and
    /// the sleep. Such a moment does not show the cost of a sleep.
    #[test]
    fn a_sleep_that_never_began_does_not_shorten_the_looks() {
        let mut spin = AdaptiveSpin::new();
        for _ in 0..20 {
            spin.slept(Duration::from_micros(6));
            spin.just_missed();
        }
        assert!(spin.sleep_cost >= Duration::from_micros(5), "{:?}", spin.sleep_cost);
        assert_eq!((spin.budget, spin.blind), (spin.sleep_cost, 0));
    }

    #[test]
    fn it_looks_longer_where_that_spares_a_sleep_and_no_longer_than_one_costs() {
        let mut spin = AdaptiveSpin::new();
        let mut looks = 0;
        let mut nothing = |spin: &mut AdaptiveSpin| {
            looks = 0;
            spin.look(|| -> Option<()> {
                looks += 1;
                None
            });
            looks
        };
        assert_eq!(nothing(&mut spin), AdaptiveSpin::FIRST_LOOKS, "it begins with hardly any");
        // The sleeps end at once, after the least cost of a sleep.
        for _ in 0..20 {
            spin.slept(Duration::from_micros(3));
        }
        assert!(nothing(&mut spin) > AdaptiveSpin::FIRST_LOOKS);
        assert!(spin.budget > Duration::from_micros(1) && spin.budget <= Duration::from_micros(4), "{:?}", spin.budget);
        // The awaited event takes long, so spinning gains nothing.
        for _ in 0..20 {
            spin.slept(Duration::from_millis(1));
        }
        assert_eq!((spin.budget, nothing(&mut spin)), (Duration::ZERO, AdaptiveSpin::FIRST_LOOKS));
        // It also learns step by step that sleeps have become expensive.
        for _ in 0..200 {
            spin.slept(Duration::from_millis(1));
        }
        assert!(spin.sleep_cost > Duration::from_micros(50), "{:?}", spin.sleep_cost);
    }
}
