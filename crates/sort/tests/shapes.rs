//! Records of any length, from one byte to all of the memory, with any number of threads, in any
//! budget: they are sorted, or refused with the right reason.
//!
//! Every failure prints the seed; `DATAPIPES_SEED` replays it.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::io::Write;

use datapipes_core::ErrorKind;
use datapipes_file::FileBackendOptions;
use datapipes_sort::text::{KeySpec, TextOptions};
use datapipes_sort::{Input, NumberKind, Output, RecordFormat, SortJob, merge};
use scene::{Folder, Random, assert_same, machine, seed, sort, sort_records};

const MIB: usize = 1 << 20;

fn lines() -> RecordFormat {
    RecordFormat::Lines { order: TextOptions::default().compile().unwrap(), terminator: b'\n' }
}

/// The naive twin for lines. The last line gets the newline that it may lack.
fn sort_lines(bytes: &[u8], unique: bool) -> Vec<u8> {
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    let mut lines: Vec<&[u8]> = body.split(|b| *b == b'\n').collect();
    lines.sort_unstable();
    if unique {
        lines.dedup();
    }
    let mut sorted = lines.join(&b'\n');
    sorted.push(b'\n');
    sorted
}

/// Makes about `bytes` bytes of lines, with lengths drawn by `len`.
fn lines_of(random: &mut Random, bytes: usize, mut len: impl FnMut(&mut Random) -> usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes + 1000);
    while text.len() < bytes {
        let n = len(random);
        let start = text.len();
        text.extend(random.bytes(n.min(24)).iter().map(|b| b'a' + b % 26));
        text.resize(start + n, b'x');
        text.push(b'\n');
    }
    text
}

#[test]
fn the_shortest_lines() {
    let seed = seed(1);
    // Empty lines need 32 bytes of entries for each byte. The input fits neither the slots nor the
    // memory.
    for (case, (len, threads, memory)) in
        [(0, 2, 16), (0, 1, 16), (1, 4, 16), (1, 8, 20), (1, 64, 64), (0, 64, 16), (2, 3, 100)].into_iter().enumerate()
    {
        let random = &mut Random(seed + case as u64);
        let folder = Folder::new();
        let text = lines_of(random, 3 * MIB, |_| len);
        let input = folder.put("in/a", &text);
        let memory_bytes = (memory * MIB) as u64;
        let job = folder.job(lines(), &[input]).threads(threads).memory_bytes(memory_bytes);
        let name = format!("seed {}, lines of {len}, {threads} threads, {memory} MiB", seed + case as u64);
        let report = sort(job).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&folder.sorted(), &sort_lines(&text, false), &name);
        assert_eq!(report.records, report.records_out, "{name}");
    }
}

#[test]
fn the_shortest_records_and_none() {
    for threads in [1, 4, 64] {
        for n in [0, 1, 5, 700_000] {
            let folder = Folder::new();
            let bytes = Random(n as u64).bytes(n);
            let input = folder.put("in/a", &bytes);
            let format = RecordFormat::Records { len: 1, key_at: 0, key_len: 1, reverse: false };
            let job = folder.job(format.clone(), &[input]).threads(threads);
            sort(job).unwrap_or_else(|e| panic!("{n} records of a byte, {threads} threads: {e}"));
            assert_same(&folder.sorted(), &sort_records(&bytes, &format, false), &format!("{n}, {threads}"));
        }
    }
}

/// Draws a length from any mixture, which also changes within the input.
fn length(random: &mut Random, most: usize) -> usize {
    match random.below(6) {
        0 => 0,
        1 => random.below(3),
        2 | 3 => random.below(100),
        4 => random.below(5000),
        _ => random.below(most),
    }
}

#[test]
fn lines_of_any_lengths() {
    let seed = seed(100);
    for case in 0..12 {
        let random = &mut Random(seed + case);
        let folder = Folder::new();
        let memory = random.pick(&[16, 17, 20, 33, 64]);
        let most = random.pick(&[10, 1000, 200_000, 2_000_000]);
        let (threads, fan_in) = (1 + random.below(random.0 as usize % 64 + 1), random.pick(&[0, 0, 2, 3]));
        let mut text = Vec::new();
        let mut inputs = Vec::new();
        for i in 0..1 + random.below(4) {
            let fixed = random.below(most);
            let shape = random.below(4);
            let bytes = random.pick(&[0, 100, 4 * MIB, 9 * MIB]);
            let mut part = lines_of(random, bytes, |random| match shape {
                0 => fixed,
                1 => random.below(3),
                _ => length(random, most),
            });
            if random.one_in(3) {
                part.pop();
            }
            inputs.push(folder.put(&format!("in/{i}"), &part));
            text.extend_from_slice(&part);
            if text.last().is_some_and(|b| *b != b'\n') {
                text.push(b'\n');
            }
        }
        let unique = random.one_in(4);
        let stream = random.one_in(3);
        let name = format!(
            "seed {} ({memory} MiB, at most {most}, {threads} threads, fan-in {fan_in}, unique {unique}, stream {stream})",
            seed + case
        );
        let mut job = folder
            .job(lines(), &inputs)
            .threads(threads)
            .fan_in(fan_in)
            .unique(unique)
            .memory_bytes((memory * MIB) as u64);
        let (reader, mut writer) = std::io::pipe().unwrap();
        if stream {
            job.inputs = vec![Input::Stream { name: "a pipe".into(), fd: reader.into() }];
        }
        let report = std::thread::scope(|scope| {
            let text = &text;
            let writing = scope.spawn(move || {
                // The reader is gone if the input is not the pipe.
                let _ = stream.then(|| writer.write_all(text));
            });
            let report = sort(job).unwrap_or_else(|e| panic!("{name}: {e}"));
            writing.join().unwrap();
            report
        });
        assert_same(&folder.sorted(), &sort_lines(&text, unique), &name);
        assert_eq!(report.bytes_out, folder.sorted().len() as u64, "{name}");
    }
}

#[test]
fn a_line_as_long_as_the_memory_allows() {
    let seed = seed(200);
    let random = &mut Random(seed);
    for (memory, len, threads) in [(16, 3 * MIB, 2), (32, 12 * MIB, 2), (48, 30 * MIB, 4)] {
        let folder = Folder::new();
        let mut text = lines_of(random, 20 * MIB, |r| length(r, 500));
        let long = lines_of(random, len, |_| len);
        text.extend_from_slice(&long);
        text.extend(lines_of(random, 9 * MIB, |r| length(r, 500)));
        let input = folder.put("in/a", &text);
        let job = folder.job(lines(), &[input]).threads(threads).memory_bytes((memory * MIB) as u64);
        let name = format!("seed {seed}, a line of {len} in {memory} MiB");
        let report = sort(job).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(report.runs > 1, "{name}: {} runs", report.runs);
        assert_eq!(report.memory_excess_bytes, 0, "{name}");
        assert_same(&folder.sorted(), &sort_lines(&text, false), &name);
    }
}

/// Long lines of one length are placed where others were, with their keys elsewhere: facts
/// remembered about the others must not be used.
#[test]
fn remembered_keys_are_not_used_for_other_lines_at_the_same_address() {
    const LINE: usize = 4096;
    let seed = seed(413);
    let random = &mut Random(seed);
    let mut text = Vec::new();
    for _ in 0..40 * MIB / LINE {
        // There are few keys, so that many are equal at first and most comparisons look at all of
        // them.
        let key = format!(" {} {} ", random.below(3), random.below(1000));
        let before = 1 + random.below(LINE - 200);
        let line =
            [&vec![b'a'; before][..], key.as_bytes(), &vec![b'z'; LINE - 1 - before - key.len()], b"\n"].concat();
        assert_eq!(line.len(), LINE);
        text.extend(line);
    }
    let field = |line: &[u8], n: usize| line.split(|b| *b == b' ').nth(n).unwrap().to_vec();
    let mut expected: Vec<&[u8]> = text.chunks(LINE).collect();
    expected.sort_by_cached_key(|line| (field(line, 1), field(line, 2), line.to_vec()));
    let keys = [b"2,2", b"3,3"].iter().map(|key| KeySpec::parse(&key[..]).unwrap()).collect();
    let options = TextOptions::default().keys(keys);
    for (threads, unique) in [(1, false), (2, false), (4, true)] {
        let order = options.clone().unique(unique).compile().unwrap();
        let folder = Folder::new();
        let input = folder.put("in/a", &text);
        let format = RecordFormat::Lines { order, terminator: b'\n' };
        let job = folder.job(format, &[input]).threads(threads).unique(unique).memory_bytes(16 * MIB as u64);
        let report = sort(job).unwrap_or_else(|e| panic!("seed {seed}, {threads} threads: {e}"));
        assert!(report.runs > 2, "{} runs", report.runs);
        if unique {
            // The first of each, in the order of the input.
            let mut firsts: Vec<&[u8]> = text.chunks(LINE).collect();
            firsts.sort_by_key(|line| (field(line, 1), field(line, 2)));
            firsts.dedup_by_key(|line| (field(line, 1), field(line, 2)));
            assert_same(&folder.sorted(), &firsts.concat(), &format!("seed {seed}, the first of each"));
        } else {
            assert_same(&folder.sorted(), &expected.concat(), &format!("seed {seed}, {threads} threads"));
        }
    }
}

/// A long line takes all slots together. When short lines fill these, the rest is more than a slot.
#[test]
fn long_lines_before_short_ones_with_many_threads() {
    let seed = seed(412);
    let random = &mut Random(seed);
    for long in [1_500_000, 2_000_000] {
        let mut text = Vec::new();
        for _ in 0..4 {
            text.extend(lines_of(random, long, |_| long));
            text.extend(lines_of(random, 300_000, |_| 1));
        }
        let expected = sort_lines(&text, false);
        for threads in [1, 8, 64] {
            let folder = Folder::new();
            let input = folder.put("in/a", &text);
            let job = folder.job(lines(), &[input]).threads(threads).memory_bytes(16 * MIB as u64);
            sort(job).unwrap_or_else(|e| panic!("seed {seed}, lines of {long}, {threads} threads: {e}"));
            assert_same(&folder.sorted(), &expected, &format!("seed {seed}, lines of {long}, {threads} threads"));
        }
    }
}

/// If only unique keys are kept, the last record is kept too. Of long lines these are stubs, which
/// fit.
#[test]
fn long_unique_lines_are_within_the_memory() {
    let seed = seed(413);
    let random = &mut Random(seed);
    for (memory, len) in [(64, 8 * MIB), (64, 24 * MIB)] {
        let folder = Folder::new();
        let inputs = [0, 1].map(|i| {
            let text = sort_lines(&lines_of(random, 3 * len, |r| len - r.below(100)), false);
            (folder.put(&format!("in/{i}"), &text), text)
        });
        let expected = sort_lines(&[&inputs[0].1[..], &inputs[1].1].concat(), true);
        let inputs = inputs.map(|(path, _)| path);
        for merges in [true, false] {
            let name = format!("seed {seed}, lines of {len} in {memory} MiB, merges: {merges}");
            let job = folder.job(lines(), &inputs).unique(true).memory_bytes((memory * MIB) as u64);
            let report = if merges { merge(&machine(FileBackendOptions::default()), job) } else { sort(job) };
            let report = report.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_same(&folder.sorted(), &expected, &name);
            assert_eq!(report.memory_excess_bytes, 0, "{name}");
        }
    }
}

#[test]
fn many_long_lines_in_little_memory() {
    let seed = seed(300);
    let random = &mut Random(seed);
    let folder = Folder::new();
    let text = lines_of(random, 48 * 2 * MIB, |r| 2 * MIB + r.below(4));
    let input = folder.put("in/a", &text);
    let job = folder.job(lines(), &[input]).memory_bytes(24 << 20);
    let report = sort(job).unwrap();
    assert_same(&folder.sorted(), &sort_lines(&text, false), &format!("seed {seed}"));
    assert_eq!(report.memory_excess_bytes, 0);
    // Each is set aside, so their stubs are merged at once.
    assert_eq!((report.long_lines, report.merge_passes), (48, 1));
}

#[test]
fn numbers_in_any_budget_with_any_threads() {
    for (threads, memory, n) in [(64, 16, 900_000), (7, 16, 300_000), (64, 64, 2_000_000), (1, 16, 0)] {
        let folder = Folder::new();
        let bytes = Random(n as u64).bytes(n * 8);
        let input = folder.put("in/a", &bytes);
        let format = RecordFormat::Numbers { kind: NumberKind::U64, reverse: false };
        let job = folder.job(format, &[input]).threads(threads).memory_bytes((memory * MIB) as u64);
        sort(job).unwrap_or_else(|e| panic!("{n} numbers, {threads} threads, {memory} MiB: {e}"));
        let mut expected: Vec<[u8; 8]> = bytes.as_chunks::<8>().0.to_vec();
        expected.sort_unstable_by_key(|b| u64::from_le_bytes(*b));
        assert_same(&folder.sorted(), expected.as_flattened(), &format!("{n}, {threads}, {memory}"));
    }
}

/// Merging sorted inputs.
mod merging {
    use super::*;

    fn merge(job: SortJob) -> datapipes_core::Result<datapipes_sort::SortReport> {
        datapipes_sort::merge(&scene::machine(datapipes_file::FileBackendOptions::default()), job)
    }

    fn sorted_parts(
        random: &mut Random,
        folder: &Folder,
        parts: usize,
        bytes: usize,
    ) -> (Vec<std::path::PathBuf>, Vec<u8>) {
        let mut all = Vec::new();
        let paths = (0..parts).map(|i| {
            let part = lines_of(random, bytes, |r| length(r, 3000));
            all.extend_from_slice(&part);
            folder.put(&format!("in/{i:04}"), &sort_lines(&part, false))
        });
        (paths.collect(), all)
    }

    #[test]
    fn any_number_of_files_in_several_passes() {
        let seed = seed(400);
        let random = &mut Random(seed);
        for (parts, fan_in, bytes, unique) in
            [(3, 0, 3 * MIB, false), (40, 3, 9000, false), (300, 0, 500, true), (7, 2, 200_000, true)]
        {
            let folder = Folder::new();
            let (paths, all) = sorted_parts(random, &folder, parts, bytes);
            let job = folder.job(lines(), &paths).fan_in(fan_in).unique(unique);
            let name = format!("seed {seed}, {parts} files, fan-in {fan_in}");
            let report = merge(job).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_same(&folder.sorted(), &sort_lines(&all, unique), &name);
            assert_eq!(report.merge_passes > 1, fan_in > 0 || parts == 300, "{name}: {} passes", report.merge_passes);
        }
    }

    #[test]
    fn equal_lines_stay_in_the_order_of_the_files() {
        let folder = Folder::new();
        let paths: Vec<_> =
            (0..30).map(|i| folder.put(&format!("in/{i:02}"), format!("a {i}\nb {i}\n").as_bytes())).collect();
        let mut options = TextOptions::default().stable(true);
        options.keys.push(datapipes_sort::text::KeySpec::parse(b"1,1").unwrap());
        let format = RecordFormat::Lines { order: options.compile().unwrap(), terminator: b'\n' };
        for fan_in in [0, 2, 3, 7] {
            merge(folder.job(format.clone(), &paths).fan_in(fan_in)).unwrap();
            let expected: String = ["a", "b"].iter().flat_map(|l| (0..30).map(move |i| format!("{l} {i}\n"))).collect();
            assert_same(&folder.sorted(), expected.as_bytes(), &format!("fan-in {fan_in}"));
        }
    }

    /// Cuts sorted records into files, each of them sorted.
    fn dealt(random: &mut Random, records: &[&[u8]], files: usize) -> Vec<Vec<u8>> {
        let mut dealt = vec![Vec::new(); files];
        for record in records {
            dealt[random.below(files)].extend_from_slice(record);
        }
        dealt
    }

    #[test]
    fn files_are_merged_by_all_threads() {
        let seed = seed(420);
        let random = &mut Random(seed);
        for (kind, files, threads) in
            [("random", 2, 2), ("random", 9, 3), ("urls", 5, 3), ("few", 3, 2), ("equal", 4, 3), ("open end", 3, 2)]
        {
            let name = format!("seed {seed}, {kind} lines in {files} files, {threads} threads");
            let folder = Folder::new();
            let text: Vec<Vec<u8>> = (0..160_000)
                .map(|_| match kind {
                    "few" => format!("{:060}\n", random.below(5)),
                    "equal" => format!("{:60}\n", "x"),
                    "urls" => format!(
                        "https://example.org/a/long/path/{:09}/{:09}\n",
                        random.below(900),
                        random.below(1 << 29)
                    ),
                    _ => format!("{:09} {:0width$}\n", random.below(1 << 29), 7, width = 1 + random.below(90)),
                })
                .map(String::into_bytes)
                .collect();
            let mut sorted: Vec<&[u8]> = text.iter().map(Vec::as_slice).collect();
            sorted.sort_unstable_by_key(|line| &line[..line.len() - 1]);
            let mut inputs = dealt(random, &sorted, files);
            if kind == "open end" {
                inputs.iter_mut().for_each(|input| input.truncate(input.len() - 1));
            }
            let paths: Vec<_> =
                inputs.iter().enumerate().map(|(i, input)| folder.put(&format!("in/{i}"), input)).collect();
            let report = merge(folder.job(lines(), &paths).threads(threads).memory_bytes(64 << 20));
            let report = report.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_same(&folder.sorted(), &sorted.concat(), &name);
            assert_eq!((report.records, report.records_out), (160_000, 160_000), "{name}");
            let parts = report.merged_by_thread;
            assert_eq!(parts.len(), threads, "{name}");
            let total = parts.iter().sum::<u64>();
            assert_eq!(total, report.bytes_out, "{name}");
            if !matches!(kind, "few" | "equal") {
                let most = parts.iter().max().copied().unwrap_or(0);
                assert!(most * threads as u64 <= total * 5 / 4, "{name}: {parts:?}");
            }
        }
    }

    #[test]
    fn equal_keys_stay_in_the_order_of_the_files_on_all_threads() {
        let random = &mut Random(seed(430));
        let (folder, len) = (Folder::new(), 50);
        let format = RecordFormat::Records { len, key_at: 3, key_len: 2, reverse: true };
        let mut records: Vec<Vec<u8>> = (0..150_000).map(|_| random.bytes(len)).collect();
        records.iter_mut().for_each(|record| record[3] = 0);
        let inputs: Vec<Vec<u8>> = records
            .chunks(50_000)
            .map(|file| {
                let mut file = file.to_vec();
                file.sort_by_key(|record| std::cmp::Reverse([record[3], record[4]]));
                file.concat()
            })
            .collect();
        let paths: Vec<_> = inputs.iter().enumerate().map(|(i, input)| folder.put(&format!("in/{i}"), input)).collect();
        let report = merge(folder.job(format.clone(), &paths).threads(3).memory_bytes(64 << 20)).unwrap();
        assert_same(&folder.sorted(), &scene::sort_records(&inputs.concat(), &format, false), "records");
        assert_eq!(report.merged_by_thread.len(), 3);
    }

    #[test]
    fn files_that_are_not_in_order_are_merged_by_one_thread() {
        // One line out of place: at a border of two parts, or anywhere.
        let seed = seed(440);
        for seed in seed..seed + 6 {
            let random = &mut Random(seed);
            let folder = Folder::new();
            let mut inputs = vec![Vec::new(); 3];
            for i in 0..200_000 {
                inputs[random.below(3)].push(format!("{i:09} {:20}\n", ""));
            }
            let (at, to) = (random.below(60_000), random.below(60_000));
            let line = inputs[1].remove(at);
            inputs[1].insert(to, line);
            let mut heads: Vec<_> = inputs.iter().map(|lines| lines.iter().peekable()).collect();
            let mut expected = String::new();
            while let Some(i) =
                (0..3).filter(|i| heads[*i].clone().peek().is_some()).min_by_key(|i| heads[*i].clone().peek().copied())
            {
                expected.extend(heads[i].next().map(String::as_str));
            }
            let paths: Vec<_> =
                inputs.iter().enumerate().map(|(i, l)| folder.put(&format!("in/{i}"), l.concat().as_bytes())).collect();
            let report = merge(folder.job(lines(), &paths)).unwrap();
            assert_same(&folder.sorted(), expected.as_bytes(), &format!("seed {seed}, line {at} at {to}"));
            assert_eq!(report.merged_by_thread.len(), if at == to { 2 } else { 1 }, "seed {seed}");
        }
    }

    #[test]
    fn a_partial_record_is_an_error() {
        for (sizes, fan_in) in
            [(vec![1000, 250], 0), (vec![130], 0), (vec![100, 200, 300, 99], 2), (vec![400_050, 100], 0)]
        {
            let folder = Folder::new();
            let paths: Vec<_> =
                sizes.iter().enumerate().map(|(i, n)| folder.put(&format!("in/{i}"), &vec![7; *n])).collect();
            let error = merge(folder.job(RecordFormat::SORT_BENCHMARK, &paths).fan_in(fan_in)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{sizes:?}: {error}");
            assert!(error.to_string().contains("not a multiple of the record length 100"), "{sizes:?}: {error}");
            assert!(!folder.path("out/sorted").exists(), "{sizes:?}");
        }
    }

    #[test]
    fn streams_are_not_staged() {
        // Two endless inputs, and a reader that leaves: the merge ends without spilling anything.
        let folder = Folder::new();
        let (mut readers, mut writers) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (reader, writer) = std::io::pipe().unwrap();
            readers.push(Input::Stream { name: "a pipe".into(), fd: reader.into() });
            writers.push(writer);
        }
        let (mut output, writer) = std::io::pipe().unwrap();
        let file = std::fs::File::from(std::os::fd::OwnedFd::from(writer));
        let job = folder
            .job(lines(), &[])
            .inputs(readers)
            .output(Output::Stream { name: "a pipe".into(), file })
            // There is no such place, and none is needed.
            .spill(vec![datapipes_core::StagePlace::folder(folder.path("nowhere"))]);
        let (got, outcome) = std::thread::scope(|scope| {
            for (mut writer, line) in writers.into_iter().zip(["a\n", "b\n"]) {
                scope.spawn(move || {
                    let block = line.repeat(30_000);
                    while writer.write_all(block.as_bytes()).is_ok() {}
                });
            }
            let reading = scope.spawn(move || {
                let mut got = vec![0; 1000];
                std::io::Read::read_exact(&mut output, &mut got).unwrap();
                got
            });
            let outcome = merge(job);
            (reading.join().unwrap(), outcome)
        });
        assert_eq!(got, b"a\n".repeat(500));
        assert_eq!(outcome.unwrap_err().errno(), Some(libc::EPIPE));
    }
}

/// Runs that another program compresses.
mod compressed {
    use super::*;
    use std::path::PathBuf;

    /// Makes a program in the folder that runs a script.
    fn program(folder: &Folder, script: &str) -> PathBuf {
        let path = folder.put("packer", format!("#!/bin/sh\n{script}\n").as_bytes());
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    fn job(folder: &Folder, script: &str, text: &[u8], fan_in: usize) -> SortJob {
        let input = folder.put("in/a", text);
        let compress_program = Some(program(folder, script));
        folder.job(lines(), &[input]).compress_program(compress_program).fan_in(fan_in)
    }

    const SWAP_CASE: &str = "exec tr a-z\\\\n A-Z@";
    const SWAP_BACK: &str = "exec tr A-Z@ a-z\\\\n";

    #[test]
    fn runs_go_through_the_program_and_back() {
        let seed = seed(500);
        let random = &mut Random(seed);
        let text = lines_of(random, 12 * MIB, |r| length(r, 3000));
        for (fan_in, unique) in [(0, false), (2, true)] {
            let folder = Folder::new();
            let script = format!("if [ \"$1\" = -d ]; then {SWAP_BACK}; fi; {SWAP_CASE}");
            let job = job(&folder, &script, &text, fan_in).unique(unique);
            let report = sort(job).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert!(report.runs > 2, "{} runs", report.runs);
            assert_same(&folder.sorted(), &sort_lines(&text, unique), &format!("seed {seed}, fan-in {fan_in}"));
            assert_eq!(std::fs::read_dir(folder.path("spill")).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_program_that_fails_or_lies_is_an_error() {
        let text = lines_of(&mut Random(7), 12 * MIB, |_| 60);
        for (script, expected) in [
            ("exit 3", "terminated abnormally"),
            ("if [ \"$1\" = -d ]; then cat; exit 1; fi; exec cat", "' -d' terminated abnormally"),
            ("if [ \"$1\" = -d ]; then exec head -c 100000; fi; exec cat", "not the"),
            ("if [ \"$1\" = -d ]; then exec tr a b; fi; exec cat", "not the"),
            ("kill -9 $$", "terminated abnormally"),
        ] {
            let folder = Folder::new();
            let error = sort(job(&folder, script, &text, 0)).unwrap_err();
            let expected = expected.replace("' -d", " -d");
            assert!(error.to_string().contains(&expected), "{script}: {error}");
            assert!(!folder.path("out/sorted").exists(), "{script}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let folder = Folder::new();
        let text = lines_of(&mut Random(8), 12 * MIB, |_| 60);
        let mut job = job(&folder, "", &text, 0);
        job.compress_program = Some("/no/such/program".into());
        let error = sort(job).unwrap_err();
        assert!(error.to_string().contains("/no/such/program"), "{error}");
        // Nothing is compressed if everything fits.
        let mut job = super::compressed::job(&folder, "", b"b\na\n", 0);
        job.compress_program = Some("/no/such/program".into());
        sort(job).unwrap();
        assert_eq!(folder.sorted(), b"a\nb\n");
    }
}
