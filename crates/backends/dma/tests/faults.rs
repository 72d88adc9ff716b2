//! What goes wrong at an engine: missing pages, errors, full queues, batches that end early, death.
#![allow(clippy::unwrap_used)]

mod scene;

use std::time::Duration;

use datapipes_core::memory::Access;
use datapipes_core::runtime::{ConnectOptions, Runtime};
use datapipes_core::{Constraints, Dram, ErrorKind, Locator, Machine, Pipe, Pmem, PmemOptions, Span};
use datapipes_dma::{CompletionCode, EngineOperation, QueueMode};
use datapipes_testkit::{TempFolder, bounded, until};
use scene::{Behaviour, DeviceOptions, End, SoftwareDevice, machine_with, pair, pattern};

const PIECE: u64 = 16 << 10;
const LEN: usize = 10 * PIECE as usize + 100;

/// Short, and longer than any answer of a model takes that answers at all: only who never answers
/// is met by it.
const SHORT_PATIENCE: Duration = Duration::from_millis(500);

fn all(len: usize) -> Span {
    Span { source: 0, target: 0, len: len as u64 }
}

fn with_help() -> Constraints {
    Constraints::default().only(vec!["dsa-move".into()])
}

fn offload() -> Constraints {
    Constraints::default().require_offload(true)
}

fn connect(machine: &Machine, places: &(Dram, Dram), constraints: &Constraints) -> Pipe {
    let pipe = machine.connect_with(&places.0, &places.1, constraints).unwrap();
    assert!(pipe.route().primitives()[0].starts_with("dsa-move"), "{}", pipe.route());
    pipe
}

fn arrived(places: &(Dram, Dram)) -> bool {
    *places.1.lease().unwrap() == pattern(LEN)
}

/// The moves that a device was given: offset in the source and length.
fn moves(device: &SoftwareDevice, source: &Dram) -> Vec<(u64, u32)> {
    let base = source.memory().address().addr() as u64;
    let of = |operation| match operation {
        EngineOperation::Memmove { source, len, .. } => Some((source - base, len)),
        _ => None,
    };
    device.log().into_iter().filter_map(|descriptor| of(descriptor.operation)).collect()
}

fn fault_once(done: u32, backward: bool) -> SoftwareDevice {
    SoftwareDevice::with_plan(DeviceOptions::default(), move |number, _| match number {
        2 => Behaviour::PageFault { done, backward },
        _ => Behaviour::Run,
    })
}

#[test]
fn after_a_page_fault_a_core_copies_the_rest_from_where_the_engine_stopped() {
    bounded("after a page fault a core copies the rest from where the engine stopped", || {
        for (done, backward) in [(1000, false), (1000, true), (0, false)] {
            let (device, places) = (fault_once(done, backward), pair(LEN));
            let pipe = connect(&device.machine(), &places, &with_help());
            pipe.transfer(all(LEN)).unwrap();
            assert!(arrived(&places), "{done} {backward}");
            let counters = pipe.report().hops[0].counters.clone();
            assert_eq!((counters.core_finished_bytes, counters.short_finished), (PIECE - u64::from(done), 1));
            assert_eq!((counters.requests, counters.devices_lost, counters.bytes), (11, 0, LEN as u64));
            assert!(pipe.report().to_string().contains("bytes that the device left and a core copied"));
        }
    });
}

#[test]
fn where_offload_is_demanded_the_engine_goes_on_from_where_it_stopped() {
    bounded("where offload is demanded the engine goes on from where it stopped", || {
        for backward in [false, true] {
            let (device, places) = (fault_once(1000, backward), pair(LEN));
            let pipe = connect(&device.machine(), &places, &offload());
            pipe.transfer(all(LEN)).unwrap();
            assert!(arrived(&places));
            let counters = pipe.report().hops[0].counters.clone();
            assert_eq!((counters.core_finished_bytes, counters.retries, counters.requests), (0, 1, 12));
            let rest = if backward { 2 * PIECE } else { 2 * PIECE + 1000 };
            let moves = moves(&device, &places.0);
            assert!(moves.contains(&(rest, PIECE as u32 - 1000)), "{moves:?}");
        }
    });
}

#[test]
fn a_page_that_never_comes_ends_a_transfer_that_demands_offload() {
    bounded("a page that never comes ends a transfer that demands offload", || {
        let device = SoftwareDevice::with_plan(DeviceOptions::default(), |_, descriptor| match descriptor.operation {
            EngineOperation::Memmove { len, .. } if len < PIECE as u32 => {
                Behaviour::PageFault { done: 0, backward: false }
            }
            _ => Behaviour::Run,
        });
        let places = pair(LEN);
        let pipe = connect(&device.machine(), &places, &offload());
        let e = pipe.transfer(all(LEN)).unwrap_err();
        assert_eq!((e.kind(), e.bytes_done()), (ErrorKind::Device, 10 * PIECE), "{e}");
        assert!(e.to_string().contains("page fault"), "{e}");
        assert_eq!(places.1.lease_mut().unwrap()[..10 * PIECE as usize], pattern(LEN)[..10 * PIECE as usize]);
        assert_eq!(pipe.report().hops[0].counters.failed, 1);
    });
}

#[test]
fn an_error_of_the_engine_is_named_or_made_good_by_a_core() {
    bounded("an error of the engine is named or made good by a core", || {
        let device = || {
            SoftwareDevice::with_plan(DeviceOptions::default(), |_, descriptor| match descriptor.operation {
                EngineOperation::Memmove { len: 100, .. } => Behaviour::Fail(CompletionCode::HARDWARE),
                _ => Behaviour::Run,
            })
        };
        let places = pair(LEN);
        let pipe = connect(&device().machine(), &places, &with_help());
        pipe.transfer(all(LEN)).unwrap();
        assert!(arrived(&places));
        assert_eq!(pipe.report().hops[0].counters.core_finished_bytes, 100);
        let places = pair(LEN);
        let e = connect(&device().machine(), &places, &offload()).transfer(all(LEN)).unwrap_err();
        assert_eq!((e.kind(), e.bytes_done()), (ErrorKind::Device, 10 * PIECE), "{e}");
        assert!(e.to_string().contains("wq0.0") && e.to_string().contains("hardware error"), "{e}");
    });
}

#[test]
fn of_several_failures_the_first_byte_that_is_missing_is_told() {
    bounded("of several failures the first byte that is missing is told", || {
        let places = pair(LEN);
        let base = places.0.memory().address().addr() as u64;
        let device =
            SoftwareDevice::with_plan(DeviceOptions::default(), move |_, descriptor| match descriptor.operation {
                EngineOperation::Memmove { source, .. } if source - base >= 3 * PIECE => {
                    Behaviour::Fail(CompletionCode::TRANSLATION)
                }
                _ => Behaviour::Run,
            });
        let e = connect(&device.machine(), &places, &offload()).transfer(all(LEN)).unwrap_err();
        assert_eq!(e.bytes_done(), 3 * PIECE, "{e}");
    });
}

#[test]
fn a_full_queue_is_tried_again_and_in_the_end_done_without() {
    bounded("a full queue is tried again and in the end done without", || {
        let (device, places) = (SoftwareDevice::new(DeviceOptions::default()), pair(LEN));
        device.refuse(100);
        let pipe = connect(&device.machine(), &places, &offload());
        pipe.transfer(all(LEN)).unwrap();
        assert!(arrived(&places));
        assert_eq!((device.refusals_left(), pipe.report().hops[0].counters.core_finished_bytes), (0, 0));
        // For ever: others use the queue.
        device.refuse(u64::MAX);
        let e = pipe.transfer(all(LEN)).unwrap_err();
        assert!(e.kind() == ErrorKind::Busy && e.to_string().contains("stays full"), "{e}");
        let places = pair(LEN);
        let pipe = connect(&device.machine(), &places, &with_help());
        pipe.transfer(Span { source: 0, target: 0, len: 100 }).unwrap();
        assert_eq!(pipe.report().hops[0].counters.core_finished_bytes, 100);
        assert_eq!(places.1.lease().unwrap()[..100], pattern(LEN)[..100]);
    });
}

fn dies_at(number: u64, options: DeviceOptions) -> SoftwareDevice {
    SoftwareDevice::with_plan(options, move |n, _| if n == number { Behaviour::Die } else { Behaviour::Run })
}

#[test]
fn an_engine_that_dies_in_the_middle_is_replaced_by_a_core_and_named() {
    bounded("an engine that dies in the middle is replaced by a core and named", || {
        for end in [End::Reported, End::Silent] {
            bounded("a death", move || {
                let (device, places) = (dies_at(3, DeviceOptions { end, ..DeviceOptions::default() }), pair(LEN));
                let machine = machine_with(device.backend().with_patience(SHORT_PATIENCE));
                let pipe = connect(&machine, &places, &with_help());
                pipe.transfer(all(LEN)).unwrap();
                assert!(arrived(&places));
                let counters = pipe.report().hops[0].counters.clone();
                assert_eq!(
                    (counters.devices_lost, counters.core_finished_bytes),
                    (1, LEN as u64 - 3 * PIECE),
                    "{end:?}"
                );
                assert!(pipe.report().to_string().contains("devices lost 1"), "{}", pipe.report());
                // Later transfers of the pipe do without.
                places.1.lease_mut().unwrap().fill(0);
                pipe.transfer(all(LEN)).unwrap();
                assert!(arrived(&places));
                assert_eq!(pipe.report().hops[0].counters.devices_lost, 1);
            });
        }
    });
}

#[test]
fn an_engine_that_dies_fails_a_transfer_that_demands_offload_with_the_bytes_done() {
    bounded("an engine that dies fails a transfer that demands offload with the bytes done", || {
        for end in [End::Reported, End::Silent] {
            bounded("a death", move || {
                let (device, places) = (dies_at(3, DeviceOptions { end, ..DeviceOptions::default() }), pair(LEN));
                let machine = machine_with(device.backend().with_patience(SHORT_PATIENCE));
                let pipe = connect(&machine, &places, &offload());
                let e = pipe.transfer(all(LEN)).unwrap_err();
                assert_eq!((e.kind(), e.bytes_done()), (ErrorKind::Device, 3 * PIECE), "{e}");
                assert!(e.to_string().contains("wq0.0 was lost"), "{e}");
                let done = 3 * PIECE as usize;
                assert_eq!(places.1.lease_mut().unwrap()[..done], pattern(LEN)[..done]);
                assert_eq!(pipe.report().hops[0].counters.core_finished_bytes, 0);
            });
        }
    });
}

#[test]
fn who_only_looks_finds_out_about_a_death_too() {
    let (device, places) = (dies_at(3, DeviceOptions { end: End::Silent, ..DeviceOptions::default() }), pair(LEN));
    let machine = machine_with(device.backend().with_patience(SHORT_PATIENCE));
    let pipe = connect(&machine, &places, &with_help());
    let transfer = pipe.start(all(LEN)).unwrap();
    until("the transfer is done", || transfer.is_done());
    transfer.wait().unwrap();
    assert!(arrived(&places));
    assert_eq!(pipe.report().hops[0].counters.devices_lost, 1);
}

#[test]
fn a_device_that_works_again_is_used_by_new_pipes() {
    bounded("a device that works again is used by new pipes", || {
        let (device, places) = (dies_at(3, DeviceOptions::default()), pair(LEN));
        let machine = device.machine();
        let pipe = connect(&machine, &places, &with_help());
        pipe.transfer(all(LEN)).unwrap();
        device.revive();
        let again = connect(&machine, &places, &offload());
        places.1.lease_mut().unwrap().fill(0);
        again.transfer(all(LEN)).unwrap();
        assert!(arrived(&places));
        assert_eq!(pipe.report().hops[0].counters.devices_lost, 1);
    });
}

#[test]
fn memory_that_a_lost_engine_may_still_write_is_never_given_back() {
    bounded("memory that a lost engine may still write is never given back", || {
        bounded("a death without certainty", || {
            let device = dies_at(0, DeviceOptions { end: End::Unstoppable, ..DeviceOptions::default() });
            let places = pair(LEN);
            let machine = machine_with(device.backend().with_patience(SHORT_PATIENCE));
            let pipe = connect(&machine, &places, &with_help());
            let e = pipe.transfer(all(LEN)).unwrap_err();
            assert!(e.kind() == ErrorKind::Device && e.to_string().contains("stays leased"), "{e}");
            drop(pipe);
            let held = places.1.memory().raw_lease(Access::Read).unwrap_err();
            assert_eq!(held.kind(), ErrorKind::Busy);
        });
    });
}

#[test]
fn a_late_answer_is_waited_for() {
    bounded("a late answer is waited for", || {
        let (device, places) = (SoftwareDevice::new(DeviceOptions::default()), pair(LEN));
        let pipe = connect(&device.machine(), &places, &offload());
        device.hold();
        let transfer = pipe.start(all(LEN)).unwrap();
        assert!(!transfer.is_done());
        assert_eq!(places.1.memory().raw_lease(Access::Read).unwrap_err().kind(), ErrorKind::Busy);
        device.release();
        until("the transfer is done", || transfer.is_done());
        transfer.wait().unwrap();
        assert!(arrived(&places));
    });
}

#[test]
fn a_pipe_that_nobody_waits_for_keeps_no_entry_of_a_dedicated_queue() {
    bounded("a pipe that nobody waits for keeps no entry of a dedicated queue", || {
        let options = DeviceOptions { mode: QueueMode::Dedicated, entries: 2, ..DeviceOptions::default() };
        let device = SoftwareDevice::new(options);
        let machine = device.machine();
        let (first, second) = (pair(LEN), pair(LEN));
        let (idle, pipe) = (connect(&machine, &first, &offload()), connect(&machine, &second, &offload()));
        device.hold();
        let started = idle.start(all(LEN)).unwrap();
        // Both entries are taken, and the second pipe waits for them.
        let waiting = pipe.start(all(LEN)).unwrap();
        device.release();
        waiting.wait().unwrap();
        assert!(arrived(&second));
        started.wait().unwrap();
        assert!(arrived(&first) && !device.overflowed());
    });
}

fn batches() -> DeviceOptions {
    DeviceOptions { max_batch: 4, entries: 16, ..DeviceOptions::default() }
}

#[test]
fn pieces_go_as_batches_and_a_member_that_fails_is_finished_alone() {
    bounded("pieces go as batches and a member that fails is finished alone", || {
        let device = SoftwareDevice::with_plan(batches(), |number, _| match number {
            2 => Behaviour::Fail(CompletionCode::HARDWARE),
            3 => Behaviour::PageFault { done: 500, backward: false },
            _ => Behaviour::Run,
        });
        let places = pair(LEN);
        let pipe = connect(&device.machine(), &places, &with_help());
        pipe.transfer(all(LEN)).unwrap();
        assert!(arrived(&places));
        let counts: Vec<u32> = device
            .log()
            .iter()
            .filter_map(|descriptor| match descriptor.operation {
                EngineOperation::Batch { count, .. } => Some(count),
                _ => None,
            })
            .collect();
        assert_eq!(counts, [4, 4, 3]);
        assert_eq!(pipe.report().hops[0].counters.core_finished_bytes, PIECE + PIECE - 500);
    });
}

#[test]
fn what_an_engine_does_not_read_of_a_batch_is_done_by_a_core_or_goes_again() {
    bounded("what an engine does not read of a batch is done by a core or goes again", || {
        let device = || {
            SoftwareDevice::with_plan(batches(), |number, _| match number {
                0 => Behaviour::ListFault { done: 1 },
                _ => Behaviour::Run,
            })
        };
        let (first, places) = (device(), pair(LEN));
        let pipe = connect(&first.machine(), &places, &with_help());
        pipe.transfer(all(LEN)).unwrap();
        assert!(arrived(&places));
        assert_eq!(pipe.report().hops[0].counters.core_finished_bytes, 3 * PIECE);
        let (second, places) = (device(), pair(LEN));
        let pipe = connect(&second.machine(), &places, &offload());
        pipe.transfer(all(LEN)).unwrap();
        assert!(arrived(&places));
        let counters = pipe.report().hops[0].counters.clone();
        assert_eq!((counters.core_finished_bytes, counters.retries), (0, 3));
    });
}

#[test]
fn an_engine_may_die_within_a_batch() {
    bounded("an engine may die within a batch", || {
        let (device, places) = (dies_at(3, batches()), pair(LEN));
        let pipe = connect(&device.machine(), &places, &with_help());
        bounded("a death in a batch", move || {
            pipe.transfer(all(LEN)).unwrap();
            assert!(arrived(&places));
            let counters = pipe.report().hops[0].counters.clone();
            assert_eq!((counters.devices_lost, counters.core_finished_bytes), (1, LEN as u64 - 2 * PIECE));
        });
    });
}

#[test]
fn a_page_that_a_mapped_file_lost_is_an_error_with_and_without_a_core() {
    bounded("a page that a mapped file lost is an error with and without a core", || {
        let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for (name, constraints) in [("help", with_help()), ("offload", offload())] {
            let path = folder.path(name);
            let pmem = Pmem::open_with(&path, PmemOptions::default().len(LEN as u64).emulated(true)).unwrap();
            let target = Dram::allocate(LEN).unwrap();
            let device = SoftwareDevice::new(DeviceOptions::default());
            let pipe = device.machine().connect_with(&pmem, &target, &constraints).unwrap();
            pipe.transfer(all(LEN)).unwrap();
            std::fs::File::options().write(true).open(&path).unwrap().set_len(2 * PIECE).unwrap();
            let e = pipe.transfer(all(LEN)).unwrap_err();
            assert_eq!((e.kind(), e.bytes_done()), (ErrorKind::Device, 2 * PIECE), "{name}: {e}");
            assert!(e.to_string().contains("gone"), "{name}: {e}");
            drop(target.lease_mut().unwrap());
            drop(pmem.endpoint());
        }
    });
}

#[test]
fn a_runtime_moves_by_the_engine() {
    bounded("a runtime moves by the engine", || {
        let (device, places) = (SoftwareDevice::new(DeviceOptions::default()), pair(LEN));
        let machine = device.machine();
        let runtime = Runtime::start(&machine).unwrap();
        let pipe =
            runtime.connect_with(&places.0, &places.1, &ConnectOptions::default().constraints(offload())).unwrap();
        bounded("the runtime", move || {
            let handles: Vec<_> = (0..10u64)
                .map(|i| pipe.transfer(Span { source: i * PIECE, target: i * PIECE, len: PIECE }).unwrap())
                .collect();
            handles.into_iter().for_each(|handle| handle.wait().unwrap());
            pipe.transfer(Span { source: 10 * PIECE, target: 10 * PIECE, len: 100 }).unwrap().wait().unwrap();
            assert!(arrived(&places));
        });
        assert_eq!(device.log().len(), 11);
    });
}
