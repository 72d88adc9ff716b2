//! Outputs that are written in place, because another file would not have the old file's identity.
//! They are also inputs: everything must be read before the first byte is written. Every failure
//! prints the seed.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use datapipes_core::ErrorKind;
use datapipes_file::{FaultInjector, FaultVerdict, FileBackendOptions, Operation};
use datapipes_sort::{Input, NumberKind, Output, RecordFormat, SortJob, merge};
use datapipes_testkit::{LoopDevice, Mounted};
use scene::{Folder, Random, assert_same, machine, seed, sort, sort_records};

const RECORD: usize = 100;

/// Makes a file with two names and these bytes.
fn two_names(folder: &Folder, bytes: &[u8]) -> [PathBuf; 2] {
    let one = folder.put("out/one", bytes);
    let two = folder.path("in/two");
    fs::hard_link(&one, &two).unwrap();
    [one, two]
}

fn onto(path: &Path, job: SortJob) -> SortJob {
    job.output(Output::to(path).unwrap())
}

fn numbers(bytes: &[u8]) -> Vec<u8> {
    let mut numbers: Vec<u64> = bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect();
    numbers.sort_unstable();
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

fn lines(bytes: &[u8]) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
    lines.sort();
    lines.concat()
}

#[test]
fn a_file_of_two_names_is_sorted_onto_itself() {
    let seed = seed(300);
    let random = &mut Random(seed);
    let text = || datapipes_sort::text::TextOptions::default().compile().unwrap();
    // Inputs that fit the memory, and one that is spilled first.
    for (n, spills) in [(0, false), (1_000, false), (10_000, false), (250_000, true)] {
        let binary = random.bytes(n * RECORD);
        let text_bytes: Vec<u8> = binary.iter().map(|b| if b % 20 == 0 { b'\n' } else { b'a' + b % 26 }).collect();
        let text_bytes = [&text_bytes[..], b"\n"].concat();
        let table: [(&str, RecordFormat, &[u8], Vec<u8>); 3] = [
            (
                "records",
                RecordFormat::SORT_BENCHMARK,
                &binary,
                sort_records(&binary, &RecordFormat::SORT_BENCHMARK, false),
            ),
            ("numbers", RecordFormat::Numbers { kind: NumberKind::U64, reverse: false }, &binary, numbers(&binary)),
            ("lines", RecordFormat::Lines { order: text(), terminator: b'\n' }, &text_bytes, lines(&text_bytes)),
        ];
        for (what, format, bytes, expected) in table {
            let case = format!("seed {seed}, {n} {what}");
            let bytes = if what == "numbers" { &bytes[..bytes.len() / 8 * 8] } else { bytes };
            let folder = Folder::new();
            let [one, two] = two_names(&folder, bytes);
            let inode = fs::metadata(&one).unwrap().ino();
            let report = sort(onto(&one, folder.job(format, std::slice::from_ref(&two)))).expect(&case);
            assert_same(&fs::read(&two).unwrap(), &expected, &case);
            assert_eq!((fs::metadata(&one).unwrap().ino(), fs::metadata(&one).unwrap().nlink()), (inode, 2), "{case}");
            assert_eq!(folder.files(), ["in/two", "out/one"], "{case}");
            assert_eq!(report.output.way, "in-place", "{case}");
            assert_eq!(report.output.why.as_deref(), Some("it has 2 names (hard links)"), "{case}");
            assert_eq!(report.runs > 0, spills, "{case}: {report:?}");
        }
    }
}

#[test]
fn of_equal_records_one_is_kept_in_place() {
    let folder = Folder::new();
    let bytes: Vec<u8> = Random(seed(301)).bytes(200_000).iter().flat_map(|b| [b % 7; RECORD]).collect();
    let [one, two] = two_names(&folder, &bytes);
    let job = folder.job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&two)).unique(true);
    sort(onto(&one, job)).unwrap();
    assert_same(&fs::read(&two).unwrap(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, true), "unique");
}

#[test]
fn inputs_of_a_merge_that_are_its_output() {
    let seed = seed(302);
    let random = &mut Random(seed);
    for unique in [false, true] {
        let folder = Folder::new();
        let [one_bytes, other_bytes] = [random.bytes(30_000 * RECORD), random.bytes(20_000 * RECORD)]
            .map(|b| sort_records(&b, &RecordFormat::SORT_BENCHMARK, false));
        let [one, two] = two_names(&folder, &one_bytes);
        let other = folder.put("in/other", &other_bytes);
        // Merge it by both of its names, before and behind another file.
        let inputs = [two.clone(), other, one.clone()];
        let job = folder.job(RecordFormat::SORT_BENCHMARK, &inputs).unique(unique);
        let job = job.inputs(inputs.iter().map(|p| Input::deferred(p).unwrap()).collect());
        merge(&machine(FileBackendOptions::default()), onto(&one, job)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let all = [&one_bytes[..], &other_bytes, &one_bytes].concat();
        let expected = sort_records(&all, &RecordFormat::SORT_BENCHMARK, unique);
        assert_same(&fs::read(&two).unwrap(), &expected, &format!("seed {seed}, unique {unique}"));
    }
}

#[test]
fn an_input_of_a_merge_that_is_its_output_by_another_file_system() {
    let name = "an_input_of_a_merge_that_is_its_output_by_another_file_system";
    let folder = Folder::new();
    let mounted = match Mounted::bindfs(&folder.0) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    let bytes = sort_records(&Random(seed(303)).bytes(30_000 * RECORD), &RecordFormat::SORT_BENCHMARK, false);
    fs::write(mounted.behind("one"), &bytes).unwrap();
    fs::hard_link(mounted.behind("one"), mounted.behind("two")).unwrap();
    // Neither the device nor the inode number shows that they are one file.
    let inputs = vec![Input::deferred(&mounted.behind("two")).unwrap()];
    let job = folder.job(RecordFormat::SORT_BENCHMARK, &[]).inputs(inputs);
    let report = merge(&machine(FileBackendOptions::default()), onto(&mounted.path("one"), job)).unwrap();
    assert_eq!(report.output.way, "in-place");
    assert_same(&fs::read(mounted.behind("two")).unwrap(), &bytes, name);
}

/// Here too the names and the numbers show nothing: the input is a device whose bytes are the
/// file's.
#[test]
fn an_input_of_a_merge_that_is_a_device_over_its_output() {
    let name = "an_input_of_a_merge_that_is_a_device_over_its_output";
    let folder = Folder::new();
    let bytes = sort_records(&Random(seed(304)).bytes(40_960 * RECORD), &RecordFormat::SORT_BENCHMARK, false);
    let [one, two] = two_names(&folder, &bytes);
    let device = match LoopDevice::over(&two) {
        Ok(device) => device,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    let job = folder.job(RecordFormat::SORT_BENCHMARK, &[]).inputs(vec![Input::deferred(device.path()).unwrap()]);
    let report = merge(&machine(FileBackendOptions::default()), onto(&one, job)).unwrap();
    assert_eq!(report.output.way, "in-place");
    assert_same(&fs::read(&two).unwrap(), &bytes, name);
}

/// As with `1<>` in a shell: the output is open and not truncated, and is an input through another
/// file system.
#[test]
fn a_stream_that_overwrites_an_input_by_another_file_system() {
    let name = "a_stream_that_overwrites_an_input_by_another_file_system";
    let folder = Folder::new();
    let mounted = match Mounted::bindfs(&folder.0) {
        Ok(mounted) => mounted,
        Err(why) => return println!("SKIPPED: {name}: {why}"),
    };
    let random = &mut Random(seed(305));
    let [one, other] =
        [30_000, 20_000].map(|n| sort_records(&random.bytes(n * RECORD), &RecordFormat::SORT_BENCHMARK, false));
    let path = mounted.behind("one");
    fs::write(&path, &one).unwrap();
    let inputs = [folder.put("in/other", &other), path.clone()];
    let file = fs::File::options().read(true).write(true).open(mounted.path("one")).unwrap();
    let output = Output::Stream { name: mounted.path("one"), file };
    let inputs = inputs.iter().map(|path| Input::deferred(path).unwrap()).collect();
    merge(
        &machine(FileBackendOptions::default()),
        folder.job(RecordFormat::SORT_BENCHMARK, &[]).inputs(inputs).output(output),
    )
    .unwrap();
    let expected = sort_records(&[other, one].concat(), &RecordFormat::SORT_BENCHMARK, false);
    assert_same(&fs::read(&path).unwrap(), &expected, name);
}

/// EIO for the n-th request that reads or writes.
struct Breaks {
    write: bool,
    nth: u64,
    seen: AtomicU64,
}

impl FaultInjector for Breaks {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        if op.write == self.write && self.seen.fetch_add(1, SeqCst) == self.nth {
            return FaultVerdict::Errno(libc::EIO);
        }
        FaultVerdict::Pass
    }
}

#[test]
fn errors_before_the_first_byte_leave_the_file() {
    let bytes = Random(seed(303)).bytes(250_000 * RECORD);
    for (what, write, nth) in [("the first read", false, 0), ("a later read", false, 20), ("the first run", true, 0)] {
        let folder = Folder::new();
        let [one, two] = two_names(&folder, &bytes);
        let faults = Arc::new(Breaks { write, nth, seen: AtomicU64::new(0) });
        let machine = machine(FileBackendOptions::default().faults(faults));
        let job = onto(&one, folder.job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&two)));
        let error = datapipes_sort::sort(&machine, job).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Device, "{what}: {error}");
        assert!(!error.to_string().contains("in place"), "{what}: {error}");
        assert!(fs::read(&two).unwrap() == bytes, "{what}: it was touched");
        assert_eq!(folder.files(), ["in/two", "out/one"], "{what}");
    }
}

#[test]
fn errors_after_the_first_byte_say_that_the_file_is_incomplete() {
    // The input fits the memory, so the first write goes to the output.
    let bytes = Random(seed(304)).bytes(20_000 * RECORD);
    let folder = Folder::new();
    let [one, two] = two_names(&folder, &bytes);
    let faults = Arc::new(Breaks { write: true, nth: 0, seen: AtomicU64::new(0) });
    let machine = machine(FileBackendOptions::default().faults(faults));
    let job = onto(&one, folder.job(RecordFormat::SORT_BENCHMARK, &[two]));
    let error = datapipes_sort::sort(&machine, job).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    let text = error.to_string();
    assert!(text.contains("out/one was being written in place, because it has 2 names"), "{text}");
    assert!(text.contains("is incomplete"), "{text}");
}

/// A small file system, unmounted with the value.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn room_that_the_file_has_is_used_again() {
    let folder = Folder::new();
    let at = folder.path("small");
    fs::create_dir(&at).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(&at).output();
    if !mount.as_ref().is_ok_and(|m| m.status.success()) {
        println!("SKIPPED: room_that_the_file_has_is_used_again: it may not mount");
        return;
    }
    let small = Small(at);
    let bytes = Random(seed(305)).bytes(50_000 * RECORD);
    let (one, two) = (small.0.join("one"), small.0.join("two"));
    fs::write(&one, &bytes).unwrap();
    // There is no room for a second file beside it, which is reported before anything is read.
    let job = || folder.job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&one));
    let error = sort(onto(&one, job())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(fs::read(&one).unwrap() == bytes);
    fs::hard_link(&one, &two).unwrap();
    sort(onto(&one, job())).unwrap();
    assert_same(&fs::read(&two).unwrap(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false), "in place");

    // An output that has no room even in place is refused while the old bytes are there.
    let large = folder.put("in/large", &Random(seed(306)).bytes(120_000 * RECORD));
    let error = sort(onto(&one, folder.job(RecordFormat::SORT_BENCHMARK, &[large]))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_same(&fs::read(&two).unwrap(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false), "refused");
}
