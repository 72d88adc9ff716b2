//! Who is given the engine: by default, by demand, by cost, and with which flags.
#![allow(clippy::unwrap_used)]

mod scene;

use std::path::Path;

use datapipes_core::backend::Backend;
use datapipes_core::{Constraints, CoreCache, Dram, ErrorKind, Locator, Persistence, Pmem, PmemOptions, Span};
use datapipes_dma::{DescriptorFlags, DsaBackend, MoveCost, QueueDiscovery, SplitCost};
use datapipes_testkit::{TempFolder, bounded};
use scene::{DeviceOptions, SoftwareDevice, machine_with, pair};

const LEN: usize = 1 << 20;

#[test]
fn without_a_measurement_a_core_copies_and_the_route_says_why() {
    bounded("without a measurement a core copies and the route says why", || {
        let device = SoftwareDevice::new(DeviceOptions::default());
        let (source, target) = pair(LEN);
        let pipe = device.machine().connect(&source, &target).unwrap();
        assert_eq!(pipe.route().primitives(), ["copy-by-size"]);
        let why = pipe.route().rejected.iter().find(|r| r.primitive == "dsa-move").unwrap();
        assert!(why.why.contains("estimated") && why.why.contains("never run on hardware"), "{why:?}");
        pipe.transfer(Span { source: 0, target: 0, len: 1000 }).unwrap();
        assert!(device.log().is_empty());
    });
}

#[test]
fn a_measured_engine_that_is_faster_is_taken() {
    bounded("a measured engine that is faster is taken", || {
        let device = SoftwareDevice::new(DeviceOptions::default());
        let cost = MoveCost { latency_ns: 1000.0, bytes_per_s: 1e12, measured: true, split: None };
        let machine = machine_with(device.backend().with_cost(cost));
        let (source, target) = pair(LEN);
        assert!(machine.connect(&source, &target).unwrap().route().primitives()[0].starts_with("dsa-move"));
        // Its own measurement is of this model: slower than a core.
        let cost = device.backend().measure().unwrap();
        assert!(cost.measured && cost.latency_ns > 0.0 && cost.bytes_per_s > 0.0);
        let split = cost.split.unwrap();
        assert!(split.core_bytes_per_s > 0.0 && split.bytes_per_s > 0.0, "{cost:?}");
    });
}

#[test]
fn saved_costs_are_read_back_and_others_refused() {
    bounded("saved costs are read back and others refused", || {
        let folder = TempFolder::new().unwrap();
        let path = folder.path("cost.dsa.json");
        assert_eq!(MoveCost::load_from(&path).unwrap_err().kind(), ErrorKind::NotFound);
        let cost = MoveCost { latency_ns: 1234.5, bytes_per_s: 2.5e10, measured: true, split: None };
        cost.save_as(&path).unwrap();
        assert_eq!(MoveCost::load_from(&path).unwrap(), cost);
        let split = Some(SplitCost { core_bytes_per_s: 1e10, bytes_per_s: 3e10 });
        let both = MoveCost { split, ..cost };
        both.save_as(&path).unwrap();
        assert_eq!(MoveCost::load_from(&path).unwrap(), both);
        // Costs that an older version saved have no split.
        std::fs::write(&path, r#"{"latency_ns": 1234.5, "bytes_per_s": 2.5e10, "measured": true}"#).unwrap();
        assert_eq!(MoveCost::load_from(&path).unwrap(), cost);
        let bad_split = r#"{"latency_ns": 1.0, "bytes_per_s": 1.0, "measured": true,
            "split": {"core_bytes_per_s": 0.0, "bytes_per_s": 1.0}}"#;
        for wrong in ["", "{}", r#"{"latency_ns": 0.0, "bytes_per_s": 1.0, "measured": true}"#, bad_split] {
            std::fs::write(&path, wrong).unwrap();
            assert_eq!(MoveCost::load_from(&path).unwrap_err().kind(), ErrorKind::Corrupt, "{wrong}");
        }
        // Costs are asked for only where there is a queue.
        let device = SoftwareDevice::new(DeviceOptions::default());
        let (source, target) = pair(LEN);
        let fast = MoveCost { bytes_per_s: 1e12, ..cost };
        let machine = machine_with(device.backend().calibrated_by(|| Some(fast)));
        assert!(machine.connect(&source, &target).unwrap().route().hops[0].quality.offload);
        let nothing = QueueDiscovery::under(Path::new("/nonexistent"));
        let _ = DsaBackend::with(nothing, |_| unreachable!("there is no queue"))
            .calibrated_by(|| unreachable!("nobody asks"));
    });
}

#[test]
fn a_demand_for_offload_is_met_by_the_engine_or_refused_with_the_reason() {
    bounded("a demand for offload is met by the engine or refused with the reason", || {
        let device = SoftwareDevice::new(DeviceOptions::default());
        let (source, target) = pair(LEN);
        let offload = Constraints::default().require_offload(true);
        let pipe = device.machine().connect_with(&source, &target, &offload).unwrap();
        assert!(pipe.route().hops[0].quality.offload);
        let nothing = QueueDiscovery::under(Path::new("/nonexistent"));
        let machine = machine_with(DsaBackend::with(nothing, |_| unreachable!("there is no queue")));
        let e = machine.connect_with(&source, &target, &offload).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.to_string().contains("dsa-move: no driver"), "{e}");
        assert!(e.to_string().contains("copy-by-size: offload is required"), "{e}");
    });
}

#[test]
fn whether_bytes_go_to_the_cache_is_a_flag_of_each_descriptor() {
    bounded("whether bytes go to the cache is a flag of each descriptor", || {
        let cases = [
            (Constraints::default().only(vec!["dsa-move".into()]), false),
            (Constraints::default().only(vec!["dsa-move-to-cache".into()]), true),
            (Constraints::default().require_offload(true).bypass_processor_cache(true), false),
            (Constraints::default().require_offload(true).fill_processor_cache(true), true),
        ];
        for (constraints, to_cache) in cases {
            let device = SoftwareDevice::new(DeviceOptions::default());
            let (source, target) = pair(LEN);
            let pipe = device.machine().connect_with(&source, &target, &constraints).unwrap();
            pipe.transfer(Span { source: 3, target: 5, len: 100_000 }).unwrap();
            let log = device.log();
            assert_eq!(log.len(), 100_000_usize.div_ceil(16 << 10));
            for descriptor in log {
                assert_eq!(descriptor.flags.has(DescriptorFlags::CACHE_CONTROL), to_cache);
                let always = DescriptorFlags::COMPLETION_VALID | DescriptorFlags::REQUEST_COMPLETION;
                assert!(descriptor.flags.has(always) && !descriptor.flags.has(DescriptorFlags::BLOCK_ON_FAULT));
            }
        }
    });
}

#[test]
fn the_queue_depth_and_the_length_of_a_request_are_the_callers() {
    bounded("the queue depth and the length of a request are the callers", || {
        let device = SoftwareDevice::new(DeviceOptions::default());
        let (source, target) = pair(LEN);
        let constraints = Constraints::default().require_offload(true).queue_depth(Some(2)).request_bytes(Some(5000));
        let pipe = device.machine().connect_with(&source, &target, &constraints).unwrap();
        pipe.transfer(Span { source: 0, target: 0, len: 50_000 }).unwrap();
        let counters = pipe.report().hops[0].counters.clone();
        assert_eq!((counters.requests, counters.max_outstanding), (10, 2));
    });
}

/// A file with the facts of persistent memory.
struct AsIfPersistent(Pmem);

impl Locator for AsIfPersistent {
    fn endpoint(&self) -> datapipes_core::Endpoint {
        let plain = self.0.endpoint();
        let facts =
            datapipes_core::locator::PlaceFacts { persistence: Persistence::OnCompletion, ..(*plain.facts).clone() };
        datapipes_core::Endpoint { facts: std::sync::Arc::new(facts), handle: plain.handle }
    }
}

#[test]
fn a_cores_cache_and_what_must_survive_are_refused_with_reasons() {
    bounded("a cores cache and what must survive are refused with reasons", || {
        let device = SoftwareDevice::new(DeviceOptions::default());
        let machine = device.machine();
        let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let dram = Dram::allocate(LEN).unwrap();
        let offload = Constraints::default().require_offload(true);
        if let Some(core) = machine.topology().usable_cores().next() {
            let cache = CoreCache::at_level(core, 2, &Dram::allocate(64 << 10).unwrap()).unwrap();
            let e = machine.connect_with(&dram, &cache, &offload).unwrap_err();
            assert!(e.to_string().contains("not to a core's cache"), "{e}");
        }
        let options = PmemOptions::default().len(LEN as u64).emulated(true);
        let pmem = AsIfPersistent(Pmem::open_with(folder.path("pmem"), options).unwrap());
        let e = machine.connect_with(&dram, &pmem, &offload).unwrap_err();
        assert!(e.to_string().contains("not flushed to what survives"), "{e}");
        // From it, and into a place that survives only once it is synced, an engine may copy.
        assert!(machine.connect_with(&pmem, &dram, &offload).is_ok());
        assert!(machine.connect_with(&dram, &pmem.0, &offload).is_ok());
    });
}

#[test]
fn what_the_machine_shows_says_that_no_hardware_ran_it() {
    bounded("what the machine shows says that no hardware ran it", || {
        let backend = SoftwareDevice::new(DeviceOptions::default()).backend();
        for primitive in backend.primitives() {
            let found = primitive.available.unwrap();
            assert!(primitive.what.contains("never run on hardware"), "{}", primitive.what);
            assert!(found.contains("wq0.0 of model0: shared"), "{found}");
        }
        assert_eq!(backend.knobs()[0].name, "dsa_wq0.0");
    });
}
