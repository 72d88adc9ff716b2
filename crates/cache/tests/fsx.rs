//! Many threads read through the cache while others write, truncate, extend and punch the same real
//! file in other ways.
//!
//! Every read is checked: no bytes are older than the last write that had returned when it began,
//! none go back, and none are of two moments. `DATAPIPES_STEPS` and `DATAPIPES_SEED` set duration
//! and input; the machine decides the order of threads.
#![allow(clippy::unwrap_used)]

mod fixture;
#[path = "fsx/history.rs"]
mod history;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use datapipes_cache::{AsyncReader, Bytes, CacheOptions, CachePolicy, FineGrained, ReadFuture, Reassignment, Writer};
use datapipes_core::{Dram, Error, ErrorKind, FileAccess, Pipe, Runtime, RuntimePipe, Span, Ssd};
use fixture::{File, Random, machine, seed, small, steps};
use history::{GRANULE, History, Kind, Reader, content};

/// The granules of the part with a constant length, and of the whole file.
const STEADY: u64 = 48 << 10;
const ALL: u64 = 64 << 10;
/// The longest read in bytes, and the longest write in granules.
const READ: usize = 20_000;
const WRITE: u64 = 256;

struct World {
    history: History,
    fine: FineGrained,
    ssd: Ssd,
    runtime: Runtime,
    left: AtomicU64,
    wrong: Mutex<Option<String>>,
    ended: AtomicU64,
    stop: AtomicBool,
}

impl World {
    fn goes_on(&self) -> bool {
        let left = self.left.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
        left && !self.stop.load(SeqCst)
    }

    fn wrong(&self, what: String) {
        self.stop.store(true, SeqCst);
        self.wrong.lock().unwrap().get_or_insert(what);
    }

    fn check(
        &self,
        reader: &mut Reader,
        how: &str,
        (offset, len): (u64, usize),
        before: &[u64],
        result: Result<&[u8], &Error>,
    ) {
        let outcome = match result {
            Ok(bytes) => self.history.after(reader, offset, bytes, before),
            Err(e) if e.kind() == ErrorKind::EndOfFile && self.history.may_end(offset, len as u64, before) => {
                self.ended.fetch_add(1, SeqCst);
                Ok(())
            }
            Err(e) => Err(e.to_string()),
        };
        if let Err(why) = outcome {
            self.wrong(format!("{how} of {len} bytes at {offset}: {why}"));
        }
    }
}

/// Returns mostly positions around a few points that move slowly through the file.
fn place(r: &mut Random, all: u64) -> u64 {
    match r.below(4) {
        0 | 1 => r.below(all),
        2 => r.below(64) * all / 64 + r.below(64),
        _ => r.below(1 << 11),
    }
}

/// `phase` selects the frequent lengths, so that size classes compete for slabs.
fn read_range(r: &mut Random, phase: u64) -> (u64, usize) {
    let usual = [64, 700, 4096][(phase % 3) as usize];
    let most = [8, 64, 128, 4096, READ as u64, usual, usual, usual, usual, usual][r.below(10) as usize];
    let len = if r.one_in(4) { 1 + r.below(most) } else { most };
    let offset = place(r, ALL) * GRANULE + if r.one_in(3) { r.below(GRANULE) } else { 0 };
    (offset.min(ALL * GRANULE - len), len as usize)
}

fn reads(world: &World, r: &mut Random, alone: &AsyncReader) {
    let mut reader = world.history.reader();
    let mut held: Vec<(Bytes, Vec<u8>)> = Vec::new();
    let memory = Dram::allocate(READ).unwrap();
    let pipe = machine().connect(&world.fine, &memory).unwrap();
    while world.goes_on() {
        let phase = world.left.load(SeqCst) / 1000;
        let (offset, len) = read_range(r, phase);
        let before = world.history.before(offset, len as u64);
        match r.below(6) {
            0 | 1 => {
                let mut out = vec![0xee; len];
                let result = world.fine.read(offset, &mut out);
                world.check(&mut reader, "read", (offset, len), &before, result.as_ref().map(|()| &*out));
            }
            2 => {
                let bytes = world.fine.get(offset, len);
                world.check(&mut reader, "get", (offset, len), &before, bytes.as_deref());
                if let Ok(bytes) = bytes {
                    let then = bytes.to_vec();
                    held.push((bytes, then));
                }
                if held.len() > 6 {
                    let (bytes, then) = held.swap_remove(r.below(6) as usize);
                    if *bytes != *then {
                        world.wrong(format!("pinned bytes at {offset} changed"));
                    }
                }
            }
            3 => {
                let ranges: Vec<_> = (0..1 + r.below(40)).map(|_| read_range(r, phase)).collect();
                let before: Vec<_> = ranges.iter().map(|&(o, l)| world.history.before(o, l as u64)).collect();
                let mut out = vec![0xee; ranges.iter().map(|(_, l)| l).sum()];
                let failed = world.fine.gather_ranges(&ranges, &mut out).unwrap().failed;
                let mut at = 0;
                for (i, &(offset, len)) in ranges.iter().enumerate() {
                    let error = failed.iter().find(|(n, _)| *n == i);
                    let result = error.map_or(Ok(&out[at..at + len]), |(_, e)| Err(e));
                    // The reads of a batch are concurrent, so they may see the versions in any
                    // order.
                    world.check(&mut world.history.reader(), "gather", (offset, len), &before[i], result);
                    at += len;
                }
            }
            4 => {
                let ranges: Vec<_> = (0..1 + r.below(6)).map(|_| read_range(r, phase)).collect();
                let before: Vec<_> = ranges.iter().map(|&(o, l)| world.history.before(o, l as u64)).collect();
                let reading = ranges.iter().map(|&(o, l)| alone.read(o, l)).collect();
                for (i, result) in together(&world.runtime, reading).iter().enumerate() {
                    world.check(&mut world.history.reader(), "await", ranges[i], &before[i], result.as_deref());
                }
            }
            _ => {
                let result = pipe.transfer(Span { source: offset, target: 0, len: len as u64 });
                let bytes = memory.range(0, len).unwrap().lease().unwrap().to_vec();
                world.check(&mut reader, "pipe", (offset, len), &before, result.as_ref().map(|()| &*bytes));
            }
        }
    }
}

/// Awaits all of them on this thread.
fn together(runtime: &Runtime, mut reading: Vec<ReadFuture>) -> Vec<Result<Vec<u8>, Error>> {
    let mut results: Vec<Option<Result<Vec<u8>, Error>>> = reading.iter().map(|_| None).collect();
    runtime.block_on(std::future::poll_fn(|context| {
        for (result, reading) in results.iter_mut().zip(&mut reading).filter(|(r, _)| r.is_none()) {
            if let Poll::Ready(read) = Pin::new(reading).poll(context) {
                *result = Some(read);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    }));
    results.into_iter().flatten().collect()
}

/// A way to write.
enum Way {
    Writer(Writer),
    Pipe(Pipe, Dram),
    Runtime(RuntimePipe, Dram),
}

impl Way {
    fn of(world: &World, number: u64, path: &std::path::Path) -> Way {
        // Each has its own descriptor, which bypasses the page cache or uses it.
        let access = if number.is_multiple_of(2) { FileAccess::Auto } else { FileAccess::Cached };
        let other = || Ssd::open_rw(path).unwrap().with_access(access).unwrap();
        let memory = Dram::allocate((WRITE * GRANULE) as usize).unwrap();
        match number % 3 {
            0 => Way::Writer(world.fine.writer().unwrap()),
            1 => Way::Pipe(machine().connect(&memory, &other()).unwrap(), memory),
            _ => Way::Runtime(world.runtime.connect(&memory, &other()).unwrap(), memory),
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let span = Span { source: 0, target: offset, len: bytes.len() as u64 };
        let lay = |memory: &Dram| memory.range(0, bytes.len())?.lease_mut().map(|mut m| m.copy_from_slice(bytes));
        match self {
            Way::Writer(writer) => writer.write(offset, bytes),
            Way::Pipe(pipe, memory) => lay(memory).and_then(|()| pipe.transfer(span)),
            Way::Runtime(pipe, memory) => lay(memory).and_then(|()| pipe.transfer(span)?.wait()),
        }
    }
}

fn writes(world: &World, r: &mut Random, way: &Way) {
    while world.goes_on() {
        // The pause makes most operations reads, and keeps the cache full.
        std::thread::sleep(Duration::from_micros(r.below(1000)));
        let most = [1, 1, 2, 8, 64, WRITE][r.below(6) as usize];
        let len = if r.one_in(2) { most } else { 1 + r.below(most) };
        let from = place(r, STEADY).min(STEADY - len);
        let mut change = world.history.lock(from..from + len);
        let bytes = world.history.begin(&mut change, from..from + len, |_| Kind::Data);
        if let Err(e) = way.write(from * GRANULE, &bytes) {
            world.wrong(format!("write of {len} granules at {from}: {e}"));
        }
        world.history.end(change);
    }
}

/// Changes the file's end, and makes holes.
fn cuts(world: &World, r: &mut Random, way: &Way) {
    let mut len = ALL;
    while world.goes_on() {
        // The pause leaves time for the other operations.
        std::thread::sleep(Duration::from_micros(r.below(3000)));
        if r.one_in(3) {
            // A hole of whole granules, anywhere.
            let count = 1 + r.below(200);
            let from = place(r, STEADY).min(STEADY - count);
            let mut change = world.history.lock(from..from + count);
            world.history.begin(&mut change, from..from + count, |_| Kind::Zero);
            if let Err(e) = world.ssd.punch(from * GRANULE, count * GRANULE) {
                world.wrong(format!("punch: {e}"));
            }
            world.history.end(change);
            continue;
        }
        // Only this thread uses the part with the end.
        let mut change = world.history.lock(STEADY..ALL);
        let new = if r.one_in(2) { STEADY + r.below(ALL - STEADY) } else { ALL };
        let result = match r.below(3) {
            0 | 1 => {
                let range = len.min(new)..len.max(new);
                world.history.begin(&mut change, range, |_| if new < len { Kind::Absent } else { Kind::Zero });
                len = new;
                world.ssd.set_len(new * GRANULE)
            }
            _ => {
                // A write, perhaps beyond the end. The gap is zeros.
                let (old, count) = (len, 1 + r.below(64));
                let from = (STEADY + r.below(ALL - STEADY)).min(ALL - count);
                let range = from.min(old)..from + count;
                let bytes = world.history.begin(&mut change, range.clone(), |g| match g {
                    g if g >= from => Kind::Data,
                    g if g >= old => Kind::Zero,
                    _ => Kind::Data,
                });
                len = len.max(from + count);
                let skipped = if old < from { from - range.start } else { 0 };
                way.write((range.start + skipped) * GRANULE, &bytes[(skipped * GRANULE) as usize..])
            }
        };
        if let Err(e) = result {
            world.wrong(format!("change of the file's end to {new}: {e}"));
        }
        world.history.end(change);
    }
}

fn keeps(world: &World, r: &mut Random) {
    while world.goes_on() {
        match r.below(1000) {
            0 => world.fine.clear(),
            1..=4 => world.fine.invalidate(place(r, ALL) * GRANULE..ALL * GRANULE),
            5..=9 => _ = world.fine.metrics(),
            _ => world.fine.maintain(),
        }
        std::thread::sleep(Duration::from_micros(r.below(300)));
    }
}

fn stress(policy: CachePolicy, change: impl Fn(&mut CacheOptions), seed: u64, steps: u64) {
    let bytes: Vec<u8> = (0..ALL).flat_map(|g| content(g, 0, Kind::Data)).collect();
    let file = File::with(&bytes);
    let ssd = Ssd::open_rw(file.path()).unwrap();
    let mut config = small(policy).depth(8);
    config.patience = Duration::from_secs(3600);
    change(&mut config);
    let fine = FineGrained::over(&ssd, config).unwrap();
    let world = World {
        history: History::new(ALL),
        fine,
        ssd,
        runtime: Runtime::start(machine()).unwrap(),
        left: AtomicU64::new(steps),
        wrong: Mutex::default(),
        ended: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let random = |n: u64| Random(fixture::mix(seed ^ n << 32));
    std::thread::scope(|threads| {
        let world = &world;
        for n in 0..3 {
            threads.spawn(move || {
                reads(world, &mut random(n), &world.fine.on(&world.runtime, 1 + 2 * n as usize).unwrap())
            });
        }
        for n in 0..3 {
            let way = Way::of(world, n, file.path());
            threads.spawn(move || writes(world, &mut random(8 + n), &way));
        }
        let way = Way::of(world, 1, file.path());
        threads.spawn(move || cuts(world, &mut random(16), &way));
        threads.spawn(move || keeps(world, &mut random(17)));
    });
    let context = format!("DATAPIPES_SEED={seed}, {}", policy.name());
    if let Some(wrong) = world.wrong.lock().unwrap().take() {
        panic!("{context}: {wrong}");
    }
    world.ssd.set_len(ALL * GRANULE).unwrap();
    // When no thread writes, the cache and the file agree, twice: from the device, and from the
    // cache.
    let now = std::fs::read(file.path()).unwrap();
    for _ in 0..2 {
        for at in (0..now.len()).step_by(4096) {
            let mut out = [0; 4096];
            world.fine.read(at as u64, &mut out).unwrap();
            assert!(out == now[at..at + 4096], "{context}: the page at {at} differs from the file");
        }
    }
    let m = world.fine.metrics();
    let (checked, lost) = (world.history.checked.load(SeqCst), world.history.lost.load(SeqCst));
    println!(
        "{context}: {steps} steps, {checked} granules checked ({lost} unknown), {:.0}% hits, {} evicted, {} repeated, {} joined, \
         {} slabs moved, {} changes, {} beyond the end",
        m.hit_percent(),
        m.classes.iter().map(|c| c.evicted).sum::<u64>(),
        m.repeated,
        m.joined,
        m.reassigned,
        m.changes,
        world.ended.load(SeqCst),
    );
    assert!(lost * 20 < checked, "{context}: too much was not checked");
    // A write of our own between two looks is sometimes taken for one of another process, which is
    // safe.
    assert!(m.hits > 0 && m.changes > steps / 100 && m.changes_outside * 100 < m.changes, "{context}: {m:?}");
}

#[test]
fn reads_are_of_one_moment_whatever_is_written_meanwhile() {
    let (seed, steps) = (seed(), steps(25_000) / 5);
    for policy in CachePolicy::ALL {
        stress(policy, |config| config.reassignment = Reassignment::EvictionCounts, seed, steps);
    }
}

#[test]
fn a_cache_with_its_own_thread_and_a_time_to_live_does_the_same() {
    let (seed, steps) = (seed(), steps(5_000));
    let lively = |config: &mut CacheOptions| {
        config.maintenance = true;
        config.ttl = Some(Duration::from_millis(40));
        config.large = 512;
    };
    stress(CachePolicy::default(), lively, seed, steps);
}

/// Several writers write the same bytes at once, and others truncate the file. The result is
/// undetermined, but afterwards the cache must agree with the file.
#[test]
fn the_cache_agrees_with_the_file_after_rivals_wrote_to_it() {
    const SPAN: u64 = 512;
    let (seed, rounds) = (seed(), steps(6_000) / 30);
    let file = File::with(&vec![1; (SPAN * GRANULE) as usize]);
    let ssd = Ssd::open_rw(file.path()).unwrap();
    let mut config = small(CachePolicy::default()).depth(8);
    config.patience = Duration::from_secs(3600);
    let fine = FineGrained::over(&ssd, config).unwrap();
    let world = World {
        history: History::new(1),
        fine: fine.clone(),
        ssd: ssd.clone(),
        runtime: Runtime::start(machine()).unwrap(),
        left: AtomicU64::new(0),
        wrong: Mutex::default(),
        ended: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let range = |r: &mut Random| -> Range<u64> {
        let most = [1, 3, 64][r.below(3) as usize];
        let (from, len) = (r.below(8) * 64 + r.below(8), 1 + r.below(most));
        from.min(SPAN - len)..(from + len).min(SPAN)
    };
    // Two writers of the cache, and two others.
    let ways: Vec<_> = [0, 0, 1, 2].into_iter().map(|n| Way::of(&world, n, file.path())).collect();
    let mut r = Random(seed);
    for round in 0..rounds {
        std::thread::scope(|threads| {
            for way in &ways {
                let mut r = Random(r.next());
                threads.spawn(move || {
                    for _ in 0..4 {
                        let range = range(&mut r);
                        let bytes = vec![r.next() as u8; ((range.end - range.start) * GRANULE) as usize];
                        way.write(range.start * GRANULE, &bytes).unwrap();
                    }
                });
            }
            for _ in 0..6 {
                match r.below(4) {
                    0 => ssd.set_len(range(&mut r).end * GRANULE).unwrap(),
                    1 => fine.clear(),
                    _ => {}
                }
                for _ in 0..4 {
                    let range = range(&mut r);
                    let _ = fine.get(range.start * GRANULE, GRANULE as usize);
                    let _ = fine.get(range.start * GRANULE, ((range.end - range.start) * GRANULE) as usize);
                }
            }
        });
        let now = std::fs::read(file.path()).unwrap();
        for granule in 0..SPAN {
            let at = (granule * GRANULE) as usize;
            let mut out = [0; GRANULE as usize];
            match (fine.read(at as u64, &mut out), now.get(at..at + GRANULE as usize)) {
                (Ok(()), Some(bytes)) if out == bytes => {}
                (Err(e), None) if e.kind() == ErrorKind::EndOfFile => {}
                (read, is) => panic!(
                    "DATAPIPES_SEED={seed}, round {round}: granule {granule} of {}: {read:?}, {out:?}, in the file {is:?}",
                    now.len(),
                ),
            }
        }
        if r.one_in(4) {
            fine.maintain();
        }
    }
    assert!(fine.metrics().hits > rounds, "{:?}", fine.metrics());
}
