//! How often a client may ask.

use std::time::{Duration, Instant};

/// Turns that come back with time: so many in a second, and no more than those of a second at once.
pub(super) struct TokenBucket {
    per_s: f64,
    turns: f64,
    since: Instant,
}

impl TokenBucket {
    pub(super) fn new(per_s: u32, now: Instant) -> TokenBucket {
        let per_s = f64::from(per_s.max(1));
        TokenBucket { per_s, turns: per_s, since: now }
    }

    /// Takes a turn; returns how long to wait before it is used.
    pub(super) fn take(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = now;
        self.turns = (self.turns + passed * self.per_s).min(self.per_s) - 1.0;
        Duration::try_from_secs_f64(-self.turns / self.per_s).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_at_once_and_then_so_many_a_second() {
        let begin = Instant::now();
        let mut pace = TokenBucket::new(10, begin);
        for _ in 0..10 {
            assert_eq!(pace.take(begin), Duration::ZERO);
        }
        let (mut now, mut taken) = (begin, 0);
        while now < begin + Duration::from_secs(10) {
            now += pace.take(now);
            taken += 1;
        }
        assert!((99..=101).contains(&taken), "{taken}");
        // An hour of silence is worth one second.
        now += Duration::from_secs(3600);
        assert_eq!((0..20).filter(|_| pace.take(now).is_zero()).count(), 10);
    }
}
