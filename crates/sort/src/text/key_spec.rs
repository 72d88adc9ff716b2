//! The argument of -k (or of the obsolescent `+POS1 -POS2`), and the ordering letters.

use datapipes_core::{Error, ErrorKind, Result};

use super::bytes::Ignore;

/// The ordering letters of one key, or of the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Modifiers {
    /// `b` at the start: leading blanks do not count towards POS1.
    pub skip_start_blanks: bool,
    /// `b` at the end: leading blanks do not count towards POS2.
    pub skip_end_blanks: bool,
    /// `d` or `i`: the bytes that are ignored.
    pub ignore: Ignore,
    /// `f`: letters compare as uppercase.
    pub fold_case: bool,
    /// `g`: floating-point numbers.
    pub general: bool,
    /// `h`: numbers with units.
    pub human: bool,
    /// `M`: months.
    pub month: bool,
    /// `n`: decimal numbers.
    pub numeric: bool,
    /// `R`: random, with equal keys together.
    pub random: bool,
    /// `r`: descending.
    pub reverse: bool,
    /// `V`: versions.
    pub version: bool,
}

/// The end of a key that a `b` applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Start,
    End,
    Both,
}

impl Modifiers {
    /// Sets one ordering letter of the command line (there `-b` counts for both ends). Returns
    /// false for any other byte.
    pub fn set(&mut self, letter: u8) -> bool {
        self.set_for(letter, Side::Both)
    }

    fn set_for(&mut self, letter: u8, side: Side) -> bool {
        match letter {
            b'b' => {
                self.skip_start_blanks |= side != Side::End;
                self.skip_end_blanks |= side != Side::Start;
            }
            b'd' => self.ignore = Ignore::NonDictionary,
            b'f' => self.fold_case = true,
            b'g' => self.general = true,
            b'h' => self.human = true,
            // -d includes -i, in whichever order they come.
            b'i' if self.ignore == Ignore::Nothing => self.ignore = Ignore::NonPrinting,
            b'i' => {}
            b'M' => self.month = true,
            b'n' => self.numeric = true,
            b'R' => self.random = true,
            b'r' => self.reverse = true,
            b'V' => self.version = true,
            _ => return false,
        }
        true
    }

    /// Takes ordering letters from the front of the text. Returns the rest.
    fn take<'a>(&mut self, mut text: &'a [u8], side: Side) -> &'a [u8] {
        while let [letter, rest @ ..] = text
            && self.set_for(*letter, side)
        {
            text = rest;
        }
        text
    }

    /// Whether no letter but possibly `r` is set. Such a key inherits the command line's letters,
    /// if it has no `r`.
    pub fn is_default(&self) -> bool {
        Modifiers { reverse: false, ..*self } == Modifiers::default()
    }

    /// Refuses letters that exclude each other, as GNU sort does.
    pub(super) fn check(&self) -> Result<()> {
        let other = self.version || self.random || self.ignore != Ignore::Nothing;
        let kinds = [self.numeric, self.general, self.human, self.month, other];
        if kinds.iter().filter(|&&kind| kind).count() > 1 {
            return Err(invalid(format!("options '-{}' are incompatible", self.letters())));
        }
        Ok(())
    }

    /// The letters in GNU's order, without `b` and `r`.
    fn letters(&self) -> String {
        let kinds = Modifiers { skip_start_blanks: false, skip_end_blanks: false, reverse: false, ..*self };
        kinds.all_letters()
    }

    /// Returns all letters that are set, in GNU's order.
    pub fn all_letters(&self) -> String {
        let letters = [
            (self.skip_start_blanks || self.skip_end_blanks, 'b'),
            (self.ignore == Ignore::NonDictionary, 'd'),
            (self.fold_case, 'f'),
            (self.general, 'g'),
            (self.human, 'h'),
            (self.ignore == Ignore::NonPrinting, 'i'),
            (self.month, 'M'),
            (self.numeric, 'n'),
            (self.random, 'R'),
            (self.reverse, 'r'),
            (self.version, 'V'),
        ];
        letters.iter().filter(|(set, _)| *set).map(|(_, letter)| letter).collect()
    }
}

/// The end of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyEnd {
    /// The field, from 0.
    pub field: usize,
    /// How many bytes of that field belong to the key; 0 for all.
    pub bytes: usize,
}

/// A key: where it begins and ends in a line, and how it is compared.
///
/// ```
/// use datapipes_sort::text::KeySpec;
/// let key = KeySpec::parse(b"2.3,4nr").unwrap();
/// assert_eq!((key.field, key.offset, key.end.unwrap().field), (1, 2, 3));
/// assert!(key.modifiers.numeric && key.modifiers.reverse);
/// let error = KeySpec::parse(b"0").unwrap_err();
/// assert_eq!(error.context(), "field number is zero: invalid field specification '0'");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeySpec {
    /// The first field, from 0.
    pub field: usize,
    /// Bytes skipped in that field.
    pub offset: usize,
    /// The end of the key; `None` for the end of the line.
    pub end: Option<KeyEnd>,
    /// The ordering letters of the key.
    pub modifiers: Modifiers,
    /// Whether the key was written as `+POS1 -POS2`.
    pub obsolescent: bool,
}

impl KeySpec {
    /// Parses the argument of -k: `FIELD[.BYTE][LETTERS][,FIELD[.BYTE][LETTERS]]`, counted from 1.
    ///
    /// Errors are `InvalidInput` with GNU's message as their context.
    pub fn parse(spec: &[u8]) -> Result<KeySpec> {
        let mut key = KeySpec::default();
        let (field, mut rest) = count(spec, "invalid number at field start")?;
        key.field = field.checked_sub(1).ok_or_else(|| bad_spec("field number is zero", spec))?;
        if let [b'.', behind @ ..] = rest {
            let (offset, behind) = count(behind, "invalid number after '.'")?;
            key.offset = offset.checked_sub(1).ok_or_else(|| bad_spec("character offset is zero", spec))?;
            rest = behind;
        }
        rest = key.modifiers.take(rest, Side::Start);
        if let [b',', behind @ ..] = rest {
            let (field, behind) = count(behind, "invalid number after ','")?;
            let field = field.checked_sub(1).ok_or_else(|| bad_spec("field number is zero", spec))?;
            let (bytes, behind) = bytes_of_end(behind)?;
            key.end = Some(KeyEnd { field, bytes });
            rest = key.modifiers.take(behind, Side::End);
        }
        if rest.is_empty() { Ok(key) } else { Err(bad_spec("stray character in field spec", spec)) }
    }

    /// Parses the obsolescent `+POS1`, counted from 0; `None` if the operand is a file's name
    /// instead.
    pub fn parse_plus(operand: &[u8]) -> Option<KeySpec> {
        let mut key = KeySpec { obsolescent: true, ..KeySpec::default() };
        let mut rest;
        (key.field, rest) = leading_number(operand.strip_prefix(b"+")?)?;
        if let [b'.', behind @ ..] = rest {
            (key.offset, rest) = leading_number(behind)?;
        }
        key.modifiers.take(rest, Side::Start).is_empty().then_some(key)
    }

    /// Adds the obsolescent `-POS2` to a key of [`KeySpec::parse_plus`].
    pub fn end_minus(mut self, operand: &[u8]) -> Result<KeySpec> {
        let (mut field, rest) = count(operand.get(1..).unwrap_or_default(), "invalid number after '-'")?;
        let (bytes, rest) = bytes_of_end(rest)?;
        if bytes == 0 {
            field = field.saturating_sub(1);
        }
        if !self.modifiers.take(rest, Side::End).is_empty() {
            return Err(bad_spec("stray character in field spec", operand));
        }
        self.end = Some(KeyEnd { field, bytes });
        Ok(self)
    }
}

/// Parses the `.BYTE` of an end; 0 if there is none.
fn bytes_of_end(text: &[u8]) -> Result<(usize, &[u8])> {
    match text {
        [b'.', behind @ ..] => count(behind, "invalid number after '.'"),
        _ => Ok((0, text)),
    }
}

/// Reads a number as `strtoumax` does, saturating. Returns it and the rest; `None` without digits.
pub(super) fn leading_number(text: &[u8]) -> Option<(usize, &[u8])> {
    let (digits, rest) = leading_digits(text)?;
    let add = |n: usize, &digit: &u8| n.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
    Some((digits.iter().fold(0, add), rest))
}

/// Returns the digits behind blanks and a plus, and what follows them; `None` if there is no digit.
pub(super) fn leading_digits(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_space = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    let text = &text[text.iter().position(|b| !is_space(b)).unwrap_or(text.len())..];
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let split = text.split_at(text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len()));
    (!split.0.is_empty()).then_some(split)
}

fn count<'a>(text: &'a [u8], message: &str) -> Result<(usize, &'a [u8])> {
    let error = || invalid(format!("{message}: invalid count at start of {}", quote(text)));
    leading_number(text).ok_or_else(error)
}

fn bad_spec(message: &str, spec: &[u8]) -> Error {
    invalid(format!("{message}: invalid field specification {}", quote(spec)))
}

fn invalid(context: String) -> Error {
    Error::new(ErrorKind::InvalidInput, "parse key", context)
}

/// Returns the text in single quotes, as GNU shows arguments in the C locale: with C escapes, and
/// octal for other unprintable bytes.
pub fn quote(text: &[u8]) -> String {
    let mut quoted = String::from("'");
    for &byte in text {
        match byte {
            b'\'' | b'\\' => quoted.extend(['\\', byte as char]),
            b' '..=b'~' => quoted.push(byte as char),
            7..=13 => quoted.extend(['\\', char::from(b"abtnvfr"[usize::from(byte - 7)])]),
            _ => quoted.push_str(&format!("\\{byte:03o}")),
        }
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(spec: &[u8]) -> String {
        KeySpec::parse(spec).unwrap_err().context().to_owned()
    }

    #[test]
    fn messages_are_those_of_gnu() {
        assert_eq!(message(b"1.0"), "character offset is zero: invalid field specification '1.0'");
        assert_eq!(message(b"1,0"), "field number is zero: invalid field specification '1,0'");
        assert_eq!(message(b"1,x"), "invalid number after ',': invalid count at start of 'x'");
        assert_eq!(message(b"-1"), "invalid number at field start: invalid count at start of '-1'");
        assert_eq!(message(b"1z"), "stray character in field spec: invalid field specification '1z'");
        assert_eq!(message(b"1'\n"), "stray character in field spec: invalid field specification '1\\'\\n'");
    }

    #[test]
    fn ends_and_sides() {
        let key = KeySpec::parse(b"1b,3.0bn").unwrap();
        assert_eq!(key.end, Some(KeyEnd { field: 2, bytes: 0 }));
        assert!(key.modifiers.skip_start_blanks && key.modifiers.skip_end_blanks && key.modifiers.numeric);
        let huge = KeySpec::parse(b"99999999999999999999999").unwrap();
        assert_eq!(huge.field, usize::MAX - 1);
    }

    #[test]
    fn obsolescent_positions() {
        let key = KeySpec::parse_plus(b"+1.2n").unwrap();
        assert_eq!((key.field, key.offset, key.end), (1, 2, None));
        assert_eq!(key.end_minus(b"-3").unwrap().end, Some(KeyEnd { field: 2, bytes: 0 }));
        assert_eq!(key.end_minus(b"-3.1").unwrap().end, Some(KeyEnd { field: 3, bytes: 1 }));
        assert_eq!(key.end_minus(b"-0").unwrap().end, Some(KeyEnd { field: 0, bytes: 0 }));
        assert!(KeySpec::parse_plus(b"+file").is_none());
        assert!(KeySpec::parse_plus(b"+1file").is_none());
    }

    #[test]
    fn incompatible_letters() {
        let message = |letters: &[u8]| {
            let mut modifiers = Modifiers::default();
            assert!(letters.iter().all(|&letter| modifiers.set(letter)));
            modifiers.check().map_err(|e| e.context().to_owned())
        };
        assert_eq!(message(b"gdbr"), Err("options '-dg' are incompatible".into()));
        assert_eq!(message(b"nfM"), Err("options '-fMn' are incompatible".into()));
        assert_eq!(message(b"Rn"), Err("options '-nR' are incompatible".into()));
        assert_eq!(message(b"RVdf"), Ok(()));
        assert_eq!(message(b"Vdfbr"), Ok(()));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..20), near in "[-+ ]?[0-9]{0,30}[.,]?[0-9]{0,22}[bdfn,]{0,3}[0-9.]{0,5}x?") {
            for text in [&bytes[..], near.as_bytes()] {
                let _ = KeySpec::parse(text);
                let _ = KeySpec::parse_plus(text).map(|key| key.end_minus(text));
                let _ = KeySpec::default().end_minus(text);
            }
        }
    }
}
