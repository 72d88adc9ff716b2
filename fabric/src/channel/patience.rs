//! How long, and how, one waits.

use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind};

/// Everything is looked at again within this time, whatever was or was not told.
const SLICE: Duration = Duration::from_millis(100);

/// How long to wait for the other side, and whether the waiting core is one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// After this time the wait fails with `Busy`; the channel stays usable.
    pub limit: Duration,
    /// Look again and again rather than sleep. Only for a thread that owns its core: with more
    /// processes than cores this was 28 times slower than sleeping.
    pub own_core: bool,
}

impl Patience {
    /// Do not wait at all.
    pub const NONE: Patience = Patience { limit: Duration::ZERO, own_core: false };

    /// Sleep until the channel ends: because the other side closes it or dies, it is revoked, or
    /// the controller ends. For who only carries on what others decide about, such as devices and
    /// relays: however slow the next one is, it is for the application to say when that is too
    /// slow, so that where blocks pass changes times and never outcomes.
    pub const UNTIL_ENDED: Patience = Patience::up_to(Duration::MAX);

    /// Sleep, up to `limit`.
    pub const fn up_to(limit: Duration) -> Patience {
        Patience { limit, own_core: false }
    }

    /// Sleep, up to so many seconds.
    pub const fn seconds(seconds: u64) -> Patience {
        Patience::up_to(Duration::from_secs(seconds))
    }
}

impl Default for Patience {
    /// Ten seconds, asleep.
    fn default() -> Self {
        Patience::seconds(10)
    }
}

/// One wait under way.
pub(crate) struct Waiting {
    patience: Patience,
    since: Option<Instant>,
}

impl Waiting {
    pub(crate) fn new(patience: Patience) -> Waiting {
        Waiting { patience, since: None }
    }

    /// The time for the next sleep, or None when there is none left. The clock starts with the
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
            .advice("the other side is slow, stopped or stuck: wait again, or revoke the channel")
    }
}

/// How long to look before sleeping: longer where that would have spared a sleep, hardly at all
/// where it would not, and never for longer than a sleep and its end were seen to cost; so it costs
/// at most twice what is best. No figure of a processor is in it: how long a pause or a wake-up
/// takes differs by a factor of ten between them.
///
/// Where both sides share a core, a sleep ends soon because it lets the other side run, and no look
/// ever finds anything. So who has looked in vain for as long as a sleep costs does not look at all
/// for a number of sleeps, which doubles each time.
pub(crate) struct AdaptiveSpin {
    budget: Duration,
    /// The shortest sleep of late that something ended.
    sleep_cost: Duration,
    /// The last look took all of its budget, and found nothing.
    in_vain: bool,
    /// Sleeps before which nothing is looked at any more.
    blind: u32,
    /// How many those are the next time.
    next_blind: u32,
}

impl AdaptiveSpin {
    /// Looks before the clock is asked.
    const FIRST_LOOKS: u32 = 4;
    /// Looks between two looks at the clock.
    const LOOKS: u32 = 8;
    /// Below this it is as good as nothing: about what the clock costs.
    const MIN_GUESS: Duration = Duration::from_nanos(100);
    /// The most sleeps in a row before which nothing is looked at: what a look that is tried again
    /// costs is lost in them.
    const MAX_BLIND: u32 = 256;
    /// Until a sleep was measured.
    const ASSUMED: Duration = Duration::from_micros(5);

    pub(crate) fn new() -> AdaptiveSpin {
        let (budget, sleep_cost) = (Duration::ZERO, AdaptiveSpin::ASSUMED);
        AdaptiveSpin { budget, sleep_cost, in_vain: false, blind: 0, next_blind: 1 }
    }

    /// Looks for a while; what `look` found, if anything.
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

    /// A sleep that took so long was ended by what was waited for.
    pub(crate) fn slept(&mut self, took: Duration) {
        // Slowly forgotten: what a sleep costs depends on what the machine is doing.
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
            // It came while the sleep had hardly begun: looking on for a little would have found
            // it.
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

    /// Two sides on one core: each sleep ends at once, because it is the sleep that lets the other
    /// side run.
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
        // Now looking helps: after a while each look finds something.
        for _ in 0..300 {
            wait(true);
        }
        assert!((0..100).all(|_| wait(true) == (true, true)));
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
        // Sleeps that end at once, at what a sleep costs at least.
        for _ in 0..20 {
            spin.slept(Duration::from_micros(3));
        }
        assert!(nothing(&mut spin) > AdaptiveSpin::FIRST_LOOKS);
        assert!(spin.budget > Duration::from_micros(1) && spin.budget <= Duration::from_micros(4), "{:?}", spin.budget);
        // What is waited for takes long: looking gains nothing.
        for _ in 0..20 {
            spin.slept(Duration::from_millis(1));
        }
        assert_eq!((spin.budget, nothing(&mut spin)), (Duration::ZERO, AdaptiveSpin::FIRST_LOOKS));
        // That sleeps have become dear is learned as well, step by step.
        for _ in 0..200 {
            spin.slept(Duration::from_millis(1));
        }
        assert!(spin.sleep_cost > Duration::from_micros(50), "{:?}", spin.sleep_cost);
    }
}
