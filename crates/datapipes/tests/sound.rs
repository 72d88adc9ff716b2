//! What safe programs cannot do: see bytes change under a reference, move them without a lease that
//! permits it, or reach memory that has another owner by now.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datapipes::backend::{Job, Mover, OfferQuery};
use datapipes::locator::Reader;
use datapipes::memory::{Access, MemoryRange, Region};
use datapipes::{
    Constraints, CoreCache, Dram, Endpoint, ErrorKind, Locator, Machine, MapOptions, Pmem, PmemOptions, Pool, Result,
    Runtime, Span, Ssd,
};
use datapipes_testkit::TempFolder;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::AsFd;

const LEN: usize = 64 << 10;

fn folder() -> TempFolder {
    TempFolder::under(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap()
}

fn whole() -> Span {
    Span { source: 0, target: 0, len: LEN as u64 }
}

fn file_of(byte: u8) -> Ssd {
    let ssd = Ssd::unlinked_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let memory = Dram::allocate(LEN).unwrap();
    memory.lease_mut().unwrap().fill(byte);
    datapipes::discover().connect(&memory, &ssd).unwrap().transfer(whole()).unwrap();
    ssd
}

/// The movers of every backend for a pair, by name.
fn movers(machine: &Machine, source: &Endpoint, target: &Endpoint) -> Vec<(&'static str, Mover)> {
    let constraints = Constraints::default();
    let ask = OfferQuery { source, target, constraints: &constraints, topology: machine.topology() };
    let mut movers = Vec::new();
    for backend in machine.backends() {
        for offer in backend.offers(&ask) {
            if offer.verdict.is_ok() {
                movers.push((offer.primitive, backend.open(&ask, offer.primitive).unwrap()));
            }
        }
    }
    movers
}

/// Carries out a job by a mover. The job comes back or is gone.
fn carry_out(mover: &Mover, mut job: Job) -> Option<Result<()>> {
    let len = job.span.len;
    match mover {
        Mover::Inline(inline) => inline.parts().map(|parts| parts.transfer_part(&mut job, len)),
        Mover::Queued(queued) => Some(queued.submit(job).map_err(|(_, e)| e).and_then(|()| {
            let mut done = Vec::new();
            queued.complete(true, &mut done)?;
            done.remove(0).result
        })),
    }
}

fn job(source: Option<&MemoryRange>, target: Option<&MemoryRange>, access: Access) -> Job {
    let lease = |range: &MemoryRange, access| range.raw_lease(access).unwrap();
    Job {
        token: 1,
        span: whole(),
        source: source.map(|range| lease(range, Access::Read)),
        target: target.map(|range| lease(range, access)),
        notifier: None,
    }
}

#[test]
fn no_mover_writes_under_a_lease_for_reading() {
    let (machine, folder) = (datapipes::discover(), folder());
    let (file, memory, target) = (file_of(7), Dram::allocate(LEN).unwrap(), Dram::allocate(LEN).unwrap());
    memory.lease_mut().unwrap().fill(7);
    let options = PmemOptions::default().len(LEN as u64).emulated(true);
    let pmem = Pmem::open_with(folder.path("pmem"), options).unwrap();
    let core = machine.topology().usable_cores().next().unwrap();
    let cache = CoreCache::over(core, &target).unwrap();
    let sources: [&dyn Locator; 3] = [&file, &memory, &pmem];
    let targets: [&dyn Locator; 3] = [&target, &cache, &pmem];
    let mut tried = 0;
    for source in sources {
        for into in targets {
            let (from, to) = (source.endpoint(), into.endpoint());
            let Some(memory) = to.memory() else { continue };
            if from.memory().is_some_and(|from| from.overlaps(memory)) {
                continue;
            }
            for (name, mover) in movers(&machine, &from, &to) {
                let before = memory.to_vec().unwrap();
                // A holder of a lease for reading sees the bytes, as others do that may lease them
                // at the same time.
                let held = memory.raw_lease(Access::Read).unwrap();
                if let Some(outcome) = carry_out(&mover, job(from.memory(), Some(memory), Access::Read)) {
                    let kind = outcome.map_err(|e| e.kind());
                    assert_eq!(kind, Err(ErrorKind::InvalidInput), "{name} from {from:?} to {to:?}");
                    tried += 1;
                }
                drop(held);
                assert!(memory.to_vec().unwrap() == before, "{name} from {from:?} to {to:?} wrote");
                if let Some(outcome) = carry_out(&mover, job(from.memory(), Some(memory), Access::Write)) {
                    outcome.unwrap_or_else(|e| panic!("{name} from {from:?} to {to:?}: {e}"));
                }
            }
        }
    }
    assert!(tried > 10, "{tried}");
}

#[test]
fn no_mover_of_files_moves_memory_that_is_not_its_own() {
    let machine = datapipes::discover();
    let (file, memory) = (file_of(7), Dram::allocate(2 * LEN).unwrap());
    let (inside, other) = (memory.range(0, LEN).unwrap(), Dram::allocate(2 * LEN).unwrap());
    let strangers = [memory.range(LEN, LEN).unwrap(), memory.range(1, LEN).unwrap(), other.range(0, LEN).unwrap()];
    let (from, to) = (file.endpoint(), inside.endpoint());
    for (there, back, reads) in [(&from, &to, true), (&to, &from, false)] {
        for (name, mover) in movers(&machine, there, back) {
            for stranger in &strangers {
                let memory = Some(stranger.memory());
                let job = if reads { job(None, memory, Access::Write) } else { job(memory, None, Access::Write) };
                let kind = carry_out(&mover, job).unwrap().map_err(|e| e.kind());
                assert_eq!(kind, Err(ErrorKind::InvalidInput), "{name}: {stranger:?}");
            }
            let memory = Some(inside.memory());
            let job = if reads { job(None, memory, Access::Write) } else { job(memory, None, Access::Write) };
            carry_out(&mover, job).unwrap().unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

#[test]
fn memory_of_a_pool_stays_with_the_pipes_that_are_connected_to_it() {
    let (machine, file) = (datapipes::discover(), file_of(7));
    let runtime = Runtime::start(&machine).unwrap();
    let pool = Pool::new(2 * LEN, MapOptions::default()).unwrap();
    let first = Dram::from_pool(&pool, LEN).unwrap();
    let pipe = machine.connect(&file, &first).unwrap();
    let side = runtime.connect(&file, &first).unwrap();
    let descriptor = runtime.connect_fd(&first, &file).unwrap();
    drop(first);
    // Another place never gets bytes that a pipe can still write.
    let second = Dram::from_pool(&pool, LEN).unwrap();
    second.lease_mut().unwrap().fill(1);
    let e = Dram::from_pool(&pool, LEN).unwrap_err();
    assert!(e.kind() == ErrorKind::OutOfMemory && e.to_string().contains("pipes"), "{e}");
    pipe.transfer(whole()).unwrap();
    side.transfer(whole()).unwrap().wait().unwrap();
    assert!(second.lease().unwrap().iter().all(|byte| *byte == 1));
    drop(pipe);
    assert!(Dram::from_pool(&pool, LEN).is_err());
    drop((side, descriptor));
    runtime.drain();
    let third = take_when_free(&pool);
    // A lease keeps them too, and so does a range of a range.
    let part = third.range(100, 10).unwrap();
    let lease = part.lease().unwrap();
    drop((part, third));
    assert!(Dram::from_pool(&pool, LEN).is_err());
    drop(lease);
    take_when_free(&pool);
}

/// The coordinator drops a pipe of the runtime a moment after it was told.
fn take_when_free(pool: &Pool) -> Dram {
    for _ in 0..60_000 {
        if let Ok(dram) = Dram::from_pool(pool, LEN) {
            return dram;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("memory did not return to its pool: {} bytes are there", pool.available());
}

fn kinds(memory: &MemoryRange) -> [Option<ErrorKind>; 2] {
    [memory.lease().err().map(|e| e.kind()), memory.lease_mut().err().map(|e| e.kind())]
}

#[test]
fn nobody_gets_a_reference_to_bytes_that_others_can_change() {
    let (machine, folder) = (datapipes::discover(), folder());
    let options = PmemOptions::default().len(LEN as u64).emulated(true);
    let (one, two) = (
        Pmem::open_with(folder.path("pmem"), options).unwrap(),
        Pmem::open_with(folder.path("pmem"), options).unwrap(),
    );
    let fd = memfd_create("sound", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, LEN as u64).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    let map = |access| Region::map_sealed(fd.as_fd(), LEN as u64, access, Box::new(())).unwrap();
    let (a, b) = (map(Access::Write), map(Access::Read));
    let [a, b] = [a, b].map(|region| region.range(0, LEN).unwrap());
    // The range may be reached in any way: as a part of it, by another locator over it, or by a
    // pipe's end.
    let parts = [one.memory().clone(), two.range(10, 100).unwrap().memory().clone(), a.clone(), b.clone()];
    for memory in parts.iter().chain([one.endpoint().memory().unwrap(), Dram::over(a.clone()).memory()]) {
        assert_eq!(kinds(memory), [Some(ErrorKind::Unsupported); 2], "{memory:?}");
    }
    let core = machine.topology().usable_cores().next().unwrap();
    let cache = CoreCache::over(core, &Dram::over(a.clone())).unwrap();
    assert_eq!(cache.lease().unwrap_err().kind(), ErrorKind::Unsupported);
    // They can be moved and copied, and each shows changes made by the other.
    let dram = Dram::allocate(LEN).unwrap();
    dram.lease_mut().unwrap().fill(5);
    machine.connect(&dram, &one).unwrap().transfer(whole()).unwrap();
    machine.connect(&dram, &Dram::over(a)).unwrap().transfer(whole()).unwrap();
    assert_eq!(two.memory().to_vec().unwrap(), [5; LEN]);
    assert_eq!(b.to_vec().unwrap(), [5; LEN]);
    let file = Ssd::open_rw(folder.path("pmem")).unwrap();
    dram.lease_mut().unwrap().fill(6);
    machine.connect(&dram, &file).unwrap().transfer(whole()).unwrap();
    assert_eq!(one.memory().to_vec().unwrap(), [6; LEN]);
}

struct Sixes;

impl Reader for Sixes {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        into.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = (at % 251) as u8);
        Ok(())
    }
}

struct SixesPlace;

impl Locator for SixesPlace {
    fn endpoint(&self) -> Endpoint {
        let facts = datapipes::locator::PlaceFacts {
            kind: "sixes",
            name: "sixes".into(),
            reach: datapipes::Reach::Reader,
            granularity: 1,
            alignment: 1,
            persistence: datapipes::Persistence::Volatile,
            len: None,
            node: None,
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: datapipes::locator::EndpointHandle::Reader(Arc::new(Sixes)) }
    }
}

#[test]
fn a_place_that_reads_itself_fills_shared_memory_too() {
    let fd = memfd_create("sound", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let len = 3 * LEN + 5;
    ftruncate(&fd, len as u64).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    let region = Region::map_sealed(fd.as_fd(), len as u64, Access::Write, Box::new(())).unwrap();
    let target = Dram::over(region.range(0, len).unwrap());
    let pipe = datapipes::discover().connect(&SixesPlace, &target).unwrap();
    pipe.transfer(Span { source: 1000, target: 1, len: len as u64 - 2 }).unwrap();
    let bytes = target.memory().to_vec().unwrap();
    assert!(bytes[1..len - 1].iter().zip(1000u64..).all(|(byte, at)| *byte == (at % 251) as u8));
    assert_eq!((bytes[0], bytes[len - 1]), (0, 0));
}

/// Readers check leased bytes again and again, while others try everything that safe code offers to
/// change them.
#[test]
fn leased_bytes_do_not_change_while_others_try() {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine).unwrap();
    let (file, zeros) = (file_of(9), Dram::allocate(LEN).unwrap());
    let pool = Pool::new(LEN, MapOptions::default()).unwrap();
    let memory = Dram::from_pool(&pool, LEN).unwrap();
    memory.lease_mut().unwrap().fill(3);
    let (up, copy) = (machine.connect(&file, &memory).unwrap(), machine.connect(&zeros, &memory).unwrap());
    let side = runtime.connect(&file, &memory).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let lease = memory.lease().unwrap();
                    let first = lease[LEN / 2];
                    for at in (0..LEN).step_by(509) {
                        assert_eq!(std::hint::black_box(&lease)[at], first);
                    }
                }
                over.store(true, Ordering::Relaxed);
            });
        }
        let keep = memory.lease().unwrap();
        while !over.load(Ordering::Relaxed) {
            let tries = [
                up.transfer(whole()),
                copy.transfer(whole()),
                side.transfer(whole()).and_then(|handle| handle.wait()),
                memory.memory().write(5, &[1]),
                memory.memory().release(),
                memory.lease_mut().map(drop),
            ];
            assert!(tries.iter().all(|t| t.as_ref().is_err_and(|e| e.kind() == ErrorKind::Busy)), "{tries:?}");
        }
        drop(keep);
    });
    assert_eq!(memory.memory().to_vec().unwrap(), [3; LEN]);
}
