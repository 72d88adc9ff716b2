//! `text::Order` against the system's `LC_ALL=C sort`: the same bytes over seeded random inputs and option sets.
//!
//! To keep the number of processes low, each case sorts a few hundred short lines. Where the machine has no GNU
//! sort the test says so and is skipped. `TEXT_SEED` and `TEXT_CASES` choose another seed and a longer run.
// A test stops where it stands; clippy's leave for tests ends at functions without #[test].
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::cmp::Ordering;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Stdio};

use datapipes_sort::text::{KeySpec, Order, TextOptions};

/// A small generator (SplitMix64): the seed is all there is to know about a case.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// What a case is: options for both sides, and the input.
struct Case {
    options: TextOptions,
    arguments: Vec<Vec<u8>>,
    terminator: u8,
    input: Vec<u8>,
}

const LETTERS: [&str; 22] = [
    "", "", "", "n", "n", "g", "h", "M", "V", "d", "i", "f", "df", "if", "di", "Vf", "Vd", "Vif", "fn", "fg", "fh",
    "fM",
];

impl Case {
    fn new(seed: u64) -> Case {
        let random = &mut Random(seed);
        let mut options = TextOptions::default();
        let mut arguments: Vec<Vec<u8>> = Vec::new();
        let separators: [&[u8]; 8] = [b":", b":", b",", b" ", b"\t", b"a", b"\\0", b"."];
        if random.one_in(2) {
            let separator = random.pick(&separators);
            options.separator = Some(if separator.len() == 1 { separator[0] } else { 0 });
            arguments.push([b"-t", separator].concat());
        }
        let letters = letters(random);
        for &letter in letters.as_bytes() {
            assert!(options.modifiers.set(letter));
            arguments.push(vec![b'-', letter]);
        }
        for _ in 0..[0, 0, 1, 1, 1, 2, 3][random.below(7)] {
            let spec = key(random);
            options.keys.push(KeySpec::parse(spec.as_bytes()).unwrap_or_else(|e| panic!("{spec}: {e}")));
            arguments.push(format!("-k{spec}").into_bytes());
        }
        options.stable = random.one_in(4);
        options.unique = random.one_in(4);
        let zero = random.one_in(4);
        let switches = [(options.stable, "-s"), (options.unique, "-u"), (zero, "-z")];
        arguments.extend(switches.iter().filter(|(on, _)| *on).map(|(_, switch)| switch.as_bytes().to_vec()));
        let terminator = if zero { 0 } else { b'\n' };
        let input = input(random, terminator);
        Case { options, arguments, terminator, input }
    }

    /// The lines; the last one may lack its terminator.
    fn lines(&self) -> Vec<&[u8]> {
        let mut lines: Vec<&[u8]> = self.input.split(|&b| b == self.terminator).collect();
        if lines.last().is_some_and(|last| last.is_empty()) {
            lines.pop();
        }
        lines
    }

    fn naive_sort(&self, order: &Order) -> Vec<u8> {
        let mut lines = self.lines();
        lines.sort_by(|a, b| order.compare(a, b));
        if order.unique() {
            lines.dedup_by(|next, kept| order.compare_keys(kept, next) == Ordering::Equal);
        }
        lines.iter().flat_map(|line| line.iter().copied().chain([self.terminator])).collect()
    }

    fn command(&self) -> String {
        let shown = self.arguments.iter().map(|a| format!("'{}'", a.escape_ascii()));
        shown.collect::<Vec<_>>().join(" ")
    }

    fn run(&self, extra: &[&str]) -> (Option<i32>, Vec<u8>) {
        let arguments = self.arguments.iter().map(|a| OsString::from_vec(a.clone()));
        let mut command = Command::new("sort");
        command.env("LC_ALL", "C").args(arguments).args(extra);
        let piped = command.arg("--parallel=1").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = piped.spawn().expect("sort starts");
        let mut stdin = child.stdin.take().expect("it was piped");
        // Under -c sort may leave before it has read everything.
        let _ = stdin.write_all(&self.input);
        drop(stdin);
        let output = child.wait_with_output().expect("sort ends");
        (output.status.code(), output.stdout)
    }
}

fn letters(random: &mut Random) -> String {
    let mut letters = random.pick(&LETTERS).to_owned();
    for (letter, chance) in [('b', 4), ('r', 3)] {
        if random.one_in(chance) {
            letters.push(letter);
        }
    }
    letters
}

fn key(random: &mut Random) -> String {
    let mut spec = (1 + random.below(4)).to_string();
    if random.one_in(3) {
        spec += &format!(".{}", 1 + random.below(5));
    }
    let letters = letters(random);
    let (at_start, at_end) = letters.split_at(random.below(letters.len() + 1));
    spec += at_start;
    if random.one_in(4) {
        // Without an end, all letters belong to the start.
        return spec + at_end;
    }
    spec += &format!(",{}", 1 + random.below(4));
    if random.one_in(3) {
        spec += &format!(".{}", random.below(6));
    }
    spec + at_end
}

fn input(random: &mut Random, terminator: u8) -> Vec<u8> {
    let kind = random.below(6);
    let mut input = Vec::new();
    for _ in 0..random.below(300) {
        let fields = random.below(5);
        for field in 0..fields {
            if field > 0 {
                input.extend_from_slice(random.pick::<[u8]>(&[b":", b":", b",", b" ", b"  ", b"\t", b"a", b"."]));
            }
            let mut word = Vec::new();
            push_word(random, kind, &mut word);
            word.retain(|&b| b != terminator);
            input.extend(word);
        }
        input.push(terminator);
    }
    if random.one_in(4) {
        input.pop();
    }
    input
}

/// One field. Units R and Q and the byte 0x80 are left out: 9.1 has no such units, and takes 0x80 inside a number for
/// a thousands separator (its "no such character" is 128).
fn push_word(random: &mut Random, kind: usize, word: &mut Vec<u8>) {
    match (kind, random.below(8)) {
        (0, _) | (_, 0) => {
            let alphabet: &[u8] = b"aAbBzZ09 \t.-_~@`{[\x01\x7f\x81\xff\0\n";
            word.extend((0..random.below(12)).map(|_| alphabet[random.below(alphabet.len())]));
        }
        (1, _) => {
            let alphabet = b"aAbB01.~-+";
            word.extend((0..random.below(8)).map(|_| alphabet[random.below(alphabet.len())]));
        }
        (2, _) => word.extend_from_slice(
            random
                .pick(&[
                    "jan", "FEB", "mar", "apr", "May", "jun", "Jul", "aug", "SEP", "oct", "nov", "Dec", " dec", "ja",
                    "", "marx",
                ])
                .as_bytes(),
        ),
        (3, _) => general(random, word),
        (_, _) => number(random, word),
    }
}

fn number(random: &mut Random, word: &mut Vec<u8>) {
    word.extend_from_slice(random.pick(&["", "", "", "-", "-", " ", "+", "--", " -"]).as_bytes());
    let digits = |random: &mut Random, word: &mut Vec<u8>| {
        let len = [0, 1, 1, 2, 3, 17, 25][random.below(7)];
        let few = random.one_in(2);
        word.extend((0..len).map(|_| if few { b"019"[random.below(3)] } else { b'0' + random.below(10) as u8 }));
    };
    digits(random, word);
    if random.one_in(2) {
        word.push(b'.');
        digits(random, word);
    }
    word.extend_from_slice(random.pick(&["", "", "k", "K", "M", "m", "G", "Ki", "T", "Y", "x"]).as_bytes());
}

/// Numbers of -g, without NaN (9.1 orders NaNs by uninitialized padding, so that `nan` even differs from itself):
/// near each other, near ties of the 64-bit mantissa, and at the ends of the range.
fn general(random: &mut Random, word: &mut Vec<u8>) {
    let special = [
        "na",
        "inf",
        "-Infinity",
        "0x1.8p3",
        "0x",
        "0xffffffffffffffff8p-2",
        "0x1.00000000000000010001",
        "-0",
        "1e400",
        "1e-400",
        "1e5000",
        "-1e-5000",
        "18446744073709551616",
        "18446744073709551617",
        "18446744073709551617.0000000000000000000000000001",
        "18446744073709551618",
        "3.6451995318824746e-4951",
        "1.8225997659412373e-4951",
        "1.189731495357231765e4932",
        "1.1897314953572317651e4932",
        "0x.8p-16440",
        "e5",
        "x",
        "0.1",
        ".1",
        "1e-1",
        "0.10000000000000000000001",
        "0.1000000000000000000000000000000000001",
        "1e23",
        "9e22",
    ];
    if random.one_in(2) {
        word.extend_from_slice(random.pick(&special).as_bytes());
        return;
    }
    number(random, word);
    if random.one_in(2) {
        word.truncate(word.len().saturating_sub(random.below(2)));
        word.extend(format!("e{}", random.below(90) as i64 - 45).into_bytes());
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// The first line of `sort --version`, where it is GNU's.
fn gnu_sort() -> Option<String> {
    let output = Command::new("sort").arg("--version").output().ok()?;
    let version = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
    if version.contains("GNU coreutils") {
        return Some(version);
    }
    eprintln!("skipped: this machine has no GNU sort to compare with");
    None
}

impl Case {
    /// Whether this version of sort orders the case as 9.1 does: later ones see other suffixes in -V's hidden names.
    fn is_comparable(&self, version: &str) -> bool {
        let by_version = |key: &KeySpec| key.modifiers.version;
        version.ends_with(" 9.1") || !(self.options.modifiers.version || self.options.keys.iter().any(by_version))
    }
}

#[test]
fn same_bytes_as_the_system_sort() {
    let Some(version) = gnu_sort() else { return };
    let (first, cases) = (setting("TEXT_SEED", 1), setting("TEXT_CASES", 3000));
    let mut skipped = 0;
    for seed in first..first + cases {
        let case = Case::new(seed);
        if !case.is_comparable(&version) {
            skipped += 1;
            continue;
        }
        let order = case.options.compile().unwrap_or_else(|e| panic!("seed {seed}: {}: {e}", case.command()));
        let (want, got) = (case.run(&[]).1, case.naive_sort(&order));
        if want != got {
            let lines = |bytes: &[u8]| bytes.split(|&b| b == case.terminator).map(<[u8]>::to_vec).collect::<Vec<_>>();
            let (want, got) = (lines(&want), lines(&got));
            let at = want.iter().zip(&got).position(|(a, b)| a != b).unwrap_or(want.len().min(got.len()));
            let show =
                |lines: &[Vec<u8>]| lines.get(at).map_or("(nothing)".into(), |line| line.escape_ascii().to_string());
            panic!(
                "seed {seed}: sort {}: line {at}: sort has {:?}, Order has {:?}",
                case.command(),
                show(&want),
                show(&got)
            );
        }
    }
    if skipped > 0 {
        eprintln!("skipped {skipped} of {cases} cases: {version} has another -V than 9.1");
    }
}

#[test]
fn same_verdict_as_sort_c() {
    let Some(version) = gnu_sort() else { return };
    let first = setting("TEXT_SEED", 1);
    for seed in first..first + 300 {
        let mut case = Case::new(seed);
        if !case.is_comparable(&version) {
            continue;
        }
        let order = case.options.compile().unwrap();
        if seed % 2 == 0 {
            case.input = case.naive_sort(&order);
        } else if let Some(third) = case.input.iter().enumerate().filter(|(_, b)| **b == case.terminator).nth(1) {
            // Short inputs are in order by chance now and then.
            let len = third.0;
            case.input.truncate(len);
        }
        let in_order = case.lines().windows(2).all(|pair| order.in_order(pair[0], pair[1]));
        let want = if in_order { Some(0) } else { Some(1) };
        assert_eq!(case.run(&["-c"]).0, want, "seed {seed}: sort -c {}", case.command());
    }
}

#[test]
fn prefixes_follow_the_order() {
    let first = setting("TEXT_SEED", 1);
    for seed in first..first + 4000 {
        let case = Case::new(seed);
        let order = case.options.compile().unwrap();
        let lines = case.lines();
        let prefixes: Vec<u64> = lines.iter().map(|line| order.prefix(line)).collect();
        let random = &mut Random(seed);
        for _ in 0..lines.len() * 4 {
            let (i, j) = (random.below(lines.len()), random.below(lines.len()));
            let (full, keys) = (order.compare(lines[i], lines[j]), order.compare_keys(lines[i], lines[j]));
            let context = || {
                let (a, b) = (lines[i].escape_ascii(), lines[j].escape_ascii());
                format!("seed {seed}: {}: {a:?} {b:?}", case.command())
            };
            match prefixes[i].cmp(&prefixes[j]) {
                Ordering::Equal if order.prefix_decides() => assert_eq!(keys, Ordering::Equal, "{}", context()),
                Ordering::Equal => {}
                other => assert_eq!((full, keys), (other, other), "{}", context()),
            }
            assert_eq!(order.compare(lines[j], lines[i]), full.reverse(), "{}", context());
            assert!(order.prefix_from(lines[i], 0) == prefixes[i] || !plain(&order), "{}", context());
        }
    }
}

fn plain(order: &Order) -> bool {
    order.is_plain_bytes() || order.plain_reverse()
}
