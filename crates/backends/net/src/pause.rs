//! Whether a thread that has nothing to do looks again for a moment before it sleeps.
//!
//! Waking up costs both sides more than a short operation takes. So a thread spins for a moment,
//! but only as long as that pays: after a sleep that was shorter than the moment, and until a
//! moment passes in which nothing came. A thread without work sleeps.

use std::time::{Duration, Instant};

/// The longest time without work before a thread sleeps: about twice what a wake-up costs.
const MOMENT: Duration = Duration::from_micros(50);

/// The state of a thread that works, spins or sleeps.
#[derive(Default)]
pub(crate) struct Pause {
    may_spin: bool,
    idle_since: Option<Instant>,
}

impl Pause {
    /// There was work.
    pub(crate) fn worked(&mut self) {
        self.idle_since = None;
    }

    /// There was nothing to do: whether to look again rather than sleep.
    pub(crate) fn spins(&mut self) -> bool {
        if !self.may_spin {
            return false;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        self.may_spin = since.elapsed() < MOMENT;
        if self.may_spin {
            std::hint::spin_loop();
        } else {
            self.idle_since = None;
        }
        self.may_spin
    }

    /// It slept for so long.
    pub(crate) fn slept(&mut self, time: Duration) {
        self.may_spin = time < MOMENT;
        self.idle_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_spins_only_after_a_short_sleep_and_for_a_moment() {
        let mut pause = Pause::default();
        assert!(!pause.spins(), "at first it sleeps");
        pause.slept(Duration::from_millis(1));
        assert!(!pause.spins());
        pause.slept(Duration::from_micros(10));
        assert!(pause.spins());
        while pause.spins() {}
        assert!(!pause.spins(), "the moment has passed");
    }
}
