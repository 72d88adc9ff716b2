//! Small inputs: the same result as by any sort, and nothing is done where they are not small.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::fs;
use std::path::{Path, PathBuf};

use datapipes_sort::text::TextOptions;
use datapipes_sort::{Control, NumberKind, Output, RecordFormat, SmallInput, SmallOutcome, SortReport};
use scene::{Folder, Random, assert_same, seed};

fn lines(change: impl FnOnce(&mut TextOptions)) -> RecordFormat {
    let mut options = TextOptions::default();
    change(&mut options);
    RecordFormat::Lines { order: options.compile().unwrap(), terminator: b'\n' }
}

fn read(format: &RecordFormat, paths: &[PathBuf]) -> Option<SmallInput> {
    read_in(64 << 20, format, paths)
}

fn read_in(memory_bytes: u64, format: &RecordFormat, paths: &[PathBuf]) -> Option<SmallInput> {
    SmallInput::read(format.clone(), memory_bytes, paths.iter().map(PathBuf::as_path)).unwrap()
}

fn sort_small(input: SmallInput, output: &Path, unique: bool) -> SortReport {
    let output = Output::to(output).unwrap();
    match input.sort_into(output, unique, &Control::default()).unwrap() {
        SmallOutcome::Sorted(report) => *report,
        SmallOutcome::Declined(..) => panic!("it was declined"),
    }
}

#[test]
fn small_inputs_are_sorted_as_all_are() {
    let seed = seed(70);
    let random = &mut Random(seed);
    let formats = [
        lines(|_| {}),
        lines(|options| options.modifiers.reverse = true),
        lines(|options| options.modifiers.fold_case = true),
        RecordFormat::SORT_BENCHMARK,
        RecordFormat::Records { len: 3, key_at: 1, key_len: 1, reverse: true },
        RecordFormat::Numbers { kind: NumberKind::U64, reverse: false },
        RecordFormat::Numbers { kind: NumberKind::F64, reverse: true },
        RecordFormat::Numbers { kind: NumberKind::U32, reverse: false },
    ];
    for format in formats {
        for (which, len) in [600, 4_800, 24_000, 180_000, 600_000].into_iter().enumerate() {
            for unique in [false, true] {
                let case = format!("seed {seed}, {format:?}, {len} bytes, unique {unique}");
                let folder = Folder::new();
                // Few distinct bytes: short lines, and many equal records.
                let bytes = |random: &mut Random| -> Vec<u8> {
                    random
                        .bytes(len)
                        .iter()
                        .map(|b| if which % 2 == 0 { *b } else { b"aAb\n"[usize::from(b % 4)] })
                        .collect()
                };
                let inputs = [folder.put("in/a", &bytes(random)), folder.put("in/b", &bytes(random))];
                let job = folder.job(format.clone(), &inputs).unique(unique).memory_bytes(64 << 20);
                let expected = scene::sort(job).unwrap();
                let sorted = folder.sorted();
                let (small, target) = (read(&format, &inputs).expect(&case), folder.path("out/small"));
                let report = sort_small(small, &target, unique);
                assert_same(&fs::read(&target).unwrap(), &sorted, &case);
                let counts = |r: &SortReport| (r.records, r.records_out, r.bytes, r.bytes_out);
                assert_eq!(counts(&report), counts(&expected), "{case}");
            }
        }
    }
}

#[test]
fn the_output_may_be_an_input() {
    let folder = Folder::new();
    let input = folder.put("in/a", b"c\na\nb");
    let small = read(&lines(|_| {}), std::slice::from_ref(&input)).unwrap();
    let report = sort_small(small, &input, false);
    assert_eq!(fs::read(&input).unwrap(), b"a\nb\nc\n");
    assert_eq!(report.output.way, "replaced");
    assert_eq!(folder.files(), ["in/a"]);
}

#[test]
fn what_is_not_small_or_not_sound_is_left_alone() {
    let folder = Folder::new();
    let format = lines(|_| {});
    let large = folder.put("in/large", &vec![b'x'; (1 << 20) + 1]);
    let small = folder.put("in/small", b"one\n");
    assert!(read_in(8 << 20, &format, std::slice::from_ref(&large)).is_none());
    assert!(read_in(16 << 20, &format, std::slice::from_ref(&large)).is_some());
    assert!(read_in(u64::MAX, &format, &vec![large.clone(); 4]).is_none());
    assert!(read(&format, &[small.clone(), folder.path("in/none")]).is_none());
    assert!(read(&format, &[folder.path("in")]).is_none(), "a folder");
    assert!(read(&format, &[PathBuf::from("/dev/null")]).is_none(), "a device");
    // Reading it may take what it has, and the next reader would miss that.
    assert!(read(&format, &[PathBuf::from("/proc/version")]).is_none(), "a file that does not say its length");
    assert!(read(&RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&small)).is_none(), "part of a record");
    let no_key = RecordFormat::Records { len: 4, key_at: 0, key_len: 0, reverse: false };
    assert!(read(&no_key, std::slice::from_ref(&small)).is_none());
    let many = folder.put("in/many", &vec![b'\n'; 1 << 20]);
    let output = Output::to(&folder.path("out/sorted")).unwrap();
    let outcome = read_in(8 << 20, &format, &[many]).unwrap().sort_into(output, false, &Control::default()).unwrap();
    assert!(matches!(outcome, SmallOutcome::Declined(_, None)));
    assert_eq!(folder.files(), ["in/large", "in/many", "in/small"]);
}

#[test]
fn a_sort_that_was_asked_to_stop_leaves_no_output() {
    let folder = Folder::new();
    let input = folder.put("in/a", b"b\na\n");
    let control = Control::default();
    control.stop();
    let output = Output::to(&folder.path("out/sorted")).unwrap();
    let error = read(&lines(|_| {}), &[input]).unwrap().sort_into(output, false, &control).unwrap_err();
    assert_eq!(error.kind(), datapipes_core::ErrorKind::Interrupted);
    assert_eq!(folder.files(), ["in/a"]);
}
