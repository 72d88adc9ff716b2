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
    /// Look again and again rather than sleep. Only for a thread that owns its core: with more processes than cores this
    /// was 28 times slower than sleeping.
    pub own_core: bool,
}

impl Patience {
    /// Do not wait at all.
    pub const NONE: Patience = Patience { limit: Duration::ZERO, own_core: false };

    /// Sleep until the channel ends: because the other side closes it or dies, it is revoked, or the controller ends. For who
    /// only carries on what others decide about, such as devices and relays: however slow the next one is, it is for the
    /// application to say when that is too slow, so that where blocks pass changes times and never outcomes.
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

    /// The time for the next sleep, or None when there is none left. The clock starts with the first call.
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

/// How often to look before sleeping: more where that helped, hardly at all where it did not.
pub(crate) struct Glances(u32);

impl Glances {
    const FEWEST: u32 = 4;
    /// A few microseconds.
    const MOST: u32 = 256;

    pub(crate) fn new() -> Glances {
        Glances(Glances::FEWEST)
    }

    /// Looks a few times; what `look` found, if anything.
    pub(crate) fn look<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if cfg!(shuttle) {
            return look();
        }
        for _ in 0..self.0 {
            if let Some(found) = look() {
                self.0 = (self.0 * 2).min(Glances::MOST);
                return Some(found);
            }
            std::hint::spin_loop();
        }
        self.0 = (self.0 / 2).max(Glances::FEWEST);
        None
    }
}
