//! How many bytes may be under way at once, so that whoever asks to stop is soon heard.

use std::time::{Duration, Instant};

/// In about this time all that is under way has arrived.
const GOAL: Duration = Duration::from_millis(250);
/// The most by which one arrival changes the limit.
const STEP: u64 = 4;

/// A limit for the bytes under way. It follows the time for which they are: what has begun cannot
/// be taken back, so on a slow device less is begun at once, and on a fast one as much as keeps it
/// busy.
///
/// It is for devices whose rate does not depend on how much is asked for at once. (A server gives
/// more the more connections ask it, and whoever began little would stay slow.)
#[derive(Clone, Debug)]
pub struct InFlightLimit {
    bytes: u64,
    least: u64,
    most: u64,
}

/// When something began, and what the limit was.
#[derive(Clone, Copy, Debug)]
pub struct InFlightMark {
    at: Instant,
    limit: u64,
}

impl InFlightLimit {
    /// Makes a limit that begins with `first` bytes and stays between `least` and `most`.
    pub fn new(least: u64, first: u64, most: u64) -> InFlightLimit {
        let most = most.max(least);
        InFlightLimit { bytes: first.clamp(least, most), least, most }
    }

    /// Makes a limit that stays as it is, for a server: its requests end when it is told to stop.
    pub fn fixed(bytes: u64) -> InFlightLimit {
        InFlightLimit::new(bytes, bytes, bytes)
    }

    /// The bytes that may be under way.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// To be called when bytes begin their way, and kept with them.
    pub fn begin(&self) -> InFlightMark {
        InFlightMark { at: Instant::now(), limit: self.bytes }
    }

    /// Notes that what began then has arrived.
    pub fn arrived(&mut self, begun: InFlightMark) {
        self.arrived_after(begun.limit, begun.at.elapsed());
    }

    /// With so many bytes under way it took so long.
    fn arrived_after(&mut self, limit: u64, took: Duration) {
        let wanted = (limit as f64 * (GOAL.as_secs_f64() / took.as_secs_f64().max(1e-9))) as u64;
        let near = wanted.clamp(self.bytes / STEP, self.bytes.saturating_mul(STEP));
        self.bytes = near.clamp(self.least, self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What arrives when all that is under way moves at so many bytes a second.
    fn arrives(limit: &mut InFlightLimit, bytes_per_s: f64) {
        let under_way = limit.bytes();
        limit.arrived_after(under_way, Duration::from_secs_f64(under_way as f64 / bytes_per_s));
    }

    #[test]
    fn a_limit_follows_the_rate_between_its_bounds() {
        let mut limit = InFlightLimit::new(MIB, 2 * MIB, 96 * MIB);
        let mut after = |bytes_per_s| {
            arrives(&mut limit, bytes_per_s);
            limit.bytes()
        };
        assert_eq!([(); 4].map(|()| after(1e9) / MIB), [8, 32, 96, 96]);
        assert_eq!([(); 4].map(|()| after(1e6)), [24 * MIB, 6 * MIB, 3 * MIB / 2, MIB]);
        let steady = [(); 3].map(|()| after(40e6));
        assert!(steady[0] == 4 * MIB && steady[1..].iter().all(|bytes| bytes.abs_diff(10_000_000) < 10), "{steady:?}");
        limit.arrived_after(u64::MAX, Duration::ZERO);
        limit.arrived_after(0, Duration::MAX);
        assert_eq!(InFlightLimit::new(5, 1, 2).bytes(), 5);
        let mut fixed = InFlightLimit::fixed(MIB);
        arrives(&mut fixed, 1.0);
        assert_eq!(fixed.bytes(), MIB);
    }

    #[test]
    fn pieces_that_arrive_together_or_late_do_not_mislead() {
        // A device of 4 MB/s that serves both pieces at once, each half of the limit.
        let mut limit = InFlightLimit::new(MIB, 64 * MIB, 64 * MIB);
        for _ in 0..6 {
            let begun = limit.bytes();
            let took = Duration::from_secs_f64(begun as f64 / 4e6);
            limit.arrived_after(begun, took);
            limit.arrived_after(begun, took);
        }
        assert!(limit.bytes().abs_diff(MIB) < 100_000, "{}", limit.bytes());
        // What began under a larger limit does not push it below what the rate says.
        let mut limit = InFlightLimit::new(MIB, 64 * MIB, 64 * MIB);
        for _ in 0..8 {
            limit.arrived_after(64 * MIB, Duration::from_secs_f64(64.0 * MIB as f64 / 40e6));
        }
        assert!(limit.bytes().abs_diff(10_000_000) < 10, "{}", limit.bytes());
    }
}
