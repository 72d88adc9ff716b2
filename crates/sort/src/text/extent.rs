//! The part of a line that a key compares, which `sort --debug` underlines.

use std::ops::Range;

use super::bytes::is_blank;
use super::field::Place;
use super::key_spec::KeySpec;
use super::{general, number};

impl KeySpec {
    /// Returns the range of the line that this key compares; for numbers and months only the part
    /// that is parsed. If the line has no such key, the range is empty, at the offset where the key
    /// would begin.
    ///
    /// ```
    /// use datapipes_sort::text::KeySpec;
    /// let key = KeySpec::parse(b"2,2n").unwrap();
    /// assert_eq!(key.extent(None, b"a  12x"), 3..5);
    /// ```
    pub fn extent(&self, separator: Option<u8>, line: &[u8]) -> Range<usize> {
        let (mut start, limit) = Place::new(self, separator).ends(line);
        let from_line_start = self.field == 0 && self.offset == 0;
        if from_line_start {
            // Here the blanks that -b skips belong to the key.
            start = 0;
        }
        let limit = limit.max(start);
        let m = self.modifiers;
        let decimal = m.numeric || m.human;
        if !(m.skip_start_blanks && from_line_start || m.month || m.general || decimal) {
            return start..limit;
        }
        let blanks = line[start..limit].iter().take_while(|byte| is_blank(**byte)).count();
        let text = &line[start + blanks..limit];
        let len = if m.month {
            if number::month(text) > 0 { 3 } else { 0 }
        } else if m.general {
            general::len(text)
        } else if decimal {
            number::len(text, m.human)
        } else {
            text.len()
        };
        start + blanks..start + blanks + len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_of_a_key() {
        let extent = |spec: &str, separator, line: &str| {
            let range = KeySpec::parse(spec.as_bytes()).unwrap().extent(separator, line.as_bytes());
            (range.start, line[range].to_owned())
        };
        for (spec, line, at, text) in [
            ("2,2", "a  bc d", 1, "  bc"),
            ("2b,2", "a  bc d", 3, "bc"),
            ("3", "a b", 3, ""),
            ("2,1", "a b c", 1, ""),
            ("1b,1.2", "     x", 2, ""),
            ("1b", "  x y", 2, "x y"),
            ("1n", "  -1.50x", 2, "-1.50"),
            ("1n", " -x", 1, ""),
            ("1n", "5.", 0, "5."),
            ("1n", ".", 0, ""),
            ("1h", "  1.5Kb", 2, "1.5K"),
            ("1h", "7x", 0, "7"),
            ("1M", "  febr", 2, "feb"),
            ("1M", "  fe", 2, ""),
            ("1g", " 0x1fp-2z", 1, "0x1fp-2"),
            ("1g", "0x.z", 0, "0"),
            ("1g", "1e+", 0, "1"),
            ("1g", "-1.5e10e", 0, "-1.5e10"),
            ("1g", "nan(12_a)b", 0, "nan(12_a)"),
            ("1g", "nan(12", 0, "nan"),
            ("1g", "+infinit", 0, "+inf"),
            ("1g", "infinity1", 0, "infinity"),
            ("1g", "x", 0, ""),
            ("1.2,1.3n", "a123", 1, "12"),
        ] {
            assert_eq!(extent(spec, None, line), (at, text.to_owned()), "{spec} of {line:?}");
        }
        assert_eq!(extent("2,2n", Some(b':'), "a:x:1"), (2, String::new()));
    }
}
