//! Offers, choices, refusals and counters, through pipes.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use datapipes_core::topology::Topology;
use datapipes_core::{Constraints, CoreCache, Dram, ErrorKind, Machine, Span};
use datapipes_cpu::{Calibration, CpuBackend};

fn machine() -> Machine {
    let topology = Topology::discover();
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    Machine::new(topology, vec![Arc::new(cpu)])
}

fn only(primitive: &str) -> Constraints {
    Constraints::default().only(vec![primitive.into()])
}

fn has(machine: &Machine, primitive: &str) -> bool {
    machine.backends()[0].primitives().iter().any(|p| p.name == primitive && p.available.is_ok())
}

#[test]
fn the_copy_by_size_wins_at_any_length() {
    let machine = machine();
    let (a, b) = (Dram::allocate(1 << 20).unwrap(), Dram::allocate(1 << 20).unwrap());
    for bits in 0..34 {
        let constraints = Constraints::default().typical_len(1 << bits);
        let route = machine.explain(&a, &b, &constraints).unwrap();
        assert_eq!(route.primitives(), ["copy-by-size"]);
        assert!(route.rejected.iter().any(|r| r.primitive == "memcpy"), "{route}");
    }
}

#[test]
fn copies_by_size_are_right_at_every_class() {
    let machine = machine();
    let len = 24 << 20;
    let (a, b) = (Dram::allocate(len).unwrap(), Dram::allocate(len).unwrap());
    for (i, byte) in a.lease_mut().unwrap().iter_mut().enumerate() {
        *byte = ((i * 31) >> 3) as u8;
    }
    let pipe = machine.connect(&a, &b).unwrap();
    let (mut at, mut moved) = (1, 0);
    while at < len - 77 {
        b.lease_mut().unwrap()[77 - 3..][..at + 6].fill(0);
        pipe.transfer(Span { source: 5, target: 77, len: at as u64 }).unwrap();
        let (from, to) = (a.lease().unwrap(), b.lease().unwrap());
        assert!(to[77..77 + at] == from[5..5 + at], "{at} bytes");
        assert!(to[74..77] == [0; 3] && to[77 + at..][..3] == [0; 3], "beside {at} bytes");
        moved += at as u64;
        at = at * 2 + 1;
    }
    assert_eq!(pipe.report().bytes(), moved);
    assert!(pipe.report().hops[0].counters.busy_ns > 0);
}

#[test]
fn bypassing_the_caches_takes_stores_past_them_or_is_refused() {
    let machine = machine();
    let (a, b) = (Dram::allocate(1 << 20).unwrap(), Dram::allocate(1 << 20).unwrap());
    let bypass = Constraints::default().bypass_processor_cache(true);
    if has(&machine, "nt-avx2") {
        let pipe = machine.connect_with(&a, &b, &bypass).unwrap();
        assert_eq!(pipe.route().primitives(), ["copy-by-size"]);
        assert!(pipe.route().hops[0].why.contains("bypassed"), "{}", pipe.route());
        a.lease_mut().unwrap().fill(9);
        pipe.transfer(Span { source: 3, target: 1, len: 1000 }).unwrap();
        assert_eq!(b.lease().unwrap()[..1002].iter().filter(|byte| **byte == 9).count(), 1000);
    }
    let both = bypass.clone().only(vec!["memcpy".into()]);
    let error = machine.connect_with(&a, &b, &both).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("displaces the processor's caches"), "{error}");
    // The target is a cache and caches are to be bypassed: no primitive can do both.
    let cache = CoreCache::over(&machine.topology().cores[0], &b.range(0, 4096).unwrap()).unwrap();
    let error = machine.connect_with(&a, &cache, &bypass).unwrap_err();
    assert!(error.to_string().contains("would not be in the core's cache"), "{error}");
}

#[test]
fn filling_the_caches_takes_stores_that_leave_the_lines_there() {
    let machine = machine();
    let (a, b) = (Dram::allocate(1 << 20).unwrap(), Dram::allocate(1 << 20).unwrap());
    let fill = Constraints::default().fill_processor_cache(true).typical_len(Some(1 << 30));
    let route = machine.explain(&a, &b, &fill).unwrap();
    assert_eq!(route.primitives(), ["copy-by-size"]);
    assert!(route.hops[0].why.contains("only stores that leave the lines"), "{route}");
    assert!(route.hops[0].quality.fills_processor_cache && !route.hops[0].why.contains("nt-avx"), "{route}");
    if has(&machine, "nt-avx2") {
        let error = machine.explain(&a, &b, &fill.clone().only(vec!["nt-avx2".into()])).unwrap_err();
        assert!(error.to_string().contains("would not be in the core's cache"), "{error}");
    }
    let error = machine.explain(&a, &b, &fill.bypass_processor_cache(true)).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("exclude each other"), "{error}");
}

#[test]
fn offload_is_refused_with_the_reason() {
    let (a, b) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
    let offload = Constraints::default().require_offload(true);
    let error = machine().connect_with(&a, &b, &offload).unwrap_err();
    assert!(error.to_string().contains("copy-by-size: offload is required"), "{error}");
}

#[test]
fn figure_6a_loads_and_hands_back_in_place() {
    let machine = machine();
    let run = 64 << 10;
    let cores: Vec<usize> = machine.topology().usable_cores().map(|core| core.index).collect();
    let dram = Dram::allocate(2 * cores.len() * run).unwrap();
    machine
        .each_core(|core| {
            let at = cores.iter().position(|index| *index == core.index).unwrap() * run;
            let cache = CoreCache::over(core, &dram.range(at, run)?)?;
            let up = machine.connect(&dram, &cache)?;
            let down = machine.connect(&cache, &dram)?;
            assert_eq!(up.route().primitives(), ["load-into-cache"]);
            let (at, len) = (at as u64, run as u64);
            up.transfer(Span { source: at, target: 0, len })?;
            cache.lease_mut()?.fill(core.index as u8 + 1);
            down.transfer(Span { source: 0, target: at, len })?;
            assert!(cache.lease()?.iter().all(|byte| *byte == core.index as u8 + 1));
            let counters = up.report().hops[0].counters.clone();
            assert_eq!((counters.transfers, counters.bytes, counters.wrong_core), (1, len, 0));
            // A span that is not in place is copied. Each core has its own half of the memory as a
            // target.
            let elsewhere = at + (cores.len() * run) as u64;
            down.transfer(Span { source: 0, target: elsewhere, len: 128 })?;
            assert_eq!(dram.range(elsewhere as usize, 128)?.lease()?[127], core.index as u8 + 1);
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_hand_back_names_absent_instructions() {
    let machine = machine();
    let dram = Dram::allocate(1 << 16).unwrap();
    let cache = CoreCache::over(&machine.topology().cores[0], &dram).unwrap();
    let route = machine.explain(&cache, &dram, &Constraints::default()).unwrap();
    if has(&machine, "cldemote") {
        assert_eq!(route.primitives(), ["cldemote"]);
    } else {
        assert!(
            route.to_string().contains("CLDEMOTE: CPUID bit clear") || cfg!(not(target_arch = "x86_64")),
            "{route}"
        );
        let expected = if has(&machine, "clwb") {
            "clwb"
        } else if has(&machine, "clflushopt") {
            "clflushopt"
        } else {
            "leave"
        };
        assert_eq!(route.primitives(), [expected]);
    }
    for name in ["cldemote", "clwb", "clflushopt", "leave"] {
        match machine.connect_with(&cache, &dram, &only(name)) {
            Ok(pipe) => {
                assert_eq!(pipe.route().primitives(), [name]);
                cache.lease_mut().unwrap().fill(3);
                pipe.transfer(Span { source: 1, target: 1, len: (1 << 16) - 1 }).unwrap();
                pipe.transfer(Span { source: 7, target: 7, len: 0 }).unwrap();
                assert!(dram.lease().unwrap().iter().all(|byte| *byte == 3));
            }
            Err(error) => assert!(!has(&machine, name), "{error}"),
        }
    }
    // If the first ones are denied, the next one serves.
    let deny = ["cldemote", "clwb", "clflushopt"].map(String::from).to_vec();
    let denied = Constraints::default().deny(deny);
    assert_eq!(machine.explain(&cache, &dram, &denied).unwrap().primitives(), ["leave"]);
}

#[test]
fn the_same_bytes_have_the_same_offset() {
    let machine = machine();
    let dram = Dram::allocate(1 << 16).unwrap();
    let cache = CoreCache::over(&machine.topology().cores[0], &dram).unwrap();
    let pipe = machine.connect(&dram, &cache).unwrap();
    let kind = |source, target, len| pipe.transfer(Span { source, target, len }).map_err(|e| e.kind());
    assert_eq!(kind(0, 64, 64), Err(ErrorKind::InvalidInput));
    assert_eq!(kind(0, 1 << 16, 64), Err(ErrorKind::OutOfRange));
    assert_eq!(kind(1 << 16, 1 << 16, 1), Err(ErrorKind::OutOfRange));
    assert_eq!(kind(u64::MAX, u64::MAX, u64::MAX), Err(ErrorKind::OutOfRange));
    assert_eq!(kind(64, 64, 64), Ok(()));
    let writer = dram.lease_mut().unwrap();
    assert_eq!(kind(64, 64, 64), Err(ErrorKind::Busy));
    drop(writer);
    // A span out of range is refused before it is a transfer.
    let counters = pipe.report().hops[0].counters.clone();
    assert_eq!((counters.transfers, counters.failed, counters.bytes), (1, 2, 64));
}

#[test]
fn a_transfer_on_another_core_is_counted() {
    let machine = machine();
    let cores: Vec<_> = machine.topology().usable_cores().cloned().collect();
    if cores.len() < 2 {
        eprintln!("skipped: one usable core");
        return;
    }
    let (a, b) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
    let cache = CoreCache::over(&cores[0], &b).unwrap();
    let pipe = machine.connect(&a, &cache).unwrap();
    assert_eq!(pipe.route().primitives(), ["copy-by-size"]);
    let all = Span { source: 0, target: 0, len: 4096 };
    // One core runs after the other, because both write to the same bytes.
    let turn = std::sync::Mutex::new(());
    machine
        .each_core(|_| {
            let _turn = turn.lock();
            pipe.transfer(all)
        })
        .unwrap();
    let counters = pipe.report().hops[0].counters.clone();
    assert_eq!((counters.transfers, counters.wrong_core), (cores.len() as u64, cores.len() as u64 - 1));
}

#[test]
fn primitives_and_knobs_are_listed_with_reasons() {
    let topology = Topology::discover_under(std::path::Path::new("/nonexistent"));
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    let machine = Machine::new(topology, vec![Arc::new(cpu)]);
    // A recorded machine permits no instruction on this one.
    for primitive in machine.backends()[0].primitives() {
        let plain = ["copy-by-size", "memcpy", "load-into-cache", "leave", "read-itself"].contains(&primitive.name);
        assert_eq!(primitive.available.is_ok(), plain, "{primitive:?}");
    }
    assert!(machine.backends()[0].knobs().iter().any(|knob| knob.name == "nt_threshold_bytes" && knob.value == "off"));
    let (a, b) = (Dram::allocate(4096).unwrap(), Dram::allocate(4096).unwrap());
    assert!(machine.connect(&a, &b).unwrap().transfer(Span { source: 0, target: 0, len: 4096 }).is_ok());
}

#[test]
fn copies_in_both_directions_at_once_neither_block_nor_tear() {
    let machine = machine();
    let (a, b) = (Dram::allocate(1 << 16).unwrap(), Dram::allocate(1 << 16).unwrap());
    a.lease_mut().unwrap().fill(1);
    b.lease_mut().unwrap().fill(2);
    let (there, back) = (machine.connect(&a, &b).unwrap(), machine.connect(&b, &a).unwrap());
    std::thread::scope(|scope| {
        for pipe in [&there, &back, &there] {
            scope.spawn(move || {
                for i in 0..20_000u64 {
                    // Copies are short, made under the lock, or long, made under a lease.
                    let len = if i % 2 == 0 { 64 } else { 8192 };
                    match pipe.transfer(Span { source: 0, target: 0, len }) {
                        Ok(()) => {}
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Busy),
                    }
                }
            });
        }
    });
    // Every copy was whole, so both hold one value in the first 64 bytes, which all copies cover.
    // Nothing stays leased.
    for place in [&a, &b] {
        let bytes = place.lease_mut().unwrap();
        assert!(bytes[..64].iter().all(|byte| *byte == bytes[0]));
    }
    let counted = there.report().hops[0].counters.clone();
    assert_eq!(counted.transfers + counted.failed, 40_000);
}
