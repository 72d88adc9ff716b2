//! Short transfers, errors in the middle, the end of the file, a full disk, leases in flight.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Random, bytes, contents, dirs, disk, file, machine, memory, memory_of, only, seed};
use datapipes_core::{Counters, ErrorKind, FileAccess, Span, Ssd};
use datapipes_file::{FaultInjector, FaultVerdict, FileBackendOptions, Operation};
use datapipes_testkit::bounded;

const LEN: usize = 4 << 20;

/// A third of the requests are short, and some are interrupted, all from a seed.
struct Rough {
    random: Mutex<Random>,
    shorts: AtomicU64,
}

impl FaultInjector for Rough {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let mut random = self.random.lock().unwrap();
        match random.below(6) {
            0 | 1 => {
                self.shorts.fetch_add(1, Ordering::Relaxed);
                FaultVerdict::Short(1 + random.below(u64::from(op.len)) as u32)
            }
            2 => FaultVerdict::Errno([libc::EINTR, libc::EAGAIN, libc::ECANCELED][random.below(3) as usize]),
            _ => FaultVerdict::Pass,
        }
    }
}

/// Every request that covers an offset fails.
struct BadSpot {
    at: u64,
    errno: i32,
}

impl FaultInjector for BadSpot {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let covers = op.offset <= self.at && self.at < op.offset + u64::from(op.len);
        if covers { FaultVerdict::Errno(self.errno) } else { FaultVerdict::Pass }
    }
}

fn with(faults: Arc<dyn FaultInjector>) -> FileBackendOptions {
    FileBackendOptions::default().faults(faults).request_bytes(64 << 10)
}

fn primitives(reading: bool) -> [(&'static str, FileAccess); 4] {
    let blocking = if reading { ["pread-direct", "pread-cached"] } else { ["pwrite-direct", "pwrite-cached"] };
    [
        ("uring-direct", FileAccess::Direct),
        ("uring-cached", FileAccess::Cached),
        (blocking[0], FileAccess::Direct),
        (blocking[1], FileAccess::Cached),
    ]
}

#[test]
fn short_and_interrupted_requests_are_finished() {
    let seed = seed();
    for dir in dirs() {
        for (read, write) in primitives(true).into_iter().zip(primitives(false)) {
            let rough = Arc::new(Rough { random: Mutex::new(Random(seed)), shorts: AtomicU64::new(0) });
            let machine = machine(with(rough.clone()));
            let source = bytes(LEN, seed);
            let Some(ssd) = file(&dir, &[], write.1) else { continue };
            ssd.preallocate(LEN as u64).unwrap();
            let (from, to) = (memory_of(&source), memory(LEN));
            let up = machine.connect_with(&from, &ssd, &only(write.0)).unwrap();
            let down = machine.connect_with(&ssd, &to, &only(read.0)).unwrap();
            let mut at = 0;
            let mut random = Random(seed);
            while at < LEN as u64 {
                let len = (1 + random.awkward(900_000)).min(LEN as u64 - at);
                let span = Span { source: at, target: at, len };
                up.transfer(span).unwrap_or_else(|e| panic!("seed {seed}, {}: {e}", write.0));
                down.transfer(span).unwrap_or_else(|e| panic!("seed {seed}, {}: {e}", read.0));
                at += len;
            }
            assert!(contents(&ssd) == source, "seed {seed}, {}", write.0);
            assert!(*to.lease().unwrap() == *source, "seed {seed}, {}", read.0);
            let (up, down) = (&up.report().hops[0].counters, &down.report().hops[0].counters);
            assert!(up.short_finished > 0 && down.short_finished > 0 && up.retries > 0, "{up:?} {down:?}");
            assert!(rough.shorts.load(Ordering::Relaxed) >= up.short_finished + down.short_finished);
            assert_eq!((up.bytes, down.bytes), (LEN as u64, LEN as u64));
        }
    }
}

#[test]
fn an_error_says_where_and_how_far_and_hits_only_its_job() {
    const BAD: u64 = 2_000_000;
    for reading in [true, false] {
        for (primitive, access) in primitives(reading) {
            for errno in [libc::EIO, libc::ENOSPC] {
                let machine = machine(with(Arc::new(BadSpot { at: BAD, errno })));
                let source = bytes(LEN, 7);
                let Some(ssd) = file(&disk(), &source, access) else { continue };
                let dram = memory_of(&source);
                let pipe = if reading {
                    machine.connect_with(&ssd, &dram, &only(primitive)).unwrap()
                } else {
                    machine.connect_with(&dram, &ssd, &only(primitive)).unwrap()
                };
                let span = |at: u64, len: u64| Span { source: at, target: at, len };
                let started = [
                    pipe.start(span(0, 1_000_000)).unwrap(),
                    pipe.start(span(1_000_001, 2_000_000)).unwrap(),
                    pipe.start(span(3_000_001, 1_000_000)).unwrap(),
                ];
                let results: Vec<_> = started.into_iter().map(|t| t.wait()).collect();
                assert!(results[0].is_ok() && results[2].is_ok(), "{primitive}: {results:?}");
                let e = results[1].as_ref().unwrap_err();
                let kind = if errno == libc::EIO { ErrorKind::Device } else { ErrorKind::NoSpace };
                assert_eq!((e.kind(), e.errno()), (kind, Some(errno)), "{primitive}: {e}");
                let at = e.offset().unwrap();
                assert!(at <= BAD && BAD - at < (64 << 10), "{primitive}: {e}");
                assert_eq!(e.bytes_done(), at - 1_000_001, "{primitive}: {e}");
                assert!(dram.lease_mut().is_ok(), "{primitive}: the leases outlive the transfers");
                let c = &pipe.report().hops[0].counters;
                assert_eq!((c.transfers, c.failed), (2, 1), "{primitive}");
            }
        }
    }
}

/// Moves a span that begins and ends within blocks, checks every byte, and returns the counters.
fn odd_span(reading: bool, primitive: &str, access: FileAccess, faults: Arc<dyn FaultInjector>) -> Option<Counters> {
    let source = bytes(LEN, 9);
    let ssd = file(&disk(), &if reading { source.clone() } else { vec![0; LEN] }, access)?;
    let dram = memory_of(&if reading { vec![0; LEN] } else { source.clone() });
    let machine = machine(with(faults));
    let pipe = match reading {
        true => machine.connect_with(&ssd, &dram, &only(primitive)).unwrap(),
        false => machine.connect_with(&dram, &ssd, &only(primitive)).unwrap(),
    };
    pipe.transfer(Span { source: 1, target: 1, len: LEN as u64 - 5 }).unwrap();
    let got = if reading { dram.lease().unwrap()[..].to_vec() } else { contents(&ssd) };
    assert!(got[1..LEN - 4] == source[1..LEN - 4] && got[0] == 0 && got[LEN - 4..] == [0; 4], "{primitive}");
    let counters = pipe.report().hops[0].counters.clone();
    assert_eq!(counters.bytes, LEN as u64 - 5, "{primitive}: {counters:?}");
    Some(counters)
}

/// The kernel returns every request undone, as it does where it may not make a thread for requests
/// that would block.
struct NoWorkers;

impl FaultInjector for NoWorkers {
    fn verdict(&self, _: &Operation) -> FaultVerdict {
        FaultVerdict::Errno(libc::ECANCELED)
    }
}

#[test]
fn requests_without_a_kernel_thread_are_made_by_the_caller() {
    for reading in [true, false] {
        for (primitive, access) in &primitives(reading)[..2] {
            let Some(c) = odd_span(reading, primitive, *access, Arc::new(NoWorkers)) else { continue };
            assert!(c.queue_refused > 0, "{primitive}: {c:?}");
        }
    }
}

/// Loses the second request, and every request that covers one byte.
struct Loses;

impl FaultInjector for Loses {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let touches = (op.offset..op.offset + u64::from(op.len)).contains(&(LEN as u64 / 2));
        if op.nth == 1 || touches { FaultVerdict::Lost } else { FaultVerdict::Pass }
    }
}

#[test]
fn lost_requests_are_made_again() {
    // Each case waits for seconds.
    std::thread::scope(|scope| {
        for reading in [true, false] {
            for (primitive, access) in primitives(reading).into_iter().take(2) {
                scope.spawn(move || {
                    let Some(c) = bounded(primitive, move || odd_span(reading, primitive, access, Arc::new(Loses)))
                    else {
                        return;
                    };
                    // The caller carried out the request that was lost again.
                    assert!(c.retries >= 2 && c.queue_refused > 0, "{primitive}: {c:?}");
                });
            }
        }
    });
}

#[test]
fn the_end_of_the_file_is_an_error_that_says_where() {
    for dir in dirs() {
        for (primitive, access) in primitives(true) {
            for len in [0usize, 1, 511, 512, 1000, 4096, 300_000, 1_048_577] {
                let source = bytes(len, 11);
                let Some(ssd) = file(&dir, &source, access) else { continue };
                let dram = memory(LEN);
                let pipe = machine(with(Arc::new(BadSpot { at: u64::MAX, errno: 0 })))
                    .connect_with(&ssd, &dram, &only(primitive))
                    .unwrap();
                let whole = len as u64;
                pipe.transfer(Span { source: 0, target: 3, len: whole }).unwrap();
                assert!(dram.lease().unwrap()[3..3 + len] == *source, "{primitive}, {len} bytes");
                for start in [0, whole / 2, whole, whole + 1, whole + 5000] {
                    let span = Span { source: start, target: 0, len: whole.saturating_sub(start) + 2_000_000 };
                    let e = pipe.transfer(span).unwrap_err();
                    let end = whole.max(start);
                    assert_eq!(e.kind(), ErrorKind::EndOfFile, "{primitive}, {len} bytes, {span:?}: {e}");
                    assert_eq!((e.offset(), e.bytes_done()), (Some(end), end - start), "{primitive}, {len}, {span:?}");
                    let start = start.min(whole) as usize;
                    assert!(dram.lease().unwrap()[..len - start] == source[start..], "{primitive}, {len} bytes");
                }
            }
        }
    }
}

/// Requests are held until the test releases them.
#[derive(Default)]
struct Gate {
    reached: AtomicBool,
    open: AtomicBool,
}

impl FaultInjector for Gate {
    fn verdict(&self, _: &Operation) -> FaultVerdict {
        self.reached.store(true, Ordering::Release);
        let since = Instant::now();
        while !self.open.load(Ordering::Acquire) && since.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        FaultVerdict::Pass
    }
}

#[test]
fn a_dropped_transfer_keeps_its_memory() {
    let source = bytes(LEN, 13);
    for (primitive, access) in primitives(true) {
        let Some(ssd) = file(&disk(), &source, access) else { continue };
        let dram = memory(LEN);
        let gate = Arc::new(Gate::default());
        let pipe = machine(with(gate.clone())).connect_with(&ssd, &dram, &only(primitive)).unwrap();
        let span = Span { source: 0, target: 0, len: LEN as u64 };
        std::thread::scope(|scope| {
            let started = scope.spawn(|| drop(pipe.start(span).unwrap()));
            while !gate.reached.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            assert_eq!(dram.lease().unwrap_err().kind(), ErrorKind::Busy);
            gate.open.store(true, Ordering::Release);
            started.join().unwrap();
        });
        // A dropped pipe waits for what it started.
        drop(pipe);
        assert!(*dram.lease().unwrap() == *source, "{primitive}");
    }
}

#[test]
fn spans_outside_are_refused_and_nothing_is_held() {
    let Some(ssd) = file(&disk(), &bytes(1000, 1), FileAccess::Direct) else { return };
    let dram = memory(1000);
    let pipe = machine(FileBackendOptions::default()).connect(&ssd, &dram).unwrap();
    for span in [
        Span { source: 0, target: 1, len: 1000 },
        Span { source: 0, target: u64::MAX, len: 1 },
        Span { source: u64::MAX, target: 0, len: 2 },
        Span { source: i64::MAX as u64, target: 0, len: 1 },
    ] {
        let e = pipe.transfer(span).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::OutOfRange | ErrorKind::InvalidInput), "{span:?}: {e}");
        assert!(dram.lease_mut().is_ok());
    }
    pipe.transfer(Span { source: 5, target: 5, len: 0 }).unwrap();
}

/// A tmpfs of 2 MiB, unmounted on drop.
struct Full(std::path::PathBuf);

impl Full {
    fn mount() -> Result<Full, String> {
        let dir = disk().join(format!("full-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let run = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2m", "datapipes-test"])
            .arg(&dir)
            .output()
            .map_err(|e| format!("mount: {e}"))?;
        if run.status.success() { Ok(Full(dir)) } else { Err(String::from_utf8_lossy(&run.stderr).trim().to_owned()) }
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_full_disk_is_reported() {
    let full = match Full::mount() {
        Ok(full) => full,
        Err(why) => return println!("SKIPPED: a_full_disk_is_reported: a small tmpfs cannot be mounted: {why}"),
    };
    let source = bytes(LEN, 17);
    let dram = memory_of(&source);
    for (primitive, access) in primitives(false) {
        let ssd = match Ssd::unlinked_in(&full.0).unwrap().with_access(access) {
            Ok(ssd) => ssd,
            Err(e) => {
                println!("SKIPPED: {primitive} on a full disk: {e}");
                continue;
            }
        };
        let pipe = machine(FileBackendOptions::default()).connect_with(&dram, &ssd, &only(primitive)).unwrap();
        let e = pipe.transfer(Span { source: 0, target: 0, len: LEN as u64 }).unwrap_err();
        assert_eq!((e.kind(), e.errno()), (ErrorKind::NoSpace, Some(libc::ENOSPC)), "{primitive}: {e}");
        assert_eq!(e.offset(), Some(e.bytes_done()), "{primitive}: {e}");
        let done = e.bytes_done() as usize;
        assert!(done > 0 && done <= 2 << 20, "{primitive}: {e}");
        assert!(contents(&ssd)[..done] == source[..done], "{primitive}: bytes done that are not there");
    }
}
