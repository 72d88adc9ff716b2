//! `at_most` and `at_least`, and what is refused.

use super::super::{PriorityClass, SchedulePolicy, Scheduler, ServiceLevel};
use super::simulation::{Simulation, Want, endless};
use super::{KIB, MIB, MS, SECOND, assert_near, at_least, at_most, policy};
use crate::error::ErrorKind;

const RATE: f64 = 1e9;

fn known() -> SchedulePolicy {
    SchedulePolicy { rate: Some(RATE), ..policy() }
}

/// No window of any length has more than the rate and the burst: 10 ms of the rate or two chunks,
/// and a chunk.
fn check_never_more(s: &Simulation, load: usize, rate: f64, chunk: f64) {
    let done = &s.loads[load].done;
    let burst = (rate / 100.0).max(2.0 * chunk) + chunk;
    // The largest excess over the rate in any window, as the largest rise of a sum.
    let mut least: f64 = 0.0;
    let mut sum = 0.0;
    for &(at, len) in done {
        let before = sum - rate * at as f64 / 1e9;
        least = least.min(before);
        sum += len as f64;
        let excess = sum - rate * at as f64 / 1e9 - least;
        // What the resource holds back comes all at once.
        assert!(excess <= burst + 256.0 * 1024.0, "{excess} more than {rate} bytes/s at {at}");
    }
}

#[test]
fn at_most_is_kept_and_reached() {
    for (rate, chunk) in [(1e5, 4096.0), (3e6, 28672.0), (1e8, 65536.0), (9e8, 65536.0)] {
        for (class, size) in
            [(PriorityClass::Latency, 4 * KIB), (PriorityClass::Normal, 100_000), (PriorityClass::Bulk, 64 * MIB)]
        {
            for late_ns in [0, 3 * MS] {
                let mut s = Simulation::new(policy(), RATE);
                s.late_ns = late_ns;
                let limited = s.load(at_most(class, rate), endless(size));
                s.run(11 * SECOND);
                for second in [1, 4, 7] {
                    let window = (second * SECOND, (second + 3) * SECOND);
                    let what = format!("{class} of {size} limited to {rate} late by {late_ns}");
                    assert_near(&what, s.rate_of(limited, window), rate, 5.0);
                }
                check_never_more(&s, limited, rate, chunk);
            }
        }
    }
}

#[test]
fn at_most_is_reached_beside_others_where_their_turns_leave_it() {
    // Fair would be 200 MB/s each; chunks of a disk make turns long.
    let policy = SchedulePolicy { chunk_bytes: MIB, outstanding_bytes: 8 * MIB, ..policy() };
    let mut s = Simulation::new(policy, RATE).latency(100_000);
    let limited = s.load(at_most(PriorityClass::Normal, 100e6), endless(16 * MIB));
    let others: Vec<_> = (0..4).map(|_| s.load(ServiceLevel::default(), endless(16 * MIB))).collect();
    s.run(4 * SECOND);
    for second in 1..4 {
        let window = (second * SECOND, (second + 1) * SECOND);
        assert_near("the limited one", s.rate_of(limited, window), 100e6, 5.0);
        others.iter().for_each(|&other| assert_near("another", s.rate_of(other, window), 225e6, 5.0));
    }
}

#[test]
fn throttled_time_is_counted_and_only_that() {
    let mut s = Simulation::new(policy(), RATE);
    let limited = s.load(at_most(PriorityClass::Normal, 10e6), endless(64 * MIB));
    let free = s.load_between(ServiceLevel::of(PriorityClass::Normal), endless(MIB), (SECOND, u64::MAX));
    s.run(SECOND / 2);
    // Also while it is waiting right now.
    let so_far = s.scheduler().stats().flows[limited].served.throttled_ns;
    assert!((450 * MS..=500 * MS).contains(&so_far), "{so_far}");
    s.run(2 * SECOND);
    let stats = s.scheduler().stats();
    let ns = stats.flows[limited].served.throttled_ns;
    assert!((1900 * MS..=2000 * MS).contains(&ns), "{ns}");
    assert_eq!(stats.flows[free].served.throttled_ns, 0);
    assert_eq!(stats.classes[1].served.throttled_ns, ns);
}

#[test]
fn at_least_is_kept_under_load_of_all_classes() {
    for class in PriorityClass::ALL {
        for (rate, size) in [(1e6, 100_000), (50e6, 4 * KIB), (300e6, 64 * MIB), (600e6, MIB)] {
            let mut s = Simulation::new(known(), RATE);
            let promised = s.load(at_least(class, rate), endless(size));
            for other in PriorityClass::ALL {
                for _ in 0..4 {
                    s.load(ServiceLevel::of(other), endless(16 * KIB));
                }
            }
            s.run(6 * SECOND);
            for second in [1, 3, 5] {
                let window = (second * SECOND, (second + 1) * SECOND);
                let has = s.rate_of(promised, window);
                assert!(has >= 0.95 * rate, "{class} of {size} promised {rate} has {has}");
                // Its turn in its class gives a bulk flow a fifth of 10 %, which the promise
                // covers.
                if class == PriorityClass::Bulk && rate > 20e6 {
                    assert_near("no more than promised", has, rate, 5.0);
                }
                let minimum = [(4, 0.1), (8, 0.2), (12, 0.1)];
                for (first, share) in minimum.map(|(last, share)| (last - 3, share)) {
                    let class: f64 = (first..first + 4).map(|load| s.rate_of(load, window)).sum();
                    assert!(class >= 0.78 * share * RATE, "the class of flow {first} has {class} beside the promise");
                }
            }
        }
    }
}

#[test]
fn all_that_may_be_promised_together_is_kept_and_nobody_starves() {
    let mut s = Simulation::new(known(), RATE).latency(50_000);
    // 0.6 GB/s are left by shares of 40 %.
    let rates = [200e6, 150e6, 150e6, 90e6, 10e6];
    let classes =
        [PriorityClass::Bulk, PriorityClass::Normal, PriorityClass::Bulk, PriorityClass::Latency, PriorityClass::Bulk];
    let promised = [0, 1, 2, 3, 4].map(|i| s.load(at_least(classes[i], rates[i]), endless(MIB + i as u64 * 5000)));
    let error = s.scheduler().connect(at_least(PriorityClass::Bulk, 1e6)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let others = PriorityClass::ALL.map(|class| s.load(ServiceLevel::of(class), endless(8 * KIB)));
    s.run(3 * SECOND);
    for window in [(SECOND, 2 * SECOND), (2 * SECOND, 3 * SECOND)] {
        for (load, rate) in promised.into_iter().zip(rates) {
            assert!(s.rate_of(load, window) >= 0.95 * rate, "{load} has {}", s.rate_of(load, window));
        }
        for other in others {
            assert!(s.rate_of(other, window) > 0.01 * RATE, "{other} starves: {}", s.rate_of(other, window));
        }
    }
}

#[test]
fn a_promise_is_kept_to_one_who_asks_again_only_when_it_was_served() {
    // A request of 1 MiB at a time takes 5.2 ms by the promise, and a millisecond and a half in the
    // resource.
    let policy = SchedulePolicy { outstanding_bytes: MIB, contended_bytes: MIB, ..known() };
    let mut s = Simulation::new(policy, RATE).latency(MS / 2);
    let promised = s.load(at_least(PriorityClass::Bulk, 200e6), Want::OneByOne { len: MIB, pause_ns: 10_000 });
    for _ in 0..4 {
        s.load(ServiceLevel::default(), endless(MIB));
    }
    s.load(ServiceLevel::of(PriorityClass::Latency), endless(16 * KIB));
    s.run(4 * SECOND);
    for second in 1..4 {
        let has = s.rate_of(promised, (second * SECOND, (second + 1) * SECOND));
        assert!(has >= 0.95 * 200e6, "{has}");
    }
}

#[test]
fn what_a_promised_flow_does_not_want_others_have() {
    let mut s = Simulation::new(known(), RATE);
    s.load(at_least(PriorityClass::Normal, 500e6), Want::Now { len: 100_000, period_ns: MS });
    let bulk = s.load(ServiceLevel::of(PriorityClass::Bulk), endless(MIB));
    s.run(SECOND);
    assert_near("bulk", s.rate_of(bulk, (0, SECOND)), 900e6, 5.0);
}

#[test]
fn surplus_is_not_held_against_a_promise() {
    let mut s = Simulation::new(known(), RATE);
    let promised = s.load(at_least(PriorityClass::Bulk, 100e6), endless(MIB));
    s.load_between(ServiceLevel::of(PriorityClass::Latency), endless(MIB), (2 * SECOND, u64::MAX));
    s.load_between(ServiceLevel::of(PriorityClass::Bulk), endless(MIB), (2 * SECOND, u64::MAX));
    s.run(3 * SECOND);
    // It had ten times what was promised for two seconds.
    let window = (2 * SECOND + 5 * MS, 2 * SECOND + 105 * MS);
    assert!(s.rate_of(promised, window) >= 95e6, "{}", s.rate_of(promised, window));
}

#[test]
fn exactly_a_rate_can_be_asked_for() {
    let mut s = Simulation::new(known(), RATE);
    let exact = ServiceLevel { class: PriorityClass::Bulk, at_least: Some(80e6), at_most: Some(80e6) };
    let exact = s.load(exact, endless(MIB));
    s.load(ServiceLevel::of(PriorityClass::Latency), endless(8 * KIB));
    s.run(3 * SECOND);
    assert_near("exact", s.rate_of(exact, (SECOND, 3 * SECOND)), 80e6, 5.0);
}

#[test]
fn what_cannot_be_promised_is_refused_with_what_is_left() {
    let mut s = Scheduler::new(known());
    let first = s.connect(at_least(PriorityClass::Normal, 400e6)).unwrap();
    let error = s.connect(at_least(PriorityClass::Latency, 300e6)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("400000000 are promised") && text.contains("200000000 are left"), "{text}");
    // What the error says is left is granted.
    let second = s.connect(at_least(PriorityClass::Latency, 200e6)).unwrap();
    let error = s.connect(at_least(PriorityClass::Latency, 1.0)).unwrap_err().to_string();
    assert!(error.contains("disconnect a pipe"), "{error}");
    assert_eq!(s.stats().promised, 600e6);
    s.disconnect(first);
    s.connect(at_least(PriorityClass::Bulk, 400e6)).unwrap();
    s.disconnect(second);

    let mut unknown = Scheduler::new(policy());
    let error = unknown.connect(at_least(PriorityClass::Bulk, 1.0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("rate is not known"), "{error}");
    // A rate that is no number is one that is not known, and shares of everything leave nothing.
    let nothing = SchedulePolicy { rate: Some(f64::NAN), ..policy() };
    assert!(Scheduler::new(nothing).connect(at_least(PriorityClass::Bulk, 1.0)).is_err());
    let all = SchedulePolicy { shares: [0.5, 0.3, 0.2], ..known() };
    let error = Scheduler::new(all).connect(at_least(PriorityClass::Bulk, 1000.0)).unwrap_err();
    assert!(error.to_string().contains("so 0 are left"), "{error}");
}

#[test]
fn rates_that_make_no_sense_are_refused() {
    let mut s = Scheduler::new(known());
    for rate in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        for service in [at_least(PriorityClass::Bulk, rate), at_most(PriorityClass::Bulk, rate)] {
            assert_eq!(s.connect(service).unwrap_err().kind(), ErrorKind::InvalidInput, "{rate}");
        }
    }
    let crossed = ServiceLevel { class: PriorityClass::Bulk, at_least: Some(2e6), at_most: Some(1e6) };
    assert_eq!(s.connect(crossed).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(s.stats().flows.is_empty() && s.stats().promised == 0.0);
}
