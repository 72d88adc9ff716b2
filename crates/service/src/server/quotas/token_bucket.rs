//! The rate limit of a client's requests.

use std::time::{Duration, Instant};

/// A number of tokens that come back with time: `per_s` in a second, and at most as many at once.
pub(in crate::server) struct TokenBucket {
    per_s: f64,
    turns: f64,
    since: Instant,
}

impl TokenBucket {
    pub(in crate::server) fn new(per_s: u32, now: Instant) -> TokenBucket {
        let per_s = f64::from(per_s.max(1));
        TokenBucket { per_s, turns: per_s, since: now }
    }

    /// Takes a token. Returns how long to wait before using it.
    pub(in crate::server) fn take(&mut self, now: Instant) -> Duration {
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
    fn a_burst_at_once_and_then_a_rate() {
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
        // An hour without requests gives the tokens of one second.
        now += Duration::from_secs(3600);
        assert_eq!((0..20).filter(|_| pace.take(now).is_zero()).count(), 10);
    }
}
