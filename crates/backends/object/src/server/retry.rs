//! Which requests are made again, and when.

use std::time::Duration;

use super::failure::{Cause, Trouble, cause, may_be_done};
use crate::options::ObjectOptions;

/// So many attempts in a row that find no TLS are enough.
const MAX_WITHOUT_TLS: u32 = 3;

/// The attempts at one request.
#[derive(Clone, Debug)]
pub(crate) struct Attempts {
    left: u32,
    made: u32,
    /// How many in a row found a server that speaks no TLS.
    without_tls: u32,
    longest: Duration,
    /// A number that differs from request to request, so that many do not come back at once.
    seed: u64,
}

impl Attempts {
    pub(crate) fn new(options: &ObjectOptions, seed: u64) -> Attempts {
        Attempts { left: options.retries, made: 0, without_tls: 0, longest: options.longest_pause, seed }
    }

    /// The pause before the next attempt, or `None` where the error is final or the attempts are
    /// used up.
    pub(crate) fn after(&mut self, error: &object_store::Error) -> Option<Duration> {
        if !is_passing(error) {
            return None;
        }
        if matches!(cause(error), Cause::Broken(broken) if broken.trouble == Trouble::NoTls) {
            // A server may be busy. One that speaks no TLS never will, and each attempt may take
            // long.
            self.without_tls += 1;
            if self.without_tls >= MAX_WITHOUT_TLS {
                return None;
            }
        } else {
            self.without_tls = 0;
        }
        self.next_pause()
    }

    /// As [`after`](Self::after), for a request that may have been done all the same: the next
    /// attempt tells.
    pub(crate) fn after_publishing(&mut self, error: &object_store::Error) -> Option<Duration> {
        match cause(error) {
            Cause::Other if may_be_done(error) => self.next_pause(),
            _ => self.after(error),
        }
    }

    /// As [`after`](Self::after), for an answer that ended early.
    pub(crate) fn next_pause(&mut self) -> Option<Duration> {
        self.left = self.left.checked_sub(1)?;
        let doubled = (self.longest / 100).saturating_mul(1 << self.made.min(10)).min(self.longest);
        self.made = self.made.saturating_add(1);
        // Between half of it and all of it.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let part = (self.seed >> 33) as f64 / f64::from(1u32 << 31);
        Some(doubled.mul_f64(0.5 + part.clamp(0.0, 1.0) / 2.0))
    }
}

/// Whether another attempt may succeed.
pub(crate) fn is_passing(error: &object_store::Error) -> bool {
    match cause(error) {
        Cause::Refused(refusal) => refusal.is_passing(),
        Cause::Broken(broken) => broken.passing,
        Cause::Other => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_end() {
        let options = ObjectOptions::default().retries(9).longest_pause(Duration::from_secs(1));
        let mut attempts = Attempts::new(&options, 7);
        let pauses: Vec<_> = std::iter::from_fn(|| attempts.next_pause()).collect();
        assert_eq!(pauses.len(), 9);
        for (n, pause) in pauses.iter().enumerate() {
            let most = Duration::from_millis(10 << n.min(10)).min(Duration::from_secs(1));
            assert!(*pause <= most && *pause >= most / 2, "{n}: {pause:?} of {most:?}");
        }
        let other: Vec<_> = {
            let mut attempts = Attempts::new(&options, 8);
            std::iter::from_fn(|| attempts.next_pause()).collect()
        };
        assert_ne!(pauses, other);
    }
}
