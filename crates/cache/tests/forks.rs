//! A cache in a child that was made by `fork` belongs to the parent.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::cell::RefCell;

use datapipes_cache::{CachePolicy, ExternalChanges, FineGrained};
use datapipes_core::{Dram, Runtime, Span, Ssd};
use datapipes_testkit::child::{assert_forked_error, in_child};
use fixture::{File, machine, noise, small};

#[test]
fn a_cache_stays_the_parents_and_its_maintenance_thread_goes_on() {
    let bytes = noise(1 << 20, 7);
    let file = File::with(&bytes);
    let mut config = small(CachePolicy::default());
    // The thread applies the time to live. A file as young as this would be in doubt.
    (config.maintenance, config.outside) = (true, ExternalChanges::Never);
    let fine = FineGrained::over(&Ssd::open_rw(file.path()).unwrap(), config).unwrap();
    let runtime = Runtime::start(machine()).unwrap();
    let asynchronous = fine.on(&runtime, 2).unwrap();
    let mut out = [0; 64];
    for _ in 0..2 {
        fine.read(4096, &mut out).unwrap();
    }
    let held = fine.get(4096, 64).unwrap();
    let reading = RefCell::new(Some(asynchronous.read(8192, 64)));
    let writer = fine.writer().unwrap();
    let before = fine.metrics();
    let all = RefCell::new(Some((fine, asynchronous)));
    in_child(&|| {
        let (fine, asynchronous) = all.take().unwrap();
        let mut out = [0; 64];
        assert_forked_error(fine.read(4096, &mut out));
        assert_forked_error(fine.get(4096, 64));
        assert_forked_error(fine.gather(&[0], 64, &mut out));
        assert_forked_error(fine.gather_ranges(&[(0, 64)], &mut out));
        assert_forked_error(fine.writer());
        assert_forked_error(fine.on(&runtime, 1));
        assert_forked_error(fine.save(file.path().with_extension("saved")));
        assert_forked_error(fine.load(file.path()));
        assert_forked_error(fine.look_outside());
        assert_forked_error(writer.write(0, b"x"));
        assert_forked_error(runtime.block_on(reading.take().unwrap()));
        assert_forked_error(runtime.block_on(asynchronous.read(0, 64)));
        let memory = Dram::allocate(4096).unwrap();
        let span = Span { source: 4096, target: 0, len: 64 };
        assert_forked_error(machine().connect(&fine, &memory).and_then(|pipe| pipe.transfer(span)));
        fine.clear();
        fine.maintain();
        assert_eq!(fine.metrics().hits, 0);
        assert_eq!(held[..], bytes[4096..4160], "what is held is held");
        drop((fine, asynchronous));
        // The child opens a cache of its own.
        let own = FineGrained::over(&Ssd::open_rw(file.path()).unwrap(), small(CachePolicy::default())).unwrap();
        own.read(8192, &mut out).unwrap();
        assert_eq!(out[..], bytes[8192..8256]);
    });
    let (fine, _asynchronous) = all.into_inner().unwrap();
    assert_eq!(fine.metrics().hits, before.hits, "the child cleared nothing and read nothing");
    fine.read(4096, &mut out).unwrap();
    assert_eq!(fine.metrics().hits, before.hits + 1);
    assert_eq!(runtime.block_on(reading.into_inner().unwrap()).unwrap()[..], bytes[8192..8256]);
    assert!(threads().iter().any(|name| name == "fine-background"), "{:?}", threads());
}

fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).collect()
}
