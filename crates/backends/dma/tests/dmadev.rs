//! DPDK's device in software, `dma_skeleton`, through DPDK itself: what it can carry out of the
//! conformance suite, and how it is offered. Skipped where DPDK 22.11 is not installed.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use datapipes_core::backend::Backend;
use datapipes_core::topology::Topology;
use datapipes_core::{Constraints, Dram, ErrorKind, Machine, Span};
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_dma::{DmadevBackend, MoveCost, SplitCost};
use datapipes_testkit::conformance::{CaseVerdict, PlaceKind, run};
use datapipes_testkit::{bounded, seed};

/// All tests of this program share DPDK, which starts once a process.
fn software_device() -> Option<DmadevBackend> {
    // Debian's packages of DPDK are many; the device in software is one of its own.
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib"];
    let driver = |folder: &&str| std::path::Path::new(folder).join("librte_dma_skeleton.so.23").exists();
    if !folders.iter().any(driver) {
        println!("SKIPPED: dmadev: librte_dma_skeleton.so.23 of DPDK 22.11 is not installed");
        return None;
    }
    let arguments = ["--no-huge", "-m", "64", "--no-pci", "--vdev=dma_skeleton"].map(str::to_owned);
    let backend = DmadevBackend::with_arguments(arguments.into());
    if let Some(reason) = backend.devices().absent.iter().find(|reason| reason.contains("not installed")) {
        println!("SKIPPED: dmadev: {reason}");
        return None;
    }
    assert_eq!(backend.devices().usable.len(), 1, "{:?}", backend.devices());
    Some(backend)
}

fn machine_with(backend: DmadevBackend) -> Machine {
    let topology = Topology::discover();
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    Machine::new(topology, vec![Arc::new(cpu), Arc::new(backend)])
}

/// One at a time: a device is open once in a process.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn the_conformance_suite_passes_on_the_software_device() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(backend) = software_device() else { return };
    let seed = seed(0xd3a);
    let outcomes = bounded("the conformance suite passes on the software device", move || {
        let split = SplitCost { core_bytes_per_s: 1e9, bytes_per_s: 1.5e9 };
        let cost = MoveCost { latency_ns: 1000.0, bytes_per_s: 1e9, measured: true, split: Some(split) };
        let machine = machine_with(backend.counting_software_devices().calibrated_by(move |_| Some(cost)));
        // Each copy takes it 100 us, since it sleeps between looks: other kinds of memory are left
        // to the models of DSA, whose movers are the same.
        let mut kinds = PlaceKind::of_memory(machine.topology());
        kinds.retain(|kind| kind.name == "dram");
        run(&machine, &kinds, seed)
    });
    let mine = outcomes.iter().filter(|outcome| outcome.way.iter().any(|primitive| primitive.starts_with("dmadev-")));
    let mine: Vec<_> = mine.collect();
    let failed: Vec<_> = mine.iter().filter(|o| matches!(o.verdict, CaseVerdict::Failed(_))).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    for primitive in ["dmadev-move", "dmadev-and-core"] {
        let passed = mine.iter().filter(|o| o.way == [primitive] && o.verdict == CaseVerdict::Passed).count();
        assert_eq!(passed, 1, "{primitive}");
    }
}

#[test]
fn the_software_device_is_no_engine_unless_a_test_says_so() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(backend) = software_device() else { return };
    bounded("the software device is no engine unless a test says so", move || {
        let found = backend.primitives()[0].available.clone().unwrap();
        assert!(found.contains("dma_skeleton of DPDK (a device in software)"), "{found}");
        let machine = machine_with(backend);
        let (source, target) = (Dram::allocate(1 << 20).unwrap(), Dram::allocate(1 << 20).unwrap());
        source.lease_mut().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
        let offload = Constraints::default().require_offload(true);
        let e = machine.connect_with(&source, &target, &offload).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.to_string().contains("dmadev-move: offload is required"), "{e}");
        let only = Constraints::default().only(vec!["dmadev-move".into()]);
        let pipe = machine.connect_with(&source, &target, &only).unwrap();
        assert!(pipe.route().to_string().contains("never run on hardware"));
        for len in [1, 63, 4097, (1 << 20) - 7] {
            pipe.transfer(Span { source: 5, target: 7, len }).unwrap();
            assert_eq!(source.lease().unwrap()[5..5 + len as usize], target.lease().unwrap()[7..7 + len as usize]);
        }
        let counters = pipe.report().hops[0].counters.clone();
        assert_eq!((counters.core_finished_bytes, counters.devices_lost), (0, 0));
        assert!(counters.requests >= 4);
    });
}

#[test]
fn a_device_that_is_open_elsewhere_is_busy_and_free_after_the_pipe() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (Some(first), Some(second)) = (software_device(), software_device()) else { return };
    bounded("a device that is open elsewhere is busy and free after the pipe", move || {
        let (first, second) = (machine_with(first), machine_with(second));
        let (source, target) = (Dram::allocate(1 << 16).unwrap(), Dram::allocate(1 << 16).unwrap());
        let only = Constraints::default().only(vec!["dmadev-move".into()]);
        let pipe = first.connect_with(&source, &target, &only).unwrap();
        // Pipes of one backend share it.
        let beside = first.connect_with(&source, &target, &only).unwrap();
        let e = second.connect_with(&source, &target, &only).unwrap_err();
        assert!(e.to_string().contains("another backend of this process has it open"), "{e}");
        drop((pipe, beside));
        let pipe = second.connect_with(&source, &target, &only).unwrap();
        pipe.transfer(Span { source: 0, target: 0, len: 1 << 16 }).unwrap();
    });
}

#[test]
fn dpdk_starts_on_request_and_once() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if software_device().is_none() {
        return;
    }
    // The variable is not set for tests.
    let why = DmadevBackend::from_environment().devices().reason();
    assert!(why.contains("not started unless DATAPIPES_DMADEV"), "{why}");
    let why = DmadevBackend::with_arguments(vec!["--no-huge".into()]).devices().reason();
    assert!(why.contains("with other arguments: --no-huge -m 64"), "{why}");
    // The thread that starts DPDK is pinned; this one is not.
    let allowed = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let of_program = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = |text: &str| text.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap().to_owned();
    assert_eq!(list(&allowed), list(&of_program));
}

#[test]
fn the_software_device_is_measured() {
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(backend) = software_device() else { return };
    let cost = bounded("the software device is measured", move || backend.measure().unwrap());
    assert!(cost.measured && cost.latency_ns > 0.0 && cost.bytes_per_s > 0.0 && cost.split.is_some(), "{cost:?}");
    println!("dma_skeleton: {cost:?}");
}
