//! Offset-value codes: the comparison of two lines becomes a comparison of two integers.
//!
//! A code describes a line beside another line that does not come after it, its base: in which
//! chunk of six bytes the line first differs from the base, and which bytes the line has there.
//!
//! ```text
//! bit 63          52 51                     4 3                 0
//!    | 0xFFF - chunk | the chunk's six bytes | how many are there |    smaller comes first
//! ```
//!
//! If two lines have different codes beside one base, the codes have the order of the lines. The
//! code of the later line is then also its code beside the earlier one. So a tournament in which
//! every entrant is coded beside the last winner compares lines only where codes are equal, and
//! only from the coded chunk on. The line that loses there gets its code beside the line that won.
//!
//! Chunks lie at multiples of six, because offsets of single bytes would break that rule as soon as
//! a code has several bytes. A line that ends within a chunk is padded with zeros; the count tells
//! it from a line that has zeros there.
//!
//! Lines that are the same once their letters are folded may have an order by their bytes. The
//! chunks of these bytes are then numbered on behind those of the folded line. The base has as many
//! chunks as they have, so no chunk has two meanings beside one base.
//!
//! Sources: W. M. Conner, "Offset value coding", IBM Technical Disclosure Bulletin 20(7), 1977;
//! G. Graefe and T. Do, "Offset-value coding in database query processing", EDBT 2023, and "Robust
//! and efficient sorting with offset-value coding", ACM TODS 48(1), 2023.

use std::cmp::Ordering;

use super::words::{common_folded_prefix, common_prefix, fold, word};

/// Bytes of a chunk.
const CHUNK: usize = 6;
/// The chunks that codes tell apart.
const CHUNKS: usize = 0xffe;
/// Bytes of the chunks that codes tell apart. All that follows is one more chunk, of which codes
/// have no bytes.
pub(crate) const CODED_LEN: usize = CHUNKS * CHUNK;

const CHUNK_SHIFT: u32 = 52;
const VALUE_SHIFT: u32 = 4;
const COUNT_MASK: u64 = 0xf;
/// The bits of the value and of the count, of which three are used.
const DESCENDING: u64 = ((1 << CHUNK_SHIFT) - 1) ^ 8;
/// A line that agrees with its base in all chunks that codes tell apart.
const DEEP: u64 = code_bits(CHUNKS, 0, CHUNK);
/// A line that equals its base, and is shorter than [`CODED_LEN`].
const EQUAL: u64 = 0;

/// The code of a source that has no more lines. It is larger than that of any line.
pub(crate) const EXHAUSTED: u64 = u64::MAX;

const fn code_bits(chunk: usize, value: u64, count: usize) -> u64 {
    (0xfff - chunk as u64) << CHUNK_SHIFT | value << VALUE_SHIFT | count as u64
}

/// The direction of the order in which lines are coded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coding {
    reverse: bool,
    /// Whether letters are folded.
    folded: bool,
    /// The order of lines that are equal once they are folded.
    ties: Option<TieOrder>,
    /// Bytes of a line that codes look at.
    coded_len: usize,
}

/// The order of lines by their bytes, where folded letters tell them apart no more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TieOrder {
    pub(crate) reverse: bool,
    /// The longest line that has such an order, in bytes.
    pub(crate) most: usize,
}

/// The outcome of a match between lines with equal codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) order: Ordering,
    /// The code of the later line beside the earlier one.
    pub(crate) later: u64,
}

impl Coding {
    pub(crate) fn new(reverse: bool) -> Coding {
        Coding { reverse, folded: false, ties: None, coded_len: CODED_LEN }
    }

    /// Codes for lines whose letters are folded.
    pub(crate) fn of_folded(reverse: bool, ties: Option<TieOrder>) -> Coding {
        Coding { folded: true, ties, ..Coding::new(reverse) }
    }

    /// The order of a line by its bytes among those that are equal to it once they are folded, if
    /// codes have it; then, whether it is descending.
    #[inline]
    pub(crate) fn tie_order(self, line: &[u8]) -> Option<bool> {
        self.ties.filter(|ties| line.len() <= ties.most && line.len() < self.coded_len).map(|ties| ties.reverse)
    }

    #[inline]
    pub(crate) fn is_folded(self) -> bool {
        self.folded
    }

    /// Eight bytes of a line from `at` on, as they are compared.
    #[inline]
    pub(crate) fn word(self, line: &[u8], at: usize) -> u64 {
        let word = word(line, at);
        if self.folded { fold(word) } else { word }
    }

    /// The number of bytes in which two lines agree. They agree in the first `from`.
    #[inline]
    pub(crate) fn agreed(self, a: &[u8], b: &[u8], from: usize) -> usize {
        if self.folded { common_folded_prefix(a, b, from) } else { common_prefix(a, b, from) }
    }

    /// Codes for the first `coded_len` bytes of ascending lines, a multiple of a chunk.
    pub(crate) fn of_first(coded_len: usize) -> Coding {
        Coding { coded_len: (coded_len / CHUNK * CHUNK).min(CODED_LEN), ..Coding::new(false) }
    }

    /// Whether the code says only that a line agrees with its base in all bytes that codes look at.
    #[inline]
    pub(crate) fn is_deep(self, code: u64) -> bool {
        self.direct(code) == DEEP
    }

    pub(crate) fn is_descending(self) -> bool {
        self.reverse
    }

    /// Returns a number whose order is that of eight bytes of a line.
    #[inline]
    pub(crate) fn directed(self, word: u64) -> u64 {
        if self.reverse { !word } else { word }
    }

    /// The first line of a source, which has no base. All sources of a tournament begin so.
    #[inline]
    pub(crate) fn first(self, line: &[u8]) -> u64 {
        self.differing(line, 0)
    }

    /// A line beside its base, of which only the first [`CODED_LEN`] bytes are looked at.
    #[inline]
    pub(crate) fn beside(self, base: &[u8], line: &[u8]) -> u64 {
        let base = &base[..base.len().min(self.coded_len)];
        let agreed = self.agreed(base, line, 0);
        let equal = agreed == base.len() && agreed == line.len();
        match self.tie_order(line) {
            Some(reverse) if equal => self.among_ties(reverse, line, common_prefix(base, line, 0)),
            _ => self.after_agreeing(line, agreed, equal),
        }
    }

    /// The code of a line beside its base, if their first eight bytes, given as big-endian numbers,
    /// differ in the first chunk. Both lines have these bytes.
    #[inline]
    pub(crate) fn of_words(self, base: u64, line: u64) -> Option<u64> {
        ((base ^ line) >> 16 != 0).then(|| self.direct(code_bits(0, line >> 16, CHUNK)))
    }

    /// Compares lines whose codes beside the same base are equal.
    #[inline]
    pub(crate) fn settle(self, code: u64, a: &[u8], b: &[u8]) -> Settled {
        if self.ties.is_some() { self.settle_tied(code, a, b) } else { self.settle_once(code, a, b) }
    }

    fn settle_once(self, code: u64, a: &[u8], b: &[u8]) -> Settled {
        let bits = self.direct(code);
        if bits & COUNT_MASK < CHUNK as u64 {
            return Settled { order: Ordering::Equal, later: code_of_equal(self) };
        }
        let chunk = 0xfff - (bits >> CHUNK_SHIFT) as usize;
        let agreed = self.agreed(a, b, ((chunk + 1) * CHUNK).min(self.coded_len));
        let order = self.order_at(a, b, agreed);
        let later = if order == Ordering::Less { b } else { a };
        Settled { order, later: self.after_agreeing(later, agreed, order == Ordering::Equal) }
    }

    /// Does the same where lines that are equal once they are folded may have an order.
    fn settle_tied(self, code: u64, a: &[u8], b: &[u8]) -> Settled {
        let Some(reverse) = self.tie_order(a).filter(|_| a.len() == b.len()) else {
            return self.settle_once(code, a, b);
        };
        let chunk = 0xfff - (code >> CHUNK_SHIFT) as usize;
        if chunk > CHUNKS {
            return Settled { order: Ordering::Equal, later: code };
        }
        let behind = a.len() / CHUNK + 1;
        let mut from = 0;
        if chunk >= CHUNKS {
            // Only chunks of ties are that far behind in such lines.
        } else if chunk >= behind {
            from = ((chunk - behind + 1) * CHUNK).min(a.len());
        } else {
            let agreed = self.agreed(a, b, ((chunk + 1) * CHUNK).min(a.len()));
            if agreed < a.len() {
                let order = self.order_at(a, b, agreed);
                let later = if order == Ordering::Less { b } else { a };
                return Settled { order, later: self.differing(later, agreed) };
            }
        }
        let agreed = common_prefix(a, b, from);
        let order = a.get(agreed).cmp(&b.get(agreed));
        let order = if reverse { order.reverse() } else { order };
        let later = if order == Ordering::Less { b } else { a };
        Settled { order, later: self.among_ties(reverse, later, agreed) }
    }

    /// The code of a line that equals its base once both are folded, and agrees with it in `agreed`
    /// bytes.
    fn among_ties(self, reverse: bool, line: &[u8], agreed: usize) -> u64 {
        let start = agreed / CHUNK * CHUNK;
        let chunk = line.len() / CHUNK + 1 + agreed / CHUNK;
        if chunk >= CHUNKS {
            self.direct(DEEP)
        } else if agreed == line.len() {
            code_of_equal(self)
        } else {
            let bits = code_bits(chunk, word(line, start) >> 16, (line.len() - start).min(CHUNK));
            Coding::new(reverse).direct(bits)
        }
    }

    /// The order of two lines that agree in their first `agreed` bytes, and in no more.
    #[inline]
    pub(crate) fn order_at(self, a: &[u8], b: &[u8], agreed: usize) -> Ordering {
        let (a, b) = (a.get(agreed), b.get(agreed));
        let order = match self.folded {
            true => a.map(u8::to_ascii_uppercase).cmp(&b.map(u8::to_ascii_uppercase)),
            false => a.cmp(&b),
        };
        if self.reverse { order.reverse() } else { order }
    }

    /// Whether the code says that a line equals its base. `None` if the lines must be compared.
    #[inline]
    pub(crate) fn equals_base(self, code: u64) -> Option<bool> {
        match self.direct(code) {
            EQUAL => Some(true),
            DEEP => None,
            _ => Some(false),
        }
    }

    #[inline]
    fn after_agreeing(self, line: &[u8], agreed: usize, equal: bool) -> u64 {
        if agreed >= self.coded_len {
            self.direct(DEEP)
        } else if equal {
            code_of_equal(self)
        } else {
            self.differing(line, agreed)
        }
    }

    /// The code of a line that first differs from its base at byte `at`.
    #[inline]
    fn differing(self, line: &[u8], at: usize) -> u64 {
        let chunk = at / CHUNK;
        let start = chunk * CHUNK;
        let value = self.word(line, start) >> 16;
        self.direct(code_bits(chunk, value, (line.len() - start).min(CHUNK)))
    }

    /// Turns the bits of a code around if the order is descending, and back.
    #[inline]
    fn direct(self, bits: u64) -> u64 {
        if self.reverse { bits ^ DESCENDING } else { bits }
    }
}

#[inline]
fn code_of_equal(coding: Coding) -> u64 {
    coding.direct(EQUAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Coding = Coding { reverse: false, folded: false, ties: None, coded_len: CODED_LEN };
    const BOTH: [Coding; 2] = [PLAIN, Coding { reverse: true, ..PLAIN }];
    const FOLDED: [Coding; 2] = [Coding { folded: true, ..PLAIN }, Coding { reverse: true, folded: true, ..PLAIN }];

    /// Folded codes of both directions, with ties of both directions. Lines of more than 30 bytes
    /// have no order among ties.
    fn tied() -> impl Iterator<Item = Coding> {
        let ties = [(false, CODED_LEN), (true, CODED_LEN), (false, 30)];
        let ties = ties.map(|(reverse, most)| Some(TieOrder { reverse, most }));
        FOLDED.into_iter().flat_map(move |folded| ties.map(|ties| Coding { ties, ..folded }))
    }

    fn order(coding: Coding, a: &[u8], b: &[u8]) -> Ordering {
        let folded = |line: &[u8]| if coding.folded { line.to_ascii_uppercase() } else { line.to_vec() };
        let directed = |order: Ordering, reverse| if reverse { order.reverse() } else { order };
        let ties = coding.tie_order(a).map_or(Ordering::Equal, |reverse| directed(a.cmp(b), reverse));
        directed(folded(a).cmp(&folded(b)), coding.reverse).then(ties)
    }

    /// Matches `a` and `b`, coded beside `base`, as a tournament does.
    fn matched(coding: Coding, base: &[u8], a: &[u8], b: &[u8]) -> Settled {
        let (x, y) = (coding.beside(base, a), coding.beside(base, b));
        match x.cmp(&y) {
            Ordering::Equal => coding.settle(x, a, b),
            order => Settled { order, later: x.max(y) },
        }
    }

    /// The rule of the module: codes beside one base decide, and the later line gets its code
    /// beside the earlier one.
    fn assert_rule(coding: Coding, mut lines: [&[u8]; 3]) {
        lines.sort_by(|a, b| order(coding, a, b));
        let [base, a, b] = lines;
        for (a, b) in [(a, b), (b, a)] {
            let expected = order(coding, a, b);
            let (earlier, later) = if expected == Ordering::Greater { (b, a) } else { (a, b) };
            let wanted = Settled { order: expected, later: coding.beside(earlier, later) };
            let shown = || {
                format!(
                    "{coding:?}, beside {:?}: {:?} and {:?}",
                    base.escape_ascii().to_string(),
                    a.escape_ascii().to_string(),
                    b.escape_ascii().to_string()
                )
            };
            assert_eq!(matched(coding, base, a, b), wanted, "{}", shown());
            if let (Some(x), Some(y)) = (base.first_chunk(), a.first_chunk()) {
                let of_words = coding.of_words(u64::from_be_bytes(*x), u64::from_be_bytes(*y));
                let differ = base[..6] != a[..6];
                let of_bytes = differ.then(|| coding.beside(base, a));
                assert!(coding.folded || of_words == of_bytes, "{}", shown());
            }
            let first = match coding.first(a).cmp(&coding.first(b)) {
                Ordering::Equal => coding.settle(coding.first(a), a, b),
                order => Settled { order, later: coding.first(a).max(coding.first(b)) },
            };
            assert_eq!(first, wanted, "first lines, {}", shown());
        }
    }

    #[test]
    fn fields_are_where_the_picture_has_them() {
        let coding = Coding::new(false);
        assert_eq!(coding.first(b"abcdefgh"), 0xfff6_1626_3646_5666);
        assert_eq!(coding.beside(b"abcdefgh", b"abcdefgi"), 0xffe6_7690_0000_0002);
        assert_eq!(coding.first(b""), 0xfff0_0000_0000_0000);
        assert_eq!(coding.beside(b"ab", b"ab"), EQUAL);
        assert_eq!(Coding::new(true).first(b""), 0xffff_ffff_ffff_fff7);
        assert!(EXHAUSTED > Coding::new(true).first(b"") && EXHAUSTED > coding.first(&[0xff; 9]));
    }

    #[test]
    fn short_lines_of_few_bytes() {
        // Every line of at most seven zeros and ones beside every other: ends at a chunk's border,
        // zeros behind an end, empty lines.
        let lines: Vec<Vec<u8>> =
            (0..8).flat_map(|len| (0..1 << len).map(move |n| (0..len).map(|i| n >> i & 1).collect())).collect();
        for coding in BOTH {
            for (i, a) in lines.iter().enumerate().step_by(3) {
                for b in &lines[i..] {
                    assert_rule(coding, [&lines[i * 7 % lines.len()], a, b]);
                }
            }
        }
    }

    #[test]
    fn short_lines_that_differ_in_case() {
        // Every line of at most seven letters, each in both cases.
        let letter = |n: usize, i: usize| if n >> i & 1 == 0 { b'a' } else { b'A' };
        let lines: Vec<Vec<u8>> =
            (0..8).flat_map(|len| (0..1 << len).map(move |n| (0..len).map(|i| letter(n, i)).collect())).collect();
        for coding in tied() {
            for (i, a) in lines.iter().enumerate().step_by(3) {
                for b in &lines[i..] {
                    assert_rule(coding, [&lines[i * 7 % lines.len()], a, b]);
                }
            }
        }
    }

    #[test]
    fn ties_beyond_the_coded_chunks() {
        for coding in tied() {
            for len in [CODED_LEN / 2 - 7, CODED_LEN / 2, CODED_LEN - 7, CODED_LEN - 1, CODED_LEN, CODED_LEN + 7] {
                let line = |at: usize| {
                    let mut line = vec![b'x'; len];
                    line[at] = b'X';
                    line
                };
                let lines = [line(0), line(7), line(len / 2), line(len - 13), line(len - 1), vec![b'x'; len]];
                for a in &lines {
                    for b in &lines {
                        for base in &lines {
                            assert_rule(coding, [base, a, b]);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn lines_beyond_the_coded_chunks() {
        for coding in BOTH {
            for len in [CODED_LEN - 7, CODED_LEN - 6, CODED_LEN - 1, CODED_LEN, CODED_LEN + 1, CODED_LEN + 20] {
                let line = |tail: &[u8]| [&vec![b'x'; len][..], tail].concat();
                let lines = [line(b""), line(b"\0"), line(b"a"), line(b"ab"), line(b"b"), line(&[b'x'; 30])];
                for a in &lines {
                    for b in &lines {
                        for base in &lines {
                            assert_rule(coding, [base, a, b]);
                        }
                    }
                }
                // A base of which only the coded bytes were kept gives the same codes.
                for line in &lines[1..] {
                    let cut = &lines[0][..len.min(CODED_LEN)];
                    assert_eq!(coding.beside(cut, line), coding.beside(&lines[0], line), "{len}");
                }
            }
        }
    }

    #[test]
    fn only_an_equal_line_repeats_its_base() {
        for coding in BOTH {
            let long = vec![7; CODED_LEN];
            let repeats = |base: &[u8], line: &[u8]| coding.equals_base(coding.beside(base, line));
            assert_eq!(repeats(b"", b""), Some(true));
            assert_eq!(repeats(b"abcdef", b"abcdef"), Some(true));
            assert_eq!(repeats(b"abcdef", b"abcdef\0"), Some(false));
            assert_eq!(repeats(b"abcdefg", b"abcdef"), Some(false), "as in a descending order");
            assert_eq!(repeats(&long, &long), None);
            assert_eq!(repeats(&long[1..], &long[1..]), Some(true));
            assert_eq!(coding.equals_base(coding.first(b"")), Some(false), "nothing comes before the first line");
        }
    }

    /// Lines that share long prefixes and end near multiples of six and eight.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        let tail =
            proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(b'A'), Just(0xff)], 0..10);
        (prop_oneof![Just(0usize), 0usize..30, 40usize..50], tail)
            .prop_map(|(common, tail)| [&vec![b'a'; common][..], &tail].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        #[test]
        fn codes_order_lines(a in line(), b in line(), c in line()) {
            for coding in BOTH.into_iter().chain(FOLDED).chain(tied()) {
                assert_rule(coding, [&a, &b, &c]);
            }
        }
    }
}
