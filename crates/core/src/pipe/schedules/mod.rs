//! The queue under schedules of which each is chosen at random: no result is lost, and none is
//! given twice.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

pub(crate) mod device;

use super::queue::{Part, PartSink, Queue};
use crate::error::{ErrorKind, Result};
use crate::memory::MemoryRange;
use crate::span::Span;
use crate::sync::{Arc, Mutex, thread};
use datapipes_testkit::schedules;
use device::{Device, memory};

/// Every part that was told of: where, and how it went.
#[derive(Default)]
struct Told(Mutex<Vec<(u64, Result<(), ErrorKind>)>>);

impl Told {
    fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Each of `n` parts was told of, once.
    fn is_each_of(&self, n: u64) {
        let mut told: Vec<u64> = self.0.lock().iter().map(|(at, _)| *at).collect();
        told.sort_unstable();
        assert_eq!(told, (0..n).collect::<Vec<_>>());
    }
}

impl PartSink for Told {
    fn part_done(&self, at: u64, _len: u64, result: Result<()>) {
        self.0.lock().push((at, result.map_err(|e| e.kind())));
    }

    fn deliveries_done(&self) {}
}

fn queue(device: &Device) -> (MemoryRange, Arc<Queue>) {
    let target = memory(1000);
    let queue = Queue::new(Box::new(device.clone()), None, Some(target.clone()));
    (target, Arc::new(queue))
}

fn span(at: u64) -> Span {
    Span { source: at * 10, target: at * 10, len: 10 }
}

fn part(queue: &Queue, at: u64, sink: &Arc<Told>) -> Part {
    let (source, target) = queue.leases(span(at)).unwrap();
    Part { at, span: span(at), source, target, sink: sink.clone(), notifier: None }
}

fn nothing_is_left(device: &Device, target: &MemoryRange, queue: &Queue) {
    assert!(target.lease_mut().is_ok(), "a lease was left behind");
    assert_eq!(device.outstanding(), 0);
    assert!(device.most_waiting() <= 1, "one completes, the others sleep");
    assert!(format!("{queue:?}").contains("0 transfers"));
}

#[test]
fn waiters_get_their_own_result_and_who_leads_hands_over() {
    schedules(|| {
        let device = Device::with(None, Some(15));
        let (target, queue) = queue(&device);
        let hardware = device.run();
        let waiters: Vec<_> = (0..3)
            .map(|i| {
                let queue = queue.clone();
                thread::spawn(move || {
                    let token = queue.submit(span(i)).unwrap();
                    (i, queue.wait(token))
                })
            })
            .collect();
        // One that looks now and then, and one that lost its interest.
        let looked = queue.submit(span(3)).unwrap();
        let forgotten = queue.submit(span(4)).unwrap();
        queue.is_done(looked);
        queue.forget(forgotten);
        queue.wait(looked).unwrap();
        for waiter in waiters {
            let (i, result) = waiter.join().unwrap();
            match result {
                Ok(()) => assert_ne!(i, 1),
                Err(e) => assert_eq!((i, e.kind(), e.bytes_done()), (1, ErrorKind::Device, 5)),
            }
        }
        device.over();
        hardware.join().unwrap();
        // Takes note of what was forgotten.
        queue.try_drive().unwrap();
        nothing_is_left(&device, &target, &queue);
    });
}

#[test]
fn parts_are_told_once_whoever_leads_pokes_or_attends() {
    schedules(|| {
        let device = Device::new();
        let (target, queue) = queue(&device);
        let hardware = device.run();
        let told = Arc::new(Told::default());
        let leader = |n: usize| {
            let (queue, told) = (queue.clone(), told.clone());
            thread::spawn(move || queue.drive(|| told.count() >= n).unwrap())
        };
        // Before anything was submitted, for a part of all, and for all.
        let leaders = [leader(1), leader(2), leader(4)];
        let others: Vec<_> = (0..2)
            .map(|i| {
                let (queue, told) = (queue.clone(), told.clone());
                thread::spawn(move || {
                    queue.submit_parts([part(&queue, i * 2, &told), part(&queue, i * 2 + 1, &told)]);
                    if i == 0 { queue.try_drive().unwrap() } else { queue.drive_for_coordinator().unwrap() }
                })
            })
            .collect();
        // A blocking waiter beside them.
        let token = queue.submit(span(9)).unwrap();
        queue.wait(token).unwrap();
        others.into_iter().for_each(|other| _ = other.join().unwrap());
        leaders.into_iter().for_each(|leader| _ = leader.join().unwrap());
        told.is_each_of(4);
        device.over();
        hardware.join().unwrap();
        nothing_is_left(&device, &target, &queue);
    });
}

#[test]
fn what_the_coordinator_found_taken_is_handed_back_to_it() {
    schedules(|| {
        let device = Device::new();
        let (target, queue) = queue(&device);
        let hardware = device.run();
        let told = Arc::new(Told::default());
        // Part 0 is somebody's who waits; part 1 is nobody's: only the coordinator sees to it.
        queue.submit_parts([part(&queue, 0, &told), part(&queue, 1, &told)]);
        let waiter = {
            let (queue, told) = (queue.clone(), told.clone());
            let mine = move || told.0.lock().iter().any(|(at, _)| *at == 0);
            thread::spawn(move || queue.drive(mine).unwrap())
        };
        // An event came: the coordinator looks, once. True is the promise to look again at the next
        // event.
        let attended = queue.drive_for_coordinator().unwrap();
        let handed_back = waiter.join().unwrap();
        let again = attended || handed_back;
        device.over();
        hardware.join().unwrap();
        if again {
            queue.drive_for_coordinator().unwrap();
        }
        told.is_each_of(2);
        nothing_is_left(&device, &target, &queue);
    });
}

#[test]
fn a_queue_that_breaks_tells_every_part_once_and_every_waiter() {
    schedules(|| {
        let device = Device::new();
        let (_, queue) = queue(&device);
        let hardware = device.run();
        let told = Arc::new(Told::default());
        let submitters: Vec<_> = (0..3)
            .map(|i| {
                let (queue, told) = (queue.clone(), told.clone());
                thread::spawn(move || {
                    queue.submit_parts([part(&queue, i, &told)]);
                    // Of one that is broken everybody hears, before or now.
                    let mine = || told.0.lock().iter().any(|(at, _)| *at == i);
                    match i {
                        0 => while !mine() && queue.drive(mine).is_ok() {},
                        1 => drop(queue.drive_for_coordinator()),
                        _ => drop(queue.try_drive()),
                    }
                })
            })
            .collect();
        let waiter = {
            let queue = queue.clone();
            thread::spawn(move || queue.submit(span(7)).and_then(|token| queue.wait(token)))
        };
        device.break_down();
        submitters.into_iter().for_each(|s| s.join().unwrap());
        if let Err(e) = waiter.join().unwrap() {
            assert_eq!(e.kind(), ErrorKind::Device);
        }
        device.over();
        hardware.join().unwrap();
        // Nobody may have looked since the last part came: this is the event of a broken device.
        assert!(queue.drive_for_coordinator().is_err());
        told.is_each_of(3);
        // And nobody will look for what comes now.
        queue.submit_parts([part(&queue, 3, &told)]);
        told.is_each_of(4);
    });
}

#[test]
fn parts_that_the_mover_refuses_are_told_while_another_leads() {
    schedules(|| {
        let device = Device::new();
        let (target, queue) = queue(&device);
        device.refuse_after(2);
        let hardware = device.run();
        let told = Arc::new(Told::default());
        let leader = {
            let (queue, told) = (queue.clone(), told.clone());
            thread::spawn(move || queue.drive(|| told.count() == 4).unwrap())
        };
        let other = {
            let (queue, told) = (queue.clone(), told.clone());
            thread::spawn(move || queue.submit_parts([part(&queue, 0, &told), part(&queue, 1, &told)]))
        };
        queue.submit_parts([part(&queue, 2, &told), part(&queue, 3, &told)]);
        other.join().unwrap();
        leader.join().unwrap();
        told.is_each_of(4);
        let refused = told.0.lock().iter().filter(|(_, result)| *result == Err(ErrorKind::Busy)).count();
        assert_eq!(refused, 2);
        device.over();
        hardware.join().unwrap();
        nothing_is_left(&device, &target, &queue);
    });
}

#[test]
fn a_queue_that_is_dropped_waits_for_what_was_forgotten() {
    schedules(|| {
        let device = Device::new();
        let (target, queue) = queue(&device);
        let hardware = device.run();
        for i in 0..3 {
            let token = queue.submit(span(i)).unwrap();
            queue.forget(token);
        }
        drop(queue);
        assert!(target.lease_mut().is_ok(), "the device may still write");
        device.over();
        hardware.join().unwrap();
    });
}
