//! How many requests are made at once, from the rates that were seen.
//!
//! ```text
//! start with 4; after every 2 x level requests:
//!     the rate grew by 15% or more -> twice as many, up to the bound
//!     it did not, after a step up  -> back, and stay for 32 rounds
//! ```
//!
//! One connection to a cloud's server gives some 100 MB/s, so a fast network needs many; a server
//! on this machine is busy with two. A fixed number is wrong for one of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes_core::locks::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const FIRST: u32 = 4;
/// Rounds before a level that was settled is tried again.
const PATIENCE_ROUNDS: u32 = 32;

/// The search for a level, without a clock.
#[derive(Clone, Debug)]
struct Climb {
    level: u32,
    most: u32,
    best: f64,
    /// The level before the last step up, until it is known whether the step paid.
    before: Option<u32>,
    rounds_left: u32,
    bytes: u64,
    requests: u32,
}

impl Climb {
    fn new(most: u32) -> Climb {
        Climb { level: FIRST.min(most), most, best: 0.0, before: None, rounds_left: 0, bytes: 0, requests: 0 }
    }

    /// Notes a request that is done, `elapsed` after the round began. Returns whether a round
    /// ended.
    fn done(&mut self, bytes: u64, elapsed: Duration) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        self.requests = self.requests.saturating_add(1);
        if self.requests < 2 * self.level {
            return false;
        }
        let rate = self.bytes as f64 / elapsed.as_secs_f64().max(1e-6);
        (self.bytes, self.requests) = (0, 0);
        if self.rounds_left > 0 {
            self.rounds_left -= 1;
            self.best = self.best * 0.9 + rate * 0.1;
            return true;
        }
        let grew = rate > self.best * 1.15;
        match self.before.take() {
            Some(before) if !grew => {
                self.level = before;
                self.rounds_left = PATIENCE_ROUNDS;
            }
            _ => {
                let next = (self.level * 2).min(self.most);
                if next > self.level {
                    (self.before, self.level) = (Some(self.level), next);
                } else {
                    self.rounds_left = PATIENCE_ROUNDS;
                }
                self.best = rate.max(self.best);
            }
        }
        true
    }

    /// Nothing was under way: what was counted says nothing of a rate.
    fn idle(&mut self) {
        (self.bytes, self.requests) = (0, 0);
    }
}

struct PaceState {
    climb: Climb,
    round: Instant,
    outstanding: u32,
    /// Permits in the semaphore and in use.
    permits: u32,
}

/// A bound on requests at once, which moves.
pub(crate) struct Pace {
    permits: Arc<Semaphore>,
    state: Mutex<PaceState>,
}

impl Pace {
    pub(crate) fn new(most: u32) -> Arc<Pace> {
        let climb = Climb::new(most.max(1));
        let permits = climb.level;
        Arc::new(Pace {
            permits: Arc::new(Semaphore::new(permits as usize)),
            state: Mutex::new(PaceState { climb, round: Instant::now(), outstanding: 0, permits }),
        })
    }

    /// Waits for the right to make a request.
    pub(crate) async fn enter(self: &Arc<Pace>) -> Turn {
        // The semaphore is never closed; without a permit the request is made all the same.
        let permit = self.permits.clone().acquire_owned().await.ok();
        let mut state = self.state.lock();
        if state.outstanding == 0 {
            state.climb.idle();
            state.round = Instant::now();
        }
        state.outstanding += 1;
        Turn { pace: self.clone(), permit, bytes: 0 }
    }

    /// How many requests are made at once now.
    pub(crate) fn level(&self) -> u32 {
        self.state.lock().climb.level
    }

    /// The best rate that was seen, in bytes per second; 0 before.
    pub(crate) fn rate(&self) -> f64 {
        self.state.lock().climb.best
    }
}

/// The right to make one request. What it moved is noted when it is dropped.
pub(crate) struct Turn {
    pace: Arc<Pace>,
    permit: Option<OwnedSemaphorePermit>,
    bytes: u64,
}

impl Turn {
    pub(crate) fn moved(&mut self, bytes: u64) {
        self.bytes = bytes;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.pace.state.lock();
        state.outstanding = state.outstanding.saturating_sub(1);
        let elapsed = state.round.elapsed();
        if state.climb.done(self.bytes, elapsed) {
            state.round = Instant::now();
        }
        let level = state.climb.level;
        if state.permits > level {
            if let Some(permit) = self.permit.take() {
                permit.forget();
                state.permits -= 1;
            }
        } else if state.permits < level {
            self.pace.permits.add_permits((level - state.permits) as usize);
            state.permits = level;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where it settles with a server that gives `each` to a connection, and `all` to all of them.
    fn settles(most: u32, each: f64, all: f64) -> u32 {
        let mut climb = Climb::new(most);
        for _ in 0..10_000 {
            let rate = (each * f64::from(climb.level)).min(all);
            let time = Duration::from_secs_f64(8e6 * f64::from(climb.requests + 1) / rate);
            climb.done(8_000_000, time);
            if climb.rounds_left > 1 {
                break;
            }
        }
        climb.level
    }

    #[test]
    fn it_finds_as_many_as_pay() {
        assert_eq!(settles(64, 90e6, 2.5e9), 32);
        assert_eq!(settles(16, 90e6, 2.5e9), 16);
        assert_eq!(settles(64, 1e9, 1e9), 4);
        assert_eq!(settles(1, 1e9, 1e9), 1);
    }

    #[test]
    fn pauses_do_not_count() {
        let mut climb = Climb::new(8);
        climb.done(1, Duration::from_secs(1));
        climb.idle();
        assert_eq!((climb.bytes, climb.requests), (0, 0));
    }
}
