//! Single steps: order, cancellation, caps, handles, time, and what is shown.

use super::super::{Chunk, Flow, Next, PriorityClass, SchedulePolicy, Scheduler, ServiceLevel};
use super::{KIB, MS, SECOND, at_most, policy};
use crate::error::ErrorKind;

fn chunk(next: Next) -> Chunk {
    match next {
        Next::Chunk(chunk) => chunk,
        other => panic!("{other:?} and no chunk"),
    }
}

/// Request, offset, length, last.
fn piece(next: Next) -> (u64, u64, u64, bool) {
    let chunk = chunk(next);
    (chunk.request, chunk.at, chunk.len, chunk.last)
}

fn with_flow(policy: SchedulePolicy, class: PriorityClass) -> (Scheduler, Flow) {
    let mut s = Scheduler::new(policy);
    let flow = s.connect(ServiceLevel::of(class)).unwrap();
    (s, flow)
}

#[test]
fn requests_of_a_flow_go_in_order_in_chunks() {
    let (mut s, flow) = with_flow(SchedulePolicy { outstanding_bytes: u64::MAX, ..policy() }, PriorityClass::Normal);
    for (request, len) in [(7, 150 * KIB), (9, 0), (8, 64 * KIB), (10, 1)] {
        assert!(s.push(flow, request, len, 5));
    }
    assert_eq!((s.backlog(), s.is_idle()), (4, false));
    let expected = [
        (7, 0, 64 * KIB, false),
        (7, 64 * KIB, 64 * KIB, false),
        (7, 128 * KIB, 22 * KIB, true),
        (9, 0, 0, true),
        (8, 0, 64 * KIB, true),
        (10, 0, 1, true),
    ];
    expected.into_iter().for_each(|expected| assert_eq!(piece(s.next(6)), expected));
    assert_eq!((s.next(6), s.backlog(), s.is_idle()), (Next::Nothing, 0, false));
    expected.into_iter().for_each(|(_, _, len, _)| s.done(flow, len, 7));
    assert!(s.is_idle());
}

#[test]
fn a_request_can_be_cancelled_at_every_point() {
    const CHUNKS: u64 = 5;
    for released in 0..=CHUNKS {
        for back in 0..=released {
            for class in PriorityClass::ALL {
                for place in 0..3 {
                    let open = SchedulePolicy { outstanding_bytes: u64::MAX, contended_bytes: u64::MAX, ..policy() };
                    let (mut s, flow) = with_flow(open, class);
                    let other = s.connect(ServiceLevel::of(class)).unwrap();
                    // The request is first, in the middle or last in its queue; only a first one is
                    // released.
                    let before: Vec<u64> = (0..place).collect();
                    for &id in &before {
                        s.push(flow, id, 1000, 0);
                    }
                    s.push(flow, 50, CHUNKS * 64 * KIB, 0);
                    s.push(flow, 51, 1000, 0);
                    before.iter().for_each(|&id| assert_eq!(piece(s.next(0)).0, id));
                    (0..released).for_each(|i| assert_eq!(piece(s.next(0)).1, i * 64 * KIB));
                    (0..back).for_each(|_| s.done(flow, 64 * KIB, 1));
                    s.push(other, 99, 1000, 1);
                    let expected = (released < CHUNKS).then_some(released * 64 * KIB);
                    assert_eq!(s.cancel(flow, 50), expected);
                    assert_eq!((s.cancel(flow, 50), s.cancel(flow, 1234)), (None, None));
                    assert_eq!(s.backlog(), 2);
                    let mut rest = [piece(s.next(2)), piece(s.next(2))];
                    rest.sort_unstable();
                    assert_eq!(rest, [(51, 0, 1000, true), (99, 0, 1000, true)]);
                    assert_eq!(s.next(2), Next::Nothing);
                    let (bytes, chunks) =
                        (place * 1000 + (released - back) * 64 * KIB + 2000, place + released - back + 2);
                    assert_eq!((s.outstanding.bytes, u64::from(s.outstanding.chunks)), (bytes, chunks));
                }
            }
        }
    }
}

#[test]
fn the_last_request_of_a_throttled_flow_can_be_cancelled() {
    let mut s = Scheduler::new(policy());
    let flow = s.connect(at_most(PriorityClass::Normal, 1e6)).unwrap();
    s.push(flow, 1, 64 * KIB, SECOND);
    let mut sent = 0;
    let at = loop {
        match s.next(SECOND) {
            Next::Chunk(chunk) => sent += chunk.len,
            Next::At(at) => break at,
            Next::Nothing => panic!("nothing, after {sent} bytes"),
        }
    };
    assert!(at > SECOND && sent < 40 * KIB, "{sent} bytes, then {at}");
    assert_eq!(s.cancel(flow, 1), Some(sent));
    assert_eq!((s.next(SECOND), s.backlog(), s.stats().flows[0].throttled), (Next::Nothing, 0, false));
    // It is still over its limit.
    s.push(flow, 2, 10, SECOND);
    assert_eq!(s.next(SECOND), Next::At(at));
    assert_eq!(piece(s.next(at)), (2, 0, 10, true));
}

#[test]
fn caps_hold_and_one_chunk_always_goes() {
    let (mut s, flow) = with_flow(
        SchedulePolicy { outstanding_bytes: 100 * KIB, outstanding_chunks: 3, ..policy() },
        PriorityClass::Bulk,
    );
    s.push(flow, 1, 128 * KIB, 0);
    for id in 2..6 {
        s.push(flow, id, KIB, 0);
    }
    assert_eq!(piece(s.next(0)), (1, 0, 64 * KIB, false));
    assert_eq!(s.next(0), Next::Nothing, "128 KiB do not fit under 100");
    s.done(flow, 64 * KIB, 1);
    assert_eq!(piece(s.next(1)), (1, 64 * KIB, 64 * KIB, true));
    assert_eq!((piece(s.next(1)).0, piece(s.next(1)).0), (2, 3));
    assert_eq!(s.next(1), Next::Nothing, "three chunks are out");
    s.done(flow, KIB, 2);
    assert_eq!(piece(s.next(2)).0, 4);
    for nothing in [0, 1] {
        let tight =
            SchedulePolicy { outstanding_bytes: nothing, outstanding_chunks: 0, contended_bytes: 0, ..policy() };
        let (mut s, flow) = with_flow(tight, PriorityClass::Bulk);
        s.push(flow, 1, 128 * KIB, 0);
        assert_eq!(piece(s.next(0)).2, 64 * KIB);
        assert_eq!(s.next(0), Next::Nothing);
    }
}

#[test]
fn lower_classes_are_held_back_while_a_latency_flow_is_active() {
    let narrow = SchedulePolicy { contended_bytes: 32 * KIB, contended_chunk_bytes: 16 * KIB, ..policy() };
    let (mut s, bulk) = with_flow(narrow, PriorityClass::Bulk);
    let urgent = s.connect(ServiceLevel::of(PriorityClass::Latency)).unwrap();
    s.push(bulk, 1, 64 * KIB * 1000, 0);
    assert_eq!(piece(s.next(0)).2, 64 * KIB);
    s.push(urgent, 2, 100, 0);
    assert_eq!(piece(s.next(0)).0, 2);
    assert_eq!(s.next(0), Next::Nothing, "64 KiB are out, 32 are allowed");
    s.done(bulk, 64 * KIB, 1);
    assert_eq!([0; 2].map(|_| piece(s.next(1)).2), [16 * KIB; 2]);
    assert_eq!(s.next(1), Next::Nothing);
    // Tuned while it runs.
    s.set_contended_bytes(48 * KIB);
    assert_eq!(piece(s.next(1)).2, 16 * KIB);
    assert_eq!(s.next(1), Next::Nothing);
    s.done(urgent, 100, MS);
    assert_eq!(s.next(11 * MS - 1), Next::Nothing, "active for 10 ms after");
    assert_eq!(piece(s.next(11 * MS)).2, 64 * KIB);
}

#[test]
fn a_handle_of_a_flow_that_is_gone_does_nothing() {
    let (mut s, old) = with_flow(policy(), PriorityClass::Latency);
    s.push(old, 1, 100 * KIB, 0);
    assert_eq!(piece(s.next(0)).2, 64 * KIB);
    // What was not released is dropped, what is at the resource comes back.
    s.disconnect(old);
    assert_eq!((s.backlog(), s.is_idle(), s.next(0)), (0, false, Next::Nothing));
    assert!(!s.push(old, 2, 10, 0) && !s.passes(old, 10, 0));
    s.done(old, 64 * KIB, 1);
    assert!(s.is_idle() && s.stats().flows.is_empty());
    let new = s.connect(ServiceLevel::of(PriorityClass::Bulk)).unwrap();
    assert_eq!((new.index, new != old), (old.index, true));
    s.push(new, 3, 10, 1);
    s.done(old, 10, 1);
    s.disconnect(old);
    assert_eq!((s.push(old, 4, 10, 1), s.cancel(old, 3), s.backlog()), (false, None, 1));
    assert_eq!(piece(s.next(1)), (3, 0, 10, true));
    // Nor does one more return than there were chunks.
    s.done(new, 10, 2);
    s.done(new, 10, 2);
    assert!(s.is_idle() && s.outstanding.bytes == 0);
    // Classes remember flows that are gone.
    assert_eq!(s.stats().classes[0].served.bytes, 64 * KIB);
}

#[test]
fn the_only_flow_is_told() {
    let (mut s, a) = with_flow(policy(), PriorityClass::Bulk);
    let b = s.connect(at_most(PriorityClass::Latency, 1e6)).unwrap();
    assert_eq!(s.only_flow(), None);
    s.push(a, 1, 10, 0);
    s.push(a, 2, 10, 0);
    assert_eq!(s.only_flow(), Some(a));
    s.push(b, 3, 10, 0);
    assert_eq!(s.only_flow(), None);
    s.cancel(a, 1);
    s.cancel(a, 2);
    assert_eq!(s.only_flow(), None, "a limited one must ask each time");
}

#[test]
fn a_short_request_passes_where_nothing_is_in_its_way() {
    let (mut s, normal) = with_flow(policy(), PriorityClass::Normal);
    let urgent = s.connect(ServiceLevel::of(PriorityClass::Latency)).unwrap();
    let bulk = s.connect(ServiceLevel::of(PriorityClass::Bulk)).unwrap();
    assert!(s.passes(normal, 64 * KIB, 0) && !s.passes(normal, 64 * KIB + 1, 0), "one chunk, and no more");
    s.push(bulk, 1, 1 << 30, 0);
    assert!(s.passes(normal, 100, 0) && s.passes(urgent, 100, 0) && !s.passes(bulk, 100, 0));
    s.push(normal, 2, 100, 0);
    assert!(!s.passes(normal, 100, 0) && s.passes(urgent, 100, 0) && !s.passes(bulk, 100, 0));
    while let Next::Chunk(_) = s.next(0) {}
    assert!(s.passes(urgent, 100, 0), "100 bytes still fit");
    assert!(!s.passes(urgent, 64 * KIB, 0), "a chunk does not");
    // A limit is asked, too: 4 KiB take 41 ms of 100 KB/s, twice that is the burst.
    let limited = s.connect(at_most(PriorityClass::Latency, 1e5)).unwrap();
    assert!(s.passes(limited, 4 * KIB, SECOND) && !s.passes(limited, 5 * KIB, SECOND));
    for id in 10..13 {
        s.push(limited, id, 4 * KIB, SECOND);
        assert_eq!(piece(s.next(SECOND)).0, id);
    }
    assert!(!s.passes(limited, 1, SECOND) && s.passes(limited, 1, SECOND + 41 * MS));
}

#[test]
fn a_class_is_owed_nothing_for_the_time_it_was_idle() {
    let open = SchedulePolicy { outstanding_bytes: u64::MAX, outstanding_chunks: 9999, ..policy() };
    let (mut s, urgent) = with_flow(open, PriorityClass::Latency);
    let bulk = s.connect(ServiceLevel::of(PriorityClass::Bulk)).unwrap();
    s.push(urgent, 1, u64::MAX, 0);
    (0..1000).for_each(|_| assert_eq!(chunk(s.next(0)).flow, urgent));
    s.push(bulk, 2, u64::MAX, 0);
    // A share of a tenth: ten chunks of others earn one, or eleven by rounding.
    let before = (0..100).take_while(|_| chunk(s.next(0)).flow == urgent).count();
    assert!((10..=11).contains(&before), "{before}");
    assert_eq!(chunk(s.next(0)).flow, urgent);
}

#[test]
fn a_class_that_could_not_use_its_share_keeps_four_chunks_of_it() {
    let (mut s, urgent) = with_flow(
        SchedulePolicy { outstanding_bytes: u64::MAX, outstanding_chunks: 9999, ..policy() },
        PriorityClass::Latency,
    );
    let bulk = s.connect(ServiceLevel::of(PriorityClass::Bulk)).unwrap();
    s.push(bulk, 1, 1, 0);
    assert_eq!(chunk(s.next(0)).flow, bulk);
    // Its chunk is at the resource all the while, so it has work.
    s.push(urgent, 2, u64::MAX, 0);
    (0..1000).for_each(|_| assert_eq!(chunk(s.next(0)).flow, urgent));
    s.push(bulk, 3, u64::MAX, 0);
    let at_once = (0..100).take_while(|_| chunk(s.next(0)).flow == bulk).count();
    // Four, of which two go past the cap of contended bytes; the other two wait for it.
    assert!((2..=4).contains(&at_once), "{at_once}");
    let in_all = at_once + (0..100).filter(|_| chunk(s.next(0)).flow == bulk).count();
    assert!((10..=14).contains(&in_all), "{in_all} of 200");
}

#[test]
fn idle_time_is_not_arrears_and_waiting_time_is() {
    let mut s = Scheduler::new(SchedulePolicy { rate: Some(1e9), outstanding_chunks: 1, ..policy() });
    let urgent = s.connect(ServiceLevel::of(PriorityClass::Latency)).unwrap();
    let promised = s.connect(super::at_least(PriorityClass::Bulk, 1e8)).unwrap();
    s.push(urgent, 1, 100, SECOND);
    s.push(promised, 2, 100, SECOND);
    assert_eq!(piece(s.next(SECOND)).0, 1, "a flow idle for a second is not behind");
    // For five milliseconds it waits for the resource; cancelled and pushed again, it still is
    // behind.
    let later = SECOND + 5 * MS;
    assert_eq!(s.next(later), Next::Nothing);
    assert_eq!(s.cancel(promised, 2), Some(0));
    s.push(promised, 3, 100, later);
    s.push(urgent, 4, 100, later);
    s.done(urgent, 100, later);
    assert_eq!(piece(s.next(later)).0, 3);
}

#[test]
fn a_clock_that_stands_jumps_or_goes_back_does_no_harm() {
    let mut s = Scheduler::new(SchedulePolicy { rate: Some(1e9), outstanding_bytes: u64::MAX, ..policy() });
    let limited = s.connect(at_most(PriorityClass::Normal, 1e8)).unwrap();
    let promised = s.connect(super::at_least(PriorityClass::Bulk, 1e8)).unwrap();
    let urgent = s.connect(ServiceLevel::of(PriorityClass::Latency)).unwrap();
    let sent = |s: &mut Scheduler, now: u64| {
        for _ in 0..3 {
            s.push(limited, 1, 8 << 20, now);
        }
        s.push(promised, 2, 1000, now);
        s.push(urgent, 3, 1000, now);
        let (mut sent, mut at) = (0, None);
        for _ in 0..10_000 {
            match s.next(now) {
                Next::Chunk(chunk) => {
                    sent += if chunk.flow == limited { chunk.len } else { 0 };
                    s.done(chunk.flow, chunk.len, now);
                }
                Next::At(time) => {
                    at = Some(time);
                    break;
                }
                Next::Nothing => break,
            }
        }
        while s.cancel(limited, 1).is_some() {}
        assert!(s.is_idle(), "at {now} something stayed behind");
        (sent, at)
    };
    let burst = 1_000_000 + 2 * 65536;
    let times = [0, 5, SECOND, SECOND - 3, 40 * SECOND, u64::MAX, u64::MAX - 1, 7, 0, SECOND, u64::MAX / 2, 3 * SECOND];
    for (i, time) in times.into_iter().enumerate() {
        let (bytes, at) = sent(&mut s, time);
        // At the end of time nothing can be put off.
        assert!(bytes <= burst || time > u64::MAX - SECOND, "step {i}: {bytes} bytes at once at {time}");
        // Held back for no longer than the window, by the clock as it is now.
        let at = at.unwrap_or(time);
        assert!(at <= time.saturating_add(30 * MS), "step {i}: held back until {at} at {time}");
    }
    // It goes on as before: over a second the rate is the rate.
    let mut total = 0;
    for ms in 1..=1000 {
        total += sent(&mut s, 3 * SECOND + ms * MS).0;
    }
    super::assert_near("after all that", total as f64, 1e8, 5.0);
}

#[test]
fn classes_have_names() {
    for class in PriorityClass::ALL {
        assert_eq!(class.to_string().parse::<PriorityClass>().unwrap(), class);
        assert_eq!(serde_json::to_string(&class).unwrap(), format!("\"{class}\""));
    }
    assert_eq!("Bulk".parse::<PriorityClass>().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(format!("[{:>8}]", PriorityClass::Bulk), "[    bulk]");
}

#[test]
fn what_it_shows_is_text_for_machines() {
    let mut s = Scheduler::new(SchedulePolicy { rate: Some(1e9), ..policy() });
    let flow = s.connect(super::at_least(PriorityClass::Bulk, 1e6)).unwrap();
    s.push(flow, 1, 100 * KIB, 10);
    s.next(30);
    let json = serde_json::to_value(s.stats()).unwrap();
    assert_eq!(json["flows"][0]["service"]["class"], "bulk");
    assert_eq!(json["flows"][0]["served"]["longest_wait_ns"], 20);
    assert_eq!(json["classes"][2]["served"]["bytes"], 64 * KIB);
    assert_eq!((&json["promised"], &json["requests"]), (&1e6.into(), &1.into()));
    let policy: SchedulePolicy = serde_json::from_value(serde_json::to_value(s.policy()).unwrap()).unwrap();
    assert_eq!(&policy, s.policy());
}

/// Nanoseconds a round, of the quickest of 50 batches: the machine may be shared.
fn quickest(mut round: impl FnMut(u64)) -> f64 {
    const ROUNDS: u64 = 20_000;
    let batch = |batch: u64| {
        let begin = std::time::Instant::now();
        (0..ROUNDS).for_each(|i| round(batch * ROUNDS + i));
        begin.elapsed().as_nanos()
    };
    (0..50).map(batch).min().unwrap_or(0) as f64 / ROUNDS as f64
}

/// Prints what a chunk costs the scheduler: `cargo test --release -p datapipes-core cost_of --
/// --ignored --nocapture`.
#[test]
#[ignore = "measures, and asserts nothing"]
fn cost_of_a_chunk() {
    for (name, classes) in [
        ("one flow", &[PriorityClass::Normal][..]),
        ("two flows", &[PriorityClass::Normal, PriorityClass::Normal]),
        ("latency and bulk", &[PriorityClass::Latency, PriorityClass::Bulk]),
        ("100 flows", &[PriorityClass::Bulk; 100]),
    ] {
        let mut s = Scheduler::new(policy());
        let flows: Vec<_> = classes.iter().map(|&class| s.connect(ServiceLevel::of(class)).unwrap()).collect();
        let flow = |round: u64| flows[round as usize % flows.len()];
        let short = quickest(|now| {
            s.push(flow(now), now, 4096, now);
            let chunk = chunk(s.next(now));
            s.done(chunk.flow, chunk.len, now);
        });
        let passes = quickest(|now| assert!(s.passes(flow(now), 64, SECOND + now)));
        for (id, flow) in (0..).zip(&flows) {
            s.push(*flow, id, u64::MAX / 2, SECOND);
        }
        let long = quickest(|now| {
            let chunk = chunk(s.next(SECOND + now));
            s.done(chunk.flow, chunk.len, SECOND + now);
        });
        println!("{name}: push + next + done {short:.0} ns, next + done {long:.0} ns, passes {passes:.0} ns");
    }
}
