//! The bytes with which most lines of an input begin, such as `https://www.`
//!
//! A prefix that is the same for all lines tells none of them apart: each line would be read again
//! to find eight bytes that do. So the first lines of an input are compared, and prefixes are taken
//! from behind what nearly all of them share. A line that begins otherwise comes before all that
//! share it, or behind them. It gets the smallest prefix or the largest one, and lines with these
//! are told apart by all of their bytes. If there are many, prefixes are taken from an earlier
//! place, and those of the slot that is being filled are made again.

use std::cmp::Ordering;

use crate::records::entry::{self, Entry};
use crate::records::layout::Layout;
use crate::records::offset_value::Coding;
use crate::records::words::common_prefix;

/// The lines that are looked at first.
const SAMPLE: usize = 512;
/// To skip fewer bytes gains little, and each line must be checked for it.
const MIN_SHARED: usize = 4;
/// The most bytes that are skipped, because each line is compared with them.
const MAX_SHARED: usize = 256;
/// One line in this many may begin otherwise; and so many lines of a slot, however many it has.
const MIN_ALIKE: usize = 3;
const FEW_OTHERS: usize = 512;

/// A prefix of a line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Prefix {
    /// The bytes behind those that lines share.
    Alike(u64),
    /// The line begins otherwise.
    Other(u64),
}

/// Whether lines with this prefix may begin otherwise, if bytes are skipped.
#[inline]
pub(super) fn may_be_other(prefix: u64) -> bool {
    prefix == 0 || prefix == u64::MAX
}

/// Whether so many lines of `all` begin otherwise that it is better to skip fewer bytes.
#[inline]
pub(super) fn are_many(others: usize, all: usize) -> bool {
    others > FEW_OTHERS && others > all / MIN_ALIKE
}

/// What the lines of an input begin with, as far as they were seen.
#[derive(Debug, Default)]
pub(super) struct SharedStart {
    bytes: Vec<u8>,
    /// Whether the first lines were looked at.
    sampled: bool,
    /// Whether many lines began otherwise. The next time ends the skipping: each takes time.
    shortened: bool,
}

impl SharedStart {
    #[cfg(test)]
    pub(super) fn of(bytes: &[u8]) -> SharedStart {
        SharedStart { bytes: bytes.to_vec(), sampled: true, shortened: false }
    }

    /// How many bytes of each line are skipped.
    pub(super) fn depth(&self) -> usize {
        self.bytes.len()
    }

    /// Compares the first lines of an input, unless that was done.
    pub(super) fn sample<L: Layout>(&mut self, layout: &L, bytes: &[u8]) {
        if std::mem::replace(&mut self.sampled, true) || layout.coding().is_none() {
            return;
        }
        let mut lines: Vec<&[u8]> = Vec::with_capacity(SAMPLE);
        layout.scan(bytes, 0, |from, to| {
            lines.push(layout.coded_bytes(&bytes[from..to]));
            lines.len() < SAMPLE
        });
        // Those that begin alike are neighbours once they are sorted.
        lines.sort_unstable();
        let others = lines.len() / MIN_ALIKE;
        let shared = (0..=others).filter_map(|i| {
            let (first, last) = (lines.get(i)?, lines.get(i + lines.len() - 1 - others)?);
            Some(&first[..common_prefix(first, last, 0).min(MAX_SHARED)])
        });
        self.bytes = match shared.max_by_key(|shared| shared.len()) {
            // A single line says nothing about others.
            Some(shared) if shared.len() >= MIN_SHARED && lines.len() > 1 => shared.to_vec(),
            _ => Vec::new(),
        };
    }

    /// The prefix of a record: what is behind the bytes that are skipped.
    #[inline]
    pub(super) fn prefix<L: Layout>(&self, layout: &L, record: &[u8]) -> Prefix {
        match layout.coding() {
            Some(coding) if !self.bytes.is_empty() => {
                let line = layout.coded_bytes(record);
                if !line.starts_with(&self.bytes) {
                    return self.other_prefix(coding, line);
                }
                Prefix::Alike(coding.directed(coding.word(line, self.bytes.len())))
            }
            _ => Prefix::Alike(layout.prefix(record)),
        }
    }

    fn other_prefix(&self, coding: Coding, line: &[u8]) -> Prefix {
        let agreed = coding.agreed(&self.bytes, line, 0);
        if agreed == self.bytes.len() {
            // Letters differ in case, and are folded.
            return Prefix::Alike(coding.directed(coding.word(line, agreed)));
        }
        let is_before = coding.order_at(line, &self.bytes, agreed) == Ordering::Less;
        Prefix::Other(if is_before { 0 } else { u64::MAX })
    }

    /// Skips no more bytes than the first record of `bytes` shares with the others, and makes the
    /// prefixes of these again.
    pub(super) fn shorten<L: Layout>(&mut self, layout: &L, record: &[u8], raw: &[u8], entries: &mut [Entry]) {
        let agreed = common_prefix(&self.bytes, layout.coded_bytes(record), 0);
        let given_up = std::mem::replace(&mut self.shortened, true) || agreed < MIN_SHARED;
        self.bytes.truncate(if given_up { 0 } else { agreed });
        for e in entries {
            let at = entry::offset(*e);
            let end = match entry::short_len(*e) {
                Some(len) => at + len,
                None => layout.end_of(raw, at).unwrap_or(raw.len()),
            };
            let (Prefix::Alike(prefix) | Prefix::Other(prefix)) = self.prefix(layout, &raw[at..end]);
            *e = entry::with_prefix(*e, prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::layout::PlainLines;

    fn sampled(lines: &[&str]) -> Vec<u8> {
        let mut shared = SharedStart::default();
        shared.sample(&PlainLines::new(b'\n', false), format!("{}\n", lines.join("\n")).as_bytes());
        shared.bytes
    }

    #[test]
    fn a_few_lines_may_begin_otherwise() {
        let url = "https://www.example.org/";
        assert_eq!(sampled(&[]), b"");
        assert_eq!(sampled(&[url]), b"");
        assert_eq!(sampled(&[url, url]), url.as_bytes());
        assert_eq!(sampled(&["https://www.", url]), b"https://www.");
        assert_eq!(sampled(&["https://www.", url, url]), url.as_bytes());
        assert_eq!(sampled(&["abc1", "abc2"]), b"");
        let alike = |others: &[&'static str], count: usize| {
            let lines: Vec<String> = (0..count).map(|i| format!("{url}{}", i % 7)).collect();
            let lines = others.iter().copied().chain(lines.iter().map(String::as_str)).collect::<Vec<_>>();
            sampled(&lines)
        };
        for others in [["", "https://w"], ["zoo", "zoo"], ["a", "https:z"]] {
            assert_eq!(alike(&others, 30), url.as_bytes(), "{others:?}");
            assert_ne!(alike(&others, 3), url.as_bytes(), "{others:?}");
        }
    }

    #[test]
    fn other_lines_are_before_all_or_behind_them() {
        for reverse in [false, true] {
            let (layout, shared) = (PlainLines::new(b'\n', reverse), SharedStart::of(b"shared"));
            let prefix = |line: &str| shared.prefix(&layout, format!("{line}\n").as_bytes());
            for (line, is_before) in [("", true), ("shar", true), ("sharec", true), ("sharee", false), ("t", false)] {
                let expected = if is_before == reverse { u64::MAX } else { 0 };
                assert!(matches!(prefix(line), Prefix::Other(prefix) if prefix == expected), "{line}, {reverse}");
            }
            let word = u64::from_be_bytes(*b"12345678");
            let expected = if reverse { !word } else { word };
            assert!(matches!(prefix("shared123456789"), Prefix::Alike(prefix) if prefix == expected));
        }
    }
}
