//! Filling a slot: chunks arrive at its bottom, entries grow down from its top, and between them is left as much room as
//! the entries take, for sorting them.
//!
//! ```text
//! | carried over | chunk | chunk | chunk (in flight) |   room   | entries <- |
//! ```

use std::collections::VecDeque;

use datapipes_core::{Dram, ErrorKind, Result};

use crate::control::{Control, count};
use crate::entry::{self, Entry};
use crate::input::{Chunk, Feed, refuse};
use crate::layout::Layout;

/// Chunks in flight at once.
const AHEAD: usize = 8;
const ALIGN: usize = 4096;
const ENTRY: usize = size_of::<Entry>();

/// A slot with records and their entries.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) arena: Dram,
    /// The bytes that hold records, from the arena's start.
    pub(crate) raw_len: usize,
    pub(crate) entries: usize,
    /// Slots filled before it.
    pub(crate) index: u64,
    /// Nothing follows.
    pub(crate) last: bool,
}

/// Bytes that a slot had no room for.
struct Carry {
    bytes: Vec<u8>,
    ends_source: bool,
}

/// Fills one slot after another.
pub(crate) struct Filler<'a, L> {
    layout: &'a L,
    feed: Feed<'a>,
    control: &'a Control,
    chunk: usize,
    carry: VecDeque<Carry>,
    /// Entries a byte, as seen so far.
    density: f64,
    records: u64,
    filled: u64,
}

/// The state of the slot that is being filled. Offsets are from the arena's start.
struct Filling<'s> {
    arena: &'s Dram,
    /// End of what was asked for.
    asked: usize,
    /// The first byte that is not in a record yet.
    parsed: usize,
    entries: usize,
    /// Set when the entries met the room they need: what follows is carried over.
    full: bool,
}

/// A stretch of bytes that arrived.
#[derive(Clone, Copy)]
struct Stretch {
    start: usize,
    end: usize,
    /// It does not go on where the stretch before it ended.
    starts: bool,
    ends_source: bool,
}

impl<'a, L: Layout> Filler<'a, L> {
    pub(crate) fn new(layout: &'a L, feed: Feed<'a>, control: &'a Control, chunk: usize) -> Self {
        let density = match layout.fixed_len() {
            Some(len) => 1.0 / len as f64,
            None => 1.0 / 16.0,
        };
        Filler { layout, feed, control, chunk, carry: VecDeque::new(), density, records: 0, filled: 0 }
    }

    /// Records parsed so far.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Whether nothing is left to fill a slot with.
    pub(crate) fn exhausted(&self) -> bool {
        self.feed.exhausted() && self.carry.is_empty()
    }

    /// Fills the arena as far as it holds records, entries and room to sort.
    pub(crate) fn fill(&mut self, arena: Dram) -> Result<Filled> {
        let base = arena.memory().at();
        let mut s = Filling { arena: &arena, asked: 0, parsed: 0, entries: 0, full: false };
        self.take_carry(&mut s)?;
        let mut flying: VecDeque<Chunk> = VecDeque::new();
        loop {
            self.control.check()?;
            while !s.full && flying.len() < AHEAD && self.has_room(&s, flying.iter().map(|c| c.len).sum()) {
                // Numbers lie without gaps; where that misaligns memory, the backend bounces.
                if self.feed.starts_source() && s.asked > 0 && self.layout.numbers().is_none() {
                    // Behind the source before there must be room for a terminator.
                    s.asked = (s.asked + 1).next_multiple_of(ALIGN);
                }
                let Some(chunk) = self.feed.next(base + s.asked, self.chunk)? else { break };
                s.asked += chunk.len;
                flying.push_back(chunk);
            }
            let Some(mut chunk) = flying.pop_front() else { break };
            chunk.wait()?;
            count(&self.control.progress.read, chunk.len as u64);
            let start = chunk.at - base;
            let (starts, ends_source) = (chunk.starts_source, chunk.ends_source);
            self.consume(&mut s, Stretch { start, end: start + chunk.len, starts, ends_source })?;
        }
        if !s.full && s.parsed < s.asked && !self.feed.starts_source() {
            let bytes = arena.range(s.parsed, s.asked - s.parsed)?.lease()?.to_vec();
            self.carry.push_back(Carry { bytes, ends_source: false });
        }
        if s.entries == 0 && !self.exhausted() {
            return Err(refuse(
                ErrorKind::OutOfMemory,
                &self.feed.current,
                format!("a record is longer than the {} bytes that memory has for one run", arena.len()),
            )
            .advice("give more memory with -S: the longest record needs less than a third of it"));
        }
        self.records += s.entries as u64;
        let (raw_len, entries, last, index) = (s.parsed, s.entries, self.exhausted(), self.filled);
        self.filled += 1;
        Ok(Filled { raw_len, entries, index, last, arena })
    }

    fn has_room(&self, s: &Filling<'_>, flying: usize) -> bool {
        if self.layout.numbers().is_some() {
            return s.asked + self.chunk + ALIGN <= s.arena.len();
        }
        let coming = ((flying + self.chunk) as f64 * self.density * 1.25) as usize + 64;
        s.asked + self.chunk + 2 * ALIGN + 2 * ENTRY * (s.entries + coming) <= s.arena.len()
    }

    /// Puts what the last slot had no room for at the start of this one.
    fn take_carry(&mut self, s: &mut Filling<'_>) -> Result<()> {
        for carry in std::mem::take(&mut self.carry) {
            // The end is aligned, because the next chunk goes there.
            let end = (s.asked + 1 + carry.bytes.len()).next_multiple_of(ALIGN);
            let start = end - carry.bytes.len();
            if end + 2 * ALIGN > s.arena.len() {
                return Err(refuse(
                    ErrorKind::OutOfMemory,
                    &self.feed.current,
                    format!("a record is longer than the {} bytes that memory has for one run", s.arena.len()),
                )
                .advice("give more memory with -S: the longest record needs less than a third of it"));
            }
            s.arena.range(start, carry.bytes.len())?.lease_mut()?.copy_from_slice(&carry.bytes);
            s.asked = end;
            self.consume(s, Stretch { start, end, starts: true, ends_source: carry.ends_source })?;
        }
        Ok(())
    }

    /// Parses a stretch, or carries it over if the slot is full.
    fn consume(&mut self, s: &mut Filling<'_>, stretch: Stretch) -> Result<()> {
        if s.full {
            let bytes = s.arena.range(stretch.start, stretch.end - stretch.start)?.lease()?;
            match self.carry.back_mut() {
                Some(back) if !stretch.starts && !back.ends_source => {
                    back.bytes.extend_from_slice(&bytes);
                    back.ends_source = stretch.ends_source;
                }
                _ => self.carry.push_back(Carry { bytes: bytes.to_vec(), ends_source: stretch.ends_source }),
            }
            return Ok(());
        }
        if stretch.starts && self.layout.numbers().is_none() {
            s.parsed = stretch.start;
        }
        let before = s.entries;
        self.parse(s, stretch.end)?;
        let rest = stretch.end - s.parsed;
        if !s.full && stretch.ends_source && rest > 0 {
            let Some(terminator) = self.layout.terminator() else {
                let len = self.layout.fixed_len().unwrap_or(1);
                return Err(refuse(
                    ErrorKind::InvalidInput,
                    &self.feed.current,
                    format!("its length is not a multiple of the record length {len}: {rest} bytes are left over"),
                ));
            };
            s.arena.range(stretch.end, 1)?.lease_mut()?[0] = terminator;
            s.asked = s.asked.max(stretch.end + 1);
            self.parse(s, stretch.end + 1)?;
        }
        if s.full {
            let bytes = s.arena.range(s.parsed, stretch.end.max(s.parsed) - s.parsed)?.lease()?.to_vec();
            self.carry.push_back(Carry { bytes, ends_source: stretch.ends_source });
        } else if stretch.end > stretch.start && self.layout.fixed_len().is_none() {
            let here = (s.entries - before) as f64 / (stretch.end - stretch.start) as f64;
            self.density = here.max(0.5 * (self.density + here));
        }
        Ok(())
    }

    /// Makes entries of the whole records in `s.parsed..end`.
    fn parse(&self, s: &mut Filling<'_>, end: usize) -> Result<()> {
        if let Some(numbers) = self.layout.numbers() {
            let count = (end - s.parsed) / numbers.kind.width();
            s.entries += count;
            s.parsed += count * numbers.kind.width();
            return Ok(());
        }
        let arena = s.arena;
        let bytes = arena.range(s.parsed, end - s.parsed)?.lease()?;
        // Entries fill the arena's top downwards; as much again stays free below them.
        let top = arena.len() / ENTRY - s.entries;
        let bottom = s.asked.max(end).div_ceil(ENTRY);
        let most = (arena.len() / ENTRY - bottom) / 2;
        let room = most.saturating_sub(s.entries);
        let mut lease = arena.range((top - room) * ENTRY, room * ENTRY)?.lease_mut()?;
        let out = lease.as_slice_of::<Entry>()?;
        let (base, mut left) = (s.parsed, room);
        let mut full = false;
        let parsed = self.layout.scan(&bytes, 0, |from, to| {
            if left == 0 {
                full = true;
                return false;
            }
            left -= 1;
            out[left] = entry::entry(self.layout.prefix(&bytes[from..to]), base + from, to - from);
            true
        });
        s.entries += room - left;
        s.parsed += parsed;
        s.full = full;
        Ok(())
    }
}
