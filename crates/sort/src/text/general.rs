//! -g: numbers as `strtold` reads them, in the order of GNU sort: texts that are not numbers, then
//! NaN, then by value.
//!
//! GNU sort compares the 80-bit `long double` of x86, which no stable Rust type has. So the
//! rounding is done here in integers, with 64 bits of mantissa, round half to even, overflow to
//! infinity and gradual underflow. Two texts have the same rank exactly if they have the same long
//! double.
//!
//! ```text
//! 38 digits as a u128  x  a 128-bit power of five  ->  128 bits with an error bound
//!     -> rounded to 64 bits; near a tie by exact big integers (one text in 2^50)
//! rank: 0 not a number, 1 -NaN, 2 NaN,
//!       otherwise the 79 bits sign | exponent | fraction in an ascending form
//! ```
//!
//! Rejected: `f64` with a tie-break on decimals, because it orders values that are equal for GNU
//! sort.

use std::cmp::Ordering;

/// The order of -g.
pub(super) fn compare(a: &[u8], b: &[u8]) -> Ordering {
    rank(a).cmp(&rank(b))
}

/// Returns the order-preserving word of -g: the top 64 of the 79 bits.
pub(super) fn prefix(text: &[u8]) -> u64 {
    (rank(text) >> 15) as u64
}

/// Appends the normalized key of -g: the 79 bits in ten bytes.
pub(super) fn push_key(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&rank(text).to_be_bytes()[6..]);
}

/// The sign bit. Below it are 15 bits of exponent and 63 of fraction.
const SIGN: u128 = 1 << 78;
const INFINITE: u128 = 0x7fff << 63;
const NO_NUMBER: u128 = 0;
const NEGATIVE_NAN: u128 = 1 << 15;
const NAN: u128 = 2 << 15;

/// Returns the rank of the text in the order; equal ranks are equal keys.
fn rank(text: &[u8]) -> u128 {
    let is_space = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    let start = text.iter().position(|b| !is_space(b)).unwrap_or(text.len());
    let (negative, text) = match &text[start..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let starts = |word: &[u8]| text.get(..word.len()).is_some_and(|t| t.eq_ignore_ascii_case(word));
    let magnitude = if starts(b"nan") {
        return if negative { NEGATIVE_NAN } else { NAN };
    } else if starts(b"inf") {
        INFINITE
    } else {
        match hexadecimal(text).or_else(|| decimal(text)) {
            Some(magnitude) => magnitude,
            None => return NO_NUMBER,
        }
    };
    match (magnitude, negative) {
        (0, _) | (_, false) => SIGN | magnitude,
        (_, true) => SIGN - 1 - magnitude,
    }
}

/// Returns how many of the bytes are read as a number; 0 if none.
pub(super) fn len(text: &[u8]) -> usize {
    let is_space = |b: &&u8| b.is_ascii_whitespace() || **b == 0x0b;
    let spaces = text.iter().take_while(is_space).count();
    let signs = usize::from(matches!(text.get(spaces), Some(b'-' | b'+')));
    let text = &text[spaces + signs..];
    let starts = |word: &[u8]| text.get(..word.len()).is_some_and(|t| t.eq_ignore_ascii_case(word));
    let number = if starts(b"nan") {
        3 + payload_len(&text[3..])
    } else if starts(b"infinity") {
        8
    } else if starts(b"inf") {
        3
    } else {
        let hexadecimal = match text {
            [b'0', b'x' | b'X', rest @ ..] => split(rest, u8::is_ascii_hexdigit).map(|parts| (parts.2, b'p')),
            _ => None,
        };
        let decimal = || split(text, u8::is_ascii_digit).map(|parts| (parts.2, b'e'));
        match hexadecimal.or_else(decimal) {
            Some((rest, marker)) => text.len() - rest.len() + exponent_len(rest, marker),
            None => return 0,
        }
    };
    spaces + signs + number
}

/// The length of the `(...)` behind a NaN.
fn payload_len(text: &[u8]) -> usize {
    let [b'(', rest @ ..] = text else { return 0 };
    let inside = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    if rest.get(inside) == Some(&b')') { inside + 2 } else { 0 }
}

/// The length of an exponent; 0 if it has no digits.
fn exponent_len(text: &[u8], marker: u8) -> usize {
    if !text.first().is_some_and(|b| b.eq_ignore_ascii_case(&marker)) {
        return 0;
    }
    let sign = usize::from(matches!(text.get(1), Some(b'-' | b'+')));
    match text[1 + sign..].iter().take_while(|b| b.is_ascii_digit()).count() {
        0 => 0,
        digits => 1 + sign + digits,
    }
}

/// A positive number as 128 bits times a power of two. The true value is within `error` units of
/// the last bit.
struct Scaled {
    mantissa: u128,
    exponent: i64,
    error: u128,
    /// Whether, with an error of 0, something nonzero was cut off below the last bit.
    more: bool,
}

/// Rounds to the bits of the long double. If the value is near a tie, `tie` compares the exact
/// value with half * 2^exponent.
fn round(value: &Scaled, tie: impl FnOnce(u128, i64) -> Ordering) -> u128 {
    let zeros = value.mantissa.leading_zeros();
    let (mantissa, exponent) = (value.mantissa << zeros, value.exponent - i64::from(zeros));
    let error = value.error << zeros;
    let top = exponent + 127;
    if top > 16383 {
        return INFINITE;
    }
    let below = (-16382 - top).max(0);
    let cut = 64 + below;
    if cut > 128 {
        return 0;
    }
    let kept = if cut == 128 { 0 } else { mantissa >> cut };
    let low = if cut == 128 { mantissa } else { mantissa & ((1 << cut) - 1) };
    let half = 1u128 << (cut - 1);
    let order = if error > 0 && low.abs_diff(half) <= error {
        tie(2 * kept + 1, exponent + cut - 1)
    } else {
        low.cmp(&half).then(if value.more { Ordering::Greater } else { Ordering::Equal })
    };
    let up = match order {
        Ordering::Greater => 1,
        Ordering::Equal => kept & 1,
        Ordering::Less => 0,
    };
    // The mantissa's leading one adds itself to the exponent, and so does a carry.
    let biased = if below > 0 { 0 } else { (top + 16382) as u128 };
    ((biased << 63) + kept + up).min(INFINITE)
}

/// The exponent behind an `e` or a `p`: a sign and digits, saturating; zero without digits.
fn exponent(text: &[u8], marker: u8) -> i64 {
    let [first, rest @ ..] = text else { return 0 };
    if !first.eq_ignore_ascii_case(&marker) {
        return 0;
    }
    let (negative, rest) = match rest {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, rest),
    };
    let digits = rest.iter().take_while(|b| b.is_ascii_digit());
    let size = digits.fold(0i64, |n, b| (n * 10 + i64::from(b - b'0')).min(1 << 40));
    if negative { -size } else { size }
}

/// Splits a text into integer digits, fraction digits and the rest; `None` without a digit.
fn split(text: &[u8], is_digit: impl Fn(&u8) -> bool) -> Option<(&[u8], &[u8], &[u8])> {
    let end = |t: &[u8]| t.iter().position(|b| !is_digit(b)).unwrap_or(t.len());
    let (integer, rest) = text.split_at(end(text));
    let (fraction, rest) = match rest {
        [b'.', behind @ ..] => behind.split_at(end(behind)),
        _ => (&rest[..0], rest),
    };
    (!integer.is_empty() || !fraction.is_empty()).then_some((integer, fraction, rest))
}

/// Reads a `0x` number exactly; `None` if the text is none.
fn hexadecimal(text: &[u8]) -> Option<u128> {
    let [b'0', b'x' | b'X', rest @ ..] = text else { return None };
    let (integer, fraction, rest) = split(rest, u8::is_ascii_hexdigit)?;
    let mut value = Scaled { mantissa: 0, exponent: exponent(rest, b'p'), error: 0, more: false };
    value.exponent -= 4 * fraction.len() as i64;
    for &byte in integer.iter().chain(fraction) {
        let digit = u128::from((byte as char).to_digit(16).unwrap_or(0));
        if value.mantissa >> 124 == 0 {
            value.mantissa = (value.mantissa << 4) | digit;
        } else {
            value.exponent += 4;
            value.more |= digit != 0;
        }
    }
    if value.mantissa == 0 {
        return Some(0);
    }
    Some(round(&value, |_, _| Ordering::Equal))
}

/// Reads a decimal number; `None` if the text is none.
fn decimal(text: &[u8]) -> Option<u128> {
    let (integer, fraction, rest) = split(text, u8::is_ascii_digit)?;
    let zeros = integer.iter().take_while(|&&b| b == b'0').count();
    let integer = &integer[zeros..];
    // The value is 0.DIGITS * 10^point; the first 38 digits go into one integer.
    let skipped = if integer.is_empty() { fraction.iter().take_while(|&&b| b == b'0').count() } else { 0 };
    let fraction = &fraction[skipped..];
    let point = (integer.len() as i64 - skipped as i64).saturating_add(exponent(rest, b'e'));
    let all = || integer.iter().chain(fraction).copied();
    let count = integer.len() + fraction.len();
    if count == 0 || point < -5000 {
        return Some(0);
    }
    if point > 5000 {
        return Some(INFINITE);
    }
    let first = all().take(19).fold(0u64, |n, b| n * 10 + u64::from(b - b'0'));
    let digits = all().take(38).skip(19).fold(u128::from(first), |n, b| n * 10 + u128::from(b - b'0'));
    let power = point - count.min(38) as i64;
    let more = count > 38;
    let value = scale(digits, power, more);
    Some(round(&value, |half, half_exponent| {
        let digits: Vec<u8> = all().collect();
        exact_compare(&digits, point - count as i64, half, half_exponent)
    }))
}

/// Computes digits * 10^power, with its error bound.
fn scale(digits: u128, power: i64, more: bool) -> Scaled {
    let zeros = digits.leading_zeros();
    let mut value = Scaled { mantissa: digits << zeros, exponent: power - i64::from(zeros), error: 0, more };
    if more {
        // One unit of the 38 digits is at most 2^6 units here.
        value.error = 128;
    }
    if power != 0 {
        // Each truncated product loses less than two units, and there are fewer than 200 of them.
        let scale = power_of_five(power);
        let (mantissa, lost) = multiply(value.mantissa, scale.mantissa);
        value.mantissa = mantissa;
        value.exponent += scale.exponent + 128 - i64::from(lost);
        value.error = if more || scale.error > 0 { 2048 } else { 2 };
    }
    value
}

/// Computes 5^n for |n| up to 5100.
fn power_of_five(n: i64) -> Scaled {
    let (table, size) = if n < 0 { (&INVERSES, -n) } else { (&POWERS, n) };
    let entry = |i: usize| Scaled { mantissa: table[i].0, exponent: i64::from(table[i].1), error: 0, more: false };
    let product = |a: &Scaled, b: &Scaled| {
        let (mantissa, lost) = multiply(a.mantissa, b.mantissa);
        Scaled { mantissa, exponent: a.exponent + b.exponent + 128 - i64::from(lost), error: 1, more: false }
    };
    let (mut left, mut result) = (size as usize / 55, entry(size as usize % 55));
    let mut base = entry(55);
    while left > 0 {
        if left & 1 == 1 {
            result = product(&result, &base);
        }
        base = product(&base, &base);
        left /= 2;
    }
    result.error = result.error.max(u128::from(n < 0));
    result
}

/// Returns the upper 128 bits of the product, normalized, and by how many bits they were shifted.
#[inline]
fn multiply(a: u128, b: u128) -> (u128, u32) {
    let (a1, a0, b1, b0) = (a >> 64, a & u128::from(u64::MAX), b >> 64, b & u128::from(u64::MAX));
    let (low, cross1, cross2) = (a0 * b0, a1 * b0, a0 * b1);
    let middle = (low >> 64) + (cross1 & u128::from(u64::MAX)) + (cross2 & u128::from(u64::MAX));
    let high = a1 * b1 + (cross1 >> 64) + (cross2 >> 64) + (middle >> 64);
    let next = (middle >> 63) & 1;
    if high >> 127 == 1 { (high, 0) } else { ((high << 1) | next, 1) }
}

/// 5^0..=5^55, exact: a normalized mantissa and its exponent.
const POWERS: [(u128, i32); 56] = {
    let mut table = [(0, 0); 56];
    let (mut i, mut power) = (0, 1u128);
    while i < 56 {
        let zeros = power.leading_zeros();
        table[i] = (power << zeros, -(zeros as i32));
        if i < 55 {
            power *= 5;
        }
        i += 1;
    }
    table
};

/// 5^0..=5^-55, rounded down to 128 bits, by long division.
const INVERSES: [(u128, i32); 56] = {
    let mut table = POWERS;
    let mut i = 1;
    while i < 56 {
        let shift = -POWERS[i].1;
        let divisor = POWERS[i].0 >> shift;
        let bits = 128 - shift;
        let (mut rest, mut quotient, mut step) = (1u128 << (bits - 1), 0u128, 0);
        while step < 128 {
            let carry = rest >> 127;
            rest <<= 1;
            quotient <<= 1;
            if carry == 1 || rest >= divisor {
                rest = rest.wrapping_sub(divisor);
                quotient |= 1;
            }
            step += 1;
        }
        table[i] = (quotient, -(127 + bits));
        i += 1;
    }
    table
};

/// Compares digits * 10^power with half * 2^exponent in big integers.
fn exact_compare(digits: &[u8], power: i64, half: u128, exponent: i64) -> Ordering {
    let mut value = Big(Vec::new());
    for &digit in digits {
        value.multiply_add(10, u32::from(digit - b'0'));
    }
    let mut other = Big((0..4).map(|i| (half >> (32 * i)) as u32).collect());
    let fives = if power >= 0 { &mut value } else { &mut other };
    for _ in 0..power.unsigned_abs() {
        fives.multiply_add(5, 0);
    }
    let twos = power - exponent;
    if twos >= 0 {
        value.shift(twos as usize)
    } else {
        other.shift(-twos as usize)
    }
    value.compare(&mut other)
}

/// A big integer, least significant word first.
struct Big(Vec<u32>);

impl Big {
    fn multiply_add(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for word in &mut self.0 {
            carry += u64::from(*word) * u64::from(factor);
            *word = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn shift(&mut self, bits: usize) {
        self.multiply_add(1 << (bits % 32), 0);
        self.0.splice(0..0, std::iter::repeat_n(0, bits / 32));
    }

    fn compare(&mut self, other: &mut Big) -> Ordering {
        for big in [&mut *self, &mut *other] {
            while big.0.last() == Some(&0) {
                big.0.pop();
            }
        }
        let lens = self.0.len().cmp(&other.0.len());
        lens.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn classes_in_order() {
        let sorted: [&[u8]; 15] = [
            b"x",
            b"-nan",
            b"NaN(7)",
            b"-inf",
            b"-1e4932",
            b"-1",
            b"-1e-4950",
            b"0",
            b"3e-4951",
            b"1e-4932",
            b".5",
            b"0x1p1",
            b"+1e3",
            b"1e4932",
            b"INFINITY",
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(compare(a, b), i.cmp(&j), "{} {}", a.escape_ascii(), b.escape_ascii());
            }
        }
        for same in [&b"0x"[..], b"-0", b"0e9999999999", b"1e-99999", b"0x.", b".0", b"0.", b"\x0b 00e5"] {
            assert_eq!(compare(same, b"0"), Ordering::Equal, "{}", same.escape_ascii());
        }
        for none in [&b""[..], b".", b"+", b"e5", b"-.e1", b"--1", b"in", b"x0"] {
            assert_eq!(rank(none), NO_NUMBER, "{}", none.escape_ascii());
        }
    }

    #[test]
    fn ties_round_to_even_and_beyond_them_up() {
        let (even, tie, odd) = (b"18446744073709551616", b"18446744073709551617", b"18446744073709551618");
        assert_eq!(compare(even, tie), Ordering::Equal);
        assert_eq!(compare(tie, odd), Ordering::Less);
        let above = b"18446744073709551617.00000000000000000000000000000000000000000000000001";
        assert_eq!(compare(above, odd), Ordering::Equal);
        assert_eq!(compare(b"18446744073709551617000e-3", even), Ordering::Equal);
        assert_eq!(compare(b"1e9999", b"inf"), Ordering::Equal);
    }

    proptest! {
        #[test]
        fn ranks_as_doubles_where_doubles_are_exact(a in any::<f64>(), b in any::<f64>(), small in -60i32..60) {
            prop_assume!(!a.is_nan() && !b.is_nan());
            let near = a * (1.0 + f64::from(small) * f64::EPSILON);
            for other in [b, near, a] {
                let (x, y) = (format!("{a:e}"), format!("{other:.40e}"));
                let want = match a.partial_cmp(&other) {
                    // The 40 digits of `other` are not the shortest digits of `a`, but round to a
                    // value near it.
                    Some(Ordering::Equal) => continue,
                    Some(order) => order,
                    None => continue,
                };
                prop_assert_eq!(compare(x.as_bytes(), y.as_bytes()), want, "{} {}", x, y);
                if prefix(x.as_bytes()) != prefix(y.as_bytes()) {
                    prop_assert_eq!(prefix(x.as_bytes()).cmp(&prefix(y.as_bytes())), want);
                }
            }
        }

        #[test]
        fn approximation_agrees_with_exact_integers(digits in 1u128..10u128.pow(37), power in -4900i64..4900) {
            let text = format!("{digits}e{power}");
            let fast = decimal(text.as_bytes());
            let mut value = scale(digits, power, false);
            // Every value counts as near a tie: the comparison of big integers alone decides.
            value.error = u128::MAX >> value.mantissa.leading_zeros();
            let all = digits.to_string().bytes().collect::<Vec<_>>();
            let exact = round(&value, |half, exponent| exact_compare(&all, power, half, exponent));
            prop_assert_eq!(fast, Some(exact));
        }
    }
}
