//! Sorting by distribution: its result is that of a stable sort, and it is chosen where it can be.
//!
//! Every failure prints the seed; `DATAPIPES_SEED` replays it.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::fs;
use std::path::PathBuf;

use datapipes_core::StagePlace;
use datapipes_sort::{Input, MovementRole, NumberKind, Output, RecordFormat, SortJob, SortMethod, SortReport, sort};
use scene::{Folder, Random, assert_same, seed, sort_records, usual_machine};

/// How keys are distributed over an input, and over its places.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Random,
    /// Most keys are close to the least one.
    Skewed,
    /// Nine of ten keys are one of ten values.
    Frequent,
    FewDistinct,
    Equal,
    Sorted,
    Reverse,
    /// The first half of the input has other keys than the second.
    Drifting,
}

const SHAPES: [Shape; 8] = [
    Shape::Random,
    Shape::Skewed,
    Shape::Frequent,
    Shape::FewDistinct,
    Shape::Equal,
    Shape::Sorted,
    Shape::Reverse,
    Shape::Drifting,
];

/// Records whose first key bytes follow the shape. All other bytes are random.
fn records(random: &mut Random, format: &RecordFormat, shape: Shape, n: usize) -> Vec<u8> {
    let &RecordFormat::Records { len, key_at, key_len, .. } = format else { panic!("records only") };
    let mut bytes = random.bytes(n * len);
    for (i, record) in bytes.chunks_exact_mut(len).enumerate() {
        let spread = u64::MAX / n as u64 * i as u64;
        let key = match shape {
            Shape::Random => continue,
            Shape::Skewed => random.next() >> random.below(64),
            Shape::Frequent if random.one_in(10) => continue,
            Shape::Frequent => random.below(10) as u64 * 0x1234_5678_9abc_def0,
            Shape::FewDistinct => random.below(5) as u64,
            Shape::Equal => 7,
            Shape::Sorted => spread,
            Shape::Reverse => !spread,
            Shape::Drifting => random.next() >> (8 * (2 * i / n)),
        };
        let width = key_len.min(8);
        record[key_at..key_at + width].copy_from_slice(&key.to_be_bytes()[..width]);
        if shape != Shape::Skewed && shape != Shape::Drifting {
            record[key_at + width..key_at + key_len].fill(3);
        }
    }
    bytes
}

fn format(len: usize, key_at: usize, key_len: usize, reverse: bool) -> RecordFormat {
    RecordFormat::Records { len, key_at, key_len, reverse }
}

fn run(job: SortJob, case: &str) -> SortReport {
    sort(usual_machine(), job).unwrap_or_else(|e| panic!("{case}: {e}"))
}

#[test]
fn every_shape_is_sorted_as_by_a_stable_sort() {
    let seed = seed(1);
    let formats = [
        (format(100, 0, 10, false), 130_000),
        (format(97, 41, 13, true), 130_000),
        (format(16, 8, 8, false), 500_000),
        (format(9, 2, 3, false), 700_000),
        (format(3001, 5, 40, true), 4_500),
    ];
    for (nth, (format, n)) in formats.into_iter().enumerate() {
        for (which, shape) in SHAPES.into_iter().enumerate() {
            let unique = (nth + which) % 3 == 2;
            let threads = 1 + (nth + which) % 3;
            let seed = seed + (8 * nth + which) as u64;
            let case = format!("seed {seed}, {format:?}, {shape:?}, unique {unique}, {threads} threads");
            let folder = Folder::new();
            let bytes = records(&mut Random(seed), &format, shape, n);
            let input = folder.put("in/a", &bytes);
            let job = folder.job(format.clone(), &[input]).method(SortMethod::Distribution);
            let report = run(job.unique(unique).threads(threads), &case);
            assert_same(&folder.sorted(), &sort_records(&bytes, &format, unique), &case);
            assert_eq!(folder.files(), ["in/a", "out/sorted"], "{case}");
            // Only many keys that begin alike and go on are merged.
            let RecordFormat::Records { key_len, .. } = format else { panic!("records only") };
            let alike = matches!(shape, Shape::Equal | Shape::FewDistinct | Shape::Frequent) && key_len > 8;
            let may_merge = alike || shape == Shape::Skewed;
            assert!(report.method.name == "distribution" || may_merge, "{case}: {}", report.method);
            assert_eq!(report.records, n as u64, "{case}");
        }
    }
}

#[test]
fn equal_keys_are_written_without_being_merged() {
    let seed = seed(40);
    let format = format(32, 0, 8, false);
    for (shape, unique, merged) in
        [(Shape::Equal, false, false), (Shape::FewDistinct, false, false), (Shape::Equal, true, true)]
    {
        let case = format!("seed {seed}, {shape:?}, unique {unique}");
        let folder = Folder::new();
        let bytes = records(&mut Random(seed), &format, shape, 500_000);
        let input = folder.put("in/a", &bytes);
        let job = folder.job(format.clone(), &[input]).method(SortMethod::Distribution).unique(unique);
        let report = run(job, &case);
        assert_eq!(report.method.name, "distribution", "{case}: {}", report.method);
        // Under -u all of them are needed to know the first.
        assert_eq!(report.method.merged_buckets > 0, merged, "{case}: {}", report.method);
        assert_same(&folder.sorted(), &sort_records(&bytes, &format, unique), &case);
    }
}

#[test]
fn numbers_of_every_kind_and_shape_are_sorted() {
    let seed = seed(2);
    let kinds = [NumberKind::U64, NumberKind::I64, NumberKind::F64, NumberKind::U32];
    for (nth, kind) in kinds.into_iter().enumerate() {
        let width = kind.width();
        for (which, shape) in SHAPES.into_iter().enumerate() {
            let (reverse, unique) = ((nth + which) % 2 == 1, (nth + which) % 3 == 2);
            let threads = 1 + (nth + which) % 3;
            let seed = seed + (8 * nth + which) as u64;
            let case =
                format!("seed {seed}, {kind:?}, {shape:?}, reverse {reverse}, unique {unique}, {threads} threads");
            let folder = Folder::new();
            // The bytes of the keys, of which the first is the most significant.
            let keys = records(&mut Random(seed), &format(width, 0, width, false), shape, 10_000_000 / width);
            let bytes: Vec<u8> = keys.chunks_exact(width).flat_map(|key| key.iter().rev().copied()).collect();
            let input = folder.put("in/a", &bytes);
            let job = folder.job(RecordFormat::Numbers { kind, reverse }, &[input]).method(SortMethod::Distribution);
            let report = run(job.unique(unique).threads(threads), &case);
            assert_eq!(report.method.name, "distribution", "{case}: {}", report.method);
            assert_numbers(&folder.sorted(), &bytes, (kind, reverse, unique), &case);
            assert_eq!(folder.files(), ["in/a", "out/sorted"], "{case}");
        }
    }
}

#[test]
fn numbers_that_are_equal_are_counted_and_not_spilled() {
    let seed = seed(50);
    for (kind, shape) in
        [(NumberKind::U64, Shape::Equal), (NumberKind::F64, Shape::FewDistinct), (NumberKind::U32, Shape::Equal)]
    {
        for (reverse, unique) in [(false, false), (true, false), (false, true)] {
            let width = kind.width();
            let case = format!("seed {seed}, {kind:?}, {shape:?}, reverse {reverse}, unique {unique}");
            let folder = Folder::new();
            let bytes = records(&mut Random(seed), &format(width, 0, width, false), shape, 10_000_000 / width);
            let input = folder.put("in/a", &bytes);
            let job = folder.job(RecordFormat::Numbers { kind, reverse }, &[input]).method(SortMethod::Distribution);
            let report = run(job.unique(unique), &case);
            assert_numbers(&folder.sorted(), &bytes, (kind, reverse, unique), &case);
            let spilled = report
                .movements
                .iter()
                .filter(|m| m.role == MovementRole::Spill)
                .map(|m| m.counters.bytes)
                .sum::<u64>();
            assert_eq!(spilled, 0, "{case}: {report}");
        }
    }
}

/// Checks that the output has the numbers of the input in order.
fn assert_numbers(sorted: &[u8], input: &[u8], (kind, reverse, unique): (NumberKind, bool, bool), case: &str) {
    let codes = |bytes: &[u8]| -> Vec<u64> {
        bytes.chunks_exact(kind.width()).map(|number| code(kind, reverse, number)).collect()
    };
    let (got, mut expected) = (codes(sorted), codes(input));
    expected.sort_unstable();
    if unique {
        expected.dedup();
    }
    assert_eq!(sorted.len() % kind.width(), 0, "{case}");
    assert!(got == expected, "{case}: {} numbers, expected {}", got.len(), expected.len());
}

/// A number of a file as an unsigned integer in the same order.
fn code(kind: NumberKind, reverse: bool, number: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..number.len()].copy_from_slice(number);
    let bits = u64::from_le_bytes(wide);
    let code = match kind {
        NumberKind::U32 | NumberKind::U64 => bits,
        NumberKind::I64 => bits ^ 1 << 63,
        NumberKind::F64 if bits >> 63 == 1 => !bits,
        NumberKind::F64 => bits | 1 << 63,
    };
    if reverse { !code } else { code }
}

#[test]
fn several_files_are_one_input() {
    let seed = seed(50);
    let folder = Folder::new();
    let format = format(60, 4, 6, false);
    let random = &mut Random(seed);
    let mut all = Vec::new();
    let inputs: Vec<PathBuf> = [70_000, 1, 0, 90_000, 33, 100_000]
        .into_iter()
        .enumerate()
        .map(|(i, n)| {
            let bytes = records(random, &format, Shape::Skewed, n);
            all.extend_from_slice(&bytes);
            folder.put(&format!("in/{i}"), &bytes)
        })
        .collect();
    let expected = sort_records(&all, &format, false);
    for deferred in [false, true] {
        let case = format!("seed {seed}, deferred {deferred}");
        let mut job = folder.job(format.clone(), &inputs).method(SortMethod::Distribution).threads(3);
        if deferred {
            job.inputs = inputs.iter().map(|path| Input::deferred(path).unwrap()).collect();
        }
        let report = run(job, &case);
        // An empty file has no blocks, so that its length is not relied on.
        assert!(["distribution", "merge"].contains(&report.method.name), "{case}: {}", report.method);
        assert_same(&folder.sorted(), &expected, &case);
    }
    let whole: Vec<PathBuf> = inputs.iter().filter(|path| fs::metadata(path).unwrap().len() > 0).cloned().collect();
    let report = run(folder.job(format.clone(), &whole).method(SortMethod::Distribution), "files with records");
    assert_eq!(report.method.name, "distribution", "{}", report.method);
    assert_same(&folder.sorted(), &expected, "files with records");
}

#[test]
fn an_input_may_be_its_own_output_and_a_stream_gets_it_in_order() {
    let seed = seed(60);
    let folder = Folder::new();
    let format = RecordFormat::SORT_BENCHMARK;
    let bytes = records(&mut Random(seed), &format, Shape::Frequent, 130_000);
    let expected = sort_records(&bytes, &format, false);
    let input = folder.put("in/a", &bytes);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let output = Output::Stream { name: "a pipe".into(), file: fs::File::from(std::os::fd::OwnedFd::from(writer)) };
    let job = folder.job(format.clone(), std::slice::from_ref(&input)).method(SortMethod::Distribution).output(output);
    let got = std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut got = Vec::new();
            std::io::Read::read_to_end(&mut reader, &mut got).unwrap();
            got
        });
        run(job, "a stream");
        reading.join().unwrap()
    });
    assert_same(&got, &expected, &format!("seed {seed}, a stream"));
    let job = folder.job(format, std::slice::from_ref(&input)).method(SortMethod::Distribution);
    run(job.output(Output::to(&input).unwrap()), "onto itself");
    assert_same(&fs::read(&input).unwrap(), &expected, &format!("seed {seed}, onto itself"));
}

#[test]
fn the_method_is_the_one_that_suits_the_job() {
    let folder = Folder::new();
    let bytes = Random(1).bytes(8_000_000);
    let input = folder.put("in/a", &bytes);
    let half = folder.put("in/b", &bytes[..50]);
    let long = folder.put("in/c", &Random(2).bytes(80_000_000));
    let records = || folder.job(format(100, 0, 10, false), std::slice::from_ref(&input)).memory_bytes(16 << 20);
    let method = |job: SortJob| run(job, "a job").method;
    let distributed = || records().method(SortMethod::Distribution);
    let text = datapipes_sort::text::TextOptions::default().compile().unwrap();
    let numbers = RecordFormat::Numbers { kind: datapipes_sort::NumberKind::U64, reverse: false };
    let cases = [
        ("memory", "fits", distributed().memory_bytes(64 << 20)),
        ("distribution", "sorted once", distributed()),
        ("merge", "time of the disk", records()),
        ("merge", "asks", records().method(SortMethod::Merge)),
        ("distribution", "sorted once", distributed().format(numbers.clone())),
        ("merge", "too few", records().format(numbers.clone())),
        ("distribution", "sorted once", folder.job(numbers.clone(), &[long]).memory_bytes(64 << 20)),
        ("merge", "asks", records().format(numbers).method(SortMethod::Merge)),
        ("merge", "differ in length", distributed().format(RecordFormat::Lines { order: text, terminator: b'\n' })),
        ("merge", "compresses", distributed().compress_program(PathBuf::from("gzip"))),
    ];
    for (name, why, job) in cases {
        let chosen = method(job);
        assert_eq!(chosen.name, name, "{chosen}");
        assert!(chosen.why.contains(why), "{chosen}");
    }
    let piped = std::thread::scope(|scope| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut job = distributed();
        job.inputs = vec![Input::Stream { name: "a pipe".into(), fd: reader.into() }];
        let bytes = &bytes;
        scope.spawn(move || std::io::Write::write_all(&mut writer, bytes));
        method(job)
    });
    assert_eq!(piped.name, "merge");
    assert!(piped.why.contains("not known"), "{piped}");
    // The error for a file that ends within a record is the usual one.
    let mut job = distributed();
    job.inputs.push(Input::open(&half).unwrap());
    let error = sort(usual_machine(), job).unwrap_err();
    assert!(error.to_string().contains("not a multiple of the record length"), "{error}");
}

#[test]
fn memory_among_the_places_is_used_first() {
    let folder = Folder::new();
    let format = RecordFormat::SORT_BENCHMARK;
    let bytes = Random(9).bytes(14_000_000);
    let input = folder.put("in/a", &bytes);
    let spill = vec![StagePlace::memory(4 << 20, None), StagePlace::folder(folder.path("spill")).in_tier(1)];
    let report = run(folder.job(format.clone(), &[input]).method(SortMethod::Distribution).spill(spill), "two places");
    assert_eq!(report.method.name, "distribution", "{}", report.method);
    assert!(report.spill.iter().all(|place| place.bytes > 0), "{:?}", report.spill);
    assert_same(&folder.sorted(), &sort_records(&bytes, &format, false), "two places");
}
