//! In virtual time: what is asserted is exact and the same everywhere, because nothing here reads a
//! clock.

mod latency;
mod model;
mod rates;
mod shares;
mod simulation;
mod steps;

use super::{Flow, PriorityClass, SchedulePolicy, Scheduler, ServiceLevel};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// 64 KiB chunks, four outstanding, 10 ms of activity; one chunk next to latency flows.
fn policy() -> SchedulePolicy {
    SchedulePolicy {
        chunk_bytes: 64 * KIB,
        shares: [0.1, 0.2, 0.1],
        outstanding_bytes: 256 * KIB,
        outstanding_chunks: 64,
        contended_bytes: 64 * KIB,
        contended_chunk_bytes: 64 * KIB,
        active_ns: 10 * MS,
        rate: None,
    }
}

fn at_most(class: PriorityClass, rate: f64) -> ServiceLevel {
    ServiceLevel { at_most: Some(rate), ..ServiceLevel::of(class) }
}

fn at_least(class: PriorityClass, rate: f64) -> ServiceLevel {
    ServiceLevel { at_least: Some(rate), ..ServiceLevel::of(class) }
}

/// xorshift64*: the same numbers for a seed, everywhere.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }
}

/// Seeds of the random tests: `DATAPIPES_SEED` replays one.
fn seeds(default: std::ops::Range<u64>) -> Vec<u64> {
    match datapipes_testkit::replayed_seed() {
        Some(seed) => vec![seed],
        None => default.collect(),
    }
}

/// Within so many percent.
#[track_caller]
fn assert_near(what: &str, is: f64, should: f64, percent: f64) {
    let off = (is - should).abs() / should * 100.0;
    assert!(off <= percent, "{what}: {is:.0} and not {should:.0}, off by {off:.1} %");
}

#[test]
fn a_scheduler_goes_to_other_threads() {
    fn is_send<T: Send>() {}
    is_send::<Scheduler>();
    is_send::<Flow>();
}
