//! -V: the order of version numbers in names, that of gnulib's `filenvercmp` (coreutils 9.2 and
//! later).
//!
//! ```text
//! ""  <  "."  <  ".."  <  ".hidden"  <  "name"
//! name = stem + suffix, suffix = (\.[A-Za-z~][A-Za-z0-9~]*)* at the end, but never the entire name
//! compare the stems, then the entire names, each as runs of non-digits and digits in turns:
//!   non-digits: '~' < end of the run < letters < all others
//!   digits: by value
//! ```

use std::cmp::Ordering;

/// Returns the length of the name without its suffixes, which are looked for from the end.
fn stem_len(name: &[u8]) -> usize {
    let mut stem = name.len();
    loop {
        let mut first = stem;
        while first > 0 && (name[first - 1].is_ascii_alphanumeric() || name[first - 1] == b'~') {
            first -= 1;
        }
        let begins = name[first..stem].first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'~');
        // A dot at the very beginning belongs to the name.
        if !begins || first < 2 || name[first - 1] != b'.' {
            return stem;
        }
        stem = first - 1;
    }
}

/// Returns the rank of the byte at `at` in a run of non-digits. A digit and the end both end the
/// run.
#[inline]
fn rank(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at) {
        Some(b'~') => 0,
        None => 1,
        Some(b) if b.is_ascii_digit() => 2,
        Some(&b) if b.is_ascii_alphabetic() => 3 + u16::from(b),
        Some(&b) => 259 + u16::from(b),
    }
}

fn digit_at(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_some_and(u8::is_ascii_digit)
}

/// Returns the end of the digits that begin at `at`.
fn digits_end(bytes: &[u8], mut at: usize) -> usize {
    while digit_at(bytes, at) {
        at += 1;
    }
    at
}

fn zeros_end(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at) == Some(&b'0') {
        at += 1;
    }
    at
}

/// Compares runs of non-digits and digits in turns.
fn compare_runs(a: &[u8], b: &[u8]) -> Ordering {
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        while (i < a.len() && !digit_at(a, i)) || (j < b.len() && !digit_at(b, j)) {
            match rank(a, i).cmp(&rank(b, j)) {
                Ordering::Equal => (i, j) = (i + 1, j + 1),
                other => return other,
            }
        }
        (i, j) = (zeros_end(a, i), zeros_end(b, j));
        let (i_end, j_end) = (digits_end(a, i), digits_end(b, j));
        let order = (i_end - i).cmp(&(j_end - j)).then_with(|| a[i..i_end].cmp(&b[j..j_end]));
        if order != Ordering::Equal {
            return order;
        }
        (i, j) = (i_end, j_end);
    }
    Ordering::Equal
}

/// Compares two names.
pub(super) fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let order = class(a).cmp(&class(b));
    if order != Ordering::Equal || class(a) < HIDDEN {
        return order;
    }
    let (a_stem, b_stem) = (stem_len(a), stem_len(b));
    compare_runs(&a[..a_stem], &b[..b_stem])
        .then_with(|| if a_stem == a.len() && b_stem == b.len() { Ordering::Equal } else { compare_runs(a, b) })
}

const HIDDEN: u8 = 3;

/// The classes that decide before any comparison of runs.
fn class(name: &[u8]) -> u8 {
    match name {
        [] => 0,
        b"." => 1,
        b".." => 2,
        [b'.', ..] => HIDDEN,
        _ => 4,
    }
}

/// Returns eight bytes whose order follows `compare`: the class, then the first runs of the stem.
pub(super) fn prefix(name: &[u8]) -> u64 {
    let class = class(name);
    let mut packed = Packed { word: u64::from(class) << 56, shift: 56 };
    if class < HIDDEN {
        return packed.word;
    }
    let stem = &name[..stem_len(name)];
    let mut at = 0;
    // Empty runs and zeros follow the end for ever, since "a" and "a0" are equal here.
    while packed.shift > 0 {
        while at < stem.len() && !digit_at(stem, at) && packed.shift > 0 {
            packed.push(RANKS[usize::from(stem[at])]);
            at += 1;
        }
        packed.push(1);
        at = zeros_end(stem, at);
        let end = digits_end(stem, at);
        let len = end - at;
        packed.push(len.min(255) as u8);
        if len >= 255 {
            break;
        }
        for &digit in &stem[at..end] {
            packed.push(digit);
        }
        at = end;
    }
    packed.word
}

/// Appends bytes whose order is that of `compare`, none of which begins another's: the class, the
/// runs of the stem, and what the entire name adds.
///
/// Entire names are compared where stems are equal. Then they are equal up to the suffixes, except
/// that one stem may end with zeros, as in "a0.x" and "a.x": a digit comes before the dot.
pub(super) fn push_key(name: &[u8], out: &mut Vec<u8>) {
    let class = class(name);
    out.push(class);
    if class >= HIDDEN {
        let (stem, suffix) = name.split_at(stem_len(name));
        push_runs(stem, out);
        if suffix.is_empty() {
            out.push(NO_SUFFIX);
        } else {
            out.push(if stem.last().is_some_and(u8::is_ascii_digit) { BEHIND_DIGITS } else { BEHIND_OTHERS });
            push_runs(suffix, out);
        }
    }
}

const NO_SUFFIX: u8 = 0;
const BEHIND_DIGITS: u8 = 1;
const BEHIND_OTHERS: u8 = 2;

/// Appends runs in the order of `compare_runs`. A run of non-digits that is not the first has a
/// byte at least, and none of these is 1. So a 1 in its place is the end.
fn push_runs(bytes: &[u8], out: &mut Vec<u8>) {
    let begin = out.len();
    // A run of digits adds 2 bytes to its own, or 10 if it is long, and the end another 3.
    out.resize(begin + 2 * bytes.len() + 16, 0);
    let to = &mut out[begin..];
    let (mut at, mut len) = (0, 0);
    loop {
        while at < bytes.len() && !digit_at(bytes, at) {
            to[len] = RANKS[usize::from(bytes[at])];
            (at, len) = (at + 1, len + 1);
        }
        let from = zeros_end(bytes, at);
        at = digits_end(bytes, from);
        let digits = at - from;
        (to[len], to[len + 1]) = (1, digits.min(255) as u8);
        len += 2;
        if digits >= 255 {
            to[len..len + 8].copy_from_slice(&(digits as u64).to_be_bytes());
            len += 8;
        }
        // Short, as nearly all are: calls to copy them would cost more.
        for &digit in &bytes[from..at] {
            to[len] = digit;
            len += 1;
        }
        if at == bytes.len() {
            to[len] = 1;
            out.truncate(begin + len + 1);
            return;
        }
    }
}

/// The ranks of all bytes. That of digits is not used.
static RANKS: [u8; 256] = {
    let mut ranks = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        ranks[byte] = squeezed_rank(byte as u8);
        byte += 1;
    }
    ranks
};

/// Returns `rank` in one byte. The end and a digit share 1: nothing else sorts between them.
const fn squeezed_rank(byte: u8) -> u8 {
    match byte {
        b'~' => 0,
        b'A'..=b'Z' => 2 + (byte - b'A'),
        b'a'..=b'z' => 28 + (byte - b'a'),
        // 54 and above: the others in their order, without gaps for digits, letters and the tilde.
        0..=b'/' => 54 + byte,
        b':'..=b'@' => 54 + 48 + (byte - b':'),
        b'['..=b'`' => 54 + 55 + (byte - b'['),
        b'{'..=b'}' => 54 + 61 + (byte - b'{'),
        0x7f.. => 54 + 64 + (byte - 0x7f),
        // No digit is asked for.
        b'0'..=b'9' => 1,
    }
}

struct Packed {
    word: u64,
    shift: u32,
}

impl Packed {
    fn push(&mut self, byte: u8) {
        if self.shift > 0 {
            self.shift -= 8;
            self.word |= u64::from(byte) << self.shift;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_orders() {
        let sorted: [&[u8]; 14] =
            [b"", b".", b"..", b".0", b".A", b"0", b"a~", b"a", b"a.b", b"a.b1", b"a1.2", b"a1.10", b"ab", b"a+"];
        for pair in sorted.windows(2) {
            assert_eq!(compare(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(compare(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(compare(b"a", b"a0"), Ordering::Equal);
    }

    #[test]
    fn squeezed_ranks_keep_the_order() {
        let others = (0..=255u8).filter(|b| !b.is_ascii_digit());
        let mut by_rank: Vec<u8> = others.collect();
        by_rank.sort_by_key(|&b| rank(&[b], 0));
        assert!(by_rank.windows(2).all(|p| squeezed_rank(p[0]) < squeezed_rank(p[1])));
    }

    /// The suffixes as gnulib looks for them, from the beginning.
    fn stem_from_the_beginning(name: &[u8]) -> usize {
        let (mut at, mut stem) = (0, 0);
        while at < name.len() {
            at += 1;
            stem = at;
            while at + 1 < name.len()
                && name[at] == b'.'
                && (name[at + 1].is_ascii_alphabetic() || name[at + 1] == b'~')
            {
                at += 2;
                while at < name.len() && (name[at].is_ascii_alphanumeric() || name[at] == b'~') {
                    at += 1;
                }
            }
        }
        stem
    }

    #[test]
    fn long_runs_of_digits_have_room() {
        let names = [vec![b'7'; 254], vec![b'7'; 255], vec![b'8'; 255], vec![b'1'; 256], b"1a".repeat(300)];
        let keys = names.each_ref().map(|name| {
            let mut key = vec![9];
            push_key(name, &mut key);
            key
        });
        for (a, b) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
            assert_eq!(keys[a].cmp(&keys[b]), compare(&names[a], &names[b]), "{a} {b}");
        }
    }

    proptest! {
        #[test]
        fn stems_are_those_of_gnulib(name in "[a-b~.01+]{0,12}") {
            prop_assert_eq!(stem_len(name.as_bytes()), stem_from_the_beginning(name.as_bytes()));
        }

        #[test]
        fn keys_follow_compare(a in "[ab~.01+]{0,9}", b in "[ab~.01+]{0,9}") {
            let (a, b) = (a.as_bytes(), b.as_bytes());
            let (mut one, mut other) = (Vec::new(), Vec::new());
            push_key(a, &mut one);
            push_key(b, &mut other);
            prop_assert_eq!(one.cmp(&other), compare(a, b));
        }

        #[test]
        fn prefix_follows_compare(a in "[a-bZ~.0-1+]{0,9}", b in "[a-bZ~.0-1+]{0,9}") {
            let (a, b) = (a.as_bytes(), b.as_bytes());
            match prefix(a).cmp(&prefix(b)) {
                Ordering::Equal => {}
                other => prop_assert_eq!(compare(a, b), other),
            }
        }
    }
}
