//! The conformance suite over memory of GPUs, and all flavors of a pipe: on a model of the driver,
//! or on a card (`DATAPIPES_TEST_GPU`).
#![allow(clippy::unwrap_used)]

mod scene;

use datapipes_core::{ConnectOptions, Dram, Runtime, Span};
use datapipes_gpu::Hbm;
use datapipes_testkit::conformance::{CaseVerdict, PlaceKind, run};
use datapipes_testkit::{TempFolder, bounded, seed};
use scene::{bytes_of, devices, ground, hbm_place, machine, only, pattern};

#[test]
fn memory_of_a_gpu_passes_the_suite() {
    let Some(_ground) = ground("memory of a GPU passes the suite") else { return };
    let seed = seed(0x69b);
    let outcomes = bounded("memory of a GPU passes the suite", move || {
        let machine = machine();
        let folder = TempFolder::under(std::env::temp_dir()).unwrap();
        let mut kinds = PlaceKind::of_memory(machine.topology());
        kinds.retain(|kind| ["dram", "cache-l2"].contains(&kind.name.as_str()));
        kinds.extend(PlaceKind::of_persistent_memory(folder.at()));
        kinds.extend(PlaceKind::of_files("file", folder.at()));
        kinds.retain(|kind| !["file-direct", "file-cached", "pmem-whole-file"].contains(&kind.name.as_str()));
        kinds.push(PlaceKind::new("hbm", || hbm_place(0)));
        kinds.push(match devices() {
            1 => PlaceKind::absent("hbm-1", "there is one device"),
            _ => PlaceKind::new("hbm-1", || hbm_place(1)),
        });
        run(&machine, &kinds, seed)
    });
    let mine: Vec<_> = outcomes.iter().filter(|o| o.source.contains("hbm") || o.target.contains("hbm")).collect();
    let failed: Vec<_> =
        mine.iter().filter(|o| matches!(o.verdict, CaseVerdict::Failed(_))).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let passed = |way: &[&str]| mine.iter().filter(|o| o.way == way && o.verdict == CaseVerdict::Passed).count();
    let all = mine.iter().filter(|o| o.verdict == CaseVerdict::Passed).count();
    println!("{all} cases with memory of a GPU passed of {}", mine.len());
    for way in [&["gpu-upload"][..], &["gpu-download"], &["gpu-copy"], &["gpu-download", "gpu-upload"]] {
        assert!(passed(way) >= 1, "{way:?}: {mine:#?}");
    }
    if devices() > 1 {
        assert!(passed(&["gpu-peer"]) >= 2, "{mine:#?}");
    }
}

/// Long enough for several slices that are registered, and for many pieces.
const LONG: usize = (70 << 20) + 4099;

#[test]
fn long_transfers_go_through_buffers_and_then_by_registered_memory() {
    let Some(_ground) = ground("long transfers") else { return };
    bounded("long transfers", || {
        let (here, there) = (pattern(LONG, 7), Hbm::allocate(0, LONG as u64).unwrap());
        let back = Dram::allocate(LONG).unwrap();
        let machine = machine();
        let (up, down) = (machine.connect(&here, &there).unwrap(), machine.connect(&there, &back).unwrap());
        for round in 0..3_u64 {
            let span = Span { source: 3 * round, target: 2 * round, len: LONG as u64 - 8 };
            up.transfer(span).unwrap();
            down.transfer(Span { source: span.target, target: span.source, len: span.len }).unwrap();
            let (a, b) = (here.lease().unwrap(), back.lease().unwrap());
            let at = span.source as usize..(span.source + span.len) as usize;
            assert!(a[at.clone()] == b[at], "round {round}");
        }
        for pipe in [&up, &down] {
            let counters = pipe.report().hops[0].counters.clone();
            // Which of them go through buffers depends on what both ways were seen to cost.
            assert_eq!(counters.fixed_buffer_misses + counters.fixed_buffer_hits, 3, "{counters:?}");
            assert_eq!(counters.bounced_bytes, counters.fixed_buffer_misses * (LONG as u64 - 8), "{counters:?}");
        }
        // Pages that were given back are registered anew.
        drop(up);
        let up = machine.connect(&here, &there).unwrap();
        here.memory().release().unwrap();
        here.lease_mut().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 253) as u8);
        for _ in 0..2 {
            up.transfer(Span { source: 0, target: 0, len: LONG as u64 }).unwrap();
            assert!(bytes_of(&there) == here.lease().unwrap()[..]);
        }
    });
}

#[test]
fn a_runtime_and_a_descriptor_move_by_a_gpu() {
    let Some(_ground) = ground("a runtime and a descriptor move by a GPU") else { return };
    bounded("a runtime and a descriptor move by a GPU", || {
        let len = (9 << 20) + 7;
        let (here, there) = (pattern(len, 5), Hbm::allocate(0, len as u64).unwrap());
        let back = Dram::allocate(len).unwrap();
        let runtime = Runtime::start(&machine()).unwrap();
        let options = ConnectOptions::default();
        let up = runtime.connect_with(&here, &there, &options).unwrap();
        let down = runtime.connect_with(&there, &back, &options).unwrap();
        let piece = len as u64 / 16;
        let spans: Vec<_> = (0..16).map(|i| Span { source: i * piece, target: i * piece, len: piece }).collect();
        for pipe in [&up, &down, &up, &down] {
            let handles: Vec<_> = spans.iter().map(|span| pipe.transfer(*span).unwrap()).collect();
            handles.into_iter().for_each(|handle| handle.wait().unwrap());
        }
        let moved = 16 * piece as usize;
        assert!(bytes_of(&there)[..moved] == here.lease().unwrap()[..moved]);
        assert!(back.lease().unwrap()[..moved] == here.lease().unwrap()[..moved]);
        // A transfer that nobody waits for.
        drop(up.transfer(Span { source: 1, target: 2, len: 1 << 20 }).unwrap());
        up.drain();
        assert!(bytes_of(&there)[2..2 + (1 << 20)] == here.lease().unwrap()[1..1 + (1 << 20)]);
        // Many short ones that a thread does not wait for: the driver rings.
        let descriptor = runtime.connect_fd(&here, &there).unwrap();
        for at in 0..40 {
            let token = descriptor.submit(Span { source: 3, target: 5000 * at, len: 4001 }).unwrap();
            let done = descriptor.complete_wait().unwrap();
            assert_eq!((done.token, done.result.is_ok()), (token, true));
        }
        assert!(bytes_of(&there)[5000 * 39..5000 * 39 + 4001] == here.lease().unwrap()[3..4004]);
    });
}

#[test]
fn files_and_memory_of_a_gpu_are_connected_by_two_hops() {
    let Some(_ground) = ground("files and memory of a GPU are connected by two hops") else { return };
    bounded("files and memory of a GPU are connected by two hops", || {
        let folder = TempFolder::under(std::env::temp_dir()).unwrap();
        let file = datapipes_core::Ssd::unlinked_in(folder.at()).unwrap();
        let len = (21 << 20) + 13;
        let (here, there) = (pattern(len, 11), Hbm::allocate(0, len as u64).unwrap());
        let again = Hbm::allocate(0, len as u64).unwrap();
        let machine = machine();
        let whole = Span { source: 0, target: 0, len: len as u64 };
        machine.connect(&here, &there).unwrap().transfer(whole).unwrap();
        let out = machine.connect(&there, &file).unwrap();
        out.transfer(whole).unwrap();
        let back = machine.connect(&file, &again).unwrap();
        back.transfer(whole).unwrap();
        assert_eq!((out.route().hops.len(), back.route().hops.len()), (2, 2), "{} {}", out.route(), back.route());
        assert!(bytes_of(&again) == here.lease().unwrap()[..]);
        println!("{}{}", back.route(), back.report());
    });
}

#[test]
fn short_transfers_are_done_however_they_are_waited_for() {
    let Some(_ground) = ground("short transfers") else { return };
    bounded("short transfers", || {
        let (here, there) = (pattern(64 << 10, 3), Hbm::allocate(0, 64 << 10).unwrap());
        let pipe = machine().connect(&here, &there).unwrap();
        let span = |at: u64| Span { source: at * 100, target: at * 100, len: 100 };
        pipe.transfer(span(0)).unwrap();
        // Asked again and again, dropped, and several at once.
        let asked = pipe.start(span(1)).unwrap();
        while !asked.is_done() {
            std::thread::yield_now();
        }
        asked.wait().unwrap();
        drop(pipe.start(span(2)).unwrap());
        let several: Vec<_> = (3..40).map(|at| pipe.start(span(at)).unwrap()).collect();
        several.into_iter().rev().for_each(|one| one.wait().unwrap());
        // One that was started before anybody asked for the descriptor makes it readable.
        let first = pipe.start(span(40)).unwrap();
        let event = pipe.event().unwrap().unwrap();
        datapipes_testkit::poll_until(event, rustix::event::PollFlags::IN);
        while !first.is_done() {
            datapipes_testkit::poll_until(event, rustix::event::PollFlags::IN);
        }
        let second = pipe.start(span(41)).unwrap();
        while !second.is_done() {
            datapipes_testkit::poll_until(event, rustix::event::PollFlags::IN);
        }
        drop((first, second));
        assert_eq!(bytes_of(&there)[..4200], here.lease().unwrap()[..4200]);
    });
}

#[test]
fn copies_within_a_device_and_over_itself() {
    let Some(_ground) = ground("copies within a device and over itself") else { return };
    bounded("copies within a device and over itself", || {
        let hbm = Hbm::allocate(0, 1 << 20).unwrap();
        hbm.write(0, &[1; 1000]).unwrap();
        let pipe = machine().connect_with(&hbm, &hbm, &only(&["gpu-copy"])).unwrap();
        pipe.transfer(Span { source: 0, target: 1000, len: 1000 }).unwrap();
        assert_eq!(bytes_of(&hbm)[..2000], [1; 2000]);
        let e = pipe.transfer(Span { source: 0, target: 999, len: 1000 }).unwrap_err();
        assert_eq!(e.kind(), datapipes_core::ErrorKind::InvalidInput, "{e}");
    });
}
