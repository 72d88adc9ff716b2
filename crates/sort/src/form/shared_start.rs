//! The bytes with which all lines of an input begin, such as `https://www.`
//!
//! A prefix that is the same for all lines tells none of them apart: each line would be read again
//! to find eight bytes that do. So the first lines of an input are compared, and prefixes are taken
//! from behind what they share. Every line is checked. If one begins otherwise, prefixes are taken
//! from an earlier place, and those of the slot that is being filled are made again.

use crate::records::entry::{self, Entry};
use crate::records::layout::Layout;
use crate::records::words::common_prefix;

/// The lines that are compared with the first one.
const SAMPLE: usize = 512;
/// To skip fewer bytes gains little, and each line must be checked for it.
const MIN_SHARED: usize = 4;
/// The most bytes that are skipped, because each line is compared with them.
const MAX_SHARED: usize = 256;

/// What the lines of an input begin with, as far as they were seen.
#[derive(Debug, Default)]
pub(super) struct SharedStart {
    bytes: Vec<u8>,
    /// Whether the first lines were looked at.
    sampled: bool,
    /// Whether a line began otherwise. The next such line ends the skipping: each takes time.
    shortened: bool,
}

impl SharedStart {
    /// How many bytes of each line are skipped.
    pub(super) fn depth(&self) -> usize {
        self.bytes.len()
    }

    /// Compares the first lines of an input, unless that was done.
    pub(super) fn sample<L: Layout>(&mut self, layout: &L, bytes: &[u8]) {
        if std::mem::replace(&mut self.sampled, true) || layout.coding().is_none() {
            return;
        }
        let mut first: Option<&[u8]> = None;
        let mut left = SAMPLE;
        layout.scan(bytes, 0, |from, to| {
            let line = layout.coded_bytes(&bytes[from..to]);
            let shared = first.unwrap_or(line);
            let agreed = common_prefix(shared, line, 0).min(MAX_SHARED);
            first = Some(&shared[..agreed]);
            left -= 1;
            left > 0 && agreed >= MIN_SHARED
        });
        // A single line says nothing about others.
        self.bytes = match first {
            Some(shared) if shared.len() >= MIN_SHARED && left + 1 < SAMPLE => shared.to_vec(),
            _ => Vec::new(),
        };
    }

    /// The prefix of a record behind the bytes that are skipped; `None` if it does not begin with
    /// them.
    #[inline]
    pub(super) fn prefix<L: Layout>(&self, layout: &L, record: &[u8]) -> Option<u64> {
        match layout.coding() {
            Some(coding) if !self.bytes.is_empty() => {
                let line = layout.coded_bytes(record);
                line.starts_with(&self.bytes).then(|| coding.directed(coding.word(line, self.bytes.len())))
            }
            _ => Some(layout.prefix(record)),
        }
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
            // All of them began with more bytes than are skipped now.
            if let Some(prefix) = self.prefix(layout, &raw[at..end]) {
                *e = entry::with_prefix(*e, prefix);
            }
        }
    }
}
