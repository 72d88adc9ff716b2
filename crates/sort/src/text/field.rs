//! The position of a key in a line.

use super::bytes::{find_blank, find_byte, find_nth_byte, find_two_of_byte, is_blank};
use super::key_spec::{KeyEnd, KeySpec};
use crate::records::memo::{self, Question};

/// The position of a key, compiled: with a separator, or with fields that begin at their leading
/// blanks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) separator: Option<u8>,
    pub(super) field: usize,
    pub(super) offset: usize,
    pub(super) end: Option<KeyEnd>,
    pub(super) skip_start_blanks: bool,
    pub(super) skip_end_blanks: bool,
}

impl Place {
    pub(super) fn new(key: &KeySpec, separator: Option<u8>) -> Self {
        Place {
            separator,
            field: key.field,
            offset: key.offset,
            // A field beyond every possible count is the end of the line.
            end: key.end.filter(|end| end.field < usize::MAX),
            skip_start_blanks: key.modifiers.skip_start_blanks,
            skip_end_blanks: key.modifiers.skip_end_blanks,
        }
    }

    /// Whether the key is always the entire line.
    pub(super) fn is_line(&self) -> bool {
        self.field == 0 && self.offset == 0 && self.end.is_none() && !self.skip_start_blanks
    }

    /// The most bytes that the key can have, if its position in the field bounds them.
    pub(super) fn max_len(&self) -> Option<usize> {
        let end = self.end?;
        let same_blanks = self.skip_start_blanks == self.skip_end_blanks;
        let bounded = end.bytes > 0 && end.field == self.field && same_blanks;
        bounded.then(|| end.bytes.saturating_sub(self.offset))
    }

    /// Returns the key of the line; empty if it ends before it begins.
    #[inline]
    pub(super) fn slice<'a>(&self, line: &'a [u8]) -> &'a [u8] {
        let (start, limit) = self.ends(line);
        &line[start..limit.max(start)]
    }

    /// Returns the offsets of the key's begin and end; the end may be before the begin.
    #[inline]
    pub(super) fn ends(&self, line: &[u8]) -> (usize, usize) {
        if line.len() < memo::LONG {
            return self.find_ends(line);
        }
        let about = std::ptr::from_ref(self).addr();
        let question = Question { address: line.as_ptr().addr(), len: line.len(), about };
        memo::recall(question, || self.find_ends(line))
    }

    #[inline]
    fn find_ends(&self, line: &[u8]) -> (usize, usize) {
        if let (Some(separator), Some(KeyEnd { field: last, bytes: 0, .. })) = (self.separator, self.end)
            && self.field > 0
            && last >= self.field
            && self.offset == 0
            && !self.skip_start_blanks
        {
            let (before, end) = find_two_of_byte(line, separator, self.field, last + 1);
            return ((before + 1).min(line.len()), end);
        }
        let field = self.skip_fields(line, 0, self.field);
        let mut start = field;
        if self.skip_start_blanks {
            start = skip_blanks(line, start);
        }
        start = start.saturating_add(self.offset).min(line.len());
        let Some(end) = self.end else { return (start, line.len()) };
        if let (Some(separator), 0, Some(more)) = (self.separator, end.bytes, end.field.checked_sub(self.field)) {
            // The end of a field of no bytes at the end of the line is there, too.
            return (start, find_nth_byte(line, field, separator, more.saturating_add(1)));
        }
        let mut limit = match end.field.checked_sub(self.field) {
            Some(more) => self.skip_fields(line, field, more),
            None => self.skip_fields(line, 0, end.field),
        };
        if end.bytes == 0 {
            limit = self.field_end(line, limit);
        } else {
            if self.skip_end_blanks {
                limit = skip_blanks(line, limit);
            }
            limit = limit.saturating_add(end.bytes).min(line.len());
        }
        (start, limit)
    }

    /// Returns the start of the field `count` fields behind the one that starts at `at`.
    #[inline]
    fn skip_fields(&self, line: &[u8], mut at: usize, count: usize) -> usize {
        if let Some(separator) = self.separator {
            let behind = |end: usize| (end + 1).min(line.len());
            return if count == 0 { at } else { behind(find_nth_byte(line, at, separator, count)) };
        }
        for _ in 0..count {
            if at >= line.len() {
                break;
            }
            at = self.field_end(line, at);
        }
        at
    }

    /// Returns the end of the field that starts at `at`: its separator, or the blanks of the next
    /// field.
    #[inline]
    fn field_end(&self, line: &[u8], at: usize) -> usize {
        match self.separator {
            Some(separator) => find_byte(line, at, separator),
            None => find_blank(line, skip_blanks(line, at)),
        }
    }
}

#[inline]
fn skip_blanks(line: &[u8], mut at: usize) -> usize {
    while line.get(at).is_some_and(|&b| is_blank(b)) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<'a>(spec: &str, separator: Option<u8>, line: &'a str) -> &'a str {
        let place = Place::new(&KeySpec::parse(spec.as_bytes()).unwrap(), separator);
        std::str::from_utf8(place.slice(line.as_bytes())).unwrap()
    }

    #[test]
    fn fields_by_blanks_keep_their_leading_blanks() {
        assert_eq!(key("2,2", None, "a  bc d"), "  bc");
        assert_eq!(key("2b,2", None, "a  bc d"), "bc");
        assert_eq!(key("2.2,2.3", None, "a  bc d"), " b");
        assert_eq!(key("2.2b,2.2b", None, "a  bc d"), "c");
        assert_eq!(key("1,1", None, "  a b"), "  a");
        assert_eq!(key("4", None, "a b c"), "");
        assert_eq!(key("2,1", None, "a b c"), "");
    }

    #[test]
    fn fields_by_separator() {
        assert_eq!(key("2,2", Some(b':'), "a:bc:d"), "bc");
        assert_eq!(key("2", Some(b':'), "a:bc:d"), "bc:d");
        assert_eq!(key("2,3.1", Some(b':'), "a:bc:def"), "bc:d");
        assert_eq!(key("1,2", Some(b':'), "a::d"), "a:");
        assert_eq!(key("3,3", Some(b':'), "a:b"), "");
        assert_eq!(key("1.9,1", Some(b':'), "a:b"), "");
        assert_eq!(key("1.2,1.9", Some(b':'), "abc"), "bc");
    }
}
