//! A rate, kept as the time until which a flow is paid for.
//!
//! Tokens in a bucket and a time are two views of one number; the time needs no refill and answers
//! *when* at once.

/// A meter remembers this much time, or two chunks if they take longer.
const WINDOW_NS: u64 = 10_000_000;

/// Bytes against time.
///
/// `paid_until` is the time at which a flow with exactly the rate would have sent what was charged.
/// In the past: the flow had less than the rate; in the future: more. No meter remembers more than
/// its window in the past, which is the burst of a limit and the arrears of a promise.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    ns_per_byte: f64,
    window_ns: u64,
    two_chunks_ns: u64,
    paid_until: u64,
    /// The part of a nanosecond that `paid_until` cannot say: at 100 GB/s half a nanosecond a chunk
    /// is a percent.
    fraction: f64,
}

impl Meter {
    /// For a rate in bytes/s (finite, above zero) and the largest chunk.
    pub(super) fn new(rate: f64, chunk: u64) -> Meter {
        let ns_per_byte = 1e9 / rate;
        // A float that is too large becomes u64::MAX.
        let two_chunks_ns = (2.0 * chunk as f64 * ns_per_byte) as u64;
        let window_ns = WINDOW_NS.max(two_chunks_ns);
        Meter { ns_per_byte, window_ns, two_chunks_ns, paid_until: 0, fraction: 0.0 }
    }

    pub(super) fn paid_until(&self) -> u64 {
        self.paid_until
    }

    /// How long the flow has had less than the rate; None if it has not.
    pub(super) fn behind_ns(&self, now: u64) -> Option<u64> {
        now.checked_sub(self.paid_until)
    }

    /// Bytes go out.
    pub(super) fn charge(&mut self, bytes: u64, now: u64) {
        let start = self.paid_until.max(now.saturating_sub(self.window_ns));
        let cost = bytes as f64 * self.ns_per_byte + self.fraction;
        let whole = cost.floor();
        self.fraction = if cost.is_finite() { cost - whole } else { 0.0 };
        self.paid_until = start.saturating_add(whole as u64);
    }

    /// Forgets what lies more than two chunks in the future. For a promise: what a flow had for
    /// nothing is not held against it later. For all: the clock went back.
    pub(super) fn forgive(&mut self, now: u64) {
        self.paid_until = self.paid_until.min(now.saturating_add(self.two_chunks_ns));
    }

    /// Time in which the flow wanted nothing does not count as arrears.
    pub(super) fn skip(&mut self, idle_ns: u64, now: u64) {
        if self.paid_until < now {
            self.paid_until = self.paid_until.saturating_add(idle_ns).min(now);
        }
    }
}

/// The chunk of a flow that is limited to a rate: what the rate gives in 10 ms, in pages, so that
/// slow flows are smooth.
pub(super) fn smooth_chunk(rate: f64, chunk: u64) -> u64 {
    const PAGE: u64 = 4096;
    let bytes = (rate * (WINDOW_NS as f64 / 1e9)) as u64;
    (bytes / PAGE * PAGE).max(PAGE).min(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_paid_for_is_bytes_by_rate() {
        // 3 GB/s and 512 bytes: 170.67 ns a chunk; a million of them without rounding away the
        // thirds.
        let mut meter = Meter::new(3e9, 65536);
        meter.paid_until = 1 << 40;
        for _ in 0..1_000_000 {
            meter.charge(512, 0);
        }
        let took = meter.paid_until() - (1 << 40);
        assert!(took.abs_diff(170_666_666) <= 1, "{took}");
    }

    #[test]
    fn no_more_than_the_window_is_remembered() {
        let mut meter = Meter::new(1e9, 65536);
        meter.charge(1000, 1_000_000_000);
        assert_eq!(meter.paid_until(), 1_000_000_000 - WINDOW_NS + 1000);
        assert_eq!(meter.behind_ns(1_000_000_000), Some(WINDOW_NS - 1000));
        // At 1 KB/s two pages take 8.192 s: that is the window.
        let mut slow = Meter::new(1e3, 4096);
        slow.charge(1, 10_000_000_000);
        assert_eq!(slow.paid_until(), 10_000_000_000 - 8_192_000_000 + 1_000_000);
    }

    #[test]
    fn idle_time_and_a_clock_set_back_are_forgiven() {
        let mut meter = Meter::new(1e9, 65536);
        meter.paid_until = 50;
        meter.skip(30, 100);
        assert_eq!(meter.paid_until(), 80);
        meter.skip(1000, 100);
        assert_eq!(meter.paid_until(), 100);
        meter.paid_until = u64::MAX;
        meter.skip(5, 100);
        meter.forgive(100);
        assert_eq!(meter.paid_until(), 100 + 2 * 65536);
        // A rate near nothing neither wraps nor makes a NaN.
        let mut never = Meter::new(f64::MIN_POSITIVE, 65536);
        never.charge(u64::MAX, 5);
        assert_eq!((never.paid_until(), never.fraction), (u64::MAX, 0.0));
    }

    #[test]
    fn slow_flows_have_small_chunks() {
        assert_eq!(smooth_chunk(1e9, 65536), 65536);
        assert_eq!(smooth_chunk(1e6, 65536), 8192);
        assert_eq!(smooth_chunk(1.0, 65536), 4096);
        assert_eq!(smooth_chunk(1.0, 512), 512);
    }
}
