//! Bytes in the C locale: classes, case folding, ordered loads, and comparisons under -f, -d and
//! -i.
//!
//! Words of eight bytes are big-endian, so that their order as integers is that of `memcmp`.

use std::cmp::Ordering;

pub(super) use crate::records::words::fold;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The bytes that a key ignores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ignore {
    /// No bytes.
    #[default]
    Nothing,
    /// `-d`: everything but letters, digits and blanks.
    NonDictionary,
    /// `-i`: everything outside 0x20..=0x7e.
    NonPrinting,
}

impl Ignore {
    /// Whether the byte is ignored.
    #[inline]
    pub(super) fn drops(self, byte: u8) -> bool {
        match self {
            Ignore::Nothing => false,
            Ignore::NonDictionary => !(byte.is_ascii_alphanumeric() || is_blank(byte)),
            Ignore::NonPrinting => !(0x20..=0x7e).contains(&byte),
        }
    }
}

/// Whether the byte separates fields without -t. GNU counts the newline too, which matters under
/// -z.
#[inline]
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n')
}

/// Returns the bytes without their leading blanks.
#[inline]
pub(super) fn trim_blanks(mut bytes: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = bytes
        && is_blank(*first)
    {
        bytes = rest;
    }
    bytes
}

/// Returns the first eight bytes as a big-endian word, padded with zeros: one unaligned load if
/// there are eight.
#[inline]
pub(super) fn load(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(word) => u64::from_be_bytes(*word),
        None => load_short(bytes),
    }
}

/// Does the same as `load` for fewer than eight bytes: two overlapping loads, no loop.
#[inline]
fn load_short(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    if let (Some(head), Some(tail)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let (head, tail) = (u32::from_be_bytes(*head), u32::from_be_bytes(*tail));
        return (u64::from(head) << 32) | (u64::from(tail) << (8 * (8 - len)));
    }
    match *bytes {
        [a] => u64::from(a) << 56,
        [a, b] => (u64::from(a) << 56) | (u64::from(b) << 48),
        [a, b, c] => (u64::from(a) << 56) | (u64::from(b) << 48) | (u64::from(c) << 40),
        _ => 0,
    }
}

/// Makes letters uppercase if `FOLDED`, and returns whether there is a zero among the bytes.
///
/// The loop over sixteen bytes has no branch, so that it becomes a few vector instructions.
#[inline]
pub(super) fn fold_and_find_zero<const FOLDED: bool>(bytes: &mut [u8]) -> bool {
    let mut least = [u8::MAX; 16];
    let (blocks, rest) = bytes.as_chunks_mut::<16>();
    for block in blocks {
        for i in 0..16 {
            least[i] = least[i].min(block[i]);
            if FOLDED {
                block[i] = upper(block[i]);
            }
        }
    }
    let (words, rest) = rest.as_chunks_mut::<8>();
    let mut zeros = 0;
    for bytes in words {
        let word = u64::from_ne_bytes(*bytes);
        zeros |= marks(word, 0);
        if FOLDED {
            *bytes = fold(word).to_ne_bytes();
        }
    }
    for byte in rest {
        zeros |= u64::from(*byte == 0);
        if FOLDED {
            *byte = upper(*byte);
        }
    }
    let (least, _) = least.as_chunks::<8>();
    least.iter().fold(zeros, |zeros, word| zeros | marks(u64::from_ne_bytes(*word), 0)) != 0
}

#[inline]
fn upper(byte: u8) -> u8 {
    byte ^ (u8::from(byte.wrapping_sub(b'a') < 26) << 5)
}

/// Returns a mark (0x80) in each byte of `word` that equals `byte`. Marks above the lowest one may
/// be false.
#[inline]
fn marks(word: u64, byte: u8) -> u64 {
    let zero = word ^ (ONES * u64::from(byte));
    zero.wrapping_sub(ONES) & !zero & HIGHS
}

/// Returns the offset of the first byte from `at` on that `found` marks and `is` confirms, or the
/// length.
///
/// The last bytes go one by one: a padded word for them was measured to be slower by a third.
#[inline]
fn find(bytes: &[u8], mut at: usize, found: impl Fn(u64) -> u64, is: impl Fn(u8) -> bool) -> usize {
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let marked = found(u64::from_le_bytes(*word));
        if marked != 0 {
            return at + (marked.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < bytes.len() && !is(bytes[at]) {
        at += 1;
    }
    at
}

/// Returns the offset of the first `byte` from `at` on, or the length.
#[inline]
pub(super) fn find_byte(bytes: &[u8], at: usize, byte: u8) -> usize {
    find(bytes, at, |word| marks(word, byte), |b| b == byte)
}

/// Returns the offset of the `n`-th `byte` from `at` on, counted from 1, or the length.
///
/// It looks at 32 bytes at once: a branch for each field would mostly be mispredicted, because
/// fields differ in length.
#[inline]
pub(super) fn find_nth_byte(bytes: &[u8], mut at: usize, byte: u8, n: usize) -> usize {
    let mut left = n;
    while let Some(block) = bytes.get(at..).and_then(|rest| rest.first_chunk::<BLOCK>()) {
        match nth_bit(found_in(block, byte), &mut left) {
            Some(found) => return at + found,
            None => at += BLOCK,
        }
    }
    let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) else { return bytes.len() };
    let found = match bytes.last_chunk::<BLOCK>() {
        // Of the last bytes, those before `at` were looked at.
        Some(last) => found_in(last, byte) >> (BLOCK - rest.len()),
        None => found_in_few(rest, byte),
    };
    nth_bit(found, &mut left).map_or(bytes.len(), |found| at + found)
}

/// Returns the offsets of the `n`-th and of the `m`-th `byte`, of which `m` is not less. Each is
/// the length if there are not so many.
///
/// Both are most often among the first 64 bytes, which are looked at only once for the two.
#[inline]
pub(super) fn find_two_of_byte(bytes: &[u8], byte: u8, n: usize, m: usize) -> (usize, usize) {
    if n == 0 || m - n >= BLOCK {
        return find_each(bytes, byte, n, m);
    }
    let mut found = found_in_start(bytes, byte);
    let count = found.count_ones() as usize;
    if count < m && bytes.len() > 2 * BLOCK {
        return find_each(bytes, byte, n, m);
    }
    if count < n {
        return (bytes.len(), bytes.len());
    }
    for _ in 1..n {
        found &= found - 1;
    }
    let start = found.trailing_zeros() as usize;
    // Where no bit is left, that counts 64 zeros.
    for _ in n..m {
        found &= found.wrapping_sub(1);
    }
    (start, (found.trailing_zeros() as usize).min(bytes.len()))
}

/// Does the same by one search for each.
#[inline(never)]
fn find_each(bytes: &[u8], byte: u8, n: usize, m: usize) -> (usize, usize) {
    (find_nth_byte(bytes, 0, byte, n), find_nth_byte(bytes, 0, byte, m))
}

/// The bytes of one look, and of half of it.
const BLOCK: usize = 32;
const HALF: usize = BLOCK / 2;

/// Returns the position of the bit `left` of `bits`, counted from 1, or takes their number off.
#[inline]
fn nth_bit(bits: u32, left: &mut usize) -> Option<usize> {
    let mut rest = bits;
    for _ in 1..*left {
        if rest == 0 {
            break;
        }
        rest &= rest - 1;
    }
    if rest == 0 {
        *left -= bits.count_ones() as usize;
        return None;
    }
    Some(rest.trailing_zeros() as usize)
}

/// Returns a number with a bit for each of the first 64 bytes, or of all if there are fewer, that
/// equals `byte`.
#[inline]
fn found_in_start(bytes: &[u8], byte: u8) -> u64 {
    let Some((first, behind)) = bytes.split_first_chunk::<BLOCK>() else { return u64::from(found_in_few(bytes, byte)) };
    let second = match behind.first_chunk::<BLOCK>() {
        Some(second) => found_in(second, byte),
        // Of the last bytes, those of the first block are shifted out.
        None => match bytes.last_chunk::<BLOCK>() {
            Some(last) => found_in(last, byte).checked_shr((BLOCK - behind.len()) as u32).unwrap_or(0),
            None => 0,
        },
    };
    u64::from(second) << BLOCK | u64::from(found_in(first, byte))
}

/// Returns a number with a bit for each byte of the block that equals `byte`.
#[inline]
fn found_in(block: &[u8; BLOCK], byte: u8) -> u32 {
    let (halves, _) = block.as_chunks::<HALF>();
    found_in_half(&halves[0], byte) | found_in_half(&halves[1], byte) << HALF
}

/// Does the same for bytes that are fewer than a block: two looks that overlap, no loop.
#[inline]
fn found_in_few(bytes: &[u8], byte: u8) -> u32 {
    if let (Some(head), Some(tail)) = (bytes.first_chunk::<HALF>(), bytes.last_chunk::<HALF>()) {
        return found_in_half(head, byte) | found_in_half(tail, byte) << (bytes.len() - HALF);
    }
    if let (Some(head), Some(tail)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        return found_in_word(*head, byte) | found_in_word(*tail, byte) << (bytes.len() - 8);
    }
    bytes.iter().enumerate().fold(0, |found, (at, b)| found | u32::from(*b == byte) << at)
}

/// Does the same for eight bytes.
#[inline]
fn found_in_word(word: [u8; 8], byte: u8) -> u32 {
    let other = u64::from_le_bytes(word) ^ (ONES * u64::from(byte));
    // Unlike `marks`, which may be wrong above the lowest one, no sum of a byte reaches the next.
    let differs = ((other & !HIGHS) + !HIGHS) | other;
    let equal = (!differs & HIGHS) >> 7;
    // One bit of each byte, gathered in the highest byte.
    (equal.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[allow(unsafe_code)]
fn found_in_half(bytes: &[u8; HALF], byte: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: there are the 16 bytes that are read, and every x86-64 processor has SSE2.
    unsafe {
        let found = _mm_cmpeq_epi8(_mm_loadu_si128(bytes.as_ptr().cast()), _mm_set1_epi8(byte.cast_signed()));
        _mm_movemask_epi8(found).cast_unsigned()
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn found_in_half(bytes: &[u8; HALF], byte: u8) -> u32 {
    bytes.iter().enumerate().fold(0, |found, (at, b)| found | u32::from(*b == byte) << at)
}

/// Returns the offset of the first blank from `at` on, or the length.
#[inline]
pub(super) fn find_blank(bytes: &[u8], at: usize) -> usize {
    let found = |word| marks(word, b' ') | marks(word, b'\t') | marks(word, b'\n');
    find(bytes, at, found, is_blank)
}

/// Returns the offset of the first byte from `at` on that is not an ASCII digit, or the length.
#[inline]
pub(super) fn find_non_digit(bytes: &[u8], at: usize) -> usize {
    let found = |word: u64| {
        let value = word ^ (ONES * u64::from(b'0'));
        (((value & !HIGHS) + ONES * (0x80 - 10)) | value) & HIGHS
    };
    find(bytes, at, found, |b| !b.is_ascii_digit())
}

/// Returns the number of the first eight of these digits; fewer are padded with zeros at the end.
#[inline]
pub(super) fn eight_digits(digits: &[u8]) -> u64 {
    // Pairs, then fours, then all: each multiplication adds ten, a hundred, ten thousand times the
    // left neighbor.
    let ones = load(digits).swap_bytes() & (ONES * 0x0f);
    let pairs = (ones.wrapping_mul(10 * 256 + 1) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100 * 65536 + 1) >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul((10_000 << 32) + 1) >> 32
}

/// Compares like `memcmp`, then by length, with letters folded to uppercase.
pub(super) fn compare_folded(a: &[u8], b: &[u8]) -> Ordering {
    let common = a.len().min(b.len());
    let (mut a_words, mut b_words) = (a[..common].chunks(8), b[..common].chunks(8));
    while let (Some(x), Some(y)) = (a_words.next(), b_words.next()) {
        match fold(load(x)).cmp(&fold(load(y))) {
            Ordering::Equal => {}
            other => return other,
        }
    }
    a.len().cmp(&b.len())
}

/// Compares the bytes that `ignore` keeps, folded or not, in one pass and without a copy.
pub(super) fn compare_ignoring(a: &[u8], b: &[u8], ignore: Ignore, folded: bool) -> Ordering {
    kept(a, ignore, folded).cmp(kept(b, ignore, folded))
}

/// Returns the bytes that a key with `ignore` and -f compares.
#[inline]
pub(super) fn kept(bytes: &[u8], ignore: Ignore, folded: bool) -> impl Iterator<Item = u8> + '_ {
    let seen = bytes.iter().copied().filter(move |&b| !ignore.drops(b));
    seen.map(move |b| if folded { b.to_ascii_uppercase() } else { b })
}

/// Returns the first eight bytes that the key compares, packed as by `load`.
#[inline]
pub(super) fn load_kept(bytes: &[u8], ignore: Ignore, folded: bool) -> u64 {
    if ignore == Ignore::Nothing {
        let word = load(bytes);
        return if folded { fold(word) } else { word };
    }
    let (mut word, mut shift) = (0, 64);
    for byte in kept(bytes, ignore, folded).take(8) {
        shift -= 8;
        word |= u64::from(byte) << shift;
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive_load(bytes: &[u8]) -> u64 {
        (0..8).fold(0, |word, i| (word << 8) | u64::from(*bytes.get(i).unwrap_or(&0)))
    }

    #[test]
    fn folds_letters_and_nothing_else() {
        for byte in 0..=255u8 {
            let want = u64::from(byte.to_ascii_uppercase()) * ONES;
            assert_eq!(fold(u64::from(byte) * ONES), want, "byte {byte}");
        }
    }

    proptest! {
        #[test]
        fn loads_as_the_naive_twin(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            prop_assert_eq!(load(&bytes), naive_load(&bytes));
            let upper = bytes.to_ascii_uppercase();
            prop_assert_eq!(load_kept(&bytes, Ignore::Nothing, true), naive_load(&upper));
        }

        #[test]
        fn finds_as_the_naive_twin(bytes in prop::collection::vec(prop::sample::select(
            &[b' ', b'\t', b'\n', b'a', b'!', 0x20 ^ 0x80, 0x0b, 8, 0][..]), 0..100), at in 0usize..100)
        {
            let at = at.min(bytes.len());
            let position = |is: &dyn Fn(u8) -> bool| {
                bytes[at..].iter().position(|&b| is(b)).map_or(bytes.len(), |p| p + at)
            };
            prop_assert_eq!(find_byte(&bytes, at, b' '), position(&|b| b == b' '));
            prop_assert_eq!(find_byte(&bytes, at, 0), position(&|b| b == 0));
            prop_assert_eq!(find_blank(&bytes, at), position(&is_blank));
            // Short lines are looked at in another way than long ones.
            for len in [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65] {
                let Some(bytes) = bytes.get(..len) else { break };
                let all: Vec<usize> = (0..len).filter(|i| bytes[*i] == b' ').collect();
                let nth = |n: usize| all.get(n - 1).copied().unwrap_or(len);
                for (n, m) in [(1, 1), (1, 2), (2, 3), (3, 9)] {
                    prop_assert_eq!(find_two_of_byte(bytes, b' ', n, m), (nth(n), nth(m)), "{} {} of {}", n, m, len);
                }
            }
            for n in 1..20 {
                let all = bytes.iter().enumerate().skip(at).filter(|(_, b)| **b == b' ');
                prop_assert_eq!(find_nth_byte(&bytes, at, b' ', n), all.map(|(i, _)| i).nth(n - 1).unwrap_or(bytes.len()));
            }
            for (n, m) in [(1, 1), (1, 2), (2, 2), (2, 5), (4, 5), (7, 19)] {
                let nth = |n| find_nth_byte(&bytes, 0, b' ', n);
                prop_assert_eq!(find_two_of_byte(&bytes, b' ', n, m), (nth(n), nth(m)), "{} {}", n, m);
            }
            prop_assert_eq!(find_non_digit(&bytes, at), position(&|b| !b.is_ascii_digit()));
            let (mut upper, mut same) = (bytes.clone(), bytes.clone());
            prop_assert_eq!(fold_and_find_zero::<true>(&mut upper), bytes.contains(&0));
            prop_assert_eq!(fold_and_find_zero::<false>(&mut same), bytes.contains(&0));
            prop_assert_eq!(upper, bytes.to_ascii_uppercase());
            prop_assert_eq!(same, bytes);
        }

        #[test]
        fn digits_as_the_naive_twin(text in "[0-9]{0,20}[/:\u{80}0-9]{0,3}[0-9]{0,9}") {
            let bytes = text.as_bytes();
            let end = bytes.iter().position(|b| !b.is_ascii_digit()).unwrap_or(bytes.len());
            prop_assert_eq!(find_non_digit(bytes, 0), end);
            let eight: String = text[..end].chars().chain("00000000".chars()).take(8).collect();
            prop_assert_eq!(eight_digits(&bytes[..end]), eight.parse::<u64>().unwrap());
        }

        #[test]
        fn folded_order_is_that_of_uppercase(a in "[a-dA-D@`{\\[]{0,12}", b in "[a-dA-D@`{\\[]{0,12}") {
            let want = a.to_ascii_uppercase().cmp(&b.to_ascii_uppercase());
            prop_assert_eq!(compare_folded(a.as_bytes(), b.as_bytes()), want);
        }
    }
}
