//! Minimum shares of classes, and fairness between the flows of one.

use super::super::{PriorityClass, SchedulePolicy, ServiceLevel};
use super::simulation::{Simulation, Want, endless};
use super::{KIB, MIB, MS, SECOND, assert_near, at_most, policy};

const RATE: f64 = 1e9;

/// The windows of 100 ms between two times.
fn windows(from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
    (from..to).step_by(100 * MS as usize).map(|start| (start, start + 100 * MS))
}

#[test]
fn under_load_of_all_classes_each_has_its_share_and_latency_the_rest() {
    for (shares, of_latency) in [([0.1, 0.2, 0.1], 0.7), ([0.05, 0.5, 0.4], 0.1), ([0.2, 0.02, 0.3], 0.68)] {
        for (latency, normal, bulk) in
            [(MIB, MIB, MIB), (4 * KIB, 100_000, 64 * MIB), (48 * KIB, 4 * KIB, 5000), (700, 64 * MIB, 700)]
        {
            let mut s = Simulation::new(SchedulePolicy { shares, ..policy() }, RATE);
            let loads =
                [(PriorityClass::Latency, latency), (PriorityClass::Normal, normal), (PriorityClass::Bulk, bulk)]
                    .map(|(class, len)| s.load(ServiceLevel::of(class), endless(len)));
            s.run(SECOND);
            for window in windows(100 * MS, SECOND) {
                let what = format!("{shares:?} of requests of {latency}, {normal}, {bulk} in {window:?}");
                assert_near(&what, s.rate_of(loads[0], window), of_latency * RATE, 5.0);
                assert_near(&what, s.rate_of(loads[1], window), shares[1] * RATE, 5.0);
                assert_near(&what, s.rate_of(loads[2], window), shares[2] * RATE, 5.0);
            }
        }
    }
}

#[test]
fn what_a_class_does_not_want_goes_to_the_most_urgent_that_does() {
    let mut s = Simulation::new(policy(), RATE).servers(2);
    let normal = s.load(ServiceLevel::of(PriorityClass::Normal), endless(MIB));
    let bulk = s.load(ServiceLevel::of(PriorityClass::Bulk), endless(64 * MIB));
    // A third of the rate of one server, in the second half.
    let want = Want::Now { len: 33_333, period_ns: 100_000 };
    let latency = s.load_between(ServiceLevel::of(PriorityClass::Latency), want, (500 * MS, u64::MAX));
    s.run(SECOND);
    for window in windows(0, 500 * MS) {
        assert_near("normal", s.rate_of(normal, window), 2.0 * 0.9 * RATE, 5.0);
        assert_near("bulk", s.rate_of(bulk, window), 2.0 * 0.1 * RATE, 5.0);
    }
    let window = (600 * MS, SECOND);
    assert_near("latency", s.rate_of(latency, window), 333_330_000.0, 5.0);
    let lower = s.rate_of(normal, window) + s.rate_of(bulk, window);
    assert!(s.rate_of(bulk, window) > 0.095 * (lower + 333e6), "bulk has less than its share beside latency");
    // The two copiers are not both busy: next to latency flows the cap keeps one free.
    assert!(lower > 0.95 * RATE, "{lower}");
}

#[test]
fn the_cap_of_contended_bytes_yields_to_a_share_that_it_would_break() {
    // Latency fills the resource 256 KiB deep with one chunk of 64 KiB allowed below it: a quarter
    // at most by the cap.
    let shares = [0.1, 0.1, 0.4];
    let mut s = Simulation::new(SchedulePolicy { shares, ..policy() }, RATE);
    s.load(ServiceLevel::of(PriorityClass::Latency), Want::Endless { sizes: vec![4 * KIB], depth: 64 });
    let bulk = s.load(ServiceLevel::of(PriorityClass::Bulk), endless(MIB));
    s.run(SECOND);
    windows(100 * MS, SECOND).for_each(|window| assert_near("bulk", s.rate_of(bulk, window), 0.4 * RATE, 5.0));
    assert!(s.scheduler().stats().past_contended_cap > 0);
}

#[test]
fn no_class_starves_whatever_the_policy_says() {
    for shares in [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [f64::NAN, -3.0, f64::NEG_INFINITY], [f64::INFINITY, 1.0, 1e-9]] {
        let mut s = Simulation::new(SchedulePolicy { shares, contended_bytes: 0, ..policy() }, RATE);
        // Four latency flows without end, and one that comes back the moment it is served.
        for _ in 0..4 {
            s.load(ServiceLevel::of(PriorityClass::Latency), endless(4 * KIB));
        }
        s.load(ServiceLevel::of(PriorityClass::Latency), Want::OneByOne { len: 4 * KIB, pause_ns: 0 });
        let normal = s.load(ServiceLevel::of(PriorityClass::Normal), endless(MIB));
        let bulk = s.load(ServiceLevel::of(PriorityClass::Bulk), endless(64 * MIB));
        s.run(2 * SECOND);
        let in_force = s.scheduler().policy().shares;
        assert!(in_force.iter().sum::<f64>() < 1.0 + 1e-9 && in_force.iter().all(|share| *share > 0.004), "{shares:?}");
        for (load, share) in [(normal, in_force[1]), (bulk, in_force[2])] {
            assert!(s.rate_of(load, (0, 2 * SECOND)) > 0.95 * share * RATE, "{shares:?} starve {load}");
        }
    }
}

#[test]
fn flows_of_a_class_have_equal_parts_whatever_the_length_of_their_requests() {
    for class in PriorityClass::ALL {
        for (latency_ns, servers) in [(0, 1), (80_000, 1), (5_000, 3)] {
            let mut s = Simulation::new(SchedulePolicy { outstanding_bytes: MIB, ..policy() }, RATE);
            s = s.latency(latency_ns).servers(servers);
            let wants = [vec![4 * KIB], vec![64 * KIB], vec![100_000], vec![64 * MIB], vec![512, 5000, 300_000]];
            let loads = wants.map(|sizes| s.load(ServiceLevel::of(class), Want::Endless { sizes, depth: 3 }));
            s.run(SECOND);
            for window in windows(100 * MS, SECOND) {
                for load in loads {
                    let fair = RATE * servers as f64 / 5.0;
                    assert_near(&format!("flow {load} of {class}"), s.rate_of(load, window), fair, 5.0);
                }
            }
        }
    }
}

#[test]
fn many_flows_are_as_fair_as_few() {
    let mut s = Simulation::new(policy(), 10e9);
    let loads: Vec<_> = (0..100).map(|i| s.load(ServiceLevel::default(), endless(3000 + 7777 * i))).collect();
    s.run(SECOND);
    loads.iter().for_each(|&load| assert_near("a flow", s.rate_of(load, (100 * MS, SECOND)), 1e8, 5.0));
}

#[test]
fn empty_requests_without_end_take_no_more_than_their_turn() {
    let mut s = Simulation::new(SchedulePolicy { outstanding_chunks: 4, ..policy() }, RATE).latency(100);
    let empty = s.load(ServiceLevel::default(), endless(0));
    let full = s.load(ServiceLevel::default(), endless(64 * KIB));
    s.run(100 * MS);
    // 128 empty ones stand for a chunk of 64 KiB.
    let (empties, chunks) = (s.loads[empty].latencies.len(), s.loads[full].latencies.len());
    assert!(chunks > 1000 && empties.abs_diff(128 * chunks) < 256, "{empties} empty ones, {chunks} full ones");
}

#[test]
fn an_idle_flow_saves_nothing_up() {
    let mut s = Simulation::new(policy(), RATE);
    let busy = s.load(ServiceLevel::default(), endless(MIB));
    let late = s.load_between(ServiceLevel::default(), endless(MIB), (SECOND, u64::MAX));
    s.run(2 * SECOND);
    for ms in [5, 10, 100] {
        let window = (SECOND, SECOND + ms * MS);
        let (late, busy) = (s.bytes(late, window), s.bytes(busy, window));
        assert!((late - busy).abs() <= 6.0 * 65536.0, "in {ms} ms {late} of the late one and {busy}");
    }
}

#[test]
fn an_idle_class_saves_nothing_up_and_surplus_is_not_held_against_one() {
    // Bulk comes after a second of others: it has its share from then on, not the share of the
    // second.
    let mut s = Simulation::new(policy(), RATE);
    s.load(ServiceLevel::of(PriorityClass::Latency), endless(4 * KIB));
    let bulk = s.load_between(ServiceLevel::of(PriorityClass::Bulk), endless(MIB), (SECOND, u64::MAX));
    s.run(2 * SECOND);
    let first = (SECOND, SECOND + 10 * MS);
    assert!(s.bytes(bulk, first) < 0.1 * 1e7 + 3.0 * 65536.0, "{}", s.bytes(bulk, first));
    // Normal had everything for a second; when latency comes it still has its share, at once.
    let mut s = Simulation::new(policy(), RATE);
    let normal = s.load(ServiceLevel::default(), endless(MIB));
    s.load_between(ServiceLevel::of(PriorityClass::Latency), endless(4 * KIB), (SECOND, u64::MAX));
    s.run(2 * SECOND);
    let first = (SECOND + MS, SECOND + 21 * MS);
    assert!(s.bytes(normal, first) > 0.2 * 2e7 - 2.0 * 65536.0, "{}", s.bytes(normal, first));
}

#[test]
fn the_resource_is_always_busy_while_somebody_may_use_it() {
    // `Simulation` asserts at every event that an idle resource has nothing to do; here the rate
    // shows it, too.
    for latency_ns in [0, 20_000] {
        let mut s =
            Simulation::new(SchedulePolicy { outstanding_bytes: MIB, contended_bytes: 512 * KIB, ..policy() }, RATE);
        s = s.latency(latency_ns);
        s.load(ServiceLevel::of(PriorityClass::Latency), Want::Now { len: 4 * KIB, period_ns: 200_000 });
        s.load(at_most(PriorityClass::Latency, 50e6), endless(100_000));
        s.load(at_most(PriorityClass::Normal, 100e6), endless(MIB));
        s.load(ServiceLevel::of(PriorityClass::Normal), Want::OneByOne { len: 300_000, pause_ns: MS });
        s.load(ServiceLevel::of(PriorityClass::Bulk), endless(64 * MIB));
        s.run(SECOND);
        let all: f64 = (0..5).map(|load| s.rate_of(load, (10 * MS, SECOND))).sum();
        assert_near("all loads", all, RATE, 1.0);
    }
    // Only limited flows: idle in between, and nothing is lost.
    let mut s = Simulation::new(policy(), RATE);
    let limited = s.load(at_most(PriorityClass::Bulk, 10e6), endless(MIB));
    s.run(SECOND);
    assert_near("the limited one", s.rate_of(limited, (0, SECOND)), 10e6, 5.0);
}
