//! How long ranges are, from what requests were seen to take.
//!
//! ```text
//! a request takes  wait + bytes / rate    (wait: until its first byte; rate: of one connection)
//! a piece has      9 x wait x rate bytes: then nine tenths of the time of a request move bytes
//!                  a power of two, not less than the usual length, not more than a bound
//! ```
//!
//! The wait is seen when an object is opened or created, before its first byte. Until a rate was
//! seen, it is taken to be that of S3. The usual length is enough where a server answers within a
//! few milliseconds; a far one with fast connections wants longer pieces.
//!
//! Parts that are written have the usual length: a buffer between two places has as many bytes,
//! so a part is sent from there. Longer ones were tried: they are put together in memory first, one
//! after the other, where shorter ones are sent at once.

use std::time::Duration;

use datapipes_core::locks::Mutex;

/// Bytes per second of one connection to a cloud's server, until a rate was seen: S3 gives 85 to 90
/// MB/s, by its own guide to performance.
pub(crate) const ASSUMED_RATE: f64 = 85e6;
/// Bytes of a range until costs were seen, and the least afterwards: as many as a buffer
/// between two places has, so that a part is sent from there.
pub(crate) const USUAL_PIECE: u64 = 8 << 20;
/// The most bytes of a range that costs lead to.
const MAX_PIECE: u64 = 64 << 20;
/// Fewer bytes say nothing of a rate.
const MIN_SAMPLE: u64 = 256 << 10;
/// How much of its time a request is to move bytes, by how much of it waits.
const MOVING_BY_WAITING: f64 = 9.0;
/// A wait counts as at most so many times the waits before it.
const MAX_GROWTH: f64 = 4.0;
/// The weight of what is seen, beside all that was seen before.
const WEIGHT: f64 = 0.125;

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    wait_s: Option<f64>,
    bytes_per_s: Option<f64>,
}

impl Seen {
    fn mean(before: Option<f64>, now: f64) -> Option<f64> {
        Some(before.map_or(now, |before| before + (now - before) * WEIGHT))
    }

    fn piece(self) -> u64 {
        let bytes = MOVING_BY_WAITING * self.wait_s.unwrap_or(0.0) * self.bytes_per_s.unwrap_or(ASSUMED_RATE);
        // A cast of a float ends at the bounds of the integer.
        (bytes as u64).clamp(USUAL_PIECE, MAX_PIECE).next_power_of_two()
    }
}

/// What the requests of a client that read were seen to take.
#[derive(Debug, Default)]
pub(crate) struct RequestCosts(Mutex<Seen>);

impl RequestCosts {
    /// Notes the wait for an answer without bytes, or for the first byte of one.
    pub(crate) fn waited(&self, wait: Duration) {
        let (mut seen, wait) = (self.0.lock(), wait.as_secs_f64());
        // The first one has the making of a connection in it, so a shorter one counts at once. A
        // server that is busy for a moment is not far.
        let longer = wait.min(seen.wait_s.map_or(wait, |before| before * MAX_GROWTH));
        seen.wait_s = Seen::mean(seen.wait_s, longer).map(|mean| mean.min(wait));
    }

    /// Notes bytes that went over one connection in this time, without the wait.
    pub(crate) fn carried(&self, bytes: u64, time: Duration) {
        if bytes >= MIN_SAMPLE {
            let mut seen = self.0.lock();
            seen.bytes_per_s = Seen::mean(seen.bytes_per_s, bytes as f64 / time.as_secs_f64().max(1e-6));
        }
    }

    /// The bytes of a piece.
    pub(crate) fn piece(&self) -> u64 {
        self.0.lock().piece()
    }

    /// The bytes of a piece of a job of `len` bytes, which `connections` carry at once: each has
    /// two, unless pieces would be shorter than usual.
    pub(crate) fn piece_of(&self, len: u64, connections: u32) -> u64 {
        let shared = len.div_ceil(2 * u64::from(connections.max(1))).max(USUAL_PIECE);
        self.piece().min(1 << shared.ilog2())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seen(wait_ms: u64, bytes_per_s: u64) -> RequestCosts {
        let costs = RequestCosts::default();
        costs.waited(Duration::from_millis(wait_ms));
        costs.carried(bytes_per_s, Duration::from_secs(1));
        costs
    }

    #[test]
    fn a_far_server_gets_longer_pieces() {
        assert_eq!(RequestCosts::default().piece(), 8 * MIB);
        assert_eq!(seen(1, 300_000_000).piece(), 8 * MIB, "on this machine");
        assert_eq!(seen(20, 85_000_000).piece(), 16 * MIB, "in one region of a cloud");
        assert_eq!(seen(100, 85_000_000).piece(), 64 * MIB, "across an ocean: 77 MB, and the bound");
        assert_eq!(seen(60_000, u64::MAX).piece(), 64 * MIB);
        assert_eq!(seen(0, 1).piece(), 8 * MIB);
    }

    #[test]
    fn the_wait_alone_is_enough_to_begin_with() {
        let costs = RequestCosts::default();
        costs.waited(Duration::from_millis(500));
        assert_eq!(costs.piece(), 64 * MIB);
        costs.waited(Duration::from_millis(1));
        assert_eq!(costs.piece(), 8 * MIB, "a shorter wait counts at once");
        costs.waited(Duration::from_secs(60));
        assert_eq!(costs.piece(), 8 * MIB, "one that is far longer is of a busy server");
        for _ in 0..20 {
            costs.waited(Duration::from_millis(20));
        }
        assert_eq!(costs.piece(), 16 * MIB);
    }

    #[test]
    fn all_connections_have_something_to_do() {
        let costs = seen(100, 85_000_000);
        assert_eq!(costs.piece_of(1 << 30, 4), 64 * MIB);
        assert_eq!(costs.piece_of(1 << 30, 32), 16 * MIB);
        assert_eq!(costs.piece_of(5 * MIB, 32), 8 * MIB);
        assert_eq!(costs.piece_of(200 * MIB + 1, 4), 16 * MIB, "a power of two");
        assert_eq!(costs.piece_of(u64::MAX, 0), 64 * MIB);
    }
}
