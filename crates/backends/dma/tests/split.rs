//! Copies that an engine and a core share: who gets which bytes, and what happens when the engine
//! fails, is full or dies.
#![allow(clippy::unwrap_used)]

mod scene;

use std::time::Duration;

use datapipes_core::memory::Access;
use datapipes_core::runtime::{ConnectOptions, Runtime};
use datapipes_core::{Constraints, Counters, Dram, ErrorKind, Machine, Pipe, Pmem, PmemOptions, Span};
use datapipes_dma::{EngineOperation, MoveCost, SplitCost};
use datapipes_testkit::{TempFolder, bounded, until};
use scene::{Behaviour, DeviceOptions, End, SoftwareDevice, machine_with, pair, pattern};

const PIECE: u64 = 16 << 10;
const LEN: usize = 100 * PIECE as usize + 100;
/// What the model takes at once, in bytes.
const IN_QUEUE: u64 = 8 * PIECE;
const SHORT_PATIENCE: Duration = Duration::from_millis(500);

/// The engine is three times as fast as a core.
const COST: MoveCost = MoveCost {
    latency_ns: 1000.0,
    bytes_per_s: 3e9,
    measured: true,
    split: Some(SplitCost { core_bytes_per_s: 1e9, bytes_per_s: 3.5e9 }),
};

fn all() -> Span {
    Span { source: 0, target: 0, len: LEN as u64 }
}

fn shared() -> Constraints {
    Constraints::default().only(vec!["dsa-and-core".into()])
}

fn machine(device: &SoftwareDevice) -> Machine {
    machine_with(device.backend().with_cost(COST).with_patience(SHORT_PATIENCE))
}

fn connect(machine: &Machine, places: &(Dram, Dram)) -> Pipe {
    machine.connect_with(&places.0, &places.1, &shared()).unwrap()
}

fn arrived(places: &(Dram, Dram)) -> bool {
    *places.1.lease().unwrap() == pattern(LEN)
}

fn counters(pipe: &Pipe) -> Counters {
    pipe.report().hops[0].counters.clone()
}

/// The bytes that the device was given, and the end of the last of them in the source.
fn given(device: &SoftwareDevice, source: &Dram) -> (u64, u64) {
    let base = source.memory().address().addr() as u64;
    device.log().into_iter().fold((0, 0), |(bytes, end), descriptor| match descriptor.operation {
        EngineOperation::Memmove { source, len, .. } => {
            (bytes + u64::from(len), end.max(source - base + u64::from(len)))
        }
        _ => (bytes, end),
    })
}

#[test]
fn who_waits_copies_from_the_end_while_the_engine_copies_from_the_beginning() {
    bounded("who waits copies from the end", || {
        let (device, places) = (SoftwareDevice::new(DeviceOptions::default()), pair(LEN));
        let pipe = connect(&machine(&device), &places);
        // The engine stands still: a core gets all that is not in its queue.
        device.hold();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pipe.transfer(all()));
            until("the core has copied the rest", || counters(&pipe).core_share_bytes == LEN as u64 - IN_QUEUE);
            device.release();
            waiting.join().unwrap().unwrap();
        });
        assert!(arrived(&places));
        let seen = counters(&pipe);
        assert_eq!((seen.bytes, seen.core_finished_bytes), (LEN as u64, 0));
        assert_eq!(given(&device, &places.0), (IN_QUEUE, IN_QUEUE));
        let said = format!("bytes that a core copied as its share {}", LEN as u64 - IN_QUEUE);
        assert!(pipe.report().to_string().contains(&said), "{}", pipe.report());
        // Whatever the two rates are, each byte is copied once.
        for _ in 0..5 {
            let (before, given_before) = (counters(&pipe), given(&device, &places.0).0);
            places.1.lease_mut().unwrap().fill(0);
            pipe.transfer(all()).unwrap();
            assert!(arrived(&places));
            let by_core = counters(&pipe).core_share_bytes - before.core_share_bytes;
            assert_eq!(by_core + given(&device, &places.0).0 - given_before, LEN as u64);
        }
    });
}

#[test]
fn where_nobody_waits_the_engine_goes_on_beyond_its_share() {
    let (device, places) = (SoftwareDevice::new(DeviceOptions::default()), pair(LEN));
    let pipe = connect(&machine(&device), &places);
    let transfer = pipe.start(all()).unwrap();
    until("the transfer is done", || transfer.is_done());
    transfer.wait().unwrap();
    assert!(arrived(&places));
    assert_eq!((counters(&pipe).core_share_bytes, given(&device, &places.0).0), (0, LEN as u64));
}

#[test]
fn short_copies_and_those_that_demand_offload_are_not_split() {
    bounded("short copies are not split", || {
        let (device, places) = (SoftwareDevice::new(DeviceOptions::default()), pair(LEN));
        let machine = machine(&device);
        let pipe = connect(&machine, &places);
        // 1 us times 3 GB/s and twice 1 GB/s are 5000 bytes; the engine's share is in pages.
        for len in [0, 1, 4096, 4999] {
            pipe.transfer(Span { source: 0, target: 0, len }).unwrap();
            assert_eq!(counters(&pipe).core_share_bytes, 0, "{len}");
        }
        let offload = shared().require_offload(true);
        let e = machine.connect_with(&places.0, &places.1, &offload).unwrap_err();
        assert!(e.to_string().contains("offload is required"), "{e}");
    });
}

#[test]
fn it_is_taken_where_it_was_measured_to_be_faster_and_refused_where_nothing_was_measured() {
    bounded("it is taken where it was measured to be faster", || {
        let (device, places) = (SoftwareDevice::new(DeviceOptions::default()), pair(LEN));
        let route = |cost, constraints: &Constraints| {
            machine_with(device.backend().with_cost(cost)).explain(&places.0, &places.1, constraints)
        };
        let long = Constraints::default().typical_len(1 << 30);
        let fast = |bytes_per_s, both| MoveCost {
            bytes_per_s,
            split: Some(SplitCost { core_bytes_per_s: 1e11, bytes_per_s: both }),
            ..COST
        };
        assert_eq!(route(fast(1e12, 1.1e12), &long).unwrap().primitives(), ["dsa-and-core"]);
        // Where both hinder each other, the engine alone is faster.
        assert_ne!(route(fast(1e12, 9e11), &long).unwrap().primitives(), ["dsa-and-core"]);
        let taken = route(COST, &shared()).unwrap();
        assert!(taken.hops[0].why.contains("3.0 GB/s") && taken.hops[0].why.contains("1.0 GB/s"), "{taken}");
        let e = route(MoveCost::ASSUMED, &shared()).unwrap_err();
        assert!(e.to_string().contains("dpipe calibrate"), "{e}");
    });
}

fn dies_at(number: u64, end: End) -> SoftwareDevice {
    let options = DeviceOptions { end, ..DeviceOptions::default() };
    SoftwareDevice::with_plan(options, move |n, _| if n == number { Behaviour::Die } else { Behaviour::Run })
}

#[test]
fn an_engine_that_dies_in_the_middle_is_replaced_by_the_core_and_named() {
    for (end, at) in [(End::Reported, 0), (End::Reported, 5), (End::Silent, 0), (End::Silent, 5)] {
        bounded("a death in the middle", move || {
            let (device, places) = (dies_at(at, end), pair(LEN));
            let pipe = connect(&machine(&device), &places);
            pipe.transfer(all()).unwrap();
            assert!(arrived(&places), "{end:?} {at}");
            let seen = counters(&pipe);
            // The engine did what it was given before its death.
            assert_eq!(seen.core_finished_bytes + seen.core_share_bytes, LEN as u64 - at * PIECE, "{end:?} {at}");
            assert!(seen.core_finished_bytes >= PIECE, "{seen:?}");
            assert_eq!((seen.devices_lost, seen.bytes, seen.failed), (1, LEN as u64, 0));
            assert!(pipe.report().to_string().contains("devices lost 1"), "{}", pipe.report());
            places.1.lease_mut().unwrap().fill(0);
            pipe.transfer(all()).unwrap();
            assert!(arrived(&places), "a later transfer");
        });
    }
}

#[test]
fn what_nobody_can_be_sure_of_fails_and_stays_leased() {
    bounded("what nobody can be sure of fails", || {
        let (device, places) = (dies_at(0, End::Unstoppable), pair(LEN));
        let pipe = connect(&machine(&device), &places);
        let e = pipe.transfer(all()).unwrap_err();
        assert_eq!((e.kind(), e.bytes_done()), (ErrorKind::Device, 0), "{e}");
        assert!(e.to_string().contains("stays leased"), "{e}");
        drop(pipe);
        assert_eq!(places.1.memory().raw_lease(Access::Read).unwrap_err().kind(), ErrorKind::Busy);
    });
}

#[test]
fn faults_and_a_full_queue_lose_nothing() {
    bounded("faults and a full queue lose nothing", || {
        let device = SoftwareDevice::with_plan(DeviceOptions::default(), |number, _| match number % 3 {
            2 => Behaviour::PageFault { done: (number * 997 % 5000) as u32, backward: number % 2 == 0 },
            _ => Behaviour::Run,
        });
        device.refuse(50);
        let places = pair(LEN);
        let pipe = connect(&machine(&device), &places);
        for _ in 0..3 {
            places.1.lease_mut().unwrap().fill(0);
            pipe.transfer(all()).unwrap();
            assert!(arrived(&places));
        }
    });
}

/// The core meets the missing pages first, at the end; the error is about the first of them, and
/// all before it is there.
#[test]
fn of_a_source_that_lost_its_end_all_before_it_arrives() {
    bounded("of a source that lost its end all before it arrives", || {
        let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for kept in [2 * PIECE, 40 * PIECE, 90 * PIECE] {
            let path = folder.path(&kept.to_string());
            let pmem = Pmem::open_with(&path, PmemOptions::default().len(LEN as u64).emulated(true)).unwrap();
            let (source, target) = pair(LEN);
            let device = SoftwareDevice::new(DeviceOptions::default());
            let machine = machine(&device);
            pmem.memory().write(0, &source.memory().to_vec().unwrap()).unwrap();
            let pipe = machine.connect_with(&pmem, &target, &shared()).unwrap();
            std::fs::File::options().write(true).open(&path).unwrap().set_len(kept).unwrap();
            let e = pipe.transfer(all()).unwrap_err();
            assert_eq!((e.kind(), e.bytes_done()), (ErrorKind::Device, kept), "{e}");
            assert_eq!(target.lease_mut().unwrap()[..kept as usize], pattern(LEN)[..kept as usize]);
        }
    });
}

#[test]
fn many_transfers_and_a_runtime_share_an_engine_and_cores() {
    bounded("many transfers share an engine and cores", || {
        let (device, places) = (SoftwareDevice::new(DeviceOptions::default()), pair(LEN));
        let machine = machine(&device);
        let part = |i: u64| Span { source: i * 10 * PIECE, target: i * 10 * PIECE, len: 10 * PIECE };
        let last = Span { source: 100 * PIECE, target: 100 * PIECE, len: 100 };
        let pipe = connect(&machine, &places);
        let started: Vec<_> = (0..10).map(|i| pipe.start(part(i)).unwrap()).collect();
        pipe.transfer(last).unwrap();
        started.into_iter().rev().for_each(|transfer| transfer.wait().unwrap());
        assert!(arrived(&places));
        places.1.lease_mut().unwrap().fill(0);
        let runtime = Runtime::start(&machine).unwrap();
        let pipe =
            runtime.connect_with(&places.0, &places.1, &ConnectOptions::default().constraints(shared())).unwrap();
        let handles: Vec<_> = (0..10).map(|i| pipe.transfer(part(i)).unwrap()).collect();
        handles.into_iter().for_each(|handle| handle.wait().unwrap());
        pipe.transfer(last).unwrap().wait().unwrap();
        assert!(arrived(&places));
    });
}
