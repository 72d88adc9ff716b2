//! Virtual time: a small discrete-event kernel.
//!
//! ```text
//! while let Some(event) = agenda.next() {     // the clock jumps to the event
//!     act on it; agenda.schedule_in(delay, consequence)
//! }
//! ```
//! Time is a count of picoseconds, so that a byte on a link of 16 GB/s (62.5 ps) is not lost to
//! rounding and sums are exact; 2^64 ps are 213 days. Events of the same instant come in the order
//! in which they were scheduled, which makes all runs equal.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use serde::Serialize;

/// A span of virtual time, or an instant as the span since the beginning, in picoseconds. Sums
/// saturate at 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// No time; also the beginning.
    pub const ZERO: Time = Time(0);

    /// Returns this many picoseconds.
    pub const fn ps(count: u64) -> Time {
        Time(count)
    }

    /// Returns this many nanoseconds.
    pub const fn ns(count: u64) -> Time {
        Time(count.saturating_mul(1000))
    }

    /// Returns a fraction of nanoseconds, rounded to picoseconds; zero for negative numbers and
    /// NaN.
    pub fn from_ns(ns: f64) -> Time {
        // A cast from float saturates, and takes NaN as 0.
        Time((ns * 1000.0).round() as u64)
    }

    /// Returns the time that bytes take on a link or a bus with this rate; zero if the rate is
    /// infinite.
    pub fn of_bytes(bytes: u64, bytes_per_s: f64) -> Time {
        // Adding a half and truncating rounds correctly, because nothing is negative; `round` is a
        // call on plain x86-64.
        Time((bytes as f64 / bytes_per_s * 1e12 + 0.5) as u64)
    }

    /// Returns the time in picoseconds.
    pub const fn as_ps(self) -> u64 {
        self.0
    }

    /// Returns the time in microseconds.
    pub fn as_us(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns the time in seconds.
    pub fn as_s(self) -> f64 {
        self.0 as f64 / 1e12
    }
}

impl Add for Time {
    type Output = Time;
    fn add(self, other: Time) -> Time {
        Time(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Time) {
        *self = *self + other;
    }
}

/// The difference; zero instead of a negative one.
impl Sub for Time {
    type Output = Time;
    fn sub(self, other: Time) -> Time {
        Time(self.0.saturating_sub(other.0))
    }
}

impl Mul<u64> for Time {
    type Output = Time;
    fn mul(self, times: u64) -> Time {
        Time(self.0.saturating_mul(times))
    }
}

/// The quotient, rounded down; the whole if the divisor is 0.
impl Div<u64> for Time {
    type Output = Time;
    fn div(self, by: u64) -> Time {
        Time(self.0 / by.max(1))
    }
}

/// Serializes a time as a number of microseconds.
impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_us())
    }
}

/// Future events in order of time, and the clock.
///
/// ```
/// use datapipes_models::time::{EventQueue, Time};
/// let mut agenda = EventQueue::default();
/// agenda.schedule_in(Time::ns(20), "late");
/// agenda.schedule_in(Time::ns(10), "early");
/// assert_eq!((agenda.next(), agenda.now()), (Some("early"), Time::ns(10)));
/// assert_eq!((agenda.next(), agenda.next(), agenda.now()), (Some("late"), None, Time::ns(20)));
/// ```
#[derive(Debug)]
pub struct EventQueue<E> {
    now: Time,
    /// The number of events scheduled so far; it orders those of the same instant.
    count: u64,
    heap: BinaryHeap<Reverse<Entry<E>>>,
}

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    turn: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.turn) == (other.at, other.turn)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.turn).cmp(&(other.at, other.turn))
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue { now: Time::ZERO, count: 0, heap: BinaryHeap::new() }
    }
}

impl<E> EventQueue<E> {
    /// Returns the time of the last event that was taken.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Schedules an event after a delay from now.
    pub fn schedule_in(&mut self, delay: Time, event: E) {
        self.schedule_at(self.now + delay, event);
    }

    /// Schedules an event at an instant; a past instant counts as now.
    pub fn schedule_at(&mut self, at: Time, event: E) {
        self.heap.push(Reverse(Entry { at: at.max(self.now), turn: self.count, event }));
        self.count += 1;
    }

    /// Advances to the next event and returns it; `None` if there are no more events.
    // An iterator would borrow the queue while its events are handled.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<E> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

/// A server that serves one request after the other: a link, a port, a flash channel.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueServer {
    free_at: Time,
    busy: Time,
}

impl QueueServer {
    /// Occupies the server for a while, as soon as it is free from `now` on. Returns the end of
    /// that time.
    pub fn serve(&mut self, now: Time, takes: Time) -> Time {
        self.free_at = self.free_at.max(now) + takes;
        self.busy += takes;
        self.free_at
    }

    /// Returns how long the server was busy in all.
    pub fn busy(&self) -> Time {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_instant_keep_their_order_and_the_clock_never_goes_back() {
        let mut agenda = EventQueue::default();
        for n in 0..100u64 {
            agenda.schedule_in(Time::ns(n * 7919 % 10), n);
        }
        let (mut last, mut seen) = ((Time::ZERO, 0), 0);
        while let Some(n) = agenda.next() {
            if seen == 50 {
                agenda.schedule_at(Time::ZERO, 1000);
            }
            assert!((agenda.now(), n) >= last || n == 1000, "{n} came out of order");
            last = (agenda.now(), if n == 1000 { 0 } else { n });
            seen += 1;
        }
        assert_eq!(seen, 101);
    }

    #[test]
    fn bytes_on_a_link_and_a_server_in_turn() {
        assert_eq!(Time::of_bytes(4096, 16e9), Time::ns(256));
        assert_eq!(Time::of_bytes(4096, f64::INFINITY), Time::ZERO);
        assert_eq!((Time::from_ns(1.2345), Time::from_ns(-1.0)), (Time::ps(1235), Time::ZERO));
        let mut server = QueueServer::default();
        assert_eq!(server.serve(Time::ns(10), Time::ns(5)), Time::ns(15));
        assert_eq!(server.serve(Time::ns(11), Time::ns(5)), Time::ns(20));
        assert_eq!(server.serve(Time::ns(50), Time::ns(5)), Time::ns(55));
        assert_eq!(server.busy(), Time::ns(15));
    }
}
