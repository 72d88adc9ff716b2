//! A faulty spill place: what is read back is not what was written. Even then no wrong byte may
//! come out of a sort.
//!
//! Every failure prints the seed; `DATAPIPES_SEED` replays it.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use datapipes_core::ErrorKind;
use datapipes_file::{FaultInjector, FaultVerdict, FileBackendOptions, Operation};
use datapipes_sort::{Control, NumberKind, Output, RecordFormat, SortMethod};
use datapipes_testkit::{Mounted, RefusedCall, without_calls};
use scene::{Folder, Random, machine, seed, sort_records};

const BLOCK: usize = 4096;

/// How a spill place damages what it holds.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// One bit flips.
    Flip,
    /// A block reads as zeros, as if its write was lost.
    Zeros,
    /// A block has the bytes of another block: it is stale, or was written to the wrong place.
    Other,
}

/// Damages the spill file after everything was written to it and before anything is read from it.
struct Spoils {
    control: Control,
    spill: PathBuf,
    damage: Damage,
    seed: u64,
    done: AtomicBool,
    spoiled: AtomicU64,
}

impl FaultInjector for Spoils {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let progress = &self.control.progress;
        let merging = !op.write && progress.read.load(SeqCst) == progress.total.load(SeqCst);
        if merging && progress.spilled.load(SeqCst) > 0 && !self.done.swap(true, SeqCst) {
            self.spoil(progress.spilled.load(SeqCst));
        }
        FaultVerdict::Pass
    }
}

impl Spoils {
    fn spoil(&self, len: u64) {
        let file = spill_file(&self.spill).expect("the spill file is open");
        let random = &mut Random(self.seed);
        let block = |random: &mut Random| (random.next() % (len / BLOCK as u64)) * BLOCK as u64;
        let (mut bytes, at) = (vec![0; BLOCK], block(random));
        file.read_exact_at(&mut bytes, at).unwrap();
        let before = bytes.clone();
        match self.damage {
            Damage::Flip => bytes[random.below(BLOCK)] ^= 1 << random.below(8),
            Damage::Zeros => bytes.fill(0),
            Damage::Other => file.read_exact_at(&mut bytes, block(random)).unwrap(),
        }
        file.write_all_at(&bytes, at).unwrap();
        self.spoiled.store(u64::from(bytes != before), SeqCst);
    }
}

/// Finds this process's nameless file in a folder.
fn spill_file(dir: &Path) -> Option<File> {
    let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let found = fds.map(|fd| fd.path()).find(|fd| fs::read_link(fd).is_ok_and(|to| to.starts_with(dir)))?;
    File::options().read(true).write(true).open(found).ok()
}

fn formats() -> Vec<(RecordFormat, SortMethod)> {
    let lines = datapipes_sort::text::TextOptions::default().compile().unwrap();
    vec![
        (RecordFormat::SORT_BENCHMARK, SortMethod::Distribution),
        (RecordFormat::SORT_BENCHMARK, SortMethod::Merge),
        (RecordFormat::Lines { order: lines, terminator: b'\n' }, SortMethod::Merge),
        (RecordFormat::Numbers { kind: NumberKind::U64, reverse: false }, SortMethod::Merge),
        (RecordFormat::Numbers { kind: NumberKind::F64, reverse: true }, SortMethod::Merge),
    ]
}

#[test]
fn bytes_that_were_not_written_never_come_out() {
    let seed = seed(1);
    let mut refused = 0;
    for (format, method) in formats() {
        for damage in [Damage::Flip, Damage::Zeros, Damage::Other] {
            for (nth, fan_in) in [(0, 0), (1, 3), (2, 0)] {
                let seed = seed + nth;
                let case = format!("seed {seed}, {format:?}, {method:?}, {damage:?}, fan-in {fan_in}");
                let folder = Folder::new();
                let input = folder.put("in/a", &Random(seed).bytes(20_000_000));
                folder.put("out/sorted", b"old");
                let job = folder.job(format.clone(), &[input]).fan_in(fan_in).method(method);
                let faults = Arc::new(Spoils {
                    control: job.control.clone(),
                    spill: folder.path("spill"),
                    damage,
                    seed,
                    done: AtomicBool::new(false),
                    spoiled: AtomicU64::new(0),
                });
                let config = FileBackendOptions::default().faults(faults.clone());
                let outcome = datapipes_sort::sort(&machine(config), job);
                assert!(faults.done.load(SeqCst), "{case}: nothing was spilled");
                match outcome {
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Corrupt, "{case}: {e}");
                        assert!(e.offset().is_some(), "{case}: no offset in: {e}");
                        assert_eq!(folder.sorted(), b"old", "{case}");
                        refused += 1;
                    }
                    // Bytes between two runs belong to none, and an extent may not be full.
                    Ok(report) => assert_eq!(report.records, report.records_out, "{case}"),
                }
                assert_eq!(folder.files(), ["in/a", "out/sorted"], "{case}");
            }
        }
    }
    assert!(refused >= 37, "only {refused} of 45 damages were noticed");
}

#[test]
fn a_stream_gets_nothing_behind_the_damage() {
    let seed = seed(50);
    for nth in 0..4 {
        let seed = seed + nth;
        let folder = Folder::new();
        let bytes = Random(seed).bytes(20_000_000);
        let input = folder.put("in/a", &bytes);
        let (mut reader, writer) = std::io::pipe().unwrap();
        let output = Output::Stream { name: "a pipe".into(), file: File::from(std::os::fd::OwnedFd::from(writer)) };
        let method = if nth % 2 == 0 { SortMethod::Merge } else { SortMethod::Distribution };
        let job = folder.job(RecordFormat::SORT_BENCHMARK, &[input]).output(output).method(method);
        let faults = Arc::new(Spoils {
            control: job.control.clone(),
            spill: folder.path("spill"),
            damage: Damage::Flip,
            seed,
            done: AtomicBool::new(false),
            spoiled: AtomicU64::new(0),
        });
        let config = FileBackendOptions::default().faults(faults.clone());
        let (outcome, got) = std::thread::scope(|scope| {
            let reading = scope.spawn(move || {
                let mut got = Vec::new();
                reader.read_to_end(&mut got).unwrap();
                got
            });
            let outcome = datapipes_sort::sort(&machine(config), job);
            (outcome, reading.join().unwrap())
        });
        let expected = sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false);
        assert!(expected.starts_with(&got), "seed {seed}: wrong bytes came out");
        match outcome {
            Err(e) => assert_eq!(e.kind(), ErrorKind::Corrupt, "seed {seed}: {e}"),
            Ok(_) => assert_eq!(got.len(), expected.len(), "seed {seed}"),
        }
    }
}

/// Sorts 60 MB with several lanes into a spill place, twice, and checks the output.
fn spill_into(spill: &Path, folder: &Folder, input: &Path, expected: &[u8], case: &str) {
    for threads in [2, 4] {
        let spill = vec![datapipes_core::StagePlace::folder(spill)];
        let job = folder.job(RecordFormat::SORT_BENCHMARK, &[input.to_path_buf()]).threads(threads).spill(spill);
        let report = scene::sort(job).unwrap_or_else(|e| panic!("{case}, {threads} threads: {e}"));
        assert!(report.runs > 4, "{} runs", report.runs);
        scene::assert_same(&folder.sorted(), expected, &format!("{case}, {threads} threads"));
    }
    assert_eq!(fs::read_dir(spill).unwrap().count(), 0, "{case}: files were left");
}

#[test]
fn spilling_where_space_cannot_be_reserved() {
    let seed = seed(90);
    let folder = Folder::new();
    let bytes = Random(seed).bytes(60_000_000);
    let input = folder.put("in/a", &bytes);
    let expected = sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false);
    let refused = RefusedCall { number: libc::SYS_fallocate, errno: libc::EOPNOTSUPP };
    let work = || spill_into(&folder.path("spill"), &folder, &input, &expected, &format!("seed {seed}"));
    if let Err(why) = without_calls(&[refused], work) {
        println!("SKIPPED: spilling_where_space_cannot_be_reserved: {why}");
    }
}

#[test]
fn a_server_that_answers_short_costs_no_record() {
    let name = "a_server_that_answers_short_costs_no_record";
    let seed = seed(92);
    let folder = Folder::new();
    let bytes = Random(seed).bytes(40_000_000);
    let mounted = match Mounted::answering_short(&folder.0) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    let input = mounted.path("input");
    fs::write(mounted.behind("input"), &bytes).unwrap();
    let expected = sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false);
    fs::create_dir(mounted.path("spill")).unwrap();
    spill_into(&mounted.path("spill"), &folder, &input, &expected, &format!("seed {seed}"));
    let output = Output::to(&mounted.path("sorted")).unwrap();
    scene::sort(folder.job(RecordFormat::SORT_BENCHMARK, &[input]).output(output)).unwrap();
    scene::assert_same(&fs::read(mounted.behind("sorted")).unwrap(), &expected, &format!("seed {seed}: written there"));
}

#[test]
fn spilling_through_fuse() {
    let seed = seed(91);
    let folder = Folder::new();
    let bytes = Random(seed).bytes(60_000_000);
    let input = folder.put("in/a", &bytes);
    let expected = sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false);
    // The first has no fallocate and no nameless files. The second refuses direct writes, but lets
    // files be opened for them.
    for (kind, mounted) in [("bindfs", Mounted::bindfs(&folder.0)), ("mergerfs", Mounted::mergerfs(&folder.0))] {
        match mounted {
            Ok(mounted) => spill_into(mounted.at(), &folder, &input, &expected, &format!("seed {seed}, {kind}")),
            Err(why) => println!("SKIPPED: spilling_through_fuse: {why}"),
        }
    }
}
