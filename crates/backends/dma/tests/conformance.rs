//! The conformance suite over both primitives, on models of devices: shared, dedicated and small,
//! with batches, and with page faults.
#![allow(clippy::unwrap_used)]

mod scene;

use datapipes_dma::{MoveCost, QueueMode, SplitCost};
use datapipes_testkit::conformance::{CaseVerdict, PlaceKind, run};
use datapipes_testkit::{TempFolder, bounded, seed};
use scene::{Behaviour, DeviceOptions, SoftwareDevice, machine_with};

fn certify(what: &str, device: SoftwareDevice) {
    let seed = seed(0xd5a);
    let checked = device.clone();
    let outcomes = bounded(what, move || {
        // From a few KiB on, half of a copy is a core's.
        let split = SplitCost { core_bytes_per_s: 1e9, bytes_per_s: 1.5e9 };
        let cost = MoveCost { latency_ns: 1000.0, bytes_per_s: 1e9, measured: true, split: Some(split) };
        let machine = machine_with(checked.backend().with_cost(cost));
        let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut kinds = PlaceKind::of_memory(machine.topology());
        kinds.extend(PlaceKind::of_nodes(machine.topology()));
        kinds.extend(PlaceKind::of_persistent_memory(folder.at()));
        run(&machine, &kinds, seed)
    });
    let ours = |way: &[&str]| way.iter().any(|primitive| primitive.starts_with("dsa-"));
    let mine: Vec<_> = outcomes.iter().filter(|outcome| ours(&outcome.way)).collect();
    let failed: Vec<String> = mine
        .iter()
        .filter(|outcome| matches!(outcome.verdict, CaseVerdict::Failed(_)))
        .map(ToString::to_string)
        .collect();
    assert!(failed.is_empty(), "{what}:\n{}", failed.join("\n"));
    for primitive in ["dsa-move", "dsa-move-to-cache", "dsa-and-core"] {
        let passed = mine.iter().filter(|o| o.way == [primitive] && o.verdict == CaseVerdict::Passed).count();
        assert!(passed >= 9, "{what}: {primitive} passed only {passed} cases");
    }
    assert!(!device.log().is_empty() && !device.overflowed());
}

#[test]
fn a_shared_queue() {
    certify("a shared queue", SoftwareDevice::new(DeviceOptions::default()));
}

#[test]
fn a_dedicated_queue_of_two_entries_is_never_given_more() {
    let options =
        DeviceOptions { mode: QueueMode::Dedicated, entries: 2, max_transfer_bytes: 4096, ..DeviceOptions::default() };
    certify("a dedicated queue", SoftwareDevice::new(options));
}

#[test]
fn a_queue_with_batches() {
    let device =
        SoftwareDevice::new(DeviceOptions { max_batch: 5, max_transfer_bytes: 4096, ..DeviceOptions::default() });
    certify("a queue with batches", device);
}

#[test]
fn every_third_descriptor_meets_a_missing_page() {
    let device = SoftwareDevice::with_plan(DeviceOptions::default(), |number, _| match number % 3 {
        2 => Behaviour::PageFault { done: (number * 997 % 5000) as u32, backward: number % 2 == 0 },
        _ => Behaviour::Run,
    });
    certify("page faults", device);
}
