//! Lines that are read piece by piece, because they are too long for the memory: their keys, and
//! their order.
//!
//! ```text
//! key of a line = prefix | is it whole? | what the prefix lacks of the normalized keys
//! ```
//! A key of text is cut behind `most` bytes and one more. So its order to every key of a line that
//! has at most `most` bytes is known. Where the keys of two long lines are cut and agree, the lines
//! are compared from the start. A number or a version is read as a whole, and must fit `most`
//! bytes.

use std::cmp::Ordering;

use datapipes_core::{Error, ErrorKind, Result};
use md5::{Digest, Md5};

use crate::long::MAX_KEY;

use super::super::bytes::{Ignore, is_blank};
use super::super::field::Place;
use super::super::{general, number};
use super::{Key, Rule, Shape, TextOrder, complement, push_bytes};

/// A line without its terminator, read piece by piece.
pub(crate) trait PiecedLine {
    /// Its bytes.
    fn len(&self) -> u64;

    /// Returns bytes from offset `from` on: at least one, or none at the end.
    fn piece(&mut self, from: u64) -> Result<&[u8]>;
}

/// What is known of a line's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineKey {
    pub(crate) prefix: u64,
    /// Whether no key was cut.
    pub(crate) whole: bool,
    /// What the prefix lacks.
    pub(crate) behind: Vec<u8>,
}

/// The bytes of one key, as far as they are looked at.
struct KeyText {
    text: Vec<u8>,
    cut: bool,
    /// The digest of all bytes, for -R.
    digest: Option<[u8; 16]>,
}

/// Whether a number of `len` bytes ends within a text that was cut. A sign or a point at the cut
/// may be the begin of one.
fn number_ends(text: &[u8], len: usize) -> bool {
    len < text.len() && !matches!(text, [b'-'] | [b'.'] | [b'-', b'.'])
}

/// The same of a number of -g. What follows it at the cut may be the begin of its exponent, or of
/// the digits of a hexadecimal one, and a short text may be the begin of a word.
fn general_ends(text: &[u8], len: usize) -> bool {
    const MAX_WORD: usize = b"-infinity".len();
    let Some(rest) = text.get(len..).filter(|rest| !rest.is_empty()) else { return false };
    let may_go_on = matches!(
        rest,
        [b'e' | b'E' | b'p' | b'P'] | [b'e' | b'E' | b'p' | b'P', b'+' | b'-'] | [b'x' | b'X'] | [b'x' | b'X', b'.']
    );
    !may_go_on && (len > 0 || text.len() >= MAX_WORD)
}

/// The first offset from `from` on whose byte is wanted, or the length.
fn find(line: &mut dyn PiecedLine, from: u64, wanted: impl Fn(u8) -> bool) -> Result<u64> {
    let mut at = from;
    loop {
        let piece = line.piece(at)?;
        if piece.is_empty() {
            return Ok(at);
        }
        match piece.iter().position(|byte| wanted(*byte)) {
            Some(found) => return Ok(at + found as u64),
            None => at += piece.len() as u64,
        }
    }
}

/// Calls `f` with the bytes of a range, piece by piece, until it returns false.
fn each_piece(line: &mut dyn PiecedLine, from: u64, to: u64, mut f: impl FnMut(&[u8]) -> bool) -> Result<()> {
    let mut at = from;
    while at < to {
        let piece = line.piece(at)?;
        let len = piece.len().min(usize::try_from(to - at).unwrap_or(usize::MAX));
        if len == 0 || !f(&piece[..len]) {
            break;
        }
        at += len as u64;
    }
    Ok(())
}

impl Place {
    /// Does the same as [`ends`](Place::ends).
    fn ends_in(&self, line: &mut dyn PiecedLine) -> Result<(u64, u64)> {
        let field = self.skip_fields_in(line, 0, self.field)?;
        let mut start = field;
        if self.skip_start_blanks {
            start = find(line, start, |byte| !is_blank(byte))?;
        }
        start = start.saturating_add(self.offset as u64).min(line.len());
        let Some(end) = self.end else { return Ok((start, line.len())) };
        let mut limit = match end.field.checked_sub(self.field) {
            Some(more) => self.skip_fields_in(line, field, more)?,
            None => self.skip_fields_in(line, 0, end.field)?,
        };
        if end.bytes == 0 {
            limit = self.field_end_in(line, limit)?;
        } else {
            if self.skip_end_blanks {
                limit = find(line, limit, |byte| !is_blank(byte))?;
            }
            limit = limit.saturating_add(end.bytes as u64).min(line.len());
        }
        Ok((start, limit.max(start)))
    }

    fn skip_fields_in(&self, line: &mut dyn PiecedLine, mut at: u64, count: usize) -> Result<u64> {
        for _ in 0..count {
            if at >= line.len() {
                break;
            }
            at = self.field_end_in(line, at)?;
            if self.separator.is_some() && at < line.len() {
                at += 1;
            }
        }
        Ok(at)
    }

    fn field_end_in(&self, line: &mut dyn PiecedLine, at: u64) -> Result<u64> {
        match self.separator {
            Some(separator) => find(line, at, |byte| byte == separator),
            None => {
                let text = find(line, at, |byte| !is_blank(byte))?;
                find(line, text, is_blank)
            }
        }
    }
}

impl Key {
    /// The bytes that it ignores, and whether it folds the others.
    fn filter(&self) -> (Ignore, bool) {
        match self.rule {
            Rule::Folded => (Ignore::Nothing, true),
            Rule::Ignoring { ignore, folded } | Rule::Random { ignore, folded, .. } => (ignore, folded),
            _ => (Ignore::Nothing, false),
        }
    }

    fn text_of(&self, line: &mut dyn PiecedLine, most: usize) -> Result<KeyText> {
        let (mut start, limit) = self.place.ends_in(line)?;
        let mut text = Vec::new();
        let mut digest = None;
        let mut is_long = false;
        match self.rule {
            Rule::Bytes | Rule::Folded | Rule::Ignoring { .. } => {
                let (ignore, folded) = self.filter();
                each_piece(line, start, limit, |piece| {
                    let missing = most.saturating_add(1) - text.len();
                    text.extend(super::kept(piece, ignore, folded).take(missing));
                    text.len() <= most
                })?;
            }
            Rule::Random { salt, ignore, folded } => {
                let mut md5 = Md5::new().chain_update(salt);
                let mut seen = Vec::new();
                each_piece(line, start, limit, |piece| {
                    for part in piece.chunks(4096) {
                        seen.clear();
                        seen.extend(super::kept(part, ignore, folded));
                        md5.update(&seen);
                        text.extend(seen.iter().take(most.saturating_add(1) - text.len()));
                    }
                    true
                })?;
                digest = Some(md5.finalize().into());
            }
            Rule::Short { .. }
            | Rule::Numeric
            | Rule::General
            | Rule::Human { .. }
            | Rule::Month
            | Rule::Version { .. } => {
                if !matches!(self.rule, Rule::Short { .. } | Rule::Version { .. }) {
                    let space = |byte: u8| is_blank(byte) || byte.is_ascii_whitespace() || byte == 0x0b;
                    let general = matches!(self.rule, Rule::General);
                    start = find(line, start, |byte| if general { !space(byte) } else { !is_blank(byte) })?.min(limit);
                }
                is_long = limit - start > most as u64;
                each_piece(line, start, limit, |piece| {
                    let missing = most.saturating_add(1) - text.len();
                    text.extend(&piece[..piece.len().min(missing)]);
                    text.len() <= most
                })?;
            }
        }
        let ends = match self.rule {
            Rule::Numeric => number_ends(&text, number::len(&text, false)),
            Rule::Human { .. } => number_ends(&text, number::len(&text, true)),
            Rule::General => general_ends(&text, general::len(&text)),
            Rule::Month => true,
            _ => false,
        };
        if is_long && !ends {
            let context = format!("the key of a line of {} bytes: a number or version of more than {most}", line.len());
            let (len, most) = (limit - start, MAX_KEY as u64);
            let advice = match len <= most {
                true => format!("{} bytes of memory (`memory_bytes`) would be enough for it", len.saturating_mul(64)),
                false => format!("more than {most} are compared only where the whole input fits (`memory_bytes`)"),
            };
            return Err(Error::new(ErrorKind::OutOfMemory, "sort", context).with_advice(advice));
        }
        let cut = text.len() > most && !is_long;
        Ok(KeyText { text, cut, digest })
    }

    fn word_of_key(&self, key: &KeyText) -> u64 {
        match key.digest.as_ref().and_then(|digest| digest.first_chunk::<8>()) {
            Some(first) => self.directed(u64::from_be_bytes(*first)),
            None => self.word_of(&key.text),
        }
    }

    /// Appends the key, or what `word` lacks of it. A key that was cut has no end.
    fn push_key(&self, key: &KeyText, word: Option<u64>, out: &mut Vec<u8>) {
        let from = out.len();
        match (key.digest, word) {
            (Some(digest), _) => {
                out.extend_from_slice(&digest);
                push_bytes::<false>(&key.text, usize::MAX, out);
                if self.reverse {
                    complement(&mut out[from..]);
                }
            }
            (None, Some(word)) => self.push_behind_word_of(&key.text, word, usize::MAX, out),
            (None, None) => self.push_text(&key.text, usize::MAX, out),
        }
        if key.cut {
            // The two bytes of the end.
            out.truncate(out.len().saturating_sub(2).max(from));
        }
    }

    fn compare_in(&self, a: &mut dyn PiecedLine, b: &mut dyn PiecedLine, most: usize) -> Result<Ordering> {
        let order = match self.rule {
            Rule::Bytes | Rule::Folded | Rule::Ignoring { .. } | Rule::Random { .. } => {
                let digests = match self.rule {
                    Rule::Random { .. } => self.text_of(a, 0)?.digest.cmp(&self.text_of(b, 0)?.digest),
                    _ => Ordering::Equal,
                };
                match digests {
                    Ordering::Equal => compare_kept(KeptBytes::of(self, a)?, KeptBytes::of(self, b)?)?,
                    order => order,
                }
            }
            _ => return Ok(self.compare_texts(&self.text_of(a, most)?.text, &self.text_of(b, most)?.text)),
        };
        Ok(if self.reverse { order.reverse() } else { order })
    }
}

/// The bytes of a key that are compared.
struct KeptBytes<'l> {
    line: &'l mut dyn PiecedLine,
    at: u64,
    end: u64,
    filter: (Ignore, bool),
    kept: Vec<u8>,
    given: usize,
}

impl<'l> KeptBytes<'l> {
    fn of(key: &Key, line: &'l mut dyn PiecedLine) -> Result<KeptBytes<'l>> {
        let (at, end) = key.place.ends_in(line)?;
        Ok(KeptBytes { line, at, end, filter: key.filter(), kept: Vec::new(), given: 0 })
    }

    /// The bytes that follow; none at the end.
    fn rest(&mut self) -> Result<&[u8]> {
        while self.given == self.kept.len() && self.at < self.end {
            let piece = self.line.piece(self.at)?;
            let len = piece.len().min(4096).min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
            if len == 0 {
                break;
            }
            self.kept.clear();
            self.kept.extend(super::kept(&piece[..len], self.filter.0, self.filter.1));
            (self.at, self.given) = (self.at + len as u64, 0);
        }
        Ok(&self.kept[self.given..])
    }
}

fn compare_kept(mut a: KeptBytes<'_>, mut b: KeptBytes<'_>) -> Result<Ordering> {
    loop {
        let (x, y) = (a.rest()?, b.rest()?);
        let len = x.len().min(y.len());
        let order = x[..len].cmp(&y[..len]);
        if order != Ordering::Equal || len == 0 {
            return Ok(order.then(x.len().cmp(&y.len())));
        }
        (a.given, b.given) = (a.given + len, b.given + len);
    }
}

/// Compares the bytes of two lines.
pub(crate) fn compare_pieces(a: &mut dyn PiecedLine, b: &mut dyn PiecedLine) -> Result<Ordering> {
    let mut at = 0;
    loop {
        let (x, y) = (a.piece(at)?, b.piece(at)?);
        let len = x.len().min(y.len());
        let order = x[..len].cmp(&y[..len]);
        if order != Ordering::Equal || len == 0 {
            return Ok(order.then(x.len().cmp(&y.len())));
        }
        at += len as u64;
    }
}

impl TextOrder {
    /// Returns what is known of a line's keys, of which texts are cut behind `most` bytes.
    pub(crate) fn key_of(&self, line: &mut dyn PiecedLine, most: usize) -> Result<LineKey> {
        let Shape::Keyed { first, rest } = &self.shape else {
            return Ok(LineKey { prefix: 0, whole: true, behind: Vec::new() });
        };
        let text = first.text_of(line, most)?;
        let prefix = first.word_of_key(&text);
        let mut behind = Vec::new();
        first.push_key(&text, Some(prefix), &mut behind);
        let mut whole = !text.cut;
        for key in rest.iter() {
            if !whole {
                break;
            }
            let text = key.text_of(line, most)?;
            key.push_key(&text, None, &mut behind);
            whole = !text.cut;
        }
        Ok(LineKey { prefix, whole, behind })
    }

    /// Returns the same of a line that is in memory.
    pub(crate) fn key_of_line(&self, line: &[u8]) -> LineKey {
        let prefix = self.prefix(line);
        let mut behind = Vec::new();
        if let Shape::Keyed { first, rest } = &self.shape {
            first.push_behind_word(line, prefix, usize::MAX, &mut behind);
            rest.iter().for_each(|key| key.push(line, usize::MAX, &mut behind));
        }
        LineKey { prefix, whole: true, behind }
    }

    /// Compares two lines in full, or by their keys only.
    pub(crate) fn compare_in(
        &self,
        a: &mut dyn PiecedLine,
        b: &mut dyn PiecedLine,
        most: usize,
        keys_only: bool,
    ) -> Result<Ordering> {
        if let Shape::Keyed { first, rest } = &self.shape {
            for key in std::iter::once(first).chain(rest.iter()) {
                let order = key.compare_in(a, b, most)?;
                if order != Ordering::Equal {
                    return Ok(order);
                }
            }
            if keys_only || !self.last_resort {
                return Ok(Ordering::Equal);
            }
        }
        let order = compare_pieces(a, b)?;
        let reverse = self.plain_reverse() || !self.is_plain_bytes() && self.reverse;
        Ok(if reverse { order.reverse() } else { order })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::{KeySpec, TextOptions};

    /// A line in memory that is handed out in short pieces.
    struct Pieces<'l>(&'l [u8], usize);

    impl PiecedLine for Pieces<'_> {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }

        fn piece(&mut self, from: u64) -> Result<&[u8]> {
            let from = (from as usize).min(self.0.len());
            Ok(&self.0[from..self.0.len().min(from + self.1)])
        }
    }

    fn line() -> impl Strategy<Value = Vec<u8>> {
        let byte =
            prop_oneof![Just(b' '), Just(b','), Just(0u8), Just(b'a'), Just(b'A'), Just(b'7'), Just(b'.'), Just(b'-')];
        proptest::collection::vec(byte, 0..40)
    }

    fn cases() -> Vec<TextOrder> {
        let specs = [
            "1,1",
            "2",
            "2,2f",
            "1d",
            "2i",
            "1,1n",
            "2,2nr",
            "1h",
            "1g",
            "1M",
            "1V",
            "2,2V",
            "1R",
            "2b,2",
            "1.3,2.1",
            "2,1.9",
            "1.2b,1.4b",
        ];
        let mut cases = Vec::new();
        for spec in specs {
            for (separator, stable, reverse) in
                [(None, false, false), (Some(b','), true, false), (Some(b','), false, true)]
            {
                let mut options = TextOptions { stable, separator, salt: [3; 16], ..TextOptions::default() };
                assert!(!reverse || options.modifiers.set(b'r'));
                options.keys.push(KeySpec::parse(spec.as_bytes()).unwrap());
                options.keys.push(KeySpec::parse(b"3,3f").unwrap());
                cases.push(options.compile().unwrap());
            }
        }
        cases
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// In pieces, lines have the keys and the order that they have in one piece.
        #[test]
        fn pieces_are_the_line(a in line(), b in line(), size in 1usize..9) {
            for order in cases() {
                let key = order.key_of(&mut Pieces(&a, size), 1000).unwrap();
                prop_assert_eq!(&key, &order.key_of_line(&a), "{:?}", order);
                for keys_only in [false, true] {
                    let expected = if keys_only { order.compare_keys(&a, &b) } else { order.compare(&a, &b) };
                    let found = order.compare_in(&mut Pieces(&a, size), &mut Pieces(&b, size), 1000, keys_only).unwrap();
                    prop_assert_eq!(found, expected, "{:?}", order);
                }
            }
        }

        /// A number that was cut within its exponent is refused, and never taken for another one.
        #[test]
        fn no_exponent_is_cut_off(digits in 1usize..9, most in 3usize..12, exponent in prop_oneof![
            Just("e9"), Just("E-9"), Just("e+10"), Just("p3"), Just("x1")
        ]) {
            let text = [&b"1111111111"[..digits], exponent.as_bytes(), b" z"].concat();
            let general = TextOptions { keys: vec![KeySpec::parse(b"1,1g").unwrap()], ..TextOptions::default() };
            let order = general.compile().unwrap();
            if let Ok(key) = order.key_of(&mut Pieces(&text, 5), most) {
                let whole = order.key_of_line(&text);
                prop_assert_eq!((key.prefix, &key.behind), (whole.prefix, &whole.behind));
            }
        }

        /// A key that was cut has the order of the whole one to each line that is not longer than
        /// the cut.
        #[test]
        fn cut_keys_decide_against_short_lines(a in line(), b in line(), most in 1usize..12) {
            let b = &b[..b.len().min(most)];
            for order in cases() {
                let Ok(key) = order.key_of(&mut Pieces(&a, 5), most) else { continue };
                let other = order.key_of_line(b);
                let found = (key.prefix, &key.behind).cmp(&(other.prefix, &other.behind));
                prop_assert_eq!(found, order.compare_keys(&a, b), "{:?} {:?}", order, key);
            }
        }
    }
}
