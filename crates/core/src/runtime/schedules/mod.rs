//! The runtime under schedules of which each is chosen at random, over model devices and a model of
//! the kernel's events. A completion that is lost is a deadlock here, and is found as one.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod foreign;
pub(crate) mod places;

use super::{Cancelled, ConnectOptions, ServiceLevel};
use crate::error::ErrorKind;
use crate::span::Span;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, thread};
use datapipes_testkit::schedules;
use places::{CHUNK, Far, block_on, dram, runtime, span};

fn queue(most: usize) -> ConnectOptions {
    ConnectOptions { queue: Some(most), ..ConnectOptions::default() }
}

/// Ends the devices' threads.
pub(crate) fn over<const N: usize>(devices: [(&Far, thread::JoinHandle<()>); N]) {
    for (far, hardware) in devices {
        far.device.over();
        hardware.join().unwrap();
    }
}

#[test]
fn every_way_to_hear_of_a_transfer_at_once_on_one_pipe() {
    schedules(|| {
        let runtime = Arc::new(runtime(2));
        let (far, near) = (Far::evented("a", Some(4096 + 20)), dram(4096));
        let hardware = far.device.run();
        let pipe = runtime.connect(&far, &near).unwrap();
        let called = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let (pipe, called) = (pipe.clone(), called.clone());
                thread::spawn(move || {
                    let handle = pipe.transfer(span(i, 2)).unwrap();
                    let result = match i {
                        0 => handle.wait(),
                        1 => block_on(handle),
                        2 => {
                            handle.on_done(move |result| {
                                result.unwrap();
                                called.fetch_add(1, Ordering::SeqCst);
                            });
                            Ok(())
                        }
                        _ => {
                            drop(handle);
                            Ok(())
                        }
                    };
                    match result {
                        Ok(()) => assert_ne!(i, 1),
                        Err(e) => {
                            assert_eq!((i, e.kind(), e.errno(), e.bytes_done()), (1, ErrorKind::Device, Some(5), 20))
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        runtime.drain();
        let report = runtime.report();
        assert_eq!((report.under_way, report.completed, report.failed), (0, 3, 1));
        assert_eq!(called.load(Ordering::SeqCst), 1);
        assert!(near.lease_mut().is_ok(), "a lease was left behind");
        drop((pipe, runtime));
        over([(&far, hardware)]);
    });
}

#[test]
fn what_is_held_back_behind_another_pipe_is_completed_for_who_only_polls() {
    schedules(|| {
        // One part out at a time, over two pipes of a device.
        let runtime = Arc::new(runtime(1));
        let (a, b, near) = (Far::evented("same", None), Far::evented("same", None), dram(4096));
        let hardware = [a.device.run(), b.device.run()];
        let pipes = [runtime.connect(&a, &near).unwrap(), runtime.connect(&b, &near).unwrap()];
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let pipe = pipes[i % 2].clone();
                thread::spawn(move || {
                    let handle = pipe.transfer(span(i as u64, 1)).unwrap();
                    if i == 3 { handle.wait() } else { block_on(handle) }.unwrap();
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(runtime.report().under_way, 0);
        drop((pipes, runtime));
        let [first, second] = hardware;
        over([(&a, first), (&b, second)]);
    });
}

#[test]
fn who_holds_a_handle_and_does_nothing_holds_up_nobody() {
    schedules(|| {
        let runtime = Arc::new(runtime(1));
        let (a, b, near) = (Far::evented("same", None), Far::evented("same", None), dram(4096));
        let hardware = [a.device.run(), b.device.run()];
        let pipes = [runtime.connect(&a, &near).unwrap(), runtime.connect(&b, &near).unwrap()];
        let waits = {
            let pipe = pipes[1].clone();
            thread::spawn(move || pipe.transfer(span(1, 1)).unwrap().wait().unwrap())
        };
        let polls = {
            let pipe = pipes[1].clone();
            thread::spawn(move || block_on(pipe.transfer(span(2, 1)).unwrap()).unwrap())
        };
        let idle = pipes[0].transfer(span(0, 1)).unwrap();
        // The others share the device with it, and end without its help.
        waits.join().unwrap();
        polls.join().unwrap();
        idle.wait().unwrap();
        drop((pipes, runtime));
        let [first, second] = hardware;
        over([(&a, first), (&b, second)]);
    });
}

#[test]
fn cancelling_races_with_release_and_completion() {
    schedules(|| {
        let runtime = runtime(1);
        let (far, near) = (Far::evented("a", None), dram(4096));
        let hardware = far.device.run();
        let pipe = runtime.connect(&far, &near).unwrap();
        let other = {
            let pipe = pipe.clone();
            thread::spawn(move || block_on(pipe.transfer(span(1, 2)).unwrap()).unwrap())
        };
        let handle = pipe.transfer(span(0, 3)).unwrap();
        match handle.cancel().unwrap() {
            Cancelled::Completed => {}
            Cancelled::Stopped { bytes_moved } => assert!(bytes_moved < 3 * CHUNK && bytes_moved % CHUNK == 0),
        }
        let range = near.memory().range(0, 3 * CHUNK as usize).unwrap();
        assert!(range.lease_mut().is_ok(), "the device is quiet");
        other.join().unwrap();
        assert_eq!(pipe.under_way(), 0);
        drop((pipe, runtime));
        over([(&far, hardware)]);
    });
}

#[test]
fn everybody_who_waits_for_room_gets_in() {
    schedules(|| {
        let runtime = runtime(8);
        let (far, near) = (Far::evented("a", None), dram(4096));
        let hardware = far.device.run();
        let pipe = runtime.connect_with(&far, &near, &queue(1)).unwrap();
        let first = {
            let pipe = pipe.clone();
            thread::spawn(move || pipe.transfer(span(0, 1)).unwrap())
        };
        let others: Vec<_> = (1..3)
            .map(|i| {
                let pipe = pipe.clone();
                thread::spawn(move || pipe.transfer(span(i, 1)).unwrap())
            })
            .collect();
        // It sleeps where those sleep who wait for room.
        let drains = {
            let pipe = pipe.clone();
            thread::spawn(move || pipe.drain())
        };
        // Nobody waits for any of them before all have got in.
        let first = first.join().unwrap();
        let handles: Vec<_> = others.into_iter().map(|t| t.join().unwrap()).collect();
        first.wait().unwrap();
        handles.into_iter().for_each(|handle| handle.wait().unwrap());
        drains.join().unwrap();
        drop((pipe, runtime));
        over([(&far, hardware)]);
    });
}

#[test]
fn draining_waits_for_what_others_start_and_leave_alone() {
    schedules(|| {
        let runtime = Arc::new(runtime(1));
        let (far, near) = (Far::evented("a", None), dram(4096));
        let hardware = far.device.run();
        let pipe = runtime.connect(&far, &near).unwrap();
        let starts = {
            let pipe = pipe.clone();
            thread::spawn(move || (0..2).map(|i| pipe.transfer(span(i, 2)).unwrap()).collect::<Vec<_>>())
        };
        let drains = {
            let pipe = pipe.clone();
            thread::spawn(move || pipe.drain())
        };
        runtime.drain();
        drains.join().unwrap();
        let handles = starts.join().unwrap();
        // Nobody has asked for these.
        runtime.drain();
        assert!(handles.iter().all(|handle| handle.is_done()));
        assert!(near.lease_mut().is_ok());
        drop((handles, pipe, runtime));
        over([(&far, hardware)]);
    });
}

#[test]
fn shutting_down_loses_nothing_that_was_accepted() {
    schedules(|| {
        let runtime = runtime(1);
        let (far, near, copy) = (Far::evented("a", None), dram(4096), dram(4096));
        let hardware = far.device.run();
        let pipes = [runtime.connect(&far, &near).unwrap(), runtime.connect(&near, &copy).unwrap()];
        let threads: Vec<_> = (0..3)
            .map(|i| {
                let pipe = pipes[i % 2].clone();
                let at = Span { source: 0, ..span(i as u64, 2) };
                thread::spawn(move || match pipe.transfer(at) {
                    Ok(handle) if i == 0 => handle.wait().unwrap(),
                    Ok(handle) => block_on(handle).unwrap(),
                    Err(e) => assert!(matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Busy), "{e}"),
                })
            })
            .collect();
        runtime.shutdown();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert!(near.lease_mut().is_ok() && copy.lease_mut().is_ok());
        assert_eq!(pipes[0].transfer(span(0, 1)).unwrap_err().kind(), ErrorKind::Unavailable);
        drop(pipes);
        over([(&far, hardware)]);
    });
}

#[test]
fn a_crew_answers_every_call() {
    schedules(|| {
        let runtime = runtime(2);
        let (source, target) = (dram(4096), dram(4096));
        let pipe = runtime.connect(&source, &target).unwrap();
        let threads: Vec<_> = (0..3)
            .map(|i| {
                let pipe = pipe.clone();
                thread::spawn(move || {
                    // A source of which everybody may read, at parts' borders.
                    let at = Span { source: 0, target: i * 256, len: 2 * CHUNK };
                    let handle = pipe.transfer(at).unwrap();
                    match i {
                        0 => handle.wait().unwrap(),
                        1 => block_on(handle).unwrap(),
                        _ => drop(handle.cancel().unwrap()),
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        runtime.drain();
        assert_eq!(runtime.report().under_way, 0);
        assert!(target.lease_mut().is_ok());
        drop((pipe, runtime));
    });
}

#[test]
fn a_crew_waits_for_a_mover_without_an_event() {
    schedules(|| {
        let runtime = runtime(2);
        let (far, near) = (Far::blocking(), dram(4096));
        let hardware = far.device.run();
        let pipe = runtime.connect(&far, &near).unwrap();
        let threads: Vec<_> = (0..2)
            .map(|i| {
                let pipe = pipe.clone();
                thread::spawn(move || {
                    let handle = pipe.transfer(span(i, 2)).unwrap();
                    if i == 0 { handle.wait() } else { block_on(handle) }.unwrap();
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        drop((pipe, runtime));
        over([(&far, hardware)]);
        assert!(near.lease_mut().is_ok());
    });
}

#[test]
fn threads_that_do_the_coordinators_work_give_it_back() {
    schedules(|| {
        let runtime = Arc::new(runtime(1));
        let (far, near) = (Far::evented("a", None), dram(4096));
        let hardware = far.device.run();
        let pipe = runtime.connect(&far, &near).unwrap();
        let threads: Vec<_> = (0..3)
            .map(|i| {
                let (runtime, pipe) = (runtime.clone(), pipe.clone());
                thread::spawn(move || {
                    let handle = pipe.transfer(span(i, 1)).unwrap();
                    if i < 2 { runtime.block_on(handle) } else { block_on(handle) }.unwrap();
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        drop((pipe, runtime));
        over([(&far, hardware)]);
    });
}

#[test]
fn a_transfer_that_is_refused_as_busy_takes_no_completion_from_the_coordinator() {
    schedules(|| {
        let runtime = runtime(8);
        let (far, near) = (Far::evented("a", None), dram(4096));
        let hardware = far.device.run();
        let pipe = runtime.connect(&far, &near).unwrap();
        let overlaps = {
            let pipe = pipe.clone();
            thread::spawn(move || match pipe.transfer(span(0, 1)) {
                Ok(handle) => block_on(handle).unwrap(),
                Err(e) => assert_eq!(e.kind(), ErrorKind::Busy),
            })
        };
        let futures: Vec<_> = (0..2)
            .map(|i| {
                let pipe = pipe.clone();
                thread::spawn(move || match pipe.transfer(span(i, 2)) {
                    Ok(handle) => block_on(handle).unwrap(),
                    Err(e) => assert_eq!((i, e.kind()), (0, ErrorKind::Busy)),
                })
            })
            .collect();
        overlaps.join().unwrap();
        futures.into_iter().for_each(|t| t.join().unwrap());
        drop((pipe, runtime));
        over([(&far, hardware)]);
    });
}

#[test]
fn a_device_that_is_lost_fails_all_its_transfers_and_no_other() {
    schedules(|| {
        let runtime = runtime(2);
        let (lost, good, near) = (Far::evented("same", None), Far::evented("same", None), dram(4096));
        let hardware = [lost.device.run(), good.device.run()];
        let pipes = [runtime.connect(&lost, &near).unwrap(), runtime.connect(&good, &near).unwrap()];
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let pipe = pipes[i / 3].clone();
                thread::spawn(move || {
                    let handle = pipe.transfer(span(i as u64, 2)).unwrap();
                    (i, if i % 2 == 0 { handle.wait() } else { block_on(handle) })
                })
            })
            .collect();
        lost.device.break_down();
        for thread in threads {
            match thread.join().unwrap() {
                (_, Ok(())) => {}
                (i, Err(e)) => assert!(i != 3 && e.kind() == ErrorKind::Device, "{i}: {e}"),
            }
        }
        assert_eq!(runtime.report().under_way, 0);
        drop((pipes, runtime));
        let [first, second] = hardware;
        over([(&lost, first), (&good, second)]);
    });
}

#[test]
fn who_is_held_back_by_a_rate_goes_on_when_the_time_comes() {
    schedules(|| {
        let runtime = runtime(8);
        let (far, near) = (Far::evented("a", None), dram(4096));
        let hardware = far.device.run();
        let service = ServiceLevel { at_most: Some(1e6), ..ServiceLevel::default() };
        let limited =
            runtime.connect_with(&far, &near, &ConnectOptions { service, ..ConnectOptions::default() }).unwrap();
        let threads: Vec<_> = (0..2)
            .map(|i| {
                let pipe = limited.clone();
                thread::spawn(move || {
                    let handle = pipe.transfer(span(i, 8)).unwrap();
                    if i == 0 { handle.wait() } else { block_on(handle) }.unwrap();
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        drop((limited, runtime));
        over([(&far, hardware)]);
    });
}
