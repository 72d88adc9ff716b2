//! Lines whose merge depends on every detail of their codes: shared prefixes, ends near chunks and
//! buffers, NUL bytes, duplicates, lines longer than codes reach.
//!
//! Every failure prints the seed; `DATAPIPES_SEED` replays it.
// A failed test may panic; clippy's exception for tests covers only functions with #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::cmp::Ordering;

use datapipes_sort::text::{KeySpec, TextOptions, TextOrder};
use datapipes_sort::{Input, RecordFormat, SortJob, merge};
use scene::{Folder, Random, assert_same, seed, sort, usual_machine};

const MIB: usize = 1 << 20;
/// The bytes of a line that codes tell apart.
const CODED_LEN: usize = 0xffe * 6;

/// Makes about `bytes` bytes of lines of one kind. The terminator is not among the bytes of a line.
fn lines_of(random: &mut Random, kind: &str, bytes: usize, terminator: u8) -> Vec<u8> {
    let other = if terminator == 0 { b'\n' } else { 0 };
    let letters = [other, 1, b'a', b'a', b'a', b'b', 0xff];
    let any = |random: &mut Random, n: usize| -> Vec<u8> { (0..n).map(|_| random.pick(&letters)).collect() };
    let mut text = Vec::with_capacity(bytes + 2 * CODED_LEN);
    while text.len() < bytes {
        let line = match kind {
            // Ends of chunks of six and of words of eight, with a common prefix of any of them.
            "chunks" => {
                let common = random.pick(&[0, 5, 6, 7, 8, 11, 12, 13, 16, 17, 18, 24, 48]);
                let n = random.below(9);
                [vec![b'a'; common], any(random, n)].concat()
            }
            "duplicates" => format!("one of few lines, {}", random.below(20)).into_bytes(),
            "empty" if random.one_in(3) => any(random, 2),
            "empty" => Vec::new(),
            "pages" => {
                let (folder, page) = (random.below(30), random.below(100_000));
                format!("https://example.org/a/long/path/{folder}/page-{page}.html").into_bytes()
            }
            // Zeros that look like the end of a line.
            "zeros" => [vec![b'a'; random.below(9)], vec![other; random.below(20)]].concat(),
            // Around the end of the last chunk that has a number.
            "deep" => {
                let common = CODED_LEN - 14 + random.below(20);
                let n = random.below(12);
                [vec![b'a'; common], any(random, n)].concat()
            }
            // Around the end of the bytes of a normalized key that are looked at.
            "cut" => {
                let common = 1020 - 14 + random.below(20);
                let n = random.below(12);
                [vec![b'b'; common], any(random, n)].concat()
            }
            // Signs, zeros in front and behind, fractions, more digits than a word holds.
            "numbers" => {
                let sign = random.pick(&["", "", "-", " ", " -"]);
                let (whole, part) = (random.below(50), random.pick(&["", ".", ".5", ".50", ".25"]));
                let long = random.pick(&["", "", "", "12345678901234567", "00000000000000000001", "0"]);
                let unit = random.pick(&["", "", "K", "M", "e3", " x"]);
                format!("{sign}0{whole}{long}{part}{unit}").into_bytes()
            }
            "names" => {
                let (a, b) = (random.below(4), random.below(300));
                let dir = random.pick(&["", "", ".", "x~"]);
                format!("{dir}pack-{a}.{b:03}.{}", random.pick(&["deb", "tar.gz", "0", "Deb"])).into_bytes()
            }
            // Letters in either case, some of them in lines that are otherwise the same.
            "cases" => {
                let common = random.pick(&[0, 5, 6, 7, 8, 12, 16, 24, 24, 24]);
                let n = random.below(5);
                let line = [vec![b'a'; common], (0..n).map(|_| random.pick(b"\x01@ab[{")).collect()].concat();
                line.into_iter().map(|b| if random.one_in(4) { b.to_ascii_uppercase() } else { b }).collect()
            }
            // A line ends where a grain (16 KiB) of a run ends.
            "grains" => vec![random.pick(b"ab"); random.pick(&[15, 31, 63, 255, 1023, 4095])],
            _ => {
                let n = random.below(60);
                any(random, n)
            }
        };
        text.extend(line);
        text.push(terminator);
    }
    if random.one_in(2) {
        text.pop();
    }
    text
}

/// A line of the naive twin, without its terminator.
fn split(bytes: &[u8], terminator: u8) -> Vec<&[u8]> {
    let bytes = bytes.strip_suffix(&[terminator]).unwrap_or(bytes);
    bytes.split(|b| *b == terminator).collect()
}

/// The naive twin: a stable sort of the lines of all inputs.
fn sorted(inputs: &[Vec<u8>], order: &TextOrder, terminator: u8) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = inputs.iter().flat_map(|input| split(input, terminator)).collect();
    lines.sort_by(|a, b| order.compare(a, b));
    if order.unique() {
        lines.dedup_by(|next, kept| order.compare_keys(kept, next) == Ordering::Equal);
    }
    lines.iter().flat_map(|line| line.iter().copied().chain([terminator])).collect()
}

/// The options by their letters; `k` is the key -k2,2 with `-t a`.
fn options(letters: &str) -> (TextOrder, u8) {
    let mut options = TextOptions::default();
    let mut terminator = b'\n';
    for letter in letters.bytes() {
        match letter {
            b'u' => options.unique = true,
            b's' => options.stable = true,
            b'z' => terminator = 0,
            b'k' => {
                options.separator = Some(b'a');
                options.keys.push(KeySpec::parse(b"2,2").unwrap());
            }
            other => assert!(options.modifiers.set(other)),
        }
    }
    (options.compile().unwrap(), terminator)
}

const KINDS: [&str; 8] = ["chunks", "duplicates", "empty", "pages", "deep", "grains", "letters", "zeros"];
const LETTERS: [&str; 10] = ["", "", "r", "u", "ru", "z", "zr", "zu", "k", "ksr"];

#[test]
fn runs_of_lines_are_merged_as_a_naive_sort_orders_them() {
    let first = seed(1);
    for seed in first..first + 30 {
        let random = &mut Random(seed);
        let folder = Folder::new();
        let (letters, kind) = (LETTERS[seed as usize % LETTERS.len()], KINDS[seed as usize % KINDS.len()]);
        let (order, terminator) = options(letters);
        // Short lines fill the memory with entries.
        let bytes = if kind == "empty" { MIB } else { random.pick(&[3, 4, 6]) * MIB };
        let inputs: Vec<Vec<u8>> =
            (0..1 + random.below(3)).map(|_| lines_of(random, kind, bytes, terminator)).collect();
        let paths: Vec<_> = inputs.iter().enumerate().map(|(i, text)| folder.put(&format!("in/{i}"), text)).collect();
        let (threads, fan_in) = (random.pick(&[1, 2, 3, 5]), random.pick(&[0, 0, 2, 3]));
        let name = format!("seed {seed}: {kind}, options {letters:?}, {threads} threads, fan-in {fan_in}");
        let (unique, format) = (order.unique(), RecordFormat::Lines { order: order.clone(), terminator });
        let job = folder.job(format, &paths).unique(unique).threads(threads).fan_in(fan_in);
        let report = sort(job).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&folder.sorted(), &sorted(&inputs, &order, terminator), &name);
        assert!(report.runs > 1 || inputs.len() == 1, "{name}: {} runs", report.runs);
    }
}

const KEYED: [&str; 20] =
    ["n", "nr", "ns", "nu", "h", "hr", "hs", "g", "gu", "f", "fr", "fu", "fs", "M", "V", "Vr", "Vu", "d", "zi", "kn"];

#[test]
fn keyed_lines_are_sorted_as_a_naive_sort_orders_them() {
    let first = seed(300);
    let kinds = ["numbers", "names", "pages", "cut", "duplicates", "zeros"];
    for (i, seed) in (first..first + 40).enumerate() {
        let random = &mut Random(seed);
        let folder = Folder::new();
        let (letters, kind) = (KEYED[i % KEYED.len()], random.pick(&kinds));
        let (order, terminator) = options(letters);
        let bytes = random.pick(&[1, 4, 6]) * MIB;
        let inputs: Vec<Vec<u8>> =
            (0..1 + random.below(2)).map(|_| lines_of(random, kind, bytes, terminator)).collect();
        let paths: Vec<_> = inputs.iter().enumerate().map(|(i, text)| folder.put(&format!("in/{i}"), text)).collect();
        let (threads, fan_in) = (random.pick(&[1, 2, 3]), random.pick(&[0, 0, 2]));
        let name = format!("seed {seed}: {kind}, options {letters:?}, {threads} threads, fan-in {fan_in}");
        let (unique, format) = (order.unique(), RecordFormat::Lines { order: order.clone(), terminator });
        let job = folder.job(format, &paths).unique(unique).threads(threads).fan_in(fan_in);
        sort(job).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&folder.sorted(), &sorted(&inputs, &order, terminator), &name);
    }
}

/// Lines that are the same but for the case of letters are ordered by their bytes, or stay as they
/// were.
#[test]
fn lines_with_letters_in_either_case() {
    let first = seed(1100);
    for (i, seed) in (first..first + 16).enumerate() {
        let random = &mut Random(seed);
        let folder = Folder::new();
        let (letters, kind) = (["f", "fr", "fs", "fz"][i % 4], ["cases", "cases", "cases", "deep"][i / 4]);
        let (order, terminator) = options(letters);
        let bytes = random.pick(&[1, 4, 6]) * MIB;
        let mut input = lines_of(random, kind, bytes, terminator);
        for byte in input.iter_mut().filter(|byte| **byte == b'a') {
            *byte = if random.one_in(CODED_LEN) { b'A' } else { b'a' };
        }
        let path = folder.put("in/a", &input);
        let threads = random.pick(&[1, 2, 3]);
        let name = format!("seed {seed}: {kind}, options {letters:?}, {threads} threads");
        let format = RecordFormat::Lines { order: order.clone(), terminator };
        sort(folder.job(format, &[path]).threads(threads)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&folder.sorted(), &sorted(&[input], &order, terminator), &name);
    }
}

#[test]
fn each_kind_of_lines_in_little_memory() {
    let seed = seed(500);
    for (case, kind) in KINDS.iter().enumerate() {
        let random = &mut Random(seed + case as u64);
        let folder = Folder::new();
        let (order, terminator) = options("");
        let inputs = vec![lines_of(random, kind, 14 * MIB, terminator)];
        let path = folder.put("in/a", &inputs[0]);
        let job = folder.job(RecordFormat::Lines { order: order.clone(), terminator }, &[path]);
        let report = sort(job).unwrap();
        let name = format!("seed {}: {kind}, {} runs", seed + case as u64, report.runs);
        assert_same(&folder.sorted(), &sorted(&inputs, &order, terminator), &name);
        assert!(report.runs > 3, "{name}");
    }
}

/// Prefixes are taken from behind what all lines share. Lines that begin otherwise come first, in
/// the middle, last, or never.
#[test]
fn lines_that_begin_alike_and_some_that_do_not() {
    let first = seed(900);
    for seed in first..first + 24 {
        let random = &mut Random(seed);
        let folder = Folder::new();
        let start = random.pick(&[&b"aaaa"[..], b"https://www.example.org/library/", &[b'a'; 300]]);
        let letters = random.pick(&["", "", "r", "u", "zr"]);
        let (order, terminator) = options(letters);
        let bytes = random.pick(&[1, 5]) * MIB;
        let mut lines: Vec<Vec<u8>> = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let n = random.below(12);
            let tail: Vec<u8> = (0..n).map(|_| random.pick(b"\x01aab\xff")).collect();
            left = left.saturating_sub(start.len() + n + 1);
            lines.push([start, &tail].concat());
        }
        let strangers = random.below(4);
        for _ in 0..strangers {
            let at = random.below(start.len());
            let mut line = start.to_vec();
            line[at] = random.pick(b"\x01Az\xff");
            match random.below(4) {
                0 => line.truncate(at),
                1 => line = start.to_vec(),
                _ => {}
            }
            let place = random.pick(&[0, lines.len() / 2, lines.len()]);
            lines.insert(place, line);
        }
        let input: Vec<u8> = lines.iter().flat_map(|line| line.iter().copied().chain([terminator])).collect();
        let path = folder.put("in/a", &input);
        let threads = random.pick(&[1, 2, 3]);
        let name = format!("seed {seed}: {strangers} others, options {letters:?}, {threads} threads");
        let (unique, format) = (order.unique(), RecordFormat::Lines { order: order.clone(), terminator });
        sort(folder.job(format, &[path]).unique(unique).threads(threads)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&folder.sorted(), &sorted(&[input], &order, terminator), &name);
    }
}

/// Merges files that are not in order. The line that comes next is always the first of those at the
/// files' heads, as with GNU sort.
#[test]
fn files_that_are_not_in_order_are_merged_by_their_heads() {
    let (order, terminator) = options("");
    let first = seed(700);
    for seed in first..first + 20 {
        let random = &mut Random(seed);
        let folder = Folder::new();
        let inputs: Vec<Vec<u8>> = (0..2 + random.below(4)).map(|_| lines_of(random, "chunks", 3000, b'\n')).collect();
        let mut heads: Vec<_> = inputs.iter().map(|input| split(input, b'\n').into_iter().peekable()).collect();
        let mut expected = Vec::new();
        while let Some(i) = (0..heads.len())
            .filter(|i| heads[*i].clone().peek().is_some())
            .min_by_key(|i| heads[*i].clone().peek().copied())
        {
            expected.extend_from_slice(heads[i].next().unwrap());
            expected.push(b'\n');
        }
        let opened = inputs.iter().enumerate().map(|(i, text)| folder.put(&format!("in/{i}"), text));
        let paths: Vec<_> = opened.collect();
        let job: SortJob = folder.job(RecordFormat::Lines { order: order.clone(), terminator }, &[]);
        let job = job.inputs(paths.iter().map(|path| Input::open(path).unwrap()).collect());
        merge(usual_machine(), job).unwrap();
        assert_same(&folder.sorted(), &expected, &format!("seed {seed}"));
    }
}
