//! -n and -h: decimal numbers of any length, compared digit by digit as gnulib's `strnumcmp` does,
//! and their order-preserving words.
//!
//! A number is blanks, an optional '-', digits, and optionally a '.' with digits. It has no '+', no
//! exponent, and in the C locale no thousands separator. A text that is not a number counts as
//! zero.
//!
//! ```text
//! word of -n:  | 1: not negative | 8: integer digits | 54: the first 16 digits | 1: more digits |
//!              (a negative number: 2^63 - the rest)
//! word of -h:  | 5: unit + 16 | 1: not negative | 7: integer digits | 50: 15 digits | 1: more |
//! ```
//! The last bit says whether the number has digits that the word does not hold.

use std::cmp::Ordering;

use super::bytes::{eight_digits, find_non_digit, trim_blanks};

/// A decimal number in a text: the integer part without leading zeros, the fraction without
/// trailing zeros.
#[derive(Clone, Copy, Debug)]
struct Decimal<'a> {
    negative: bool,
    integer: &'a [u8],
    fraction: &'a [u8],
}

fn digits(bytes: &[u8]) -> (&[u8], &[u8]) {
    bytes.split_at(find_non_digit(bytes, 0))
}

impl<'a> Decimal<'a> {
    #[inline]
    fn parse(text: &'a [u8]) -> Self {
        let text = trim_blanks(text);
        let (negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            _ => (false, text),
        };
        let zeros = text.iter().position(|&b| b != b'0').unwrap_or(text.len());
        let (integer, rest) = digits(&text[zeros..]);
        let mut fraction = match rest {
            [b'.', rest @ ..] => digits(rest).0,
            _ => &[],
        };
        while let [rest @ .., b'0'] = fraction {
            fraction = rest;
        }
        let zero = integer.is_empty() && fraction.is_empty();
        Decimal { negative: negative && !zero, integer, fraction }
    }

    #[inline]
    fn compare(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => self.compare_size(other),
            (true, true) => other.compare_size(self),
        }
    }

    #[inline]
    fn compare_size(&self, other: &Self) -> Ordering {
        (self.integer.len().cmp(&other.integer.len()))
            .then_with(|| compare_digits(self.integer, other.integer))
            .then_with(|| compare_digits(self.fraction, other.fraction))
    }

    /// The word of -n.
    #[inline]
    fn word(&self) -> u64 {
        // 255 stands for 255 digits or more; their leading digits are not comparable.
        let len = self.integer.len().min(255);
        let leading = if len < 255 { self.leading_digits() } else { 0 };
        let more = self.integer.len() + self.fraction.len() > 16;
        self.signed((len as u64) << 55 | leading << 1 | u64::from(more), 63)
    }

    /// The word of -h without the unit, in 59 bits.
    #[inline]
    fn short_word(&self) -> u64 {
        let len = self.integer.len().min(127);
        let leading = if len < 127 { self.leading_digits() / 10 } else { 0 };
        let more = self.integer.len() + self.fraction.len() > 15;
        self.signed((len as u64) << 51 | leading << 1 | u64::from(more), 58)
    }

    /// The first sixteen digits, as a number.
    #[inline]
    fn leading_digits(&self) -> u64 {
        let mut leading = sixteen_digits(self.integer);
        if let (false, Some(power)) = (self.fraction.is_empty(), POWERS_OF_TEN.get(self.integer.len())) {
            leading += sixteen_digits(self.fraction) / power;
        }
        leading
    }

    #[inline]
    fn signed(&self, size: u64, zero_bit: u32) -> u64 {
        let zero = 1 << zero_bit;
        if self.negative { zero - size } else { zero + size }
    }

    /// Appends bytes whose order is that of numbers, none of which begins another's: the word, and
    /// all digits if it does not hold them.
    fn push_key(&self, out: &mut Vec<u8>) {
        let word = self.word();
        out.extend_from_slice(&word.to_be_bytes());
        if !word_is_exact(word) {
            let tail = out.len();
            out.extend_from_slice(&(self.integer.len() as u64).to_be_bytes());
            out.extend_from_slice(self.integer);
            out.extend_from_slice(self.fraction);
            // The end comes before every digit.
            out.push(0);
            if self.negative {
                out[tail..].iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
    }
}

/// Compares like `memcmp`. Empty slices, which most fractions are, do not go to the C library's
/// `memcmp`: with masked loads at the unmapped address of an empty slice it takes a hundred times
/// as long.
#[inline]
fn compare_digits(a: &[u8], b: &[u8]) -> Ordering {
    if a.is_empty() || b.is_empty() { a.len().cmp(&b.len()) } else { a.cmp(b) }
}

/// Returns the number of the first sixteen digits; fewer are padded with zeros at the end.
#[inline]
fn sixteen_digits(digits: &[u8]) -> u64 {
    eight_digits(digits) * 100_000_000 + digits.get(8..).map_or(0, eight_digits)
}

const POWERS_OF_TEN: [u64; 17] = {
    let mut powers = [1; 17];
    let mut i = 1;
    while i < 17 {
        powers[i] = powers[i - 1] * 10;
        i += 1;
    }
    powers
};

/// The order of -n.
pub(super) fn compare_numeric(a: &[u8], b: &[u8]) -> Ordering {
    Decimal::parse(a).compare(&Decimal::parse(b))
}

/// The order-preserving word of -n.
pub(super) fn numeric_prefix(text: &[u8]) -> u64 {
    Decimal::parse(text).word()
}

/// Whether a word of -n or -h holds the whole number. Of numbers with equal words all are held, and
/// then they are equal, or none is.
pub(super) fn word_is_exact(word: u64) -> bool {
    word & 1 == 0
}

/// Appends the normalized key of -n.
pub(super) fn push_numeric_key(text: &[u8], out: &mut Vec<u8>) {
    Decimal::parse(text).push_key(out);
}

/// Appends the normalized key of -h.
pub(super) fn push_human_key(text: &[u8], folded: bool, out: &mut Vec<u8>) {
    out.push((unit(text, folded) + 16) as u8);
    push_numeric_key(text, out);
}

/// Returns how many of the bytes are read as a number, under -h with its unit; 0 if there is no
/// digit.
pub(super) fn len(text: &[u8], human: bool) -> usize {
    let sign = usize::from(text.first() == Some(&b'-'));
    let (integer, mut rest) = digits(&text[sign..]);
    let mut any = !integer.is_empty();
    if let [b'.', behind @ ..] = rest {
        let fraction;
        (fraction, rest) = digits(behind);
        any |= !fraction.is_empty();
    }
    let unit = usize::from(human && rest.first().is_some_and(|&byte| power(byte) > 0));
    if any { text.len() - rest.len() + unit } else { 0 }
}

/// The order of -h: by the unit behind the number, and within one unit by the number.
pub(super) fn compare_human(a: &[u8], b: &[u8], folded: bool) -> Ordering {
    unit(a, folded).cmp(&unit(b, folded)).then_with(|| compare_numeric(a, b))
}

/// The order-preserving word of -h.
pub(super) fn human_prefix(text: &[u8], folded: bool) -> u64 {
    let unit = (unit(text, folded) + 16) as u64;
    (unit << 59) | Decimal::parse(text).short_word()
}

/// Returns the power of the unit: negative for negative numbers, zero if the number is zero or has
/// no unit.
fn unit(text: &[u8], folded: bool) -> i8 {
    let text = trim_blanks(text);
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let (integer, mut rest) = digits(text);
    let mut fraction: &[u8] = &[];
    if let [b'.', behind @ ..] = rest {
        (fraction, rest) = digits(behind);
    }
    if integer.iter().chain(fraction).all(|&d| d == b'0') {
        return 0;
    }
    let letter = rest.first().map_or(0, |&b| if folded { b.to_ascii_uppercase() } else { b });
    if negative { -power(letter) } else { power(letter) }
}

/// The power of a thousand that a unit stands for; 0 if it is none.
fn power(letter: u8) -> i8 {
    match letter {
        b'K' | b'k' => 1,
        b'M' => 2,
        b'G' => 3,
        b'T' => 4,
        b'P' => 5,
        b'E' => 6,
        b'Z' => 7,
        b'Y' => 8,
        b'R' => 9,
        b'Q' => 10,
        _ => 0,
    }
}

/// -M: 1 to 12 for English abbreviations in any case behind blanks, 0 for all other texts.
pub(super) fn month(text: &[u8]) -> u8 {
    let Some(name) = trim_blanks(text).first_chunk::<3>() else { return 0 };
    match &name.map(|b| b.to_ascii_uppercase()) {
        b"JAN" => 1,
        b"FEB" => 2,
        b"MAR" => 3,
        b"APR" => 4,
        b"MAY" => 5,
        b"JUN" => 6,
        b"JUL" => 7,
        b"AUG" => 8,
        b"SEP" => 9,
        b"OCT" => 10,
        b"NOV" => 11,
        b"DEC" => 12,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn follows(prefixes: (u64, u64), order: Ordering) -> bool {
        let by_prefix = prefixes.0.cmp(&prefixes.1);
        by_prefix == Ordering::Equal || by_prefix == order
    }

    #[test]
    fn numbers_in_order() {
        let long = format!("{}9", "9".repeat(300));
        let longer = format!("1{long}");
        let sorted: Vec<&[u8]> = vec![
            b"-100",
            b"-20.5",
            b"-20",
            b"-.01",
            b"-0.00000000000000000001",
            b"0",
            b"0.00000000000000000001",
            b".5",
            b" \t0007",
            b"7.1",
            b"7.10000000000000000001",
            b"20",
            b"100",
            b"10000000000000000000000",
            long.as_bytes(),
            longer.as_bytes(),
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(compare_numeric(a, b), i.cmp(&j));
                assert!(follows((numeric_prefix(a), numeric_prefix(b)), i.cmp(&j)));
            }
        }
        for zero in [&b"-0"[..], b"", b"-", b".", b"-.0", b"x", b"+5", b"- 5", b"000"] {
            assert_eq!(compare_numeric(zero, b"0"), Ordering::Equal);
            assert_eq!(numeric_prefix(zero), 1 << 63);
        }
    }

    #[test]
    fn units_in_order() {
        let sorted: [&[u8]; 9] = [b"-1M", b"-2k", b"-1k", b"-5", b"0M", b"3", b"1K", b"1024K", b"1.5M"];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(compare_human(a, b, false), i.cmp(&j), "{a:?} {b:?}");
                assert!(follows((human_prefix(a, false), human_prefix(b, false)), i.cmp(&j)));
            }
        }
        assert_eq!(unit(b"1m", false), 0);
        assert_eq!(unit(b"1m", true), 2);
    }

    #[test]
    fn months() {
        assert_eq!(month(b" \tjanuary"), 1);
        assert_eq!(month(b"dEc"), 12);
        assert_eq!(month(b"De"), 0);
    }

    proptest! {
        #[test]
        fn prefixes_follow_the_order(a in "-?[0-9]{0,18}(\\.[0-9]{0,18})?[KMx]?", b in "-?[0-9]{0,18}(\\.[0-9]{0,18})?[KMx]?") {
            let (a, b) = (a.as_bytes(), b.as_bytes());
            prop_assert!(follows((numeric_prefix(a), numeric_prefix(b)), compare_numeric(a, b)));
            prop_assert!(follows((human_prefix(a, true), human_prefix(b, true)), compare_human(a, b, true)));
        }

        #[test]
        fn integers_as_integers(a in any::<i64>(), b in any::<i64>()) {
            let (x, y) = (a.to_string(), b.to_string());
            prop_assert_eq!(compare_numeric(x.as_bytes(), y.as_bytes()), a.cmp(&b));
        }
    }
}
