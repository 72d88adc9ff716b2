//! A sort in tasks, as on several machines: parts of files sorted into memory, cut at splitters,
//! and each range merged from memory. All ranges one after the other are what one sort gives.
//!
//! Every failure prints the seed; `DATAPIPES_SEED` replays it.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::fs;
use std::path::{Path, PathBuf};

use datapipes_core::{Dram, ErrorKind, FileAccess, Ssd};
use datapipes_sort::text::{KeySpec, TextOptions};
use datapipes_sort::{
    Input, MovementRole, NumberKind, Output, PlacedRecord, RecordBorders, RecordFormat, RecordTally, ShuffleOrder,
    SortJob, SortMethod, SortReport, merge,
};
use scene::{Folder, Random, assert_same, seed, sort, usual_machine};

const BLOCK: usize = 4096;

fn lines(options: &TextOptions, terminator: u8) -> RecordFormat {
    RecordFormat::Lines { order: options.compile().unwrap(), terminator }
}

fn keyed() -> TextOptions {
    TextOptions::default().keys(vec![KeySpec::parse(b"2,2n").unwrap()]).separator(b' ')
}

/// The formats: their names, and whether duplicates are dropped.
fn formats() -> Vec<(&'static str, RecordFormat, bool)> {
    let records = |len, key_at, key_len, reverse| RecordFormat::Records { len, key_at, key_len, reverse };
    let numbers = |kind, reverse| RecordFormat::Numbers { kind, reverse };
    let unique = TextOptions::default().unique(true);
    vec![
        ("lines", lines(&TextOptions::default(), b'\n'), false),
        ("zero-terminated", lines(&TextOptions::default(), 0), false),
        ("keyed", lines(&keyed(), b'\n'), false),
        ("stable", lines(&keyed().stable(true), b'\n'), false),
        ("unique", lines(&unique, b'\n'), true),
        ("unique keys", lines(&keyed().unique(true), b'\n'), true),
        ("records", records(7, 2, 3, false), false),
        ("descending records", records(100, 0, 10, true), false),
        ("unique records", records(5, 1, 1, false), true),
        ("u32", numbers(NumberKind::U32, false), false),
        ("descending f64", numbers(NumberKind::F64, true), false),
    ]
}

/// Makes a file of some kilobytes: keys are random, few, or all equal.
fn file_of(random: &mut Random, format: &RecordFormat) -> Vec<u8> {
    let many = random.pick(&[0, 1, 2, 300, 3000]);
    let values = random.pick(&[1, 3, 1 << 30]);
    match format {
        RecordFormat::Lines { terminator, .. } => {
            let mut text = Vec::new();
            for i in 0..many {
                let pad = random.pick(&[0, 0, 3, 40]);
                text.extend(format!("{i:0pad$} {} x", random.below(values)).into_bytes());
                text.push(*terminator);
            }
            if random.one_in(2) {
                text.pop();
            }
            text
        }
        RecordFormat::Records { len, key_at, key_len, .. } => {
            let mut bytes = random.bytes(many * len);
            for record in bytes.chunks_exact_mut(*len) {
                let key = random.below(values).to_be_bytes();
                for (to, from) in record[*key_at..key_at + key_len].iter_mut().rev().zip(key.iter().rev()) {
                    *to = *from;
                }
            }
            bytes
        }
        RecordFormat::Numbers { kind, .. } => {
            let width = kind.width();
            (0..many).flat_map(|_| random.below(values).to_le_bytes()[..width].to_vec()).collect()
        }
    }
}

/// A part of the input: files, with the bytes of each that its records begin in.
type Part = Vec<(PathBuf, u64, u64)>;

/// Cuts the files into parts of so many bytes.
fn parts(files: &[PathBuf], part_len: u64) -> Vec<Part> {
    let (mut parts, mut at) = (Vec::<Part>::new(), 0);
    for path in files {
        let len = fs::metadata(path).unwrap().len();
        let mut from = 0;
        while from < len {
            let number = (at + from) / part_len;
            let to = ((number + 1) * part_len - at).min(len);
            parts.resize_with(parts.len().max(number as usize + 1), Vec::new);
            parts[number as usize].push((path.clone(), from, to));
            from = to;
        }
        at += len;
    }
    parts
}

/// Sorts a part into memory.
fn sorted_part(folder: &Folder, format: &RecordFormat, unique: bool, part: &Part) -> (Dram, SortReport) {
    let order = ShuffleOrder::new(format, unique).unwrap();
    let mut inputs = Vec::new();
    let mut most = 1;
    for (path, from, to) in part {
        let borders = RecordBorders::open(&order, path).unwrap();
        let (from, to) = (borders.at_or_behind(*from).unwrap(), borders.at_or_behind(*to).unwrap());
        most += to - from + 1;
        inputs.push(Input::Range { ssd: Ssd::open(path).unwrap(), from, to });
    }
    let memory = Dram::allocate((most as usize).next_multiple_of(BLOCK)).unwrap();
    let output = Output::Memory { name: "a part".into(), memory: memory.clone() };
    let job = folder.job(format.clone(), &[]).inputs(inputs).output(output).unique(unique);
    let report = sort(job).unwrap();
    assert_eq!(report.output.way, "memory");
    (memory.range(0, report.bytes_out as usize).unwrap(), report)
}

fn merge_into(folder: &Folder, format: &RecordFormat, unique: bool, blocks: Vec<Dram>, name: &str) -> SortReport {
    let input = |(i, memory)| Input::Memory { name: format!("block {i}").into(), memory };
    let inputs = blocks.into_iter().enumerate().map(input).collect();
    let job = folder.job(format.clone(), &[]).inputs(inputs).output(Output::file(folder.path(name))).unique(unique);
    merge(usual_machine(), job).unwrap()
}

fn add(sum: &mut (u64, u64, u64), tally: RecordTally) {
    *sum = (sum.0 + tally.records, sum.1 + tally.bytes, sum.2.wrapping_add(tally.sum));
}

#[test]
fn ranges_of_parts_are_what_one_sort_gives() {
    let seed = seed(36);
    println!("DATAPIPES_SEED={seed}");
    let random = &mut Random(seed);
    for (name, format, unique) in formats() {
        let order = ShuffleOrder::new(&format, unique).unwrap();
        for round in 0..4 {
            let folder = Folder::new();
            let count = 1 + random.below(4);
            let files: Vec<PathBuf> =
                (0..count).map(|i| folder.put(&format!("in/{i}"), &file_of(random, &format))).collect();
            let total: u64 = files.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
            let unit = order.fixed_len().unwrap_or(1) as u64;
            let part_len = (total / (1 + random.below(7)) as u64 / unit).max(1) * unit;
            let ranges = 1 + random.below(9);
            let case =
                format!("{name}, round {round}: {total} bytes in {count} files, {part_len} a part, {ranges} ranges");

            // Samples of every part, with its number.
            let parts = parts(&files, part_len);
            let mut samples = Vec::new();
            for (number, part) in parts.iter().enumerate() {
                for (path, from, to) in part {
                    let borders = RecordBorders::open(&order, path).unwrap();
                    for near in (*from..*to).step_by(97) {
                        if let Some((at, record)) = borders.sample(near).unwrap().filter(|(at, _)| at < to) {
                            assert!(at >= near, "{case}");
                            samples.push(PlacedRecord { record, part: number as u64 });
                        }
                    }
                }
            }
            let splitters = order.splitters(samples, ranges);

            let mut blocks: Vec<Vec<Dram>> = vec![Vec::new(); splitters.len() + 1];
            let (mut read, mut written) = ((0, 0, 0), (0, 0, 0));
            for (number, part) in parts.iter().enumerate() {
                let (sorted, report) = sorted_part(&folder, &format, unique, part);
                add(&mut read, report.written);
                if sorted.len() == 0 {
                    continue;
                }
                let cuts = order.cuts(&sorted.lease().unwrap(), number as u64, &splitters).unwrap();
                assert_eq!((cuts.len(), cuts[0], cuts[cuts.len() - 1]), (blocks.len() + 1, 0, sorted.len()), "{case}");
                for (row, cut) in blocks.iter_mut().zip(cuts.windows(2)) {
                    if cut[0] < cut[1] {
                        row.push(sorted.range(cut[0], cut[1] - cut[0]).unwrap());
                    }
                }
            }
            let mut whole = Vec::new();
            for (i, row) in blocks.into_iter().enumerate().filter(|(_, row)| !row.is_empty()) {
                let bounds = |i: usize| splitters.get(i).map(|splitter| &splitter.record[..]);
                let between = [i.checked_sub(1).and_then(bounds), bounds(i)];
                for block in &row {
                    assert!(order.lie_between(&block.lease().unwrap(), between).unwrap(), "{case}");
                }
                let report = merge_into(&folder, &format, unique, row, &format!("out/{i}"));
                add(&mut written, report.written);
                add(&mut written, report.dropped);
                whole.extend(fs::read(folder.path(&format!("out/{i}"))).unwrap());
            }
            assert_eq!(read, written, "{case}");
            let alone = sort(folder.job(format.clone(), &files).unique(unique)).unwrap();
            assert_eq!(alone.records, alone.written.records + alone.dropped.records, "{case}");
            assert_same(&whole, &folder.sorted(), &case);
        }
    }
}

#[test]
fn records_begin_where_a_naive_search_finds_them() {
    let folder = Folder::new();
    let order = ShuffleOrder::new(&lines(&TextOptions::default(), b'\n'), false).unwrap();
    let long = vec![b'x'; 10_000];
    for text in [&b"a"[..], b"\n", b"a\n", b"\n\n\nab\n\nc", &[b"one\n", &long[..], b"\ntwo"].concat()] {
        let borders = RecordBorders::open(&order, &folder.put("in/x", text)).unwrap();
        for at in 0..text.len() + 2 {
            let begins = |i: &usize| *i == 0 || text[i - 1] == b'\n';
            let found = (at..text.len()).find(begins).unwrap_or(text.len()) as u64;
            assert_eq!(borders.at_or_behind(at as u64).unwrap(), found, "{at}");
            let sample = borders.sample(at as u64).unwrap();
            assert_eq!(sample.as_ref().map_or(text.len() as u64, |(at, _)| *at), found, "{at}");
            if let Some((at, record)) = sample {
                let line = text[at as usize..].split(|byte| *byte == b'\n').next().unwrap();
                assert_eq!(record, [line, b"\n"].concat());
            }
        }
    }
    let empty = RecordBorders::open(&order, &folder.put("in/x", b"")).unwrap();
    assert_eq!((empty.at_or_behind(5).unwrap(), empty.sample(0).unwrap()), (0, None));
}

#[test]
fn a_line_of_megabytes_is_sampled_by_its_first_bytes_or_not_at_all() {
    let folder = Folder::new();
    let order = ShuffleOrder::new(&lines(&TextOptions::default(), b'\n'), false).unwrap();
    let text = [&vec![b'y'; 3 << 20][..], b"\nlast"].concat();
    let borders = RecordBorders::open(&order, &folder.put("in/x", &text)).unwrap();
    let (at, record) = borders.sample(0).unwrap().unwrap();
    assert_eq!((at, record.len(), record.last()), (0, (64 << 10) + 1, Some(&b'\n')));
    assert_eq!(borders.sample(1).unwrap(), None);
    assert_eq!(borders.sample(2 << 20 | 1).unwrap(), Some(((3 << 20) + 1, b"last\n".to_vec())));
    assert_eq!(borders.at_or_behind(1).unwrap(), (3 << 20) + 1);
}

#[test]
fn what_is_no_file_of_whole_records_is_refused() {
    let folder = Folder::new();
    let format = RecordFormat::Records { len: 10, key_at: 0, key_len: 2, reverse: false };
    let order = ShuffleOrder::new(&format, false).unwrap();
    let kind = |path: &Path| RecordBorders::open(&order, path).unwrap_err().kind();
    assert_eq!(kind(&folder.put("in/x", &[0; 11])), ErrorKind::InvalidInput);
    assert_eq!(kind(&folder.path("in")), ErrorKind::InvalidInput);
    assert_eq!(kind(&folder.path("in/none")), ErrorKind::NotFound);
    let sorted = [0; 20];
    let short = PlacedRecord { record: vec![0; 9], part: 0 };
    assert_eq!(order.cuts(&sorted[..19], 0, &[]).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(order.cuts(&sorted, 0, &[short]).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(order.compare(&sorted, &sorted[..10]).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn memory_that_is_not_in_order_is_refused_and_nothing_is_written() {
    let folder = Folder::new();
    let format = lines(&TextOptions::default(), b'\n');
    for blocks in [vec![&b"b\na\n"[..]], vec![b"a\n", b"c\nb\n"], vec![b"a\n", b"b\n", b"c\n", b"d\nx\ne\n"]] {
        let memory = |bytes: &&[u8]| {
            let memory = Dram::allocate(bytes.len()).unwrap();
            memory.lease_mut().unwrap().copy_from_slice(bytes);
            Input::Memory { name: "a block".into(), memory }
        };
        let job = folder.job(format.clone(), &[]).inputs(blocks.iter().map(memory).collect());
        assert_eq!(merge(usual_machine(), job).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(folder.files(), Vec::<String>::new());
    }
}

#[test]
fn memory_that_does_not_suffice_is_an_error() {
    let folder = Folder::new();
    let path = folder.put("in/x", &[b'a'; 9000]);
    let into = |len: usize| {
        let output = Output::Memory { name: "memory".into(), memory: Dram::allocate(len).unwrap() };
        let job: SortJob =
            folder.job(lines(&TextOptions::default(), b'\n'), std::slice::from_ref(&path)).output(output);
        sort(job)
    };
    assert_eq!(into(8192).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(into(9001).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(into(12288).unwrap().bytes_out, 9001);
}

#[test]
fn a_part_that_does_not_fit_its_budget_is_sorted_into_memory_as_well() {
    let folder = Folder::new();
    let random = &mut Random(seed(37));
    let format = RecordFormat::SORT_BENCHMARK;
    let bytes = random.bytes(40 << 20).chunks_exact(100).flatten().copied().collect::<Vec<u8>>();
    let path = folder.put("in/x", &bytes);
    let (sorted, report) = sorted_part(&folder, &format, false, &vec![(path, 0, bytes.len() as u64)]);
    assert!(report.runs > 1, "{}", report.runs);
    assert_same(&sorted.lease().unwrap(), &scene::sort_records(&bytes, &format, false), "spilled");
}

#[test]
fn ranges_that_begin_anywhere_are_read_straight_into_place() {
    let folder = Folder::new();
    let format = RecordFormat::Lines { order: TextOptions::default().compile().unwrap(), terminator: b'\n' };
    let lines: Vec<String> = (0..400_000).rev().map(|i| format!("{i:019}\n")).collect();
    let path = folder.put("in/lines", lines.concat().as_bytes());
    for first in [0, 1, 7, 204, 205, 1000] {
        let ssd = Ssd::open(&path).unwrap();
        let Ok(ssd) = ssd.with_access(FileAccess::Direct) else {
            println!("SKIPPED: the file system reads nothing past the page cache");
            return;
        };
        let (from, to) = (first as u64 * 20, ssd.len().unwrap());
        let job = folder.job(format.clone(), &[]).inputs(vec![Input::Range { ssd, from, to }]);
        let report = sort(job).unwrap();
        let mut expected = lines[first..].to_vec();
        expected.sort_unstable();
        assert_same(&folder.sorted(), expected.concat().as_bytes(), &format!("from line {first}"));
        let input = report.movements.iter().find(|movement| movement.role == MovementRole::Input).unwrap();
        let bounced = input.counters.bounced_bytes;
        assert!(input.counters.bytes == to - from && bounced < 64 << 10, "from line {first}: {bounced}");
    }
}

#[test]
fn numbers_that_begin_anywhere_are_sorted_as_they_are() {
    let folder = Folder::new();
    let random = &mut Random(seed(472));
    for (kind, width) in [(NumberKind::U64, 8), (NumberKind::U32, 4)] {
        let format = RecordFormat::Numbers { kind, reverse: false };
        for before in [1, 3, width, 4095, 4096, 5001] {
            // More than a slot has room for.
            let bytes = random.bytes(before + (12 << 20));
            let path = folder.put("in/numbers", &bytes);
            let ssd = Ssd::open(&path).unwrap();
            let (from, to) = (before as u64, bytes.len() as u64);
            for method in [SortMethod::Merge, SortMethod::Auto] {
                let range = Input::Range { ssd: ssd.clone(), from, to };
                let job = folder.job(format.clone(), &[]).inputs(vec![range]).memory_bytes(16 << 20).method(method);
                sort(job).unwrap();
                let whole = folder.put("in/whole", &bytes[before..]);
                let sorted = folder.sorted();
                sort(folder.job(format.clone(), &[whole])).unwrap();
                assert_same(&sorted, &folder.sorted(), &format!("{kind:?} behind {before} bytes, {method:?}"));
            }
        }
    }
}
