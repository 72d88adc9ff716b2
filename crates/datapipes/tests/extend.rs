//! Files grow by reserving space, and reserving never cuts off written bytes, on file systems that
//! can reserve and on those that cannot.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Barrier;

use datapipes::{Dram, ErrorKind, Pmem, PmemOptions, Span, Ssd};
use datapipes_testkit::{Mounted, RefusedCall, TempFolder, without_calls};

const NO_FALLOCATE: RefusedCall = RefusedCall { number: libc::SYS_fallocate, errno: libc::EOPNOTSUPP };
const LANES: u64 = 4;
const RUN: u64 = 96 << 10;
const ROUNDS: u64 = 24;

fn here() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Each lane reserves a run of its own and writes it, as the lanes of a sort do, all in the same
/// file at the same time.
fn lanes_reserve_and_write(ssd: &Ssd) {
    let machine = datapipes::discover();
    let barrier = Barrier::new(LANES as usize);
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let (machine, barrier, ssd) = (&machine, &barrier, ssd.clone());
            scope.spawn(move || {
                let memory = Dram::allocate(RUN as usize).unwrap();
                let pipe = machine.connect(&memory, &ssd).unwrap();
                for round in 0..ROUNDS {
                    let at = (round * LANES + lane) * RUN;
                    memory.lease_mut().unwrap().fill(mark(at));
                    barrier.wait();
                    ssd.reserve(at, RUN).unwrap();
                    pipe.transfer(Span { source: 0, target: at, len: RUN }).unwrap();
                }
            });
        }
    });
    let all = ROUNDS * LANES * RUN;
    assert!(ssd.len().unwrap() >= all, "{} of {all}", ssd.len().unwrap());
    let memory = Dram::allocate(all as usize).unwrap();
    machine.connect(ssd, &memory).unwrap().transfer(Span { source: 0, target: 0, len: all }).unwrap();
    let bytes = memory.lease().unwrap();
    for at in (0..all).step_by(RUN as usize) {
        let run = &bytes[at as usize..(at + RUN) as usize];
        let wrong = run.iter().position(|byte| *byte != mark(at));
        assert_eq!(wrong, None, "the run at {at} has lost its byte {wrong:?}");
    }
}

/// A byte for each run that is not zero.
fn mark(at: u64) -> u8 {
    (at / RUN % 251 + 1) as u8
}

#[test]
fn lanes_that_reserve_lose_nothing_where_the_file_system_cannot() {
    let folder = TempFolder::under(here()).unwrap();
    let work = || {
        let ssd = Ssd::create(folder.path("spill")).unwrap();
        assert!(!ssd.reserve(0, 1).unwrap(), "the call is refused");
        lanes_reserve_and_write(&ssd);
    };
    if let Err(why) = without_calls(&[NO_FALLOCATE], work) {
        println!("SKIPPED: lanes_that_reserve_lose_nothing_where_the_file_system_cannot: {why}");
    }
}

#[test]
fn lanes_that_reserve_lose_nothing_on_a_real_file_system_without_fallocate() {
    match Mounted::bindfs(here()) {
        Ok(mounted) => {
            let ssd = Ssd::create(mounted.path("spill")).unwrap();
            assert!(!ssd.reserve(0, 1).unwrap(), "bindfs is taken for its lack of fallocate");
            lanes_reserve_and_write(&ssd);
        }
        Err(why) => {
            println!("SKIPPED: lanes_that_reserve_lose_nothing_on_a_real_file_system_without_fallocate: {why}");
        }
    }
}

/// Some writers extend a file by writing while others reserve space before them: no written byte
/// may be cut off.
#[test]
fn what_is_written_beyond_a_range_that_is_reserved_stays() {
    let folder = TempFolder::under(here()).unwrap();
    let work = || {
        for turn in 0..200u64 {
            let ssd = Ssd::create(folder.path("file")).unwrap();
            let other = std::fs::File::options().write(true).open(folder.path("file")).unwrap();
            let barrier = Barrier::new(3);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    use std::os::unix::fs::FileExt;
                    barrier.wait();
                    // This is not by a pipe, but as another process writes.
                    other.write_all_at(&[7; 100], 50_000 + turn).unwrap();
                });
                for end in [20_000, 40_000] {
                    let (ssd, barrier) = (ssd.clone(), &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        ssd.reserve(1000, end).unwrap();
                    });
                }
            });
            let bytes = std::fs::read(folder.path("file")).unwrap();
            assert_eq!(bytes.len() as u64, 50_100 + turn);
            assert!(bytes[(50_000 + turn) as usize..].iter().all(|byte| *byte == 7));
        }
    };
    if let Err(why) = without_calls(&[NO_FALLOCATE], work) {
        println!("SKIPPED: what_is_written_beyond_a_range_that_is_reserved_stays: {why}");
    }
}

/// The byte by which a file is extended lies in the range that a pipe is writing: the pipe's byte
/// stays.
#[test]
fn a_pipe_that_writes_the_last_byte_keeps_it() {
    let folder = TempFolder::under(here()).unwrap();
    let work = || {
        let machine = datapipes::discover();
        let memory = Dram::allocate(64 << 10).unwrap();
        memory.lease_mut().unwrap().fill(9);
        for turn in 0..200u64 {
            let ssd = Ssd::create(folder.path("file")).unwrap();
            let pipe = machine.connect(&memory, &ssd).unwrap();
            let len = 60_000 + turn;
            let barrier = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    pipe.transfer(Span { source: 0, target: 0, len }).unwrap();
                });
                barrier.wait();
                ssd.reserve(0, len).unwrap();
            });
            let bytes = std::fs::read(folder.path("file")).unwrap();
            assert_eq!((bytes.len() as u64, bytes.iter().position(|byte| *byte != 9)), (len, None), "turn {turn}");
        }
    };
    if let Err(why) = without_calls(&[NO_FALLOCATE], work) {
        println!("SKIPPED: a_pipe_that_writes_the_last_byte_keeps_it: {why}");
    }
}

#[test]
fn persistent_memory_that_is_opened_twice_keeps_the_longer_length() {
    let folder = TempFolder::under(here()).unwrap();
    let work = || {
        for turn in 0..200 {
            let path = folder.path(&format!("memory-{turn}"));
            let open = |len| Pmem::open_with(&path, PmemOptions::default().len(len).emulated(true)).unwrap();
            let barrier = Barrier::new(2);
            std::thread::scope(|scope| {
                for len in [4096, 65_536] {
                    let (open, barrier) = (&open, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        open(len);
                    });
                }
            });
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 65_536, "turn {turn}");
        }
    };
    if let Err(why) = without_calls(&[NO_FALLOCATE], work) {
        println!("SKIPPED: persistent_memory_that_is_opened_twice_keeps_the_longer_length: {why}");
    }
}

#[test]
fn a_range_beyond_what_the_kernel_counts_is_refused_and_changes_nothing() {
    let ssd = Ssd::unlinked_in(here()).unwrap();
    let top = i64::MAX as u64;
    for (offset, len) in [(u64::MAX, 1), (1, u64::MAX), (top, 1), (u64::MAX, u64::MAX), (1 << 63, 1 << 63)] {
        let error = ssd.reserve(offset, len).unwrap_err();
        assert_eq!(error.kind(), datapipes::ErrorKind::OutOfRange, "{error}");
    }
    assert_eq!(ssd.len().unwrap(), 0);
    assert!(ssd.reserve(5, 0).unwrap() && ssd.len().unwrap() == 0);
}

/// Returns the free bytes of a file system.
fn free_bytes(at: &Path) -> u64 {
    let fs = rustix::fs::statvfs(at).unwrap();
    fs.f_bfree * fs.f_frsize
}

/// Every way to request the space of a file, by name; each requests a length for the file at a
/// path.
type Asks = fn(&Path, u64) -> datapipes::Result<()>;
const RESERVES: [(&str, Asks); 4] = [
    ("reserve", |path, len| Ssd::open_rw(path)?.reserve(0, len).map(drop)),
    ("reserve, not from the start", |path, len| Ssd::open_rw(path)?.reserve(8192, len - 8192).map(drop)),
    ("preallocate", |path, len| Ssd::open_rw(path)?.preallocate(len).map(drop)),
    ("a mapped file", |path, len| Pmem::open_with(path, PmemOptions::default().len(len).emulated(true)).map(drop)),
];

#[test]
fn what_is_not_free_is_refused_before_the_kernel_is_asked() {
    const NAME: &str = "what_is_not_free_is_refused_before_the_kernel_is_asked";
    let folder = TempFolder::under(here()).unwrap();
    let path = folder.path("file");
    std::fs::write(&path, "x").unwrap();
    // Every request to the kernel gets this error, so no space of a real disk is taken.
    let asked = RefusedCall { number: libc::SYS_fallocate, errno: libc::EDEADLK };
    let too_much = [free_bytes(folder.at()) + (1 << 30), 1 << 50, i64::MAX as u64];
    let work = || {
        for (what, reserve) in RESERVES {
            for len in too_much {
                let error = reserve(&path, len).unwrap_err();
                // A mapping of more than a process can address is refused for that reason.
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{what}, {len} bytes: {error}");
                assert!(error.to_string().contains("free"), "{what}: it does not say how much there is: {error}");
            }
            assert_eq!(reserve(&path, 16384).unwrap_err().errno(), Some(libc::EDEADLK), "{what}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 1, "{what}");
        }
    };
    if let Err(why) = without_calls(&[asked], work) {
        println!("SKIPPED: {NAME}: {why}");
    }
}

#[test]
fn a_small_file_system_is_not_filled_by_what_does_not_fit() {
    use std::os::unix::fs::MetadataExt;
    const NAME: &str = "a_small_file_system_is_not_filled_by_what_does_not_fit";
    let mounted = match Mounted::ext4(here(), 64 << 20) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIPPED: {NAME}: {why}"),
    };
    let path = mounted.path("file");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let (free, has) = (free_bytes(mounted.at()), blocks());
    for (what, reserve) in RESERVES {
        // The length is below the size of the file system, and above its free space.
        let error = reserve(&path, free + (2 << 20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{what}: {error}");
        assert_eq!((blocks(), std::fs::metadata(&path).unwrap().len()), (has, 1 << 20), "{what}");
        assert_eq!(free_bytes(mounted.at()), free, "{what}: it took what was free");
    }
    // Space that the file has already is not requested again: nearly all the rest fits.
    assert!(Ssd::open_rw(&path).unwrap().reserve(0, free - (1 << 20)).unwrap());
    assert!(free_bytes(mounted.at()) < 3 << 20);
    // It fits again with nothing left.
    assert!(Ssd::open_rw(&path).unwrap().reserve(0, free - (1 << 20)).unwrap());
}

#[test]
fn memory_of_a_file_that_does_not_fit_leaves_no_file() {
    let folder = TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path("huge");
    let ask = || Pmem::open_with(&path, PmemOptions::default().len(1 << 47).emulated(true));
    assert!(ask().is_err());
    assert!(!path.exists(), "an empty file stays under the name");
    std::fs::write(&path, b"").unwrap();
    assert!(ask().is_err());
    assert!(path.exists(), "it was there before");
}
