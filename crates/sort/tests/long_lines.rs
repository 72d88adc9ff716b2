//! Lines of any length in 16 MiB, beside GNU sort: from none to more bytes than the memory has,
//! among short ones, with keys near the start and near the end, alike up to their last bytes, from
//! files and pipes, sorted and merged.
//!
//! Every failure prints the seed; `DATAPIPES_SEED` replays it.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use datapipes_core::ErrorKind;
use datapipes_sort::text::{KeySpec, TextOptions};
use datapipes_sort::{Input, RecordFormat, SortReport, merge};
use datapipes_testkit::GnuSort;
use scene::{Folder, Random, assert_same, seed, sort, usual_machine};

const MIB: usize = 1 << 20;
/// The longest line that is sorted as it is in 16 MiB.
const LIMIT: usize = MIB / 4;

/// The options of a case, and the same for the engine.
fn options(arguments: &str) -> (TextOptions, u8) {
    let (mut options, mut terminator) = (TextOptions::default(), b'\n');
    for argument in arguments.split_whitespace() {
        match argument.split_at(2) {
            ("-k", key) => options.keys.push(KeySpec::parse(key.as_bytes()).unwrap()),
            ("-t", separator) => options.separator = Some(separator.as_bytes()[0]),
            ("-u", _) => options.unique = true,
            ("-s", _) => options.stable = true,
            ("-z", _) => terminator = 0,
            (letter, _) => assert!(options.modifiers.set(letter.as_bytes()[1])),
        }
    }
    (options, terminator)
}

/// A line of about `len` bytes: few keys, then bytes that are the same in all lines, then a few
/// others.
fn line(random: &mut Random, len: usize) -> Vec<u8> {
    let first = random.pick(&["a", "B", "b", "-3", "12", "x.9"]);
    let second = random.pick(&["k", "K", "7", "07", "1.25"]);
    let last = random.pick(&["", "0", "1", "z", " end", ",end"]);
    let start = format!("{first} {second},");
    let filler = random.pick(b"yY ");
    let mut line = start.into_bytes();
    line.resize(len.saturating_sub(last.len()).max(line.len().min(len)), filler);
    line.extend_from_slice(last.as_bytes());
    line
}

fn text(random: &mut Random, long: &[usize], terminator: u8) -> Vec<u8> {
    let mut text = Vec::new();
    for len in long {
        for _ in 0..random.below(3000) {
            let len = random.pick(&[0, 1, 2, 8, 30, 100]);
            text.extend(line(random, len));
            text.push(terminator);
        }
        text.extend(line(random, *len));
        text.push(terminator);
    }
    if random.one_in(2) {
        text.pop();
    }
    text
}

/// Lengths around the limit, and far above it.
fn lengths(random: &mut Random, count: usize) -> Vec<usize> {
    let mut one = || match random.below(8) {
        0 => LIMIT - 1,
        1 | 2 => LIMIT,
        3 | 4 => LIMIT + 1,
        5 => LIMIT + 2 + random.below(100),
        6 => random.below(2 * MIB),
        _ => MIB,
    };
    (0..count).map(|_| one()).collect()
}

fn gnu_sorts(gnu: &GnuSort, arguments: &str, inputs: &[PathBuf], output: &PathBuf) {
    let mut command: Command = gnu.command();
    command.args(arguments.split_whitespace()).arg("-o").arg(output).args(inputs);
    assert!(command.status().unwrap().success());
}

/// What is done to the lines.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Task {
    Sort,
    /// Three sorted inputs are merged at once.
    Merge,
    /// More sorted inputs are merged, two or three at once.
    MergeInPasses,
}

fn check(gnu: &GnuSort, seed: u64, arguments: &str, long: &[usize], task: Task) -> SortReport {
    let random = &mut Random(seed);
    let folder = Folder::new();
    let (options, terminator) = options(arguments);
    let merges = task != Task::Sort;
    let (count, fan_in) = match task {
        Task::Sort => (1 + random.below(2), 0),
        Task::Merge => (3, 0),
        Task::MergeInPasses => (5 + random.below(4), 2 + random.below(2)),
    };
    let mut inputs = Vec::new();
    for (i, long) in long.chunks(long.len().div_ceil(count).max(1)).enumerate() {
        let bytes = text(random, long, terminator);
        let mut path = folder.put(&format!("in/{i}"), &bytes);
        if merges {
            let sorted = folder.path(&format!("in/sorted-{i}"));
            gnu_sorts(gnu, arguments, &[path], &sorted);
            path = sorted;
        }
        inputs.push(path);
    }
    let expected = folder.path("expected");
    gnu_sorts(gnu, &format!("{arguments} {}", if merges { "-m" } else { "" }), &inputs, &expected);
    let (threads, piped) = (random.pick(&[1, 2, 4]), random.one_in(3));
    let name = format!("seed {seed}: {arguments}, {threads} threads, {task:?}, piped {piped}");
    let unique = options.unique;
    let format = RecordFormat::Lines { order: options.compile().unwrap(), terminator };
    let mut job = folder.job(format, &inputs).threads(threads).unique(unique);
    job.fan_in = fan_in;
    let report = std::thread::scope(|scope| {
        if piped {
            job.inputs = inputs
                .iter()
                .map(|path| {
                    let (reader, mut writer) = std::io::pipe().unwrap();
                    let bytes = std::fs::read(path).unwrap();
                    scope.spawn(move || writer.write_all(&bytes));
                    Input::Stream { name: "a pipe".into(), fd: reader.into() }
                })
                .collect();
        }
        if merges { merge(usual_machine(), job) } else { sort(job) }
    });
    let report = report.unwrap_or_else(|e| panic!("{name}: {e}"));
    let expected = std::fs::read(expected).unwrap();
    assert_same(&folder.sorted(), &expected, &name);
    assert_eq!(report.written.bytes, expected.len() as u64, "{name}");
    assert_eq!(merges && report.merge_passes > 1, task == Task::MergeInPasses, "{name}: {report:?}");
    // A merge has less room for the stubs of its inputs.
    assert!(report.memory_excess_bytes <= if merges { 4 * LIMIT as u64 } else { 0 }, "{name}");
    report
}

const CASES: [&str; 24] = [
    "",
    "-r",
    "-u",
    "-z",
    "-r -u",
    "-k2,2",
    "-s -k2,2",
    "-u -k1,1",
    "-f",
    "-f -u",
    "-k2",
    "-s -r -k2f",
    "-n",
    "-t, -k2",
    "-t, -k3,3",
    "-d -i",
    "-k2,2n -k1,1r",
    "-g -s",
    "-V -k1,1",
    "-t, -k1,1V -k2f",
    "-h -u",
    "-M",
    "-f -s",
    "-f -r",
];

#[test]
fn lines_of_any_length_as_gnu_sort_orders_them() {
    let Some(gnu) = GnuSort::find("lines_of_any_length_as_gnu_sort_orders_them") else { return };
    let first = seed(1);
    let mut aside = 0;
    for (i, arguments) in CASES.iter().enumerate() {
        let seed = first + i as u64;
        let random = &mut Random(seed ^ 77);
        // A line alone that is longer than the memory, or many that are around the limit.
        let long = if i % 5 == 0 { vec![10, 17 * MIB, LIMIT + 5, 17 * MIB, 3] } else { lengths(random, 12) };
        aside += check(&gnu, seed, arguments, &long, Task::Sort).long_lines;
    }
    assert!(aside > 60, "{aside} lines were set aside");
}

#[test]
fn long_lines_that_differ_in_case_alone_keep_their_order_if_asked() {
    let Some(gnu) = GnuSort::find("long_lines_that_differ_in_case_alone_keep_their_order_if_asked") else { return };
    let random = &mut Random(seed(950));
    for arguments in ["-f -s -r", "-f -s", "-f -r"] {
        let folder = Folder::new();
        let mut text = Vec::new();
        for _ in 0..24 {
            let mut line = vec![b'x'; random.pick(&[LIMIT - 1, LIMIT, LIMIT + 1, MIB])];
            line.push(random.pick(b"aAbB"));
            text.extend_from_slice(&line);
            text.extend_from_slice(b"\nshort\nSHORT\n");
        }
        let input = folder.put("in/a", &text);
        let expected = folder.path("expected");
        gnu_sorts(&gnu, arguments, std::slice::from_ref(&input), &expected);
        for threads in [1, 3] {
            let (options, terminator) = options(arguments);
            let format = RecordFormat::Lines { order: options.compile().unwrap(), terminator };
            sort(folder.job(format, std::slice::from_ref(&input)).threads(threads)).unwrap();
            assert_same(&folder.sorted(), &std::fs::read(&expected).unwrap(), arguments);
        }
    }
}

#[test]
fn sorted_lines_of_any_length_are_merged_as_by_gnu_sort() {
    let Some(gnu) = GnuSort::find("sorted_lines_of_any_length_are_merged_as_by_gnu_sort") else { return };
    let first = seed(500);
    let mut aside = 0;
    for (i, arguments) in CASES.iter().enumerate().step_by(2) {
        let seed = first + i as u64;
        let random = &mut Random(seed ^ 77);
        let long = if i % 6 == 0 { vec![17 * MIB, 9 * MIB, LIMIT + 5, LIMIT, 9 * MIB] } else { lengths(random, 12) };
        aside += check(&gnu, seed, arguments, &long, Task::Merge).long_lines;
    }
    assert!(aside > 25, "{aside} lines were set aside");
}

#[test]
fn sorted_lines_of_any_length_are_merged_in_several_passes() {
    let Some(gnu) = GnuSort::find("sorted_lines_of_any_length_are_merged_in_several_passes") else { return };
    let first = seed(900);
    let mut aside = 0;
    for (i, arguments) in CASES.iter().enumerate().skip(1).step_by(2) {
        let seed = first + i as u64;
        let random = &mut Random(seed ^ 77);
        let long = if i % 6 == 1 { vec![17 * MIB, 17 * MIB, LIMIT + 5, LIMIT, MIB] } else { lengths(random, 16) };
        aside += check(&gnu, seed, arguments, &long, Task::MergeInPasses).long_lines;
    }
    assert!(aside > 40, "{aside} lines were set aside");
}

/// Numbers and versions are compared as a whole, so they must fit.
#[test]
fn a_number_of_a_megabyte_is_refused_in_little_memory_and_sorted_in_more() {
    let folder = Folder::new();
    let number = |digit: u8| [&vec![digit; MIB][..], b" x\n"].concat();
    let text = [&number(b'2')[..], &number(b'1'), &vec![b'\n'; MIB]].concat();
    let (options, terminator) = options("-n");
    let format = RecordFormat::Lines { order: options.compile().unwrap(), terminator };
    let sorted = |memory: u64| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut job = folder.job(format.clone(), &[]).memory_bytes(memory);
        job.inputs = vec![Input::Stream { name: "a pipe".into(), fd: reader.into() }];
        std::thread::scope(|scope| {
            // The reader may end before it has read everything.
            let text = &text;
            scope.spawn(move || writer.write_all(text));
            sort(job)
        })
    };
    let error = sorted(16 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(error.to_string().contains("a number or version of more than 262144"), "{error}");
    assert_eq!(sorted(66 << 20).unwrap().long_lines, 2);
    let expected = [&vec![b'\n'; MIB][..], &number(b'1'), &number(b'2')].concat();
    assert_same(&folder.sorted(), &expected, "numbers");
}
