//! All ways to change a file through memory that maps it: a cache over the file returns no old
//! bytes afterwards.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::sync::Arc;

use datapipes_cache::{CachePolicy, FineGrained};
use datapipes_core::locator::EndpointHandle;
use datapipes_core::memory::lease_pair;
use datapipes_core::{
    Constraints, CoreCache, Dram, Endpoint, ErrorKind, Locator, Pmem, PmemOptions, Runtime, Span, Ssd,
};
use fixture::{File, machine, noise, small};

const LEN: usize = 256 << 10;
/// The offset and length of each write: within a page of the file, and within the part that the
/// core's cache covers.
const AT: usize = 5000;
const MANY: usize = 300;

/// The state that the ways share: a mapped file, and memory with the bytes to write.
struct Scene {
    pmem: Pmem,
    new: Dram,
    /// A file with the bytes to write, for pipes that read a file.
    from: Ssd,
    runtime: Runtime,
}

/// A foreign place over memory, which reports no file.
struct Foreign(Dram);

impl Locator for Foreign {
    fn endpoint(&self) -> Endpoint {
        let plain = Dram::allocate(4096).unwrap().endpoint();
        let range = self.0.memory().clone();
        let facts = datapipes_core::locator::PlaceFacts { len: Some(range.len() as u64), ..(*plain.facts).clone() };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Memory(range) }
    }
}

impl Scene {
    /// The file as memory without a name.
    fn dram(&self) -> Dram {
        Dram::over(self.pmem.memory().clone())
    }

    fn bytes(&self) -> Vec<u8> {
        self.new.memory().to_vec().unwrap()
    }

    /// Writes by a pipe from memory, and by one from a file, in each flavor.
    fn by_pipes(&self, target: &dyn Locator, at: u64, way: usize) {
        let span = Span { source: 0, target: at, len: MANY as u64 };
        let source: [&dyn Locator; 2] = [&self.new, &self.from];
        let source = source[way % 2];
        match way / 2 {
            0 => machine().connect(source, target).unwrap().transfer(span).unwrap(),
            1 => {
                let pipe = self.runtime.connect(source, target).unwrap();
                pipe.transfer(span).unwrap().wait().unwrap();
            }
            2 => {
                let pipe = machine().connect(source, target).unwrap();
                let mut batch = pipe.batch();
                batch.submit([(1, span)]);
                while let Some(finished) = batch.next().unwrap() {
                    finished.result.unwrap();
                }
            }
            _ => {
                let fd = self.runtime.connect_fd(source, target).unwrap();
                fd.submit(span).unwrap();
                fd.complete_wait().unwrap().result.unwrap();
            }
        }
    }
}

type Way = (String, Box<dyn Fn(&Scene)>);

fn ways() -> Vec<Way> {
    let mut ways: Vec<Way> = Vec::new();
    let mut way = |name: &str, work: fn(&Scene)| ways.push((name.to_owned(), Box::new(work)));
    way("Pmem::write", |s| s.pmem.write(AT, &s.bytes()).unwrap());
    way("Pmem::range, write", |s| s.pmem.range(4096, 8192).unwrap().write(AT - 4096, &s.bytes()).unwrap());
    way("MemoryRange::write", |s| s.pmem.memory().write(AT, &s.bytes()).unwrap());
    way("MemoryRange::range, write", |s| {
        s.pmem.memory().range(4000, 9000).unwrap().write(AT - 4000, &s.bytes()).unwrap();
    });
    way("the region anew, write", |s| {
        s.pmem.memory().region().range(AT, MANY).unwrap().write(0, &s.bytes()).unwrap();
    });
    way("Dram::over, write", |s| s.dram().memory().write(AT, &s.bytes()).unwrap());
    way("a lease that is vouched for", |s| {
        let range = s.pmem.memory().range(AT, MANY).unwrap();
        // SAFETY: only this test accesses the bytes, one way after the other.
        unsafe { range.lease_mut_unchecked() }.unwrap().copy_from_slice(&s.bytes());
    });
    way("lease_pair", |s| {
        // SAFETY: it is called with this number of bytes leased for reading and for writing.
        let copy = |from: *const u8, to: *mut u8| unsafe { from.copy_to_nonoverlapping(to, MANY) };
        lease_pair((s.new.memory(), 0), (s.pmem.memory(), AT), MANY, copy).unwrap();
    });
    for pipe in 0..8 {
        type Target = fn(&Scene) -> Option<(Box<dyn Locator>, u64)>;
        let targets: [(&str, Target); 5] = [
            ("Pmem", |s| Some((Box::new(s.pmem.clone()), AT as u64))),
            ("Dram::over", |s| Some((Box::new(s.dram()), AT as u64))),
            ("Dram::over, range", |s| Some((Box::new(s.dram().range(4096, 8192).unwrap()), AT as u64 - 4096))),
            ("CoreCache", |s| {
                let core = machine().topology().usable_cores().next()?;
                let cache = CoreCache::over(core, &s.dram().range(4096, 8192).unwrap()).unwrap();
                Some((Box::new(cache), AT as u64 - 4096))
            }),
            ("a place of somebody else's", |s| Some((Box::new(Foreign(s.dram())), AT as u64))),
        ];
        for (name, target) in targets {
            let work = move |s: &Scene| match target(s) {
                Some((target, at)) => s.by_pipes(&*target, at, pipe),
                None => {
                    println!("SKIPPED: a pipe into {name}: no usable core was discovered");
                    s.pmem.write(AT, &s.bytes()).unwrap();
                }
            };
            ways.push((format!("pipe {pipe} into {name}"), Box::new(work)));
        }
    }
    ways
}

#[test]
fn no_way_to_write_mapped_memory_leaves_old_bytes_in_the_cache() {
    let bytes = noise(LEN, 11);
    let file = File::with(&bytes);
    let fine = FineGrained::over(&Ssd::open_rw(file.path()).unwrap(), small(CachePolicy::default())).unwrap();
    let pmem = Pmem::open_with(file.path(), PmemOptions::default().emulated(true)).unwrap();
    let (from, new) = (File::with(&[0; 4096]), Dram::allocate(MANY).unwrap());
    let from = Ssd::open_rw(from.path()).unwrap();
    let scene = Scene { pmem, new, from, runtime: Runtime::start(machine()).unwrap() };
    let to_file = machine().connect(&scene.new, &scene.from).unwrap();
    let mut stale = Vec::new();
    for (number, (name, way)) in ways().iter().enumerate() {
        let mut out = vec![0; MANY];
        // The second read returns cached bytes.
        fine.read(AT as u64, &mut out).unwrap();
        fine.read(AT as u64, &mut out).unwrap();
        let new = noise(MANY, 1000 + number as u64);
        scene.new.memory().write(0, &new).unwrap();
        to_file.transfer(Span { source: 0, target: 0, len: MANY as u64 }).unwrap();
        way(&scene);
        let mut there = vec![0; MANY];
        scene.pmem.read(AT, &mut there).unwrap();
        assert!(there == new, "{name} did not write");
        fine.read(AT as u64, &mut out).unwrap();
        if out != new {
            stale.push(name.clone());
            fine.invalidate(0..LEN as u64);
        }
    }
    assert!(stale.is_empty(), "old bytes after {} of {} ways: {stale:#?}", stale.len(), ways().len());
}

#[test]
fn a_lease_for_writing_on_mapped_memory_is_a_change_until_it_ends() {
    let file = File::with(&noise(LEN, 12));
    let mut config = small(CachePolicy::default());
    config.patience = std::time::Duration::from_millis(20);
    let fine = FineGrained::over(&Ssd::open_rw(file.path()).unwrap(), config).unwrap();
    let pmem = Pmem::open_with(file.path(), PmemOptions::default().emulated(true)).unwrap();
    let mut out = [0; 64];
    fine.read(AT as u64, &mut out).unwrap();
    // SAFETY: only this test accesses the bytes.
    let mut lease = unsafe { pmem.memory().range(AT, 64).unwrap().lease_mut_unchecked() }.unwrap();
    assert_eq!(fine.read(AT as u64, &mut out).unwrap_err().kind(), ErrorKind::Busy, "they may change at any moment");
    fine.read(AT as u64 + 4096, &mut out).unwrap();
    lease.fill(9);
    drop(lease);
    fine.read(AT as u64, &mut out).unwrap();
    assert_eq!(out, [9; 64]);
    // A refused lease is not a change.
    let reader = pmem.memory().range(AT, 64).unwrap().raw_lease(datapipes_core::memory::Access::Read).unwrap();
    // SAFETY: it is not granted.
    assert_eq!(unsafe { pmem.memory().lease_mut_unchecked() }.unwrap_err().kind(), ErrorKind::Busy);
    fine.read(AT as u64, &mut out).unwrap();
    drop(reader);
}

#[test]
fn what_is_over_mapped_memory_states_what_the_file_keeps() {
    let file = File::with(&noise(LEN, 13));
    let pmem = Pmem::open_with(file.path(), PmemOptions::default().emulated(true)).unwrap();
    let dram = Dram::over(pmem.memory().clone());
    let memory = Dram::allocate(LEN).unwrap();
    let keeps = pmem.endpoint().facts.persistence;
    assert_eq!(dram.endpoint().facts.persistence, keeps);
    let (by_name, without) = (machine().connect(&memory, &pmem).unwrap(), machine().connect(&memory, &dram).unwrap());
    assert_eq!(by_name.route().primitives(), without.route().primitives());
    let foreign = Foreign(dram.clone());
    let route = machine().explain(&foreign, &memory, &Constraints::default()).unwrap();
    assert_eq!(route.primitives(), machine().connect(&pmem, &memory).unwrap().route().primitives());
    // With a core's cache over them, lines are loaded in place.
    let Some(core) = machine().topology().usable_cores().next() else {
        return println!("SKIPPED: a core's cache: no usable core was discovered");
    };
    let part = dram.range(8192, 4096).unwrap();
    let cache = CoreCache::over(core, &part).unwrap();
    assert_eq!(cache.endpoint().facts.persistence, keeps);
    let whole = Span { source: 0, target: 0, len: 4096 };
    let load = machine().connect(&part, &cache).unwrap();
    assert_eq!(load.route().primitives(), ["load-into-cache"], "{}", load.route());
    load.transfer(whole).unwrap();
    let back = machine().connect(&cache, &part).unwrap();
    back.transfer(whole).unwrap();
}
