//! Staging with real pipes: over memory and real files, through full and failing places, and with
//! many threads. A failure prints the seed; `DATAPIPES_SEED` replays it.
// A failure ends the test. Clippy's exception for tests does not cover functions without #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use datapipes_core::topology::Topology;
use datapipes_core::{
    Dram, ErrorKind, Machine, MapOptions, Pages, Pipe, Runtime, Span, Ssd, StageOrder, StagePlace, Staging,
};
use datapipes_cpu::{Calibration, CpuBackend};
use datapipes_file::{FaultInjector, FaultVerdict, FileBackend, FileBackendOptions, Operation};
use datapipes_testkit::TempFolder;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn machine(faults: Option<Arc<dyn FaultInjector>>) -> Machine {
    let topology = Topology::discover();
    let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
    let mut options = FileBackendOptions::default();
    options.faults = faults;
    Machine::new(topology, vec![Arc::new(FileBackend::with(options)), Arc::new(cpu)])
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn fill(&mut self, memory: &Dram) {
        memory.lease_mut().unwrap().iter_mut().for_each(|b| *b = self.below(251) as u8);
    }
}

/// A folder under the target folder (/tmp may be memory), removed when the test ends.
struct Folder(TempFolder);

impl Folder {
    fn new() -> Folder {
        Folder(TempFolder::under(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn sub(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

fn small(len: u64) -> Dram {
    let options = MapOptions::default().pages(Pages::Small).prefault(false);
    Dram::allocate_with(usize::try_from(len).unwrap(), options).unwrap()
}

/// Memory, with a pipe to the staging and one back.
struct Bench {
    memory: Dram,
    down: Pipe,
    up: Pipe,
}

impl Bench {
    fn new(machine: &Machine, staging: &Staging, len: u64) -> Bench {
        let memory = small(len);
        let down = machine.connect(&memory, staging).unwrap();
        let up = machine.connect(staging, &memory).unwrap();
        Bench { memory, down, up }
    }
}

/// Fails with EIO while it is switched on.
#[derive(Default)]
struct Broken {
    writes: AtomicBool,
    reads: AtomicBool,
    /// Only writes that begin at or after this offset fail.
    from: AtomicU64,
    errno: AtomicU64,
}

impl FaultInjector for Broken {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let on = if op.write { &self.writes } else { &self.reads };
        if on.load(SeqCst) && op.offset >= self.from.load(SeqCst) {
            return FaultVerdict::Errno(i32::try_from(self.errno.load(SeqCst)).unwrap());
        }
        FaultVerdict::Pass
    }
}

/// Figure 7b: path (a), memory, until it is exhausted, and then path (b), a file, with no change of
/// the program.
#[test]
fn memory_until_it_is_exhausted_and_then_a_file() {
    let folder = Folder::new();
    let machine = machine(None);
    let places = vec![StagePlace::over(small(3 * MIB)), StagePlace::folder(folder.sub("big")).in_tier(1)];
    let staging = machine.staging(places, StageOrder::Given).unwrap();
    let bench = Bench::new(&machine, &staging, 8 * MIB);
    Random(1).fill(&bench.memory);
    let before = bench.memory.lease().unwrap().to_vec();
    // Several transfers are in flight; the third lies in both places.
    let spans = |i: u64| Span { source: i * 5 * MIB / 4, target: i * 5 * MIB / 4, len: 5 * MIB / 4 };
    let flights: Vec<_> = (0..6).map(|i| bench.down.start(spans(i)).unwrap()).collect();
    flights.into_iter().for_each(|f| f.wait().unwrap());
    let report = bench.down.report();
    assert_eq!(report.places.iter().map(|p| p.bytes).collect::<Vec<_>>(), [3 * MIB, 9 * MIB / 2], "{report}");
    assert_eq!(report.bytes(), 15 * MIB / 2);
    assert!(report.places[0].place.left.as_ref().unwrap().contains("full"), "{report}");
    bench.memory.lease_mut().unwrap().fill(0);
    bench.up.transfer(Span { source: 0, target: 0, len: 15 * MIB / 2 }).unwrap();
    let n = (15 * MIB / 2) as usize;
    assert!(bench.memory.lease().unwrap()[..n] == before[..n]);
    assert_eq!(bench.up.report().places[1].bytes, 9 * MIB / 2);
    // Freed memory is used again before the file is.
    staging.free(0, MIB);
    let error = bench.up.transfer(Span { source: 0, target: 0, len: 4096 }).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::EndOfFile, Some(0)), "{error}");
    bench.down.transfer(Span { source: 0, target: 64 * MIB, len: MIB }).unwrap();
    assert_eq!(bench.down.report().places[0].bytes, 4 * MIB);
    println!("{}{}", bench.down.route(), bench.down.report());
}

#[test]
fn memory_alone() {
    let machine = machine(None);
    let places = vec![StagePlace::over(small(MIB)), StagePlace::memory(MIB, None).limit(256 * KIB)];
    let staging = Staging::open(places).unwrap();
    let bench = Bench::new(&machine, &staging, 2 * MIB);
    Random(2).fill(&bench.memory);
    let extent = staging.extent(5 * MIB / 4).unwrap();
    assert_eq!(staging.extent(1).unwrap_err().kind(), ErrorKind::NoSpace);
    bench.down.transfer(Span { source: 7, target: extent.offset + 3, len: MIB }).unwrap();
    let whole = bench.memory.lease().unwrap().to_vec();
    bench.up.transfer(Span { source: extent.offset + 3, target: MIB, len: MIB }).unwrap();
    assert!(bench.memory.lease().unwrap()[MIB as usize..] == whole[7..7 + MIB as usize]);
    staging.free(extent.offset, extent.len);
    assert_eq!(staging.extent(5 * MIB / 4).unwrap().len, 5 * MIB / 4);
    assert!(staging.uses().iter().all(|u| u.left.as_ref().is_some_and(|l| l.contains("full"))), "{:?}", staging.uses());
}

/// Every kind of place by its name, as on the command line.
#[test]
fn places_of_all_kinds_by_name() {
    let folder = Folder::new();
    let dir = folder.0.display();
    let topology = Topology::discover();
    let backends = datapipes_bundle::all(&topology);
    let machine = Machine::new(topology, backends);
    let list = format!("pmem:{dir}?emulated&limit=1M,numa:0?len=1M,dram:1M,ssd:{dir}?limit=1M&access=cached,{dir}");
    let places = StagePlace::parse_list(&list).unwrap();
    let staging = match machine.staging(places, StageOrder::Given) {
        Ok(staging) => staging,
        Err(e) if [ErrorKind::Unavailable, ErrorKind::PermissionDenied].contains(&e.kind()) => {
            println!("SKIPPED: places_of_all_kinds_by_name: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    let bench = Bench::new(&machine, &staging, 5 * MIB);
    Random(5).fill(&bench.memory);
    let before = bench.memory.lease().unwrap().to_vec();
    bench.down.transfer(Span { source: 0, target: 0, len: 5 * MIB }).unwrap();
    bench.memory.lease_mut().unwrap().fill(0);
    bench.up.transfer(Span { source: 0, target: 0, len: 5 * MIB }).unwrap();
    assert!(bench.memory.lease().unwrap()[..] == before[..]);
    let report = bench.up.report();
    assert!(report.places.iter().all(|p| p.bytes == MIB), "{report}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "scratch files have no names");
    // An existing file is not used as scratch.
    fs::write(folder.0.join("dear"), vec![7; 4096]).unwrap();
    let error = Staging::open(StagePlace::parse_list(&format!("pmem:{dir}/dear?emulated")).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn the_order_by_cost_has_reasons() {
    let folder = Folder::new();
    let machine = machine(None);
    let places = || {
        let big = StagePlace::folder(folder.sub("big"));
        vec![big.clone(), StagePlace::memory(16 * MIB, None).in_tier(1), big.in_tier(2), StagePlace::memory(4096, None)]
    };
    let given = machine.staging(places(), StageOrder::Given).unwrap().uses();
    assert_eq!(given.iter().map(|u| u.tier).collect::<Vec<_>>(), [0, 0, 1, 2]);
    let uses = machine.staging(places(), StageOrder::Cost).unwrap().uses();
    let names: Vec<_> = uses.iter().map(|u| (u.tier, u.place.starts_with("dram"))).collect();
    // First memory, then the two folders of equal cost in turns, and last the place with almost no
    // space.
    assert_eq!(names, [(0, true), (1, false), (1, false), (2, true)], "{uses:?}");
    assert!(uses[0].reason.contains("by cost") && uses[0].reason.contains("free"), "{uses:?}");
}

/// The same pipes in a runtime: handles, with several transfers in flight, over a place that fills
/// up.
#[test]
fn by_the_runtime() {
    let folder = Folder::new();
    let machine = machine(None);
    let runtime = Runtime::start(&machine).unwrap();
    let places = vec![StagePlace::memory(3 * MIB, None), StagePlace::folder(folder.sub("big")).in_tier(1)];
    let staging = Staging::open(places).unwrap();
    let memory = small(8 * MIB);
    Random(6).fill(&memory);
    let before = memory.lease().unwrap().to_vec();
    let spans = || (0..8).map(|i| Span { source: i * MIB, target: i * MIB, len: MIB });
    let down = runtime.connect(&memory, &staging).unwrap();
    let handles: Vec<_> = spans().map(|span| down.transfer(span).unwrap()).collect();
    handles.into_iter().for_each(|h| h.wait().unwrap());
    memory.lease_mut().unwrap().fill(0);
    let up = runtime.connect(&staging, &memory).unwrap();
    let handles: Vec<_> = spans().map(|span| up.transfer(span).unwrap()).collect();
    handles.into_iter().for_each(|h| h.wait().unwrap());
    assert!(memory.lease().unwrap()[..] == before[..]);
    let report = up.report();
    assert_eq!(report.places.iter().map(|p| p.bytes).collect::<Vec<_>>(), [3 * MIB, 5 * MIB], "{report}");
}

/// A failed write goes to the next place. Bytes on the failed place are reported when they are
/// read.
#[test]
fn a_place_that_fails() {
    for (errno, says) in [(libc::EIO, "failed"), (libc::ENOSPC, "full")] {
        let folder = Folder::new();
        let faults = Arc::new(Broken::default());
        faults.errno.store(errno as u64, SeqCst);
        let machine = machine(Some(faults.clone()));
        let places = vec![StagePlace::folder(folder.sub("first")), StagePlace::memory(16 * MIB, None).in_tier(1)];
        let staging = machine.staging(places, StageOrder::Given).unwrap();
        let bench = Bench::new(&machine, &staging, 8 * MIB);
        Random(3).fill(&bench.memory);
        let before = bench.memory.lease().unwrap().to_vec();
        bench.down.transfer(Span { source: 0, target: 0, len: 2 * MIB }).unwrap();
        // The failure comes in the middle of a write.
        faults.from.store(3 * MIB, SeqCst);
        faults.writes.store(true, SeqCst);
        let flights: Vec<_> = (1..4)
            .map(|i| bench.down.start(Span { source: i * 2 * MIB, target: i * 2 * MIB, len: 2 * MIB }).unwrap())
            .collect();
        flights.into_iter().for_each(|f| f.wait().unwrap());
        let report = bench.down.report();
        assert!(report.places[0].place.left.as_ref().unwrap().contains(says), "{report}");
        assert!(report.places[1].bytes >= 5 * MIB - 4096, "{report}");
        assert_eq!(report.bytes(), 8 * MIB, "{report}");
        bench.memory.lease_mut().unwrap().fill(0);
        bench.up.transfer(Span { source: 0, target: 0, len: 8 * MIB }).unwrap();
        assert!(bench.memory.lease().unwrap()[..] == before[..], "{says}");
        // A new extent does not use the place where writes failed.
        let first = report.places[0].place.placed;
        staging.extent(MIB).unwrap();
        if errno == libc::EIO {
            assert_eq!(staging.uses()[0].placed, first);
            // For bytes on it, the error names the place and the offset. Bytes on other places can
            // be read.
            faults.from.store(0, SeqCst);
            faults.reads.store(true, SeqCst);
            let error = bench.up.transfer(Span { source: MIB, target: 0, len: 8192 }).unwrap_err();
            assert_eq!((error.kind(), error.errno()), (ErrorKind::Device, Some(libc::EIO)), "{error}");
            assert_eq!(error.offset(), Some(MIB), "{error}");
            assert!(error.to_string().contains("first"), "{error}");
            bench.up.transfer(Span { source: 6 * MIB, target: 0, len: MIB }).unwrap();
            // Bytes that are written again are on another place, and complete.
            bench.down.transfer(Span { source: 0, target: MIB, len: 8192 }).unwrap();
            bench.up.transfer(Span { source: MIB, target: 8192, len: 8192 }).unwrap();
        }
    }
}

#[test]
fn a_failure_with_no_place_left_is_an_error() {
    let folder = Folder::new();
    let faults = Arc::new(Broken::default());
    faults.errno.store(libc::EIO as u64, SeqCst);
    faults.writes.store(true, SeqCst);
    let machine = machine(Some(faults));
    let staging = Staging::open(vec![StagePlace::folder(folder.sub("only"))]).unwrap();
    let bench = Bench::new(&machine, &staging, MIB);
    let error = bench.down.transfer(Span { source: 0, target: 0, len: MIB }).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Device, Some(libc::EIO)), "{error}");
    assert!(error.to_string().contains("only"), "{error}");
    // A second transfer reports the same, though it found no place to begin with.
    let error = bench.down.transfer(Span { source: 0, target: MIB, len: MIB }).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Device, Some(libc::EIO)), "{error}");
}

#[test]
fn a_dropped_handle_still_arrives() {
    let folder = Folder::new();
    let faults = Arc::new(Broken::default());
    faults.errno.store(libc::ENOSPC as u64, SeqCst);
    faults.writes.store(true, SeqCst);
    let machine = machine(Some(faults));
    let places = vec![StagePlace::folder(folder.sub("full")), StagePlace::memory(4 * MIB, None).in_tier(1)];
    let staging = Staging::open(places).unwrap();
    let bench = Bench::new(&machine, &staging, 4 * MIB);
    Random(4).fill(&bench.memory);
    let before = bench.memory.lease().unwrap().to_vec();
    drop(bench.down.start(Span { source: 0, target: 0, len: 2 * MIB }).unwrap());
    let Bench { memory, down, up } = bench;
    // A dropped pipe waits for what it started, and bytes that did not arrive go to the next place.
    drop(down);
    memory.lease_mut().unwrap().fill(0);
    up.transfer(Span { source: 0, target: 0, len: 2 * MIB }).unwrap();
    assert!(memory.lease().unwrap()[..2 << 20] == before[..2 << 20]);
    assert_eq!(staging.uses()[1].placed, 2 * MIB);
}

/// Between a file and a staging, and between two stagings, bytes go through the memory of the pipe.
#[test]
fn ends_that_are_no_memory() {
    let folder = Folder::new();
    let machine = machine(None);
    let two = || {
        let places = vec![StagePlace::memory(MIB, None), StagePlace::folder(folder.sub("big")).in_tier(1)];
        Staging::open(places).unwrap()
    };
    let (one, other) = (two(), two());
    let bytes: Vec<u8> = (0..3 * MIB).map(|i| (i % 251) as u8).collect();
    fs::write(folder.0.join("file"), &bytes).unwrap();
    let span = Span { source: 0, target: 0, len: 3 * MIB };
    machine.connect(&Ssd::open(folder.0.join("file")).unwrap(), &one).unwrap().transfer(span).unwrap();
    machine.connect(&one, &other).unwrap().transfer(span).unwrap();
    let memory = small(3 * MIB);
    let up = machine.connect(&other, &memory).unwrap();
    up.transfer(span).unwrap();
    assert!(memory.lease().unwrap()[..] == bytes[..]);
    assert_eq!(up.report().places.iter().map(|p| p.bytes).collect::<Vec<_>>(), [MIB, 2 * MIB]);
    assert!(machine.explain(&one, &memory, &Default::default()).unwrap().hops.len() == 2);
}

/// Every n-th request to a file fails, as on a full or on a broken place.
struct Sometimes {
    every: u64,
    errno: i32,
    requests: AtomicU64,
    hits: AtomicU64,
}

impl FaultInjector for Sometimes {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        if op.write && self.requests.fetch_add(1, SeqCst) % self.every == self.every - 1 {
            self.hits.fetch_add(1, SeqCst);
            return FaultVerdict::Errno(self.errno);
        }
        FaultVerdict::Pass
    }
}

/// Random places, lengths, failures and frees, against a model of what was written.
#[test]
fn like_the_model() {
    const SPACE: u64 = 3 * MIB;
    let replay = datapipes_testkit::replayed_seed();
    let (mut hits, mut full) = (0, 0);
    for seed in replay.map_or(0..40, |seed| seed..seed + 1) {
        let random = &mut Random(seed);
        let folder = Folder::new();
        let errno = if random.below(2) == 0 { libc::EIO } else { libc::ENOSPC };
        let every = 5 + random.below(60);
        let faults = Arc::new(Sometimes { every, errno, requests: AtomicU64::new(0), hits: AtomicU64::new(0) });
        let machine = machine(Some(faults.clone()));
        let places: Vec<StagePlace> = (0..2 + random.below(3))
            .map(|i| {
                let place = match random.below(2) {
                    0 => StagePlace::memory((1 + random.below(300)) * 4 * KIB, None),
                    _ => StagePlace::folder(folder.sub(&i.to_string())).limit((1 + random.below(300)) * 4 * KIB),
                };
                place.in_tier(random.below(3) as usize)
            })
            .collect();
        let staging = Staging::open(places).unwrap();
        let bench = Bench::new(&machine, &staging, 2 * MIB);
        let mut model: Vec<Option<u8>> = vec![None; SPACE as usize];
        for step in 0..40 {
            let case = format!("seed {seed}, step {step}, {:?}", staging.uses());
            let at = random.below(SPACE);
            let len = (1 + random.below(400 * KIB)).min(SPACE - at);
            let (at, len) = if random.below(2) == 0 { (at / 4096 * 4096, len) } else { (at, len) };
            let range = at as usize..(at + len) as usize;
            match random.below(6) {
                0 => {
                    staging.free(at, len);
                    model[range].fill(None);
                }
                1..4 => {
                    // Two halves are in flight at once.
                    let source = random.below(MIB);
                    let value = random.below(256) as u8;
                    let pattern = |i: u64| (i as u8).wrapping_mul(31).wrapping_add(value);
                    {
                        let range = bench.memory.range(source as usize, len as usize).unwrap();
                        range.lease_mut().unwrap().iter_mut().zip(0..).for_each(|(b, i)| *b = pattern(i));
                    }
                    let span = Span { source, target: at, len };
                    let halves = [span.part(0, len / 2).unwrap(), span.part(len / 2, len - len / 2).unwrap()];
                    let flights = halves.map(|half| (half, bench.down.start(half)));
                    for (half, flight) in flights {
                        match flight.and_then(|f| f.wait()) {
                            Ok(()) => {
                                for i in 0..half.len {
                                    model[(half.target + i) as usize] = Some(pattern(half.target + i - at));
                                }
                            }
                            Err(e) => {
                                full += 1;
                                let expected = [ErrorKind::NoSpace, ErrorKind::Device];
                                assert!(expected.contains(&e.kind()), "{case}: {e}");
                                // The present contents are unspecified, and nothing else may have
                                // changed.
                                staging.free(half.target, half.len);
                                model[half.target as usize..(half.target + half.len) as usize].fill(None);
                            }
                        }
                    }
                }
                _ => {
                    let result = bench.up.transfer(Span { source: at, target: 0, len });
                    let there: Option<Vec<u8>> = model[range].iter().copied().collect();
                    match (result, there) {
                        (Ok(()), Some(bytes)) => {
                            let got = bench.memory.range(0, len as usize).unwrap();
                            assert!(got.lease().unwrap()[..] == bytes[..], "{case}: {len} bytes at {at} differ");
                        }
                        (Err(e), None) => assert_eq!(e.kind(), ErrorKind::EndOfFile, "{case}: {e}"),
                        (result, there) => panic!("{case}: {result:?}, and it is there: {}", there.is_some()),
                    }
                }
            }
        }
        // In the end everything is where the model says.
        let mut at = 0;
        while at < SPACE {
            let run = model[at as usize..].iter().take_while(|b| b.is_some()).take(MIB as usize).count() as u64;
            if run > 0 {
                bench
                    .up
                    .transfer(Span { source: at, target: 0, len: run })
                    .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                let got = bench.memory.range(0, run as usize).unwrap();
                let same = got.lease().unwrap().iter().zip(&model[at as usize..]).all(|(a, b)| Some(*a) == *b);
                assert!(same, "seed {seed}: {run} bytes at {at} differ");
            }
            at += run.max(1);
        }
        hits += faults.hits.load(SeqCst);
    }
    assert!(replay.is_some() || (hits > 50 && full > 20), "{hits} faults were met, {full} transfers failed");
}

/// Threads write, read and free at once, each its own extents, while the first place breaks.
#[test]
fn many_threads() {
    let folder = Folder::new();
    let faults = Arc::new(Broken::default());
    faults.errno.store(libc::EIO as u64, SeqCst);
    faults.from.store(4 * MIB, SeqCst);
    let machine = machine(Some(faults.clone()));
    let places = vec![
        StagePlace::folder(folder.sub("breaks")),
        StagePlace::memory(2 * MIB, None),
        StagePlace::memory(256 * MIB, None).in_tier(1),
    ];
    let staging = Staging::open(places).unwrap();
    faults.writes.store(true, SeqCst);
    let bench = Bench::new(&machine, &staging, 16 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (bench, staging) = (&bench, &staging);
            scope.spawn(move || {
                let random = &mut Random(100 + thread);
                let base = thread * 4 * MIB;
                for round in 0..24 {
                    let len = (1 + random.below(255)) * 4 * KIB;
                    let extent = staging.extent(2 * len).unwrap();
                    let mine = |at: u64| bench.memory.range((base + at) as usize, len as usize).unwrap();
                    let value = random.below(255) as u8 + 1;
                    mine(0).lease_mut().unwrap().fill(value);
                    mine(MIB).lease_mut().unwrap().fill(!value);
                    let down = |at: u64, offset| bench.down.start(Span { source: base + at, target: offset, len });
                    let flights = [down(0, extent.offset).unwrap(), down(MIB, extent.offset + len).unwrap()];
                    flights.into_iter().for_each(|f| f.wait().unwrap());
                    let up = |offset, at: u64| bench.up.start(Span { source: offset, target: base + at, len });
                    let flights = [up(extent.offset + len, 2 * MIB).unwrap(), up(extent.offset, 3 * MIB).unwrap()];
                    flights.into_iter().for_each(|f| f.wait().unwrap());
                    let is = |at: u64, value: u8| mine(at).lease().unwrap().iter().all(|b| *b == value);
                    assert!(is(2 * MIB, !value) && is(3 * MIB, value), "thread {thread}, round {round}");
                    staging.free(extent.offset, 2 * len);
                }
            });
        }
    });
    let report = bench.down.report();
    assert!(report.places.iter().any(|p| p.place.left.as_ref().is_some_and(|l| l.contains("failed"))), "{report}");
    // Nothing that was freed is still held: all of the memory is available again.
    assert_eq!(staging.extent(250 * MIB).unwrap().len, 250 * MIB);
}

/// A file system of a given size, removed when the value is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(test: &str, at: PathBuf, size: &str) -> Option<Mounted> {
        let options = format!("size={size}");
        Mounted::run(test, Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&at))?;
        Some(Mounted(at))
    }

    /// Makes an ext4 file system in a file, over a loop device.
    fn ext4(test: &str, image: &Path, at: PathBuf, bytes: u64) -> Option<Mounted> {
        fs::File::create(image).unwrap().set_len(bytes).unwrap();
        Mounted::run(test, Command::new("mkfs.ext4").args(["-q", "-F", "-m0"]).arg(image))?;
        Mounted::run(test, Command::new("mount").args(["-o", "loop"]).arg(image).arg(&at))?;
        Some(Mounted(at))
    }

    /// Returns `None`, and prints why, where this process may not run the command.
    fn run(test: &str, command: &mut Command) -> Option<()> {
        match command.output() {
            Ok(output) if output.status.success() => Some(()),
            Ok(output) => {
                println!("SKIPPED: {test}: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(e) => {
                println!("SKIPPED: {test}: {:?}: {e}", command.get_program());
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Two real file systems: the first is too small, then the second is full too, then space is freed.
fn overflows(first: &Path, second: &Path) {
    let machine = machine(None);
    let places = vec![StagePlace::folder(first), StagePlace::folder(second).in_tier(1)];
    let staging = machine.staging(places, StageOrder::Given).unwrap();
    let bench = Bench::new(&machine, &staging, 2 * MIB);
    let pattern = |i: u64| (i * 7 + 1) as u8;
    let mut written = 0;
    let error = loop {
        bench.memory.lease_mut().unwrap().fill(pattern(written));
        match bench.down.transfer(Span { source: 0, target: written * 2 * MIB, len: 2 * MIB }) {
            Ok(()) => written += 1,
            Err(e) => break e,
        }
        assert!(written < 1000, "it never fills up");
    };
    assert_eq!((error.kind(), error.errno()), (ErrorKind::NoSpace, Some(libc::ENOSPC)), "{error}");
    for place in [first, second] {
        assert!(error.to_string().contains(place.to_str().unwrap()), "{error}");
    }
    let report = bench.down.report();
    assert!(report.places.iter().all(|p| p.bytes > 3 * MIB), "{report}");
    for i in 0..written {
        bench.up.transfer(Span { source: i * 2 * MIB, target: 0, len: 2 * MIB }).unwrap();
        assert!(bench.memory.lease().unwrap().iter().all(|b| *b == pattern(i)), "piece {i} of {written}");
    }
    // Space that is freed early is used again, and the file system has it back in between.
    let free = || rustix_free(first);
    let before = free();
    staging.free(0, 4 * MIB);
    assert!(free() >= before + 3 * MIB, "{} bytes free, {before} before", free());
    staging.free(written * 2 * MIB, 2 * MIB);
    for i in 0..2 {
        bench.down.transfer(Span { source: 0, target: i * 2 * MIB, len: 2 * MIB }).unwrap();
    }
    drop((bench, staging));
    assert!(free() >= before + 8 * MIB, "the scratch file is still there");
}

fn rustix_free(path: &Path) -> u64 {
    datapipes_core::topology::BlockDevice::behind(path).unwrap().available_bytes.unwrap()
}

#[test]
fn real_file_systems_in_memory_fill_up() {
    let folder = Folder::new();
    let test = "real_file_systems_in_memory_fill_up";
    let Some(first) = Mounted::tmpfs(test, folder.sub("first"), "9m") else { return };
    let Some(second) = Mounted::tmpfs(test, folder.sub("second"), "16m") else { return };
    overflows(&first.0, &second.0);
}

#[test]
fn real_file_systems_on_loop_devices_fill_up() {
    let folder = Folder::new();
    let test = "real_file_systems_on_loop_devices_fill_up";
    let mount =
        |name: &str, mib| Mounted::ext4(test, &folder.0.join(format!("{name}.img")), folder.sub(name), mib * MIB);
    let Some(first) = mount("first", 24) else { return };
    let Some(second) = mount("second", 32) else { return };
    overflows(&first.0, &second.0);
}
