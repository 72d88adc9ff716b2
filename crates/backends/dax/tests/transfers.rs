//! Routes for persistent memory, the bytes that arrive, and missing pages, on plain files.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

mod scene;

use std::sync::Arc;

use datapipes_core::backend::{Constraints, Job, Mover, OfferQuery};
use datapipes_core::locator::PlaceFacts;
use datapipes_core::memory::Access;
use datapipes_core::{CoreCache, Dram, Endpoint, Error, ErrorKind, Locator, Persistence, Span, Ssd};
use scene::{AsIfPersistent, Scene, machine};

const LEN: u64 = 256 << 10;

fn span(source: u64, target: u64, len: u64) -> Span {
    Span { source, target, len }
}

fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|n| (n * 7 / 3 % 251) as u8).collect()
}

fn dram() -> Dram {
    let dram = Dram::allocate(LEN as usize).unwrap();
    dram.lease_mut().unwrap().copy_from_slice(&pattern(LEN));
    dram
}

#[test]
fn a_copy_that_does_not_flush_is_refused_with_its_reason() {
    let (scene, machine) = (Scene::new("refused"), machine());
    let (pmem, dram) = (scene.pmem(LEN), dram());
    let up = machine.connect(&dram, &pmem).unwrap();
    assert_eq!(up.route().primitives(), ["pmem-store"]);
    let cpu: Vec<_> = up.route().rejected.iter().filter(|r| r.backend == "cpu").collect();
    assert!(cpu.len() == 5 && cpu.iter().all(|r| r.why.contains("does not flush")), "{}", up.route());
    let text = format!("{}{}", up.route(), up.report());
    assert!(text.contains("?emulated") && text.contains("survive once they are synced"), "{text}");
    let down = machine.connect(&pmem, &dram).unwrap();
    assert_eq!(down.route().primitives(), ["pmem-load"]);
    assert!(
        down.route().rejected.iter().any(|r| r.backend == "cpu" && r.why.contains("not guarded")),
        "{}",
        down.route()
    );
    let only_copies = Constraints::default().only(vec!["memcpy".into()]);
    let e = machine.connect_with(&dram, &pmem, &only_copies).unwrap_err();
    assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("memcpy: it does not flush"), "{e}");
}

#[test]
fn past_the_caches_and_into_them_as_asked() {
    let (scene, machine) = (Scene::new("caches"), machine());
    let (pmem, dram) = (scene.pmem(LEN), dram());
    let bypass = Constraints::default().bypass_processor_cache(true);
    let down = machine.connect_with(&pmem, &dram, &bypass).unwrap();
    assert_eq!(down.route().primitives(), ["pmem-load-nt"]);
    let up = machine.connect_with(&dram, &pmem, &bypass).unwrap();
    assert_eq!(up.route().primitives(), ["pmem-store"]);
    assert!(up.route().rejected.iter().any(|r| r.primitive == "pmem-store-writeback" && r.why.contains("displaces")));
    up.transfer(span(10, 300, 50_000)).unwrap();
    dram.lease_mut().unwrap().fill(0);
    down.transfer(span(300, 5, 50_000)).unwrap();
    assert_eq!(dram.lease().unwrap()[5..50_005], pattern(LEN)[10..50_010]);
    let Some(core) = machine.topology().usable_cores().next() else {
        return println!("SKIPPED: caches: no usable core");
    };
    let cache = CoreCache::over(core, &dram.range(0, 64 << 10).unwrap()).unwrap();
    let load = machine.connect(&pmem, &cache).unwrap();
    assert_eq!(load.route().primitives(), ["pmem-load"]);
    assert!(load.route().rejected.iter().any(|r| r.primitive == "pmem-load-nt" && r.why.contains("bypass the caches")));
}

#[test]
fn bytes_from_a_file_to_persistent_memory_are_flushed_by_a_second_hop() {
    let (scene, machine) = (Scene::new("flush"), machine());
    let place = AsIfPersistent(scene.pmem(LEN));
    let file = Ssd::unlinked_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.preallocate(LEN).unwrap();
    let dram = dram();
    machine.connect(&dram, &file).unwrap().transfer(span(0, 0, LEN)).unwrap();
    let up = machine.connect(&file, &place).unwrap();
    let primitives = up.route().primitives();
    assert!(primitives.len() == 2 && primitives[1] == "pmem-flush", "{}", up.route());
    assert!(
        up.route().rejected.iter().any(|r| r.backend == "file" && r.why.contains("does not flush")),
        "{}",
        up.route()
    );
    up.transfer(span(4096, 100, LEN - 8192)).unwrap();
    let part = pattern(LEN)[4096..LEN as usize - 4096].to_vec();
    assert_eq!(place.0.memory().to_vec().unwrap()[100..100 + part.len()], part);
    assert_eq!(up.report().hops[1].counters.bytes, LEN - 8192);
    // The way back, and between two of them. The emulated one takes the file's bytes in one hop,
    // since it promises less.
    let other = Scene::new("flush-other");
    let second = AsIfPersistent(other.pmem(LEN));
    let between = machine.connect(&place, &second).unwrap();
    assert_eq!(between.route().primitives(), ["pmem-store"]);
    between.transfer(span(100, 4000, 9999)).unwrap();
    assert_eq!(second.0.memory().to_vec().unwrap()[4000..13_999], part[..9999]);
    let down = machine.connect(&second, &file).unwrap();
    assert_eq!(down.route().hops.len(), 1);
    down.transfer(span(4000, 1, 9999)).unwrap();
    machine.connect(&file, &dram).unwrap().transfer(span(1, 0, 9999)).unwrap();
    assert_eq!(dram.lease().unwrap()[..9999], part[..9999]);
    assert_eq!(machine.connect(&file, &place.0).unwrap().route().hops.len(), 1);
}

#[test]
fn lines_of_persistent_memory_go_into_a_cores_cache_in_place_and_come_back_flushed() {
    let (scene, machine) = (Scene::new("lines"), machine());
    let place = AsIfPersistent(scene.pmem(LEN));
    let Some(core) = machine.topology().usable_cores().next() else {
        return println!("SKIPPED: lines: no usable core");
    };
    let over = |at: usize, len: usize| Dram::over(place.0.memory().range(at, len).unwrap());
    let cache = CoreCache::over(core, &over(4096, 8192)).unwrap();
    let load = machine.connect(&place, &cache).unwrap();
    assert_eq!(load.route().primitives(), ["load-into-cache"], "{}", load.route());
    load.transfer(span(4096 + 100, 100, 8000)).unwrap();
    let back = machine.connect(&cache, &place).unwrap();
    assert_eq!(back.route().primitives(), ["pmem-flush"], "{}", back.route());
    back.transfer(span(100, 4096 + 100, 8000)).unwrap();
    // Bytes that would move are refused, not left without a flush.
    assert_eq!(back.transfer(span(0, 0, 64)).unwrap_err().kind(), ErrorKind::InvalidInput);
    // Lines are handed over from a cache that is itself persistent, like one over real persistent
    // memory.
    let certain = Certain(cache.clone());
    let load = machine.connect(&place, &certain).unwrap();
    assert_eq!(load.route().primitives(), ["load-into-cache"], "{}", load.route());
    assert_eq!(load.transfer(span(0, 0, 64)).unwrap_err().kind(), ErrorKind::Unsupported);
    let back = machine.connect(&certain, &place).unwrap();
    assert_eq!(back.route().primitives(), ["pmem-flush"], "{}", back.route());
    // Bytes that a file brings there are flushed as well.
    let file = Ssd::unlinked_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.preallocate(LEN).unwrap();
    machine.connect(&dram(), &file).unwrap().transfer(span(0, 0, LEN)).unwrap();
    let up = machine.connect(&file, &certain).unwrap();
    assert!(up.route().primitives().contains(&"pmem-flush"), "{}", up.route());
    up.transfer(span(77, 0, 8192)).unwrap();
    assert_eq!(over(4096, 8192).memory().to_vec().unwrap(), pattern(LEN)[77..77 + 8192]);
}

/// A core's cache with the facts of one over real persistent memory.
struct Certain(CoreCache);

impl Locator for Certain {
    fn endpoint(&self) -> Endpoint {
        let plain = self.0.endpoint();
        let facts = PlaceFacts { persistence: Persistence::OnCompletion, ..(*plain.facts).clone() };
        Endpoint { facts: Arc::new(facts), handle: plain.handle }
    }
}

/// Checks that the error reports a missing page, its place, and the bytes done.
fn gone(result: Result<(), Error>, at: std::ops::Range<u64>, done_most: u64) {
    let e = result.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Device, "{e}");
    let offset = e.offset().unwrap();
    assert!(at.contains(&offset), "offset {offset} is not in {at:?}: {e}");
    assert!(e.bytes_done() <= done_most, "{} of {done_most}: {e}", e.bytes_done());
    assert!(e.to_string().contains("is gone") && e.to_string().contains("truncated"), "{e}");
}

#[test]
fn a_truncated_file_is_an_error_with_the_offset_and_the_process_lives() {
    let (scene, machine) = (Scene::new("truncated"), machine());
    let (pmem, dram) = (scene.pmem(LEN), dram());
    let whole = |text: &str| Constraints::default().only(vec![text.into()]);
    let cut = 64 << 10;
    for name in ["pmem-store", "pmem-store-nt", "pmem-store-writeback"] {
        let up = machine.connect_with(&dram, &pmem, &whole(name)).unwrap();
        scene.set_len(cut);
        gone(up.transfer(span(0, 1000, LEN - 1000)), cut..cut + 4096, cut - 1000);
        // A short copy is made while the table of leases is locked. Nothing stays locked or leased.
        gone(up.transfer(span(5, cut + 10, 300)), cut..cut + 4096, 0);
        up.transfer(span(5, 10, 300)).unwrap();
        scene.set_len(LEN);
        up.transfer(span(0, 0, LEN)).unwrap();
        assert_eq!(pmem.memory().to_vec().unwrap(), pattern(LEN));
        assert!(pmem.memory().raw_lease(Access::Write).is_ok(), "a lease was left behind");
        assert_eq!((up.report().hops[0].counters.failed, up.report().bytes()), (2, 300 + LEN));
    }
    for name in ["pmem-load", "pmem-load-nt"] {
        let down = machine.connect_with(&pmem, &dram, &whole(name)).unwrap();
        scene.set_len(cut);
        gone(down.transfer(span(77, 0, LEN - 77)), cut..cut + 4096, cut - 77);
        gone(down.transfer(span(cut + 4096, 0, 64)), cut + 4096..cut + 8192, 0);
        scene.set_len(LEN);
        down.transfer(span(0, 0, LEN)).unwrap();
    }
    let place = AsIfPersistent(pmem.clone());
    let file = Ssd::unlinked_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.preallocate(LEN).unwrap();
    let up = machine.connect(&file, &place).unwrap();
    scene.set_len(cut);
    // Here the kernel meets the page first and returns EFAULT.
    let e = up.transfer(span(0, 0, LEN)).unwrap_err();
    assert_eq!(e.errno(), Some(14), "{e}");
}

#[test]
fn parts_under_the_callers_leases_are_moved_and_checked() {
    let (scene, machine) = (Scene::new("parts"), machine());
    let (pmem, dram) = (scene.pmem(LEN), dram());
    let (source, target) = (dram.endpoint(), pmem.endpoint());
    let constraints = Constraints::default();
    let ask = OfferQuery { source: &source, target: &target, constraints: &constraints, topology: machine.topology() };
    let dax = machine.backends().iter().find(|b| b.name() == "dax").unwrap();
    let Mover::Inline(mover) = dax.open(&ask, "pmem-store").unwrap() else { panic!("inline") };
    let parts = mover.parts().unwrap();
    let job = |source_at: usize, target_at: usize, len: usize, said: u64, access| {
        let lease = |end: &datapipes_core::Endpoint, at, access| {
            end.memory().unwrap().range(at, len).unwrap().raw_lease(access).unwrap()
        };
        let (from, to) = (lease(&source, source_at, Access::Read), lease(&target, target_at, access));
        Job {
            token: 1,
            span: span(source_at as u64, target_at as u64, said),
            source: Some(from),
            target: Some(to),
            notifier: None,
        }
    };
    parts.transfer_part(&mut job(10, 500, 100, 100, Access::Write), 1 << 20).unwrap();
    assert_eq!(pmem.memory().to_vec().unwrap()[500..600], pattern(LEN)[10..110]);
    let kind = |mut job: Job| parts.transfer_part(&mut job, 1 << 20).unwrap_err().kind();
    assert_eq!(kind(job(10, 500, 100, 101, Access::Write)), ErrorKind::InvalidInput);
    assert_eq!(kind(job(10, 500, 100, 100, Access::Read)), ErrorKind::InvalidInput);
    let bare = Job { token: 1, span: span(0, 0, 1), source: None, target: None, notifier: None };
    assert_eq!(kind(bare), ErrorKind::InvalidInput);
    scene.set_len(0);
    let e = parts.transfer_part(&mut job(0, 4096, 4096, 4096, Access::Write), 4096).unwrap_err();
    assert_eq!((e.kind(), e.offset()), (ErrorKind::Device, Some(4096)), "{e}");
    assert_eq!((mover.counters().bytes, mover.counters().failed), (100, 4));
}
