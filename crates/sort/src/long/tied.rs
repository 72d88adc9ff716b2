//! Stubs on their way to the output. Their lines are written in their place. Those that agree in
//! all that stubs hold are put in order by the lines themselves first.

use std::cmp::Ordering;

use datapipes_core::{Error, ErrorKind, Result};

use super::stored_line::{StoredLine, read_through};
use super::{LineBuffers, LongLines};
use crate::memory::blocks::RecordWriter;
use crate::records::layout::Layout;
use crate::records::stub::{StoredPlace, Stub};
use crate::records::tally::Tally;

/// What became of stubs.
#[derive(Default)]
pub(crate) struct Written {
    pub(crate) written: Tally,
    pub(crate) dropped: Tally,
    /// How many more bytes the lines have than their stubs, modulo 2^64.
    pub(crate) extra: u64,
}

/// A line to be written.
#[derive(Clone)]
struct Waiting {
    place: StoredPlace,
    hash: u64,
}

/// Stubs that follow each other and agree in all that they hold.
pub(crate) struct TiedStubs<'t, L> {
    layout: &'t L,
    lines: &'t LongLines<'t>,
    first: Vec<u8>,
    all: Vec<Waiting>,
    /// The bytes of the stubs.
    stub_bytes: u64,
}

fn no_stub() -> Error {
    Error::new(ErrorKind::Corrupt, "merge", "a long record is not in the form that this sort gave it")
}

impl<'t, L: Layout> TiedStubs<'t, L> {
    pub(crate) fn new(layout: &'t L, lines: &'t LongLines<'t>) -> Self {
        TiedStubs { layout, lines, first: Vec::new(), all: Vec::new(), stub_bytes: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a stub agrees with those that wait; also if none waits.
    pub(crate) fn takes(&self, record: &[u8]) -> bool {
        self.all.is_empty() || self.layout.compare(&self.first, record) == Ordering::Equal
    }

    /// Adds a stub that agrees with those that wait.
    pub(crate) fn add(&mut self, record: &[u8]) -> Result<()> {
        let stub = Stub::of(record, self.lines.limit).ok_or_else(no_stub)?;
        let place = StoredPlace::of(stub.place).ok_or_else(no_stub)?;
        if self.all.is_empty() {
            self.first.clear();
            self.first.extend_from_slice(record);
        }
        self.stub_bytes += record.len() as u64;
        self.all.push(Waiting { place, hash: stub.hash });
        Ok(())
    }

    /// Writes the lines of the stubs that wait.
    pub(crate) fn write(&mut self, unique: bool, out: &mut impl RecordWriter, counts: &mut Written) -> Result<()> {
        let waiting = std::mem::take(&mut self.all);
        let stub_bytes = std::mem::take(&mut self.stub_bytes);
        counts.extra = counts.extra.wrapping_sub(stub_bytes);
        let buffers = self.lines.take_buffers()?;
        let outcome = self.write_with(&buffers, waiting, unique, out, counts);
        self.lines.give_back(buffers);
        outcome
    }

    fn write_with(
        &self,
        buffers: &LineBuffers,
        waiting: Vec<Waiting>,
        unique: bool,
        out: &mut impl RecordWriter,
        counts: &mut Written,
    ) -> Result<()> {
        let head = self.first.get(..self.lines.longest()).unwrap_or_default();
        // Plain lines share their first bytes here; keyed lines, and folded ones, need not.
        let head = if self.layout.coding().is_some_and(|coding| !coding.is_folded()) { head } else { &[] };
        let compare = |a: &Waiting, b: &Waiting, keys_only: bool| {
            let mut a = StoredLine::open(buffers, 0, head, &a.place);
            let mut b = StoredLine::open(buffers, 1, head, &b.place);
            self.layout.compare_long(&mut a, &mut b, keys_only)
        };
        let sorted = sort_by(waiting, |a, b| compare(a, b, false))?;
        let mut kept: Option<&Waiting> = None;
        for line in &sorted {
            let len = line.place.len.saturating_add(1);
            counts.extra = counts.extra.wrapping_add(len);
            let repeats = match kept {
                Some(kept) if unique => compare(kept, line, true)? == Ordering::Equal,
                _ => false,
            };
            if repeats {
                counts.dropped.add_hashed(len, line.hash);
                continue;
            }
            let end = [self.lines.terminator];
            let hash = read_through(buffers, &line.place, &end, |piece| out.push_start(piece, piece.len()))?;
            counts.written.add_hashed(len, hash);
            kept = Some(line);
        }
        Ok(())
    }
}

/// A stable sort whose comparisons may fail.
pub(crate) fn sort_by<T: Clone>(items: Vec<T>, mut compare: impl FnMut(&T, &T) -> Result<Ordering>) -> Result<Vec<T>> {
    let (mut from, mut width) = (items, 1);
    while width < from.len() {
        let mut merged = Vec::with_capacity(from.len());
        for pair in from.chunks(2 * width) {
            let (mut a, mut b) = pair.split_at(width.min(pair.len()));
            while let (Some((x, a_rest)), Some((y, b_rest))) = (a.split_first(), b.split_first()) {
                if compare(x, y)? == Ordering::Greater {
                    merged.push(y.clone());
                    b = b_rest;
                } else {
                    merged.push(x.clone());
                    a = a_rest;
                }
            }
            merged.extend_from_slice(a);
            merged.extend_from_slice(b);
        }
        (from, width) = (merged, 2 * width);
    }
    Ok(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sort_is_stable_and_hands_errors_on() {
        for n in 0..40usize {
            let items: Vec<(usize, usize)> = (0..n).map(|i| (i * 7 % 5, i)).collect();
            let mut expected = items.clone();
            expected.sort_by_key(|item| item.0);
            assert_eq!(sort_by(items, |a, b| Ok(a.0.cmp(&b.0))).unwrap(), expected);
        }
        assert!(sort_by(vec![1, 2], |_, _| Err(no_stub())).is_err());
    }
}
