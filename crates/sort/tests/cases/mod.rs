//! Seeded command lines and inputs of sort, and the GNU sort that they are compared with: the
//! machine's, or the one that `GNU_SORT` names.
#![allow(dead_code, clippy::expect_used, clippy::unwrap_used)] // Not every test needs all of it.

use std::cmp::Ordering;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use datapipes_sort::text::{KeySpec, TextOptions, TextOrder};
#[allow(unused_imports)]
pub(crate) use datapipes_testkit::{GnuSort, Random};

/// A number from the environment.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// A case: options for both sides, and the input.
pub(crate) struct Case {
    pub(crate) options: TextOptions,
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) terminator: u8,
    pub(crate) input: Vec<u8>,
}

/// The bytes of the random order of every case, for the file of --random-source.
pub(crate) const SALT: [u8; 16] = *b"sixteen of bytes";

const LETTERS: [&str; 26] = [
    "", "", "", "n", "n", "g", "h", "M", "V", "d", "i", "f", "df", "if", "di", "Vf", "Vd", "Vif", "fn", "fg", "fh",
    "fM", "R", "R", "Rf", "RVd",
];

impl Case {
    pub(crate) fn new(seed: u64, gnu: &GnuSort) -> Case {
        let random = &mut Random(seed);
        let mut options = TextOptions::default().salt(SALT);
        let mut arguments: Vec<Vec<u8>> = Vec::new();
        let separators: [&[u8]; 10] = [b":", b":", b",", b" ", b"\t", b"a", b"\\0", b".", b"-", b"+"];
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
        let input = Words { random, modern: gnu.is_modern() }.input(terminator);
        let case = Case { options, arguments, terminator, input };
        if gnu.is_modern() { case } else { case.without_hidden_versions() }
    }

    /// Returns the lines; the last one may lack its terminator.
    pub(crate) fn lines(&self) -> Vec<&[u8]> {
        let mut lines: Vec<&[u8]> = self.input.split(|&b| b == self.terminator).collect();
        if lines.last().is_some_and(|last| last.is_empty()) {
            lines.pop();
        }
        lines
    }

    /// Returns the sorted lines, by the simplest way to sort.
    pub(crate) fn sorted(&self, order: &TextOrder) -> Vec<u8> {
        let mut lines = self.lines();
        lines.sort_by(|a, b| order.compare(a, b));
        if order.unique() {
            lines.dedup_by(|next, kept| order.compare_keys(kept, next) == Ordering::Equal);
        }
        lines.iter().flat_map(|line| line.iter().copied().chain([self.terminator])).collect()
    }

    /// Removes names that begin with a dot: for the -V of 9.1 such a name is all suffix.
    fn without_hidden_versions(mut self) -> Case {
        let by_version = |key: &KeySpec| key.modifiers.version;
        if self.options.effective_keys().iter().any(by_version) {
            self.input.iter_mut().filter(|byte| **byte == b'.').for_each(|byte| *byte = b',');
        }
        self
    }

    pub(crate) fn arguments(&self) -> Vec<OsString> {
        self.arguments.iter().map(|a| OsString::from_vec(a.clone())).collect()
    }

    /// Returns the arguments for people.
    pub(crate) fn shown(&self) -> String {
        let shown = self.arguments.iter().map(|a| format!("'{}'", a.escape_ascii()));
        shown.collect::<Vec<_>>().join(" ")
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

/// Makes inputs. They have what only versions after 9.1 order as we do if `modern` is set.
struct Words<'a> {
    random: &'a mut Random,
    modern: bool,
}

impl Words<'_> {
    fn input(&mut self, terminator: u8) -> Vec<u8> {
        let kind = self.random.below(6);
        let mut input = Vec::new();
        for _ in 0..self.random.below(300) {
            let fields = self.random.below(5);
            for field in 0..fields {
                if field > 0 {
                    let between: [&[u8]; 9] = [b":", b":", b",", b" ", b"  ", b"\t", b"a", b".", b"-"];
                    input.extend_from_slice(self.random.pick(&between));
                }
                let mut word = Vec::new();
                self.push_word(kind, &mut word);
                word.retain(|&b| b != terminator);
                input.extend(word);
            }
            input.push(terminator);
        }
        if self.random.one_in(4) {
            input.pop();
        }
        input
    }

    fn push_word(&mut self, kind: usize, word: &mut Vec<u8>) {
        let of = |alphabet: &[u8], most: usize, random: &mut Random, word: &mut Vec<u8>| {
            word.extend((0..random.below(most)).map(|_| alphabet[random.below(alphabet.len())]));
        };
        match (kind, self.random.below(8)) {
            (0, _) | (_, 0) => of(b"aAbBzZ09 \t.-_~@`{[\x01\x7f\x81\xff\0\n", 12, self.random, word),
            (1, _) => of(b"aAbB01.~-+", 8, self.random, word),
            (2, _) => {
                let months = [
                    "jan", "FEB", "mar", "apr", "May", "jun", "Jul", "aug", "SEP", "oct", "nov", "Dec", " dec", "ja",
                    "", "marx",
                ];
                word.extend_from_slice(self.random.pick(&months).as_bytes());
            }
            (3, _) => self.general(word),
            (_, _) => self.number(word),
        }
    }

    fn number(&mut self, word: &mut Vec<u8>) {
        let random = &mut *self.random;
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
        if self.modern && random.one_in(8) {
            // Before 9.2 such a byte is a thousands separator: its "no such character" is 128.
            word.push(0x80);
            digits(random, word);
        }
        word.extend_from_slice(random.pick(&["", "", "k", "K", "M", "m", "G", "Ki", "T", "Y", "x"]).as_bytes());
        if self.modern && random.one_in(8) {
            word.extend_from_slice(random.pick(&["R", "Q", "r", "q"]).as_bytes());
        }
    }

    /// Makes numbers for -g: near each other, near ties of the 64-bit mantissa, and at the ends of
    /// the range. NaNs are left out for 9.1, which orders them by uninitialized padding, so that
    /// `nan` even differs from itself.
    fn general(&mut self, word: &mut Vec<u8>) {
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
        if self.modern && self.random.one_in(6) {
            let nans = ["nan", "-nan", "NaN(1)", "nan(0x7)", "-NAN(x_1)", "nan(", "+nan"];
            word.extend_from_slice(self.random.pick(&nans).as_bytes());
            return;
        }
        if self.random.one_in(2) {
            word.extend_from_slice(self.random.pick(&special).as_bytes());
            return;
        }
        self.number(word);
        if self.random.one_in(2) {
            word.truncate(word.len().saturating_sub(self.random.below(2)));
            word.extend(format!("e{}", self.random.below(90) as i64 - 45).into_bytes());
        }
    }
}
