//! The engine compared with naive twins and the system's `sort`: formats, shapes of input, budgets,
//! threads, outputs.
//!
//! Every failure prints the seed; `DATAPIPES_SEED` replays it.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use datapipes_file::FileBackendOptions;
use datapipes_sort::text::{KeySpec, TextOptions};
use datapipes_sort::{Control, Input, NumberKind, Output, RecordFormat, SmallInput, SpillCompression, SpillFiles};
use datapipes_testkit::child::{assert_forked_error, end_copy, fork_here};
use datapipes_testkit::{GnuSort, joined, output_of};
use scene::{Folder, Random, assert_same, machine, seed, sort, sort_records};

const MIB: usize = 1 << 20;

#[test]
fn runs_are_compressed_and_read_back() {
    let seed = seed(470);
    let text = TextOptions::default().compile().unwrap();
    for (case, kind) in (0..).zip(["lines", "records", "mixed", "random"]) {
        let random = &mut Random(seed + case);
        let folder = Folder::new();
        let words: Vec<String> = (0..60).map(|_| format!("{:x}", random.below(1 << 30))).collect();
        let mut bytes = Vec::new();
        while bytes.len() < 40 * MIB {
            match kind {
                "lines" => (0..1 + random.below(9)).for_each(|_| bytes.extend(words[random.below(60)].bytes())),
                "records" => bytes.extend(format!("{:08x}{:92}", random.below(1 << 30), "").bytes()),
                // Most of the bytes of some blocks, and none of others.
                "mixed" if bytes.len() > 20 * MIB => bytes.extend(random.bytes(100)),
                "mixed" => bytes.extend(format!("{:08x}{:92}", random.below(1 << 20), "").bytes()),
                _ => bytes.extend(random.bytes(100)),
            }
            if kind == "lines" {
                bytes.push(b'\n');
            }
        }
        let format = match kind {
            "lines" => RecordFormat::Lines { order: text.clone(), terminator: b'\n' },
            _ => RecordFormat::SORT_BENCHMARK,
        };
        let input = folder.put("in/a", &bytes);
        for (threads, memory, fan_in, unique) in [(2, 16, 0, false), (5, 24, 3, false), (1, 16, 0, true)] {
            let name = format!("seed {seed}, {kind}, {threads} threads, {memory} MiB, fan-in {fan_in}, {unique}");
            let job = folder.job(format.clone(), std::slice::from_ref(&input)).threads(threads).fan_in(fan_in);
            let job = job.memory_bytes(memory << 20).unique(unique).compression(SpillCompression::On);
            let report = sort(job).unwrap_or_else(|e| panic!("{name}: {e}"));
            let compression = report.compression.clone().unwrap();
            assert!(report.runs > 1 && compression.bytes > 30 << 20, "{name}: {report}");
            // What was touched lies within the budget, by the kernel's account.
            let (touched, huge) = (report.memory_touched_bytes, report.memory_huge_bytes);
            assert!((4 << 20..=memory << 20).contains(&touched) && huge <= touched, "{name}: {report}");
            if matches!(kind, "lines" | "records") {
                assert!(compression.stored_bytes * 10 < compression.bytes * 8, "{name}: {report}");
            }
            let expected = match kind {
                "lines" => {
                    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
                    lines.sort_unstable_by_key(|line| &line[..line.len() - 1]);
                    if unique {
                        lines.dedup();
                    }
                    lines.concat()
                }
                _ => sort_records(&bytes, &format, unique),
            };
            assert_same(&folder.sorted(), &expected, &name);
        }
    }
}

#[test]
fn large_runs_are_left_to_their_keeper() {
    let random = &mut Random(seed(460));
    let folder = Folder::new();
    let format = RecordFormat::Numbers { kind: NumberKind::U64, reverse: false };
    for (bytes, expected) in [(30 * MIB, 0), (260 * MIB, 1)] {
        let input = folder.put("in/a", &random.bytes(bytes));
        let files = SpillFiles::default();
        let job = folder.job(format.clone(), &[input]).memory_bytes(20 << 20).spill_files(Some(files.clone()));
        let report = sort(job).unwrap();
        let files: Vec<File> = files.take().into_iter().map(File::from).collect();
        assert_eq!(files.len(), expected);
        assert_eq!(report.spill_left_bytes, if expected == 0 { 0 } else { bytes as u64 });
        for file in &files {
            let meta = file.metadata().unwrap();
            // It has its blocks, and no name.
            assert!(meta.blocks() * 512 >= bytes as u64 && meta.nlink() == 0, "{meta:?}");
        }
        assert_eq!(folder.files(), ["in/a", "out/sorted"]);
    }
}

#[test]
fn a_large_file_that_was_replaced_is_left_to_the_keeper() {
    let folder = Folder::new();
    let input = folder.put("in/a", &Random(seed(461)).bytes(8 * MIB));
    for (len, is_linked, expected) in [(30 << 20, false, 0), (260 << 20, false, 1), (260 << 20, true, 0)] {
        let path = folder.path("out/sorted");
        let old = File::create(&path).unwrap();
        rustix::fs::fallocate(&old, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
        if is_linked {
            // It keeps its other name, so it is written in place.
            fs::hard_link(&path, folder.path("out/link")).unwrap();
        }
        let files = SpillFiles::default();
        let format = RecordFormat::Numbers { kind: NumberKind::U64, reverse: false };
        let job = folder.job(format, std::slice::from_ref(&input)).spill_files(Some(files.clone()));
        let report = sort(job).unwrap();
        assert_eq!(report.output.way, if is_linked { "in-place" } else { "replaced" }, "{report}");
        let files = files.take();
        assert_eq!(files.len(), expected);
        assert_eq!(report.output.left_bytes >= len, expected == 1, "{report}");
        for file in files {
            assert_left(&file, &old);
        }
    }
    // The short way for small inputs leaves it, too.
    let path = folder.path("out/short");
    let old = File::create(&path).unwrap();
    rustix::fs::fallocate(&old, rustix::fs::FallocateFlags::empty(), 0, 260 << 20).unwrap();
    let input = folder.put("in/b", b"bb\na\n");
    let order = TextOptions::default().compile().unwrap();
    let format = RecordFormat::Lines { order, terminator: b'\n' };
    let files = SpillFiles::default();
    let small = SmallInput::read(format, 64 << 20, [&*input]).unwrap().unwrap().spill_files(files.clone());
    small.sort_into(Output::to(&path).unwrap(), false, &Control::default()).unwrap();
    let files = files.take();
    assert!(files.len() == 1 && fs::read(&path).unwrap() == b"a\nbb\n");
    assert_left(&files[0], &old);
}

/// That a file is this one, and has no name.
fn assert_left(file: impl AsFd, old: &File) {
    let (left, old) = (rustix::fs::fstat(file).unwrap(), rustix::fs::fstat(old).unwrap());
    assert_eq!((left.st_ino, left.st_nlink), (old.st_ino, 0));
}

/// Counts the bytes that each thread merges: what the cores of this machine would show only if
/// there were as many.
#[test]
fn work_is_divided_evenly_among_many_threads() {
    let random = &mut Random(seed(450));
    let folder = Folder::new();
    let order = TextOptions::default().compile().unwrap();
    let bytes = random.bytes(100 * 1_000_000);
    let mut lines: Vec<String> = (0..1_450_000).map(|_| format!("{:08x}{:50}", random.below(1 << 32), "")).collect();
    let records = (RecordFormat::SORT_BENCHMARK, folder.put("in/records", &bytes));
    let text = (RecordFormat::Lines { order, terminator: b'\n' }, folder.put("in/lines", lines.join("\n").as_bytes()));
    lines.sort_unstable();
    let expected = [sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false), (lines.join("\n") + "\n").into_bytes()];
    for ((format, input), expected) in [records, text].into_iter().zip(expected) {
        for (threads, memory_bytes) in [(8, 64 << 20), (64, 160 << 20)] {
            let name = format!("{threads} threads, {}", input.display());
            let job = folder.job(format.clone(), std::slice::from_ref(&input));
            let report = sort(job.threads(threads).memory_bytes(memory_bytes)).unwrap();
            assert_same(&folder.sorted(), &expected, &name);
            // It was read once, spilled once and merged once, by all threads.
            assert!(report.runs > 1 && report.merge_passes == 1, "{name}: {report}");
            let parts = report.merged_by_thread;
            assert_eq!(parts.len(), threads, "{name}");
            let (most, mean) = (parts.iter().max().copied().unwrap(), report.bytes_out / threads as u64);
            assert!(most <= mean + mean / 2, "{name}: {parts:?}");
        }
    }
}

/// Each thread of a merge has buffers of its own. In little memory as many threads as were asked
/// for would leave buffers for few runs, and there would be passes over passes.
#[test]
fn many_threads_in_little_memory_do_not_make_more_passes() {
    let folder = Folder::new();
    let random = &mut Random(seed(451));
    let mut lines: Vec<String> = (0..2_000_000).map(|_| "x".repeat(random.below(3))).collect();
    let input = folder.put("in/a", (lines.join("\n") + "\n").as_bytes());
    lines.sort_unstable();
    let expected = (lines.join("\n") + "\n").into_bytes();
    let mut passes = Vec::new();
    for threads in [2, 8, 64] {
        let order = TextOptions::default().compile().unwrap();
        let format = RecordFormat::Lines { order, terminator: b'\n' };
        let report = sort(folder.job(format, std::slice::from_ref(&input)).threads(threads)).unwrap();
        assert_same(&folder.sorted(), &expected, &format!("{threads} threads"));
        passes.push((report.runs, report.merge_passes));
    }
    assert!(passes.iter().all(|(runs, _)| *runs > 24), "{passes:?}");
    assert!(passes.iter().all(|(_, many)| *many <= passes[0].1 + 1), "{passes:?}");
}

/// Makes bytes of some shape: random, few keys, mostly one key, ascending, descending, all equal.
fn shaped(random: &mut Random, n: usize, len: usize, key_at: usize, key_len: usize) -> (Vec<u8>, &'static str) {
    let shape = random.pick(&["random", "few", "skewed", "ascending", "descending", "equal"]);
    let mut bytes = random.bytes(n * len);
    let common = random.bytes(key_len);
    let mut keys: Vec<Vec<u8>> = (0..n)
        .map(|_| match shape {
            "few" => vec![random.below(3) as u8; key_len],
            "skewed" if !random.one_in(100) => common.clone(),
            "equal" => common.clone(),
            _ => random.bytes(key_len),
        })
        .collect();
    if matches!(shape, "ascending" | "descending") {
        keys.sort();
    }
    if shape == "descending" {
        keys.reverse();
    }
    for (i, key) in keys.iter().enumerate() {
        bytes[i * len + key_at..][..key_len].copy_from_slice(key);
    }
    (bytes, shape)
}

/// Cuts whole records into one to four files, some of them empty.
fn cut(random: &mut Random, folder: &Folder, bytes: &[u8], len: usize) -> Vec<PathBuf> {
    let files = 1 + random.below(4);
    let mut cuts: Vec<usize> = (1..files).map(|_| random.below(bytes.len() / len + 1) * len).collect();
    if random.one_in(3) {
        cuts.push(0);
    }
    cuts.push(bytes.len());
    cuts.sort_unstable();
    let mut from = 0;
    let mut paths = Vec::new();
    for (i, to) in cuts.into_iter().enumerate() {
        paths.push(folder.put(&format!("in/{i}"), &bytes[from..to]));
        from = to;
    }
    paths
}

#[test]
fn records_of_any_shape() {
    let seed = seed(1);
    for case in 0..40 {
        let random = &mut Random(seed + case);
        let folder = Folder::new();
        let len = if random.one_in(3) { 1 + random.below(20) } else { 1 + random.below(300) };
        let key_at = random.below(len);
        let key_len = 1 + random.below(len - key_at);
        let format = RecordFormat::Records { len, key_at, key_len, reverse: random.one_in(3) };
        // An entry takes 16 bytes twice, so short records spill early.
        let most = if random.one_in(3) { 10 * MIB / (len + 32) } else { 3000 };
        let n = random.below(most + 1);
        let (bytes, shape) = shaped(random, n, len, key_at, key_len);
        let inputs = cut(random, &folder, &bytes, len);
        let (unique, threads, fan_in) = (random.one_in(4), random.pick(&[1, 2, 3, 5]), random.pick(&[0, 0, 2, 3]));
        let memory_bytes = random.pick(&[datapipes_sort::MIN_MEMORY, 20 << 20, 64 << 20]);
        let no_uring = random.one_in(3);
        let job = folder
            .job(format.clone(), &inputs)
            .unique(unique)
            .threads(threads)
            .fan_in(fan_in)
            .memory_bytes(memory_bytes);
        let name = format!(
            "seed {} ({format:?}, {n} records, {shape}, {} files, unique {unique}, threads {threads}, fan-in {fan_in}, \
             memory {memory_bytes}, no io_uring {no_uring})",
            seed + case,
            inputs.len()
        );
        let config = FileBackendOptions::default().force_no_uring(no_uring);
        let report = datapipes_sort::sort(&machine(config), job).unwrap_or_else(|e| panic!("{name}: {e}"));
        let expected = sort_records(&bytes, &format, unique);
        assert_same(&folder.sorted(), &expected, &name);
        assert_eq!(report.records, n as u64, "{name}");
        assert_eq!(
            (report.records_out, report.bytes_out),
            ((expected.len() / len) as u64, expected.len() as u64),
            "{name}"
        );
    }
}

#[test]
fn records_that_do_not_divide_the_input_are_refused() {
    let folder = Folder::new();
    let input = folder.put("in/a", &[7; 1050]);
    let error = sort(folder.job(RecordFormat::SORT_BENCHMARK, &[input])).unwrap_err();
    assert!(error.to_string().contains("50 bytes are left over"), "{error}");
    assert_eq!(folder.files(), ["in/a"]);
}

#[test]
fn many_runs_in_the_least_memory() {
    let seed = seed(7);
    for (case, fan_in, threads) in [(0, 0, 2), (1, 3, 5), (2, 3, 1)] {
        let random = &mut Random(seed + case);
        let folder = Folder::new();
        let len = if fan_in == 0 { 600_000 } else { 300_000 };
        let bytes = random.bytes(len * 100);
        let input = folder.put("in/a", &bytes);
        let job = folder.job(RecordFormat::SORT_BENCHMARK, &[input]).fan_in(fan_in).threads(threads);
        let report = sort(job).unwrap_or_else(|e| panic!("seed {}: {e}", seed + case));
        assert_same(
            &folder.sorted(),
            &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false),
            &format!("seed {}", seed + case),
        );
        assert!(report.runs >= 10, "{} runs", report.runs);
        assert!(fan_in == 0 || report.merge_passes >= 3, "{} merge passes", report.merge_passes);
        assert_eq!(folder.files(), ["in/a", "out/sorted"]);
    }
}

/// The naive twin for numbers: `compare` is the order of the values of `read`.
fn numbers_like<T: Copy>(
    bytes: &[u8],
    read: impl Fn(&[u8]) -> T,
    compare: impl Fn(&T, &T) -> std::cmp::Ordering,
    write: impl Fn(T) -> Vec<u8>,
    (width, reverse, unique): (usize, bool, bool),
) -> Vec<u8> {
    let mut values: Vec<T> = bytes.chunks_exact(width).map(read).collect();
    values.sort_by(|a, b| if reverse { compare(b, a) } else { compare(a, b) });
    if unique {
        values.dedup_by(|a, b| compare(a, b).is_eq());
    }
    values.into_iter().flat_map(write).collect()
}

#[test]
fn numbers_of_all_kinds() {
    let seed = seed(100);
    let kinds = [NumberKind::U32, NumberKind::U64, NumberKind::I64, NumberKind::F64];
    for case in 0..32 {
        let random = &mut Random(seed + case);
        let folder = Folder::new();
        let kind = kinds[(seed + case) as usize % 4];
        let (reverse, unique) = ((seed + case) / 4 % 2 == 1, random.one_in(3));
        let width = kind.width();
        let n = if random.one_in(2) { random.below(2000) } else { random.below(16 * MIB / width) };
        let mut bytes = random.bytes(n * width);
        let special = [0.0, -0.0, f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, 1.5, -1.5];
        let shape = random.below(4);
        for value in bytes.chunks_exact_mut(width) {
            match shape {
                0 if width == 8 => value.copy_from_slice(&random.pick(&special).to_le_bytes()),
                1 => value[2..].fill(random.below(2) as u8 * 255),
                _ => {}
            }
        }
        let inputs = cut(random, &folder, &bytes, width);
        let (threads, fan_in) = (random.pick(&[1, 2, 3, 5]), random.pick(&[0, 3]));
        let memory_bytes = random.pick(&[datapipes_sort::MIN_MEMORY, 80 << 20]);
        let job = folder
            .job(RecordFormat::Numbers { kind, reverse }, &inputs)
            .unique(unique)
            .threads(threads)
            .fan_in(fan_in)
            .memory_bytes(memory_bytes);
        let name = format!(
            "seed {} ({kind:?}, reverse {reverse}, unique {unique}, {n} numbers, shape {shape}, {} files, \
             threads {threads}, fan-in {fan_in}, memory {memory_bytes})",
            seed + case,
            inputs.len()
        );
        sort(job).unwrap_or_else(|e| panic!("{name}: {e}"));
        let how = (width, reverse, unique);
        let eight = |b: &[u8]| <[u8; 8]>::try_from(b).unwrap();
        let expected = match kind {
            NumberKind::U32 => numbers_like(
                &bytes,
                |b| u32::from_le_bytes(b.try_into().unwrap()),
                u32::cmp,
                |v| v.to_le_bytes().to_vec(),
                how,
            ),
            NumberKind::U64 => {
                numbers_like(&bytes, |b| u64::from_le_bytes(eight(b)), u64::cmp, |v| v.to_le_bytes().to_vec(), how)
            }
            NumberKind::I64 => {
                numbers_like(&bytes, |b| i64::from_le_bytes(eight(b)), i64::cmp, |v| v.to_le_bytes().to_vec(), how)
            }
            NumberKind::F64 => numbers_like(
                &bytes,
                |b| f64::from_le_bytes(eight(b)),
                f64::total_cmp,
                |v| v.to_le_bytes().to_vec(),
                how,
            ),
        };
        assert_same(&folder.sorted(), &expected, &name);
    }
}

fn system_sort(gnu: &GnuSort, arguments: &[&str], inputs: &[PathBuf]) -> Vec<u8> {
    let output = output_of(gnu.command().args(arguments).args(inputs)).unwrap();
    assert!(output.status.success(), "sort {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Returns GNU's arguments as options of the engine.
fn lines(arguments: &[&str]) -> (RecordFormat, bool) {
    let mut options = TextOptions::default();
    let mut terminator = b'\n';
    for argument in arguments {
        match (&argument[..2], &argument[2..]) {
            ("-k", spec) => options.keys.push(KeySpec::parse(spec.as_bytes()).unwrap()),
            ("-t", separator) => options.separator = Some(separator.as_bytes()[0]),
            ("-u", _) => options.unique = true,
            ("-s", _) => options.stable = true,
            ("-z", _) => terminator = 0,
            (letter, _) => assert!(options.modifiers.set(letter.as_bytes()[1]), "{argument}"),
        }
    }
    let unique = options.unique;
    (RecordFormat::Lines { order: options.compile().unwrap(), terminator }, unique)
}

const FAMILIES: [&[&str]; 16] = [
    &[],
    &["-r"],
    &["-u"],
    &["-r", "-u"],
    &["-z"],
    &["-n"],
    &["-n", "-r"],
    &["-n", "-u"],
    &["-t,", "-k2,2"],
    &["-t,", "-k2,2", "-s"],
    &["-t,", "-k2,2n", "-k1,1r"],
    &["-k2,2", "-u"],
    &["-f"],
    &["-f", "-u"],
    &["-s", "-k1,1"],
    &["-f", "-z", "-r"],
];

/// Lines with fields, numbers, letters of both cases, shared beginnings and NUL bytes.
fn some_lines(random: &mut Random, len: usize, terminator: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 400);
    let style = random.below(4);
    while bytes.len() < len {
        match style {
            0 => bytes.extend(format!("{},{} {}", random.below(50), random.below(1000), random.next()).bytes()),
            1 => {
                bytes.extend_from_slice(random.pick(&[&b""[..], b"common/prefix/", b"Common/Prefix/and/more/"]));
                let n = random.below(12);
                bytes.extend((0..n).map(|_| b"abAB, 019-.\0"[random.below(12)]));
            }
            2 => bytes.extend_from_slice(random.pick(&[&b"x"[..], b"X", b"y,1", b"", b"-3"])),
            _ => {
                let n = random.below(300);
                // GNU sort -n (9.1, without a locale) takes the byte 0x80 for a thousands
                // separator, so it is left out.
                bytes.extend(random.bytes(n).into_iter().filter(|&b| b != terminator && b != 0x80));
            }
        }
        bytes.push(terminator);
    }
    if random.one_in(2) {
        bytes.pop();
        if bytes.last() == Some(&terminator) {
            bytes.push(b'e');
        }
    }
    bytes
}

#[test]
fn lines_as_the_system_sorts_them() {
    let Some(gnu) = GnuSort::find("lines_as_the_system_sorts_them") else { return };
    let first = seed(1008);
    for seed in first..first + 48 {
        // The options follow from the seed, so that it replays alone.
        let arguments = FAMILIES[seed as usize % FAMILIES.len()];
        let random = &mut Random(seed);
        let folder = Folder::new();
        let (format, unique) = lines(arguments);
        let RecordFormat::Lines { terminator, .. } = format else { unreachable!() };
        let inputs: Vec<PathBuf> = (0..1 + random.below(3))
            .map(|i| {
                let len = random.pick(&[0, 1, 5000, 300_000, 3 * MIB]);
                let bytes = some_lines(random, len, terminator);
                folder.put(&format!("in/{i}"), if len == 0 { b"" } else { &bytes })
            })
            .collect();
        let (threads, fan_in) = (random.pick(&[1, 2, 3, 5]), random.pick(&[0, 0, 3]));
        let memory_bytes = random.pick(&[datapipes_sort::MIN_MEMORY, datapipes_sort::MIN_MEMORY, 64 << 20]);
        let name =
            format!("seed {seed} (sort {arguments:?}, {} files, threads {threads}, fan-in {fan_in})", inputs.len());
        let job = folder.job(format, &inputs).unique(unique).threads(threads).fan_in(fan_in).memory_bytes(memory_bytes);
        sort(job).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&folder.sorted(), &system_sort(&gnu, arguments, &inputs), &name);
    }
}

#[test]
fn all_cores_drop_duplicates_as_the_system_does() {
    let Some(gnu) = GnuSort::find("all_cores_drop_duplicates_as_the_system_does") else { return };
    let first = seed(3000);
    let cases: [(&[&str], usize, &str); 7] = [
        (&["-u"], 4, ""),
        (&["-u", "-r"], 2, ""),
        (&["-u", "-f"], 3, ""),
        (&["-s", "-u", "-k2,2n"], 2, ""),
        (&["-u", "-n"], 2, ""),
        (&["-u"], 1, ""),
        // Prefixes say nothing, so one core merges.
        (&["-u"], 2, "https://"),
    ];
    for (seed, (arguments, distinct, start)) in (first..).zip(cases) {
        let random = &mut Random(seed);
        let folder = Folder::new();
        let (format, unique) = lines(arguments);
        // About one of `distinct` lines is left, and one line is everywhere.
        let most = 1_000_000 / distinct;
        let mut bytes = Vec::new();
        while bytes.len() < 20 * MIB {
            let n = if random.one_in(20) { 7 } else { random.below(most) };
            let word = random.pick(&["word", "Word", "WORD"]);
            bytes.extend(format!("{start}{n}{word} {} behind\n", n / 3).into_bytes());
        }
        let input = folder.put("in/a", &bytes);
        let expected = system_sort(&gnu, arguments, std::slice::from_ref(&input));
        let threads = random.pick(&[2, 3]);
        let enough = if start.is_empty() { threads } else { 1 };
        // 16 MiB are too little for ranges of all runs, and 24 MiB if there are three threads.
        let all = (threads == 2).then_some(enough);
        for (mib, fan_in, merging) in [(24, 0, all), (24, 4, Some(enough)), (16, 0, None)] {
            let name = format!("seed {seed} (sort {arguments:?}, threads {threads}, {mib} MiB, fan-in {fan_in})");
            let job = folder.job(format.clone(), std::slice::from_ref(&input)).unique(unique).threads(threads);
            let report = sort(job.memory_bytes(mib << 20).fan_in(fan_in)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_same(&folder.sorted(), &expected, &name);
            assert!(merging.is_none_or(|n| report.merged_by_thread.len() == n), "{name}: {report}");
            assert!(report.runs > 1, "{name}: {report}");
        }
    }
}

/// Sorts one input in both programs without options.
fn like_the_system(
    gnu: &GnuSort,
    name: &str,
    bytes: &[u8],
    memory_bytes: u64,
    threads: usize,
) -> datapipes_sort::SortReport {
    let folder = Folder::new();
    let input = folder.put("in/a", bytes);
    let (format, _) = lines(&[]);
    let job = folder.job(format, std::slice::from_ref(&input)).memory_bytes(memory_bytes).threads(threads);
    let report = sort(job).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_same(&folder.sorted(), &system_sort(gnu, &[], &[input]), name);
    report
}

#[test]
fn lines_of_odd_shapes() {
    let Some(gnu) = GnuSort::find("lines_of_odd_shapes") else { return };
    let least = datapipes_sort::MIN_MEMORY;
    let random = &mut Random(seed(2000));
    like_the_system(&gnu, "empty", b"", least, 2);
    like_the_system(&gnu, "one newline", b"\n", least, 2);
    like_the_system(&gnu, "one byte", b"a", least, 2);
    like_the_system(&gnu, "NUL bytes", b"\0\n\0\0\na\0b\na\0a\n\0", least, 2);
    // 200 KB are more than a block of the least memory (64 KiB), and less than a third of a slot.
    let mut one_long = some_lines(random, 4 * MIB, b'\n');
    one_long.extend(std::iter::once(b'\n').chain(std::iter::repeat_n(b'm', 200_000)).chain([b'\n']));
    one_long.extend(some_lines(random, 4 * MIB, b'\n'));
    let report = like_the_system(&gnu, "one long line", &one_long, least, 1);
    assert!(report.runs > 1, "{} runs", report.runs);
    let mut long = Vec::new();
    while long.len() < 60 * MIB {
        let (byte, len) = (b'a' + random.below(3) as u8, MIB - random.below(100_000));
        long.extend(std::iter::repeat_n(byte, len).chain([b'0' + random.below(10) as u8, b'\n']));
    }
    let report = like_the_system(&gnu, "lines of 1 MB", &long, 64 << 20, 1);
    assert!(report.runs > 1, "{} runs", report.runs);
    let many = 600_000;
    let equal = b"the same line again\n".repeat(many);
    like_the_system(&gnu, "all equal", &equal, least, 3);
    let skewed: Vec<u8> = (0..many)
        .flat_map(|_| {
            if random.one_in(100) { format!("{:x}\n", random.next()) } else { "the popular line\n".into() }.into_bytes()
        })
        .collect();
    like_the_system(&gnu, "99% one line", &skewed, least, 3);
    let presorted: Vec<u8> = (0..many).flat_map(|i| format!("line {i:09}\n").into_bytes()).collect();
    like_the_system(&gnu, "presorted", &presorted, least, 2);
    let reversed: Vec<u8> = (0..many).rev().flat_map(|i| format!("line {i:09}\n").into_bytes()).collect();
    like_the_system(&gnu, "reversed", &reversed, least, 2);
}

#[test]
fn records_of_which_the_memory_takes_few_or_none() {
    let first = seed(2500);
    for (case, (len, count)) in [(3 * MIB, 9), (MIB + 77, 30), (30 * MIB, 2), (17 * MIB + 1, 3)].into_iter().enumerate()
    {
        let seed = first + case as u64;
        let random = &mut Random(seed);
        // Keys alike up to their last bytes, which lie in several pieces of a record, or anywhere.
        let key_len = random.pick(&[1, 7, 8, 9, 600 << 10]);
        let key_at = random.pick(&[0, 5, 300 << 10]);
        let mut bytes = vec![b'k'; len * count];
        for record in bytes.chunks_exact_mut(len) {
            record[key_at + key_len - 1] = random.pick(&[0, 1, 7, 255]);
            record[random.below(len)] = random.below(256) as u8;
            record[len - 1] = random.below(256) as u8;
        }
        let (unique, reverse, piped) = (random.one_in(2), random.one_in(2), random.one_in(2));
        let name = format!("seed {seed}: {count} of {len}, key {key_len} at {key_at}, {unique} {reverse} {piped}");
        let format = RecordFormat::Records { len, key_at, key_len, reverse };
        let folder = Folder::new();
        let input = folder.put("in/a", &bytes);
        let mut job = folder.job(format.clone(), &[input]).unique(unique);
        let report = std::thread::scope(|scope| {
            if piped {
                let (reader, mut writer) = std::io::pipe().unwrap();
                let bytes = &bytes;
                scope.spawn(move || writer.write_all(bytes).unwrap());
                job.inputs = vec![Input::Stream { name: "a pipe".into(), fd: reader.into() }];
                return sort(job);
            }
            sort(job)
        });
        let report = report.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&folder.sorted(), &sort_records(&bytes, &format, unique), &name);
        assert_eq!((report.records, report.method.name), (count as u64, "places"), "{name}");
        assert_eq!(report.written.records + report.dropped.records, count as u64, "{name}");
        assert_eq!(folder.files(), ["in/a", "out/sorted"], "{name}");
    }
}

#[test]
fn a_part_of_a_long_record_is_refused_by_name_and_a_long_line_is_not() {
    let folder = Folder::new();
    let input = folder.put("in/a", &vec![b'l'; 60 * MIB + 1]);
    let records = RecordFormat::Records { len: 30 * MIB, key_at: 0, key_len: 10, reverse: false };
    let error = sort(folder.job(records, std::slice::from_ref(&input))).unwrap_err();
    assert_eq!(error.kind(), datapipes_core::ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("in/a") && error.to_string().contains("1 bytes are left"), "{error}");
    assert_eq!(folder.files(), ["in/a"]);
    let report = sort(folder.job(lines(&[]).0, &[input])).unwrap();
    assert_eq!((report.long_lines, report.records), (1, 1));
}

#[test]
fn to_streams() {
    let seed = seed(3000);
    for (case, n) in [0, 1, 5000, 150_000].into_iter().enumerate() {
        let random = &mut Random(seed + case as u64);
        let folder = Folder::new();
        let bytes = random.bytes(n * 100);
        let input = folder.put("in/a", &bytes);
        let expected = sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false);
        let name = format!("{n} records, seed {}", seed + case as u64);

        let path = folder.path("out/stream");
        let output = Output::Stream { name: path.clone(), file: File::create(&path).unwrap() };
        let job = folder.job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&input)).output(output).threads(3);
        sort(job).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&fs::read(&path).unwrap(), &expected, &format!("to a file as stream, {name}"));

        let (mut reader, writer) = std::io::pipe().unwrap();
        let output =
            Output::Stream { name: Path::new("a pipe").into(), file: File::from(std::os::fd::OwnedFd::from(writer)) };
        let job = folder.job(RecordFormat::SORT_BENCHMARK, &[input]).output(output).threads(3);
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        sort(job).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&joined(reading).unwrap(), &expected, &format!("to a pipe, {name}"));
        assert_eq!(folder.files(), ["in/a", "out/stream"]);
    }
}

#[test]
fn a_reader_that_leaves_ends_the_sort() {
    let folder = Folder::new();
    let input = folder.put("in/a", &Random(seed(4000)).bytes(200_000 * 100));
    let (mut reader, writer) = std::io::pipe().unwrap();
    let output =
        Output::Stream { name: Path::new("a pipe").into(), file: File::from(std::os::fd::OwnedFd::from(writer)) };
    let job = folder.job(RecordFormat::SORT_BENCHMARK, &[input]).output(output).threads(3);
    let reading = std::thread::spawn(move || reader.read_exact(&mut [0; 1000]));
    let error = sort(job).unwrap_err();
    joined(reading).unwrap();
    assert_eq!(error.errno(), Some(libc::EPIPE), "{error}");
    assert_eq!(folder.files(), ["in/a"]);
}

#[test]
fn from_a_stream() {
    for n in [0, 1, 4000, 150_000] {
        let folder = Folder::new();
        let bytes = Random(seed(5000)).bytes(n * 100);
        let (reader, mut writer) = std::io::pipe().unwrap();
        let stream = datapipes_sort::Input::Stream { name: "a pipe".into(), fd: reader.into() };
        let mut job = folder.job(RecordFormat::SORT_BENCHMARK, &[]);
        job.inputs.push(stream);
        let expected = sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false);
        let writing = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &bytes));
        sort(job).unwrap_or_else(|e| panic!("{n} records: {e}"));
        joined(writing).unwrap();
        assert_same(&folder.sorted(), &expected, &format!("{n} records"));
    }
}

#[test]
fn onto_its_own_input() {
    for (n, no_uring) in [(3000, false), (200_000, false), (200_000, true)] {
        let folder = Folder::new();
        let bytes = Random(seed(6000)).bytes(n * 100);
        let input = folder.put("in/a", &bytes);
        let job =
            folder.job(RecordFormat::SORT_BENCHMARK, std::slice::from_ref(&input)).output(Output::to(&input).unwrap());
        let config = FileBackendOptions::default().force_no_uring(no_uring);
        datapipes_sort::sort(&machine(config), job).unwrap();
        assert_same(
            &fs::read(&input).unwrap(),
            &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false),
            "onto itself",
        );
        assert_eq!(folder.files(), ["in/a"]);
    }
}

#[test]
fn more_threads_than_are_of_use_are_not_started() {
    let folder = Folder::new();
    let bytes = Random(seed(471)).bytes(4 * MIB / 100 * 100);
    let input = folder.put("in/a", &bytes);
    let job = folder.job(RecordFormat::SORT_BENCHMARK, &[input]).memory_bytes(64 << 20);
    let report = sort(job.threads(u32::MAX as usize)).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get() as u64;
    assert!(report.threads <= (4 * cores).max(64), "{report}");
    assert_same(&folder.sorted(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false), "many threads");
}

#[test]
fn a_child_of_the_thread_that_tells_does_not_wait_for_the_parents_sort() {
    let folder = Folder::new();
    let bytes = Random(seed(472)).bytes(60 * MIB / 100 * 100);
    let input = folder.put("in/a", &bytes);
    let job = folder.job(RecordFormat::SORT_BENCHMARK, &[input]);
    let mut child = None;
    let outcome = datapipes_sort::sort_telling(scene::usual_machine(), job, Duration::from_millis(1), |progress| {
        if child.is_none() && progress.total.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            child = Some(fork_here());
        }
        true
    });
    let outcome = std::cell::Cell::new(Some(outcome));
    // In the parent this waits for the child.
    end_copy(child.unwrap(), &|| assert_forked_error(outcome.take().unwrap()));
    outcome.take().unwrap().unwrap();
    assert_same(&folder.sorted(), &sort_records(&bytes, &RecordFormat::SORT_BENCHMARK, false), "told");
    // One that is told to stop, whose input never ends.
    let mut job = folder.job(RecordFormat::SORT_BENCHMARK, &[]);
    let (reader, _writer) = std::io::pipe().unwrap();
    job.inputs.push(datapipes_sort::Input::Stream { name: "a pipe".into(), fd: reader.into() });
    let stopped = datapipes_sort::sort_telling(scene::usual_machine(), job, Duration::from_millis(1), |_| false);
    assert_eq!(stopped.unwrap_err().kind(), datapipes_core::ErrorKind::Interrupted);
    // The sort has ended and left nothing when a panic of the function goes on.
    let job = folder.job(RecordFormat::SORT_BENCHMARK, &[folder.path("in/a")]);
    let output = folder.sorted();
    let told = std::panic::AssertUnwindSafe(|| {
        datapipes_sort::sort_telling(scene::usual_machine(), job, Duration::from_millis(1), |_| panic!("told"))
    });
    let files = folder.files();
    assert!(std::panic::catch_unwind(told).is_err());
    assert_eq!((folder.files(), folder.sorted()), (files, output));
}
