//! The engine with faults: short transfers, EIO in each phase, full places, and stopping at any
//! moment.
//!
//! In all cases the result is right, or there is an error that says what and where. Then the input
//! is intact, the output is unchanged, and no file is left. Every failure prints the seed;
//! `DATAPIPES_SEED` replays it.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use datapipes_core::{Error, ErrorKind, Result, StageOrder, StagePlace};
use datapipes_file::{FaultInjector, FaultVerdict, FileBackendOptions, Operation};
use datapipes_sort::text::TextOptions;
use datapipes_sort::{Control, Input, Output, RecordFormat, SortJob, SortMethod, SortReport, SpillCompression};
use datapipes_testkit::joined;
use scene::{Folder, Random, assert_same, machine, seed, sort, sort_records};

const RECORD: usize = 100;
const OLD: &[u8] = b"what was there before\n";

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Input,
    Spill,
    Merge,
    Output,
}

/// Both ways to sort what does not fit.
const METHODS: [SortMethod; 2] = [SortMethod::Merge, SortMethod::Distribution];

const PHASES: [Phase; 4] = [Phase::Input, Phase::Spill, Phase::Merge, Phase::Output];

/// Tells the phases of a sort of one file with one merge pass apart. When everything was read,
/// reads belong to the merge, and the writes after the first of them go to the output.
struct Watch {
    control: Control,
    merging: AtomicBool,
    seen: [AtomicU64; 4],
}

impl Watch {
    fn new(control: &Control) -> Watch {
        Watch { control: control.clone(), merging: AtomicBool::new(false), seen: Default::default() }
    }

    /// Returns the phase, and how many requests it had before.
    fn note(&self, op: &Operation) -> (Phase, u64) {
        let progress = &self.control.progress;
        if !op.write && progress.read.load(SeqCst) == progress.total.load(SeqCst) {
            self.merging.store(true, SeqCst);
        }
        let phase = match (op.write, self.merging.load(SeqCst)) {
            (false, false) => Phase::Input,
            (true, false) => Phase::Spill,
            (false, true) => Phase::Merge,
            (true, true) => Phase::Output,
        };
        (phase, self.seen[phase as usize].fetch_add(1, SeqCst))
    }

    fn seen(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|i| self.seen[i].load(SeqCst))
    }
}

/// EIO for one request of one phase.
struct Breaks {
    watch: Watch,
    phase: Phase,
    nth: u64,
    hits: AtomicU64,
}

impl FaultInjector for Breaks {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        if self.watch.note(op) == (self.phase, self.nth) {
            self.hits.fetch_add(1, SeqCst);
            return FaultVerdict::Errno(libc::EIO);
        }
        FaultVerdict::Pass
    }
}

/// Cuts every n-th request short.
struct Shortens {
    every: u64,
    part: u32,
    requests: AtomicU64,
    shortened: AtomicU64,
}

impl FaultInjector for Shortens {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let n = self.requests.fetch_add(1, SeqCst);
        if n % self.every == self.every - 1 && op.len > 4096 {
            self.shortened.fetch_add(1, SeqCst);
            return FaultVerdict::Short((op.len / self.part).max(1));
        }
        FaultVerdict::Pass
    }
}

fn config(faults: Arc<dyn FaultInjector>, no_uring: bool) -> FileBackendOptions {
    FileBackendOptions::default().faults(faults).force_no_uring(no_uring)
}

/// A folder with an input of `n` records and an old output.
fn scene(seed: u64, n: usize) -> (Folder, PathBuf, Vec<u8>) {
    let folder = Folder::new();
    let bytes = Random(seed).bytes(n * RECORD);
    let input = folder.put("in/a", &bytes);
    folder.put("out/sorted", OLD);
    (folder, input, bytes)
}

/// Checks that the input is intact, the output unchanged, and nothing else there.
fn assert_untouched(folder: &Folder, bytes: &[u8], case: &str) {
    assert_eq!(folder.files(), ["in/a", "out/sorted"], "{case}");
    assert!(fs::read(folder.path("in/a")).unwrap() == bytes, "{case}: the input changed");
    assert!(folder.sorted() == OLD, "{case}: the output changed");
}

#[test]
fn short_transfers_change_nothing() {
    let seed = seed(1);
    for (case, (every, part)) in [(1, 2), (2, 3), (3, 7), (7, 1000)].into_iter().enumerate() {
        for no_uring in [false, true] {
            for (n, method) in [20_000, 120_000, 120_000].into_iter().zip([METHODS[0], METHODS[0], METHODS[1]]) {
                let seed = seed + case as u64;
                let name = format!(
                    "seed {seed}, 1/{part} of every {every}th, {n} records, {method:?}, no io_uring {no_uring}"
                );
                let (folder, input, bytes) = scene(seed, n);
                let faults =
                    Arc::new(Shortens { every, part, requests: AtomicU64::new(0), shortened: AtomicU64::new(0) });
                let job = folder.job(RecordFormat::SORT_BENCHMARK, &[input]).threads(3).method(method);
                let machine = machine(config(faults.clone(), no_uring));
                datapipes_sort::sort(&machine, job).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_same(&folder.sorted(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false), &name);
                assert!(faults.shortened.load(SeqCst) > 0, "{name}: nothing was shortened");
            }
        }
    }
}

fn assert_device_error(error: &Error, case: &str) {
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Device, Some(libc::EIO)), "{case}: {error}");
    assert!(error.offset().is_some(), "{case}: no offset in: {error}");
}

#[test]
fn a_device_error_in_each_phase() {
    for method in METHODS {
        device_error_in_each_phase(method);
    }
}

fn device_error_in_each_phase(method: SortMethod) {
    let seed = seed(100);
    let n = 120_000;
    let job = |folder: &Folder, input| folder.job(RecordFormat::SORT_BENCHMARK, &[input]).method(method);
    // The number of requests of each phase, from a run without faults.
    let counts = {
        let (folder, input, _) = scene(seed, n);
        let job = job(&folder, input);
        let never =
            Breaks { watch: Watch::new(&job.control), phase: Phase::Input, nth: u64::MAX, hits: AtomicU64::new(0) };
        let never = Arc::new(never);
        let report = datapipes_sort::sort(&machine(config(never.clone(), false)), job).unwrap();
        assert_eq!(report.merge_passes, u64::from(method == SortMethod::Merge), "{report}");
        never.watch.seen()
    };
    for (phase, count) in PHASES.into_iter().zip(counts) {
        assert!(count >= 4, "{method:?}, {phase:?} has {count} requests");
        let random = &mut Random(seed + phase as u64);
        // Counts differ a little from run to run, so the last quarter is left out.
        for (nth, no_uring) in [(0, false), (0, true), (random.next() % (count * 3 / 4), false), (count * 3 / 4, true)]
        {
            let case = format!("seed {seed}, {method:?}, {phase:?} request {nth} of {count}, no io_uring {no_uring}");
            let (folder, input, bytes) = scene(seed, n);
            let job = job(&folder, input);
            let faults = Arc::new(Breaks { watch: Watch::new(&job.control), phase, nth, hits: AtomicU64::new(0) });
            let outcome = datapipes_sort::sort(&machine(config(faults.clone(), no_uring)), job);
            assert_eq!(
                faults.hits.load(SeqCst),
                1,
                "{case}: the fault was not met: {outcome:?}, {:?}",
                faults.watch.seen()
            );
            assert_device_error(&outcome.expect_err(&case), &case);
            assert_untouched(&folder, &bytes, &case);
        }
    }
}

#[test]
fn a_device_error_where_the_input_fits() {
    for (phase, nth) in [(Phase::Input, 0), (Phase::Input, 5), (Phase::Spill, 0), (Phase::Spill, 5)] {
        // Writes count as spill writes, because there is no merge.
        let case = format!("{phase:?} request {nth}");
        let (folder, input, bytes) = scene(7, 20_000);
        let job = folder.job(RecordFormat::SORT_BENCHMARK, &[input]);
        let faults = Arc::new(Breaks { watch: Watch::new(&job.control), phase, nth, hits: AtomicU64::new(0) });
        let outcome = datapipes_sort::sort(&machine(config(faults.clone(), false)), job);
        assert_eq!(faults.hits.load(SeqCst), 1, "{case}: the fault was not met");
        assert_device_error(&outcome.expect_err(&case), &case);
        assert_untouched(&folder, &bytes, &case);
    }
}

#[test]
fn a_device_error_for_numbers_and_lines() {
    let text = datapipes_sort::text::TextOptions::default().compile().unwrap();
    let formats = [
        RecordFormat::Numbers { kind: datapipes_sort::NumberKind::U64, reverse: false },
        RecordFormat::Numbers { kind: datapipes_sort::NumberKind::F64, reverse: true },
        RecordFormat::Lines { order: text, terminator: b'\n' },
    ];
    for format in formats {
        for phase in PHASES {
            let case = format!("{format:?}, {phase:?}");
            let (folder, input, bytes) = scene(8, 160_000);
            let job = folder.job(format.clone(), &[input]).threads(3);
            let faults = Arc::new(Breaks { watch: Watch::new(&job.control), phase, nth: 2, hits: AtomicU64::new(0) });
            let outcome = datapipes_sort::sort(&machine(config(faults.clone(), false)), job);
            assert_eq!(
                faults.hits.load(SeqCst),
                1,
                "{case}: the fault was not met: {outcome:?}, {:?}",
                faults.watch.seen()
            );
            assert_device_error(&outcome.expect_err(&case), &case);
            assert_untouched(&folder, &bytes, &case);
        }
    }
}

/// A small file system in memory, unmounted with the value.
struct SmallPlace(PathBuf);

impl SmallPlace {
    /// Mounts it. If this process may not mount, it says so and returns `None`.
    fn mount(test: &str, at: PathBuf, size: &str) -> Option<SmallPlace> {
        fs::create_dir_all(&at).unwrap();
        let options = format!("size={size}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&at).output();
        match mount {
            Ok(output) if output.status.success() => Some(SmallPlace(at)),
            Ok(output) => {
                println!("SKIPPED: {test}: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(e) => {
                println!("SKIPPED: {test}: mount: {e}");
                None
            }
        }
    }

    fn names(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path()).collect()
    }
}

impl Drop for SmallPlace {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Sorts an input without a length, so that the space needed is not known in advance.
fn sort_stream(mut job: SortJob, bytes: &[u8]) -> Result<SortReport> {
    let (reader, mut writer) = std::io::pipe().unwrap();
    job.inputs = vec![Input::Stream { name: "a pipe".into(), fd: reader.into() }];
    std::thread::scope(|scope| {
        // The sort may close the pipe before it has read everything.
        scope.spawn(move || std::io::Write::write_all(&mut writer, bytes));
        sort(job)
    })
}

#[test]
fn a_full_spill_place() {
    let (folder, input, bytes) = scene(9, 150_000);
    let Some(small) = SmallPlace::mount("a_full_spill_place", folder.path("small"), "8m") else { return };
    let job = || {
        folder.job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&input)).spill(vec![StagePlace::folder(&small.0)])
    };
    // The error is reported before the start for a file, and during the sort for a stream.
    for (case, outcome) in [("a file", sort(job())), ("a stream", sort_stream(job(), &bytes))] {
        let error = outcome.expect_err(case);
        assert_eq!((error.kind(), error.errno()), (ErrorKind::NoSpace, Some(libc::ENOSPC)), "{case}: {error}");
        assert!(error.to_string().contains(small.0.to_str().unwrap()), "{case}: {error}");
        assert!(error.to_string().contains("`spill`"), "{case}: {error}");
        assert!(small.names().is_empty(), "{case}: {:?}", small.names());
        assert_untouched(&folder, &bytes, case);
    }
}

#[test]
fn runs_that_are_asked_to_be_compressed_may_fit_where_others_would_not() {
    let folder = Folder::new();
    let mut random = Random(seed(471));
    let line =
        |n: u64| format!("line number {:06} with a lot of equal text in it, {}\n", n % 1_000_000, "a".repeat(60));
    let lines: String = (0..400_000).map(|_| line(random.next())).collect();
    let input = folder.put("in/a", lines.as_bytes());
    let name = "runs_that_are_asked_to_be_compressed_may_fit_where_others_would_not";
    let Some(small) = SmallPlace::mount(name, folder.path("small"), "20m") else { return };
    let format = RecordFormat::Lines { order: TextOptions::default().compile().unwrap(), terminator: b'\n' };
    let job = || folder.job(format.clone(), std::slice::from_ref(&input)).spill(vec![StagePlace::folder(&small.0)]);
    let error = sort(job().memory_bytes(16 << 20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("`compression`"), "{error}");
    sort(job().memory_bytes(16 << 20).compression(SpillCompression::On)).unwrap();
    let mut sorted: Vec<&str> = lines.lines().collect();
    sorted.sort_unstable();
    assert_same(&folder.sorted(), (sorted.join("\n") + "\n").as_bytes(), "compressed");
    assert!(small.names().is_empty(), "{:?}", small.names());
}

/// Sorted files of `n` records each.
fn sorted_inputs(folder: &Folder, count: u64, n: usize) -> Vec<PathBuf> {
    let sorted = |i| sort_records(&Random(seed(472 + i)).bytes(n * RECORD), &RecordFormat::SORT_BENCHMARK, false);
    (0..count).map(|i| folder.put(&format!("in/{i}"), &sorted(i))).collect()
}

#[test]
fn space_of_merged_runs_is_there_for_runs_of_unknown_length() {
    let folder = Folder::new();
    let inputs = sorted_inputs(&folder, 7, 20_000);
    let bytes: Vec<u8> = inputs.iter().flat_map(|path| fs::read(path).unwrap()).collect();
    // Two inputs are merged into a run, and then runs into longer ones. At most two thirds of all
    // bytes are merged at once, from runs to runs; what was merged before is free again.
    let limit = bytes.len() as u64 * 3 / 2;
    let job = folder.job(RecordFormat::SORT_BENCHMARK, &inputs).fan_in(2);
    let place = StagePlace::folder(folder.path("spill")).limit(limit);
    let merge = |job| datapipes_sort::merge(&machine(FileBackendOptions::default()), job);
    let report = merge(job.spill(vec![place])).unwrap();
    assert!(report.merge_passes > 4, "{report}");
    assert_same(&folder.sorted(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false), "merged");
    // The output is in the same place as the runs, and its length is not known before.
    let Some(small) = SmallPlace::mount("space_of_merged_runs", folder.path("small"), "36m") else { return };
    let target = small.0.join("sorted");
    let job = folder.job(RecordFormat::SORT_BENCHMARK, &inputs).fan_in(2).unique(true);
    merge(job.output(Output::to(&target).unwrap()).spill(vec![StagePlace::folder(&small.0)])).unwrap();
    let expected = sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, true);
    assert_same(&fs::read(&target).unwrap(), &expected, "into the same place");
}

#[test]
fn a_full_output_place() {
    let (folder, input, bytes) = scene(10, 150_000);
    let Some(small) = SmallPlace::mount("a_full_output_place", folder.path("small"), "8m") else { return };
    let old = small.0.join("sorted");
    fs::write(&old, OLD).unwrap();
    let job =
        || folder.job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&input)).output(Output::to(&old).unwrap());
    let fits = job().memory_bytes(64 << 20);
    let outcomes = [("a file", sort(job())), ("a stream", sort_stream(job(), &bytes)), ("a fitting file", sort(fits))];
    for (case, outcome) in outcomes {
        let error = outcome.expect_err(case);
        assert_eq!((error.kind(), error.errno()), (ErrorKind::NoSpace, Some(libc::ENOSPC)), "{case}: {error}");
        assert!(error.to_string().contains(small.0.to_str().unwrap()), "{case}: {error}");
        assert_eq!(small.names(), std::slice::from_ref(&old), "{case}");
        assert_eq!(fs::read(&old).unwrap(), OLD, "{case}");
        assert!(fs::read(&input).unwrap() == bytes, "{case}");
    }
}

#[test]
fn the_second_spill_place_takes_over() {
    let (folder, input, bytes) = scene(11, 300_000);
    let Some(small) = SmallPlace::mount("the_second_spill_place_takes_over", folder.path("small"), "8m") else {
        return;
    };
    let spill = vec![StagePlace::folder(&small.0), StagePlace::folder(folder.path("spill"))];
    for fan_in in [0, 3] {
        let job =
            folder.job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&input)).spill(spill.clone()).fan_in(fan_in);
        let report = sort(job).unwrap();
        assert_same(&folder.sorted(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false), "two spill places");
        assert!(report.spill.iter().all(|place| place.bytes > 0), "{:?}", report.spill);
        assert!(report.spill[0].why.contains("full"), "{:?}", report.spill);
        assert!(small.names().is_empty(), "{:?}", small.names());
    }
}

/// Lists of places in order: memory, then a mount that is too small, then a disk.
#[test]
fn places_in_their_order() {
    let (folder, input, bytes) = scene(17, 300_000);
    let Some(small) = SmallPlace::mount("places_in_their_order", folder.path("small"), "8m") else { return };
    let list = format!("dram:3M,{},{}", small.0.display(), folder.path("spill").display());
    let places = StagePlace::parse_list(&list).unwrap();
    for (fan_in, threads, unique) in [(0, 2, false), (3, 3, false), (3, 1, true)] {
        let job = folder
            .job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&input))
            .spill(places.clone())
            .fan_in(fan_in)
            .threads(threads)
            .unique(unique);
        let report = sort(job).unwrap();
        let case = format!("fan-in {fan_in}, {threads} threads, unique {unique}: {report}");
        assert_same(&folder.sorted(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, unique), &case);
        let [dram, mount, disk] = &report.spill[..] else { panic!("{case}") };
        assert_eq!([dram.tier, mount.tier, disk.tier], [0, 1, 2], "{case}");
        assert!(dram.bytes > 2 << 20 && mount.bytes > 6 << 20 && disk.bytes > 8 << 20, "{case}");
        assert!(dram.why.contains("full") && mount.why.contains("full") && disk.why == "used", "{case}");
        assert!(small.names().is_empty(), "{case}: {:?}", small.names());
        // Merged runs returned their space, and it was used again.
        let placed: u64 = report.spill.iter().map(|place| place.bytes).sum();
        let freed: u64 = report.spill.iter().map(|place| place.freed).sum();
        assert!(
            fan_in == 0 || (freed > 8 << 20 && placed > 30_000_000 + (8 << 20)),
            "{case}: {freed} of {placed} freed"
        );
    }
    // By cost: the disk comes after the memory, whatever the list says.
    let list = format!("{},dram:3M", folder.path("spill").display());
    let job = folder
        .job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&input))
        .spill(StagePlace::parse_list(&list).unwrap())
        .spill_order(StageOrder::Cost);
    let report = sort(job).unwrap();
    assert_same(&folder.sorted(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false), "by cost");
    assert!(report.spill[0].place == "dram:3M" && report.spill[0].order.contains("by cost"), "{report}");
    assert!(report.spill.iter().all(|place| place.bytes > 2 << 20), "{report}");
}

#[test]
fn a_spill_place_that_fails_is_left_for_the_next() {
    for no_uring in [false, true] {
        let (folder, input, bytes) = scene(18, 120_000);
        let places = [StagePlace::folder(folder.path("spill")), StagePlace::memory(64 << 20, None).in_tier(1)];
        let job = folder.job(RecordFormat::SORT_BENCHMARK, &[input]).spill(places.into());
        let faults = Breaks { watch: Watch::new(&job.control), phase: Phase::Spill, nth: 40, hits: AtomicU64::new(0) };
        let faults = Arc::new(faults);
        let report = datapipes_sort::sort(&machine(config(faults.clone(), no_uring)), job).unwrap();
        assert_eq!(faults.hits.load(SeqCst), 1, "the fault was not met: {report}");
        assert_same(&folder.sorted(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false), "a place failed");
        assert!(report.spill[0].why.contains("failed") && report.spill[0].bytes > 0, "{report}");
        assert!(report.spill[1].bytes > 0, "{report}");
    }
}

#[test]
fn places_that_are_too_small_together() {
    let (folder, input, bytes) = scene(19, 150_000);
    let spill = folder.path("spill");
    let list = format!("dram:2M,{}?limit=4M", spill.display());
    let job = || {
        folder
            .job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&input))
            .spill(StagePlace::parse_list(&list).unwrap())
    };
    // The error is reported before the start for a file, and during the sort for a stream.
    for (case, outcome) in [("a file", sort(job())), ("a stream", sort_stream(job(), &bytes))] {
        let error = outcome.expect_err(case);
        assert_eq!((error.kind(), error.errno()), (ErrorKind::NoSpace, Some(libc::ENOSPC)), "{case}: {error}");
        assert!(error.to_string().contains("dram:2M") && error.to_string().contains("`spill`"), "{case}: {error}");
        assert_untouched(&folder, &bytes, case);
    }
}

#[test]
fn an_output_where_files_need_names() {
    // tmpfs has nameless files too; here the output is on another file system than the spill.
    let (folder, input, bytes) = scene(12, 150_000);
    let Some(small) = SmallPlace::mount("an_output_where_files_need_names", folder.path("small"), "64m") else {
        return;
    };
    let path = small.0.join("sorted");
    let job = folder.job(RecordFormat::SORT_BENCHMARK, &[input]).output(Output::to(&path).unwrap());
    sort(job).unwrap();
    assert_same(&fs::read(&path).unwrap(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false), "to tmpfs");
    assert_eq!(small.names(), [path]);
}

#[test]
fn a_stop_at_any_moment() {
    METHODS.into_iter().for_each(stop_at_any_moment);
}

fn stop_at_any_moment(method: SortMethod) {
    let seed = seed(200);
    let (folder, input, bytes) = scene(13, 250_000);
    let job = || {
        let job = folder.job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&input));
        job.fan_in(3).threads(3).method(method)
    };
    let mut whole = sort(job()).unwrap().seconds;
    let expected = folder.sorted();
    let mut stopped = 0;
    for case in 0..24 {
        let random = &mut Random(seed + case);
        fs::write(folder.path("out/sorted"), OLD).unwrap();
        let wait = Duration::from_secs_f64(whole * random.below(1000) as f64 / 1000.0);
        let name = format!("seed {}, {method:?}, after {wait:?} of {whole} s", seed + case);
        let job = job();
        let control = job.control.clone();
        let stopper = std::thread::spawn(move || {
            std::thread::sleep(wait);
            control.stop();
        });
        let outcome = sort(job);
        joined(stopper);
        match outcome {
            Ok(report) => {
                assert_same(&folder.sorted(), &expected, &name);
                assert_eq!(folder.files(), ["in/a", "out/sorted"], "{name}");
                // It was quicker than the ones before: the next moments come earlier.
                whole = (whole * 0.8).min(report.seconds);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Interrupted, "{name}: {error}");
                assert_untouched(&folder, &bytes, &name);
                stopped += 1;
            }
        }
    }
    assert!(stopped >= 12, "only {stopped} of 24 sorts were stopped, {method:?}");
}

#[test]
fn a_spill_place_that_is_not_there() {
    let (folder, input, bytes) = scene(14, 150_000);
    for (name, kind) in
        [("nowhere", ErrorKind::NotFound), ("in/a", ErrorKind::NotFound), ("/proc", ErrorKind::PermissionDenied)]
    {
        let dir = folder.path(name);
        let job = folder
            .job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&input))
            .spill(vec![StagePlace::folder(&dir)]);
        let error = sort(job).expect_err(name);
        assert!(error.to_string().contains(dir.to_str().unwrap()), "{name}: {error}");
        // Root may write even if the mode forbids it. Only /proc refuses root too, with an error
        // that depends on the kernel.
        assert!(error.kind() == kind || name == "/proc", "{name}: {error}");
        assert_untouched(&folder, &bytes, name);
    }
}

#[test]
fn an_output_place_that_is_not_there() {
    let (folder, input, bytes) = scene(15, 1000);
    let output = Output::file(folder.path("nowhere/sorted"));
    let error = sort(folder.job(RecordFormat::SORT_BENCHMARK, &[input]).output(output)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert_untouched(&folder, &bytes, "no output place");
}
