//! Filling a slot. Chunks arrive at its bottom, and entries grow down from its top. Between them as
//! much room as the entries take is left for sorting them.
//!
//! ```text
//! | chunk | chunk | chunk (in flight) |   room   | entries <- |
//!                      ^ tail: what the slot has no room for, from the start of a record on
//! ```
//! The tail goes to the next slot. A short tail is kept on the heap meanwhile. A long one stays in
//! place until all slots are free; then they are filled as one, so a record may be as long as all
//! of them together.
//!
//! Where lines may be long (`long`), their bytes are moved on to the spill places as they come, and
//! a stub is put in the place of the line, or into the next slot if that place is too short.

use std::collections::VecDeque;
use std::ops::Range;

use datapipes_core::{Dram, Error, ErrorKind, Result};

use crate::control::{Control, count};
use crate::form::shared_start::{self, Prefix, SharedStart};
use crate::input::{Begin, Chunk, InputReader, leftover, refuse};
use crate::long::{LongLines, OpenLine};
use crate::records::entry::{self, Entry};
use crate::records::layout::Layout;
use crate::records::tally::Tally;
use crate::waits::SortWait;

/// The most chunks in flight at once.
pub(crate) const MAX_CHUNKS_IN_FLIGHT: usize = 8;
const ALIGN: usize = 4096;
const ENTRY: usize = size_of::<Entry>();
/// Room behind the chunks of a slot: for a terminator that the last line of a source lacks, and for
/// rounding.
const SLACK: usize = 2 * ALIGN;

/// A slot with records and their entries.
#[derive(Debug)]
pub(crate) struct FilledSlot {
    pub(crate) arena: Dram,
    /// The bytes that hold records, from the arena's start.
    pub(crate) raw_len: usize,
    pub(crate) entries: usize,
    /// Bytes of the longest record.
    pub(crate) longest: usize,
    /// The number of slots filled before it.
    pub(crate) index: u64,
    /// Whether nothing follows.
    pub(crate) last: bool,
    /// Whether it is all slots at once: no other lane has anything to sort.
    pub(crate) whole: bool,
    /// The bytes in which its records agree, except for those whose prefix is the smallest or the
    /// largest one. Prefixes are what follows.
    pub(crate) depth: usize,
}

/// A range of bytes that arrived.
#[derive(Clone, Copy, Debug)]
struct ArrivedRange {
    start: usize,
    end: usize,
    /// Whether it does not continue the range before it.
    starts: bool,
    ends_source: bool,
}

/// Bytes that no slot has taken yet.
#[derive(Debug, Default)]
struct Tail {
    /// The ranges in order. Offsets are those of the slot in which they arrived.
    stretches: Vec<ArrivedRange>,
    place: Place,
}

/// The location of a tail's bytes.
#[derive(Debug, Default)]
enum Place {
    #[default]
    Nowhere,
    /// On the heap; the first byte is the start of the first range.
    Heap(Vec<u8>),
    /// In the pool, where they arrived: the offset of the first range's start.
    Pool(usize),
}

impl Tail {
    fn len(&self) -> usize {
        match (self.stretches.first(), self.stretches.last()) {
            (Some(first), Some(last)) => last.end - first.start,
            _ => 0,
        }
    }
}

/// The memory for slots, and how it is divided.
pub(crate) struct SlotPool {
    /// All the memory for slots.
    pub(crate) all: Dram,
    /// The slots in it: offset and length.
    pub(crate) each: Vec<(usize, usize)>,
    /// Whether to begin with all memory as one slot, because the input is expected to fit.
    pub(crate) whole_first: bool,
    /// The most bytes that may be kept on the heap between two slots.
    pub(crate) carry: usize,
}

impl SlotPool {
    /// Whether `len` bytes that are left of a slot are kept on the heap for the next one. They must
    /// fit the shortest slot, which may be the next, behind a stub of `stub` bytes.
    fn carries(&self, len: usize, stub: usize) -> bool {
        len <= self.carry && self.holds(len, stub)
    }

    /// Whether so many bytes fit every slot.
    fn holds(&self, len: usize, stub: usize) -> bool {
        let shortest = self.each.iter().map(|(_, len)| *len).min().unwrap_or(0);
        stub.next_multiple_of(ALIGN) + len + ALIGN + SLACK + 2 * ENTRY <= shortest
    }
}

/// Fills one slot after another.
pub(crate) struct SlotFiller<'a, L> {
    layout: &'a L,
    feed: InputReader<'a>,
    control: &'a Control,
    chunk: usize,
    slots: SlotPool,
    /// Slots that are free to be filled.
    free: Vec<Dram>,
    /// The number of slots that were handed out.
    away: usize,
    tail: Tail,
    /// Entries for each byte, as seen so far.
    density: f64,
    tally: Tally,
    filled: u64,
    /// Bytes that were read, and those in records of a fixed length that were handed out.
    read: u64,
    given: u64,
    shared: SharedStart,
    /// Takes long lines, if any are expected.
    long: Option<&'a LongLines<'a>>,
    /// The long line whose bytes are coming.
    open: Option<OpenLine<'a>>,
    /// A stub that had no room in the slot in which its line ended.
    waiting: Option<Vec<u8>>,
}

/// What ended the parsing of a range.
enum Stopped {
    /// The slot is full, or no whole record is left.
    AtEnd,
    /// Many records do not begin as the others do; the last of them lies there.
    Other(Range<usize>),
    /// A long line.
    Long,
}

/// The state of the slot that is being filled. Offsets are from the arena's start.
struct SlotState {
    arena: Dram,
    /// The end of the bytes that were asked for.
    asked: usize,
    /// The first byte that is not in a record yet.
    parsed: usize,
    entries: usize,
    /// The records that do not begin as the others do.
    others: usize,
    tally: Tally,
    longest: usize,
    /// Set when the entries meet the room that they need. All later bytes are left for the next
    /// slot.
    full: bool,
    /// The ranges that are left for the next slot.
    tail: Vec<ArrivedRange>,
    /// Where the bytes of the open long line begin in this slot.
    line_at: usize,
}

impl<'a, L: Layout> SlotFiller<'a, L> {
    pub(crate) fn new(
        layout: &'a L,
        feed: InputReader<'a>,
        control: &'a Control,
        chunk: usize,
        slots: SlotPool,
        long: Option<&'a LongLines<'a>>,
    ) -> Result<Self> {
        let density = match layout.fixed_len() {
            Some(len) => 1.0 / len as f64,
            None => 1.0 / 16.0,
        };
        let mut filler = SlotFiller {
            layout,
            feed,
            control,
            chunk,
            slots,
            free: Vec::new(),
            away: 0,
            tail: Tail::default(),
            density,
            tally: Tally::default(),
            filled: 0,
            read: 0,
            given: 0,
            shared: SharedStart::default(),
            long,
            open: None,
            waiting: None,
        };
        if filler.slots.whole_first {
            filler.free.push(filler.slots.all.clone());
        } else {
            filler.split()?;
        }
        Ok(filler)
    }

    /// Returns what was counted so far.
    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// Whether nothing is left to fill a slot with.
    fn exhausted(&self) -> bool {
        self.feed.exhausted() && self.tail.stretches.is_empty() && self.open.is_none() && self.waiting.is_none()
    }

    /// Makes the parts of the memory free slots.
    fn split(&mut self) -> Result<()> {
        self.free.clear();
        for (at, len) in self.slots.each.iter().rev() {
            self.free.push(self.slots.all.range(*at, *len)?);
        }
        Ok(())
    }

    /// Fills the next slot. `back` waits for a slot that was handed out. If it returns `None`, no
    /// slot will come back, which ends the phase as the end of the input does.
    pub(crate) fn next(&mut self, mut back: impl FnMut() -> Option<Dram>) -> Result<Option<FilledSlot>> {
        if self.filled > 0 && self.exhausted() {
            return Ok(None);
        }
        loop {
            let Some(arena) = self.take_slot(&mut back)? else { return Ok(None) };
            let whole = arena.len() == self.slots.all.len();
            let mut s = SlotState::new(arena);
            self.fill(&mut s)?;
            self.keep_tail(&s)?;
            let last = self.exhausted();
            self.given += (s.entries * self.layout.fixed_len().unwrap_or(0)) as u64;
            if last {
                self.verify()?;
            }
            if s.entries == 0 && last && self.filled > 0 {
                return Ok(None);
            }
            if s.entries == 0 && !last {
                if whole && self.open.is_none() && self.waiting.is_none() {
                    return Err(self.too_long(s.arena.len()));
                }
                // There is nothing to sort: the record needs more than a slot.
                self.free.push(s.arena);
                continue;
            }
            self.tally.join(s.tally);
            self.away += 1;
            let index = self.filled;
            self.filled += 1;
            let SlotState { arena, parsed, entries, longest, .. } = s;
            let depth = self.shared.depth();
            return Ok(Some(FilledSlot { arena, raw_len: parsed, entries, longest, index, last, whole, depth }));
        }
    }

    /// Fails where records of a fixed length are not as many as the bytes that were read hold.
    fn verify(&self) -> Result<()> {
        if self.layout.fixed_len().is_none() || self.given == self.read {
            return Ok(());
        }
        let context = format!("of {} bytes that were read, {} are in records", self.read, self.given);
        Err(Error::new(ErrorKind::Corrupt, "sort", context)
            .with_advice("the output was not published; report this as a bug"))
    }

    /// Takes a slot to fill; all slots as one if the tail or a stub is long.
    fn take_slot(&mut self, back: &mut impl FnMut() -> Option<Dram>) -> Result<Option<Dram>> {
        let mut take_back = |free: &mut Vec<Dram>, away: &mut usize| match back() {
            Some(slot) => {
                free.push(slot);
                *away -= 1;
                true
            }
            None => false,
        };
        let stub_needs_all = self.waiting.as_ref().is_some_and(|stub| !self.slots.holds(0, stub.len()));
        if matches!(self.tail.place, Place::Pool(_)) || stub_needs_all {
            while self.away > 0 {
                if !take_back(&mut self.free, &mut self.away) {
                    return Ok(None);
                }
            }
            self.free.clear();
            return Ok(Some(self.slots.all.clone()));
        }
        if self.free.is_empty() && !take_back(&mut self.free, &mut self.away) {
            return Ok(None);
        }
        if self.filled > 0 && self.free.first().is_some_and(|slot| slot.len() == self.slots.all.len()) {
            // The input did not fit after all, or the long record is done: use several slots from
            // now on.
            self.split()?;
        }
        Ok(self.free.pop())
    }

    /// Fills the arena as far as it holds records, entries and room to sort.
    fn fill(&mut self, s: &mut SlotState) -> Result<()> {
        let base = s.arena.memory().at();
        self.take_tail(s)?;
        let mut flying: VecDeque<Chunk> = VecDeque::new();
        loop {
            self.control.check()?;
            while !s.full && flying.len() < MAX_CHUNKS_IN_FLIGHT && (flying.is_empty() || self.feed.may_ask()) {
                let Some(begin) = self.feed.prepare(!flying.is_empty())? else { break };
                // Numbers lie without gaps; if that misaligns memory, the backend uses bounce
                // buffers.
                if self.layout.numbers().is_none() {
                    // There must be room for a terminator behind the last source.
                    let free = if s.asked > 0 { s.asked + 1 } else { 0 };
                    s.asked = match begin {
                        Begin::Behind => s.asked,
                        Begin::Anywhere => free,
                        Begin::At(offset) => free + (offset + ALIGN - free % ALIGN) % ALIGN,
                    };
                }
                let Some(len) = self.room(s, flying.iter().map(|c| c.len).sum()) else { break };
                // Numbers are not looked for: a slot of them ends with a whole one.
                let to_block = self.layout.numbers().is_none();
                let Some(chunk) = self.feed.next(base + s.asked, len, to_block)? else { break };
                s.asked += chunk.len;
                self.read += chunk.len as u64;
                flying.push_back(chunk);
            }
            let Some(mut chunk) = flying.pop_front() else { break };
            let waits = self.control.waits_for(SortWait::Input);
            self.feed.wait(&mut chunk)?;
            drop(waits);
            count(&self.control.progress.read, chunk.uncounted as u64);
            let start = chunk.at - base;
            let (starts, ends_source) = (chunk.starts_source, chunk.ends_source);
            self.consume(s, ArrivedRange { start, end: start + chunk.len, starts, ends_source })?;
        }
        if !s.full && s.parsed < s.asked && !self.feed.starts_source() {
            s.tail.push(ArrivedRange { start: s.parsed, end: s.asked, starts: true, ends_source: false });
        }
        Ok(())
    }

    /// How many bytes to ask for next: as many as there will be room for with their entries, if
    /// records stay about as long as they were. An empty slot always takes some bytes.
    fn room(&self, s: &SlotState, flying: usize) -> Option<usize> {
        let free = s.arena.len().checked_sub(s.asked + SLACK)?;
        if self.layout.numbers().is_some() {
            return Some(self.chunk.min(free / ALIGN * ALIGN)).filter(|len| *len > 0);
        }
        let a_byte = 2.0 * ENTRY as f64 * self.density * 1.25;
        let entries = 2 * ENTRY * (s.entries + 64) + (flying as f64 * a_byte) as usize;
        let len = (free.saturating_sub(entries) as f64 / (1.0 + a_byte)) as usize;
        let len = len.min(self.chunk) / ALIGN * ALIGN;
        if s.entries == 0 && flying == 0 {
            // No record is here yet: its entry needs little room, and the record may be long.
            return Some(len.max(ALIGN).min(free / ALIGN * ALIGN)).filter(|len| *len > 0);
        }
        // A slot that has room for only a fraction of a chunk counts as full.
        (len >= (self.chunk / 8).max(ALIGN)).then_some(len)
    }

    /// Puts what the last slot had no room for at the start of this slot.
    fn take_tail(&mut self, s: &mut SlotState) -> Result<()> {
        let Tail { stretches, place } = std::mem::take(&mut self.tail);
        let stub = self.waiting.take();
        let behind = stub.as_ref().map_or(0, |stub| stub.len().next_multiple_of(ALIGN));
        let (first_at, end) = match (stretches.first(), stretches.last()) {
            (Some(first), Some(last)) => (first.start, last.end),
            _ => (0, 0),
        };
        // The offset of a byte within a block does not change: the next chunk goes behind the last
        // one.
        let (start, len) = (behind + first_at % ALIGN, end - first_at);
        if start + len + SLACK + 2 * ENTRY > s.arena.len() {
            return Err(self.too_long(s.arena.len()));
        }
        match place {
            Place::Heap(bytes) => s.arena.range(start, len)?.lease_mut()?.copy_from_slice(&bytes),
            Place::Pool(at) => {
                let from = at - s.arena.memory().at();
                s.arena.lease_mut()?.copy_within(from..from + len, start);
            }
            Place::Nowhere => {}
        }
        s.asked = start + len;
        if self.layout.numbers().is_none() {
            (s.parsed, s.line_at) = (start, start);
        }
        if let Some(stub) = stub {
            self.put_stub(s, 0, &stub)?;
        }
        for stretch in stretches {
            let ArrivedRange { start: from, end, starts, ends_source } = stretch;
            let (from, end) = (start + (from - first_at), start + (end - first_at));
            self.consume(s, ArrivedRange { start: from, end, starts, ends_source })?;
        }
        Ok(())
    }

    /// Keeps what the slot had no room for.
    fn keep_tail(&mut self, s: &SlotState) -> Result<()> {
        let mut tail = Tail { stretches: s.tail.clone(), place: Place::Nowhere };
        if let Some(first) = tail.stretches.first() {
            let len = tail.len();
            let stub = self.waiting.as_ref().map_or(0, Vec::len);
            tail.place = if self.slots.carries(len, stub) && s.entries > 0 {
                Place::Heap(s.arena.range(first.start, len)?.lease()?.to_vec())
            } else {
                Place::Pool(s.arena.memory().at() + first.start)
            };
        }
        self.tail = tail;
        Ok(())
    }

    fn too_long(&self, arena: usize) -> Error {
        // The record may begin anywhere in a block.
        let most = arena - SLACK - 2 * ENTRY - ALIGN;
        refuse(
            ErrorKind::OutOfMemory,
            &self.feed.current,
            format!("a record is longer than the {most} bytes of memory available for one"),
        )
        .with_advice(match self.layout.fixed_len() {
            // The output blocks and what is read ahead grow with the memory, to a quarter of it.
            Some(len) => format!("{} bytes of memory (`memory_bytes`) would be enough", len + len / 2 + (32 << 20)),
            None => "give more memory (`memory_bytes`), or let fewer threads share it (`threads`)".to_owned(),
        })
    }

    /// Parses a range, or leaves it for the next slot if this one is full.
    fn consume(&mut self, s: &mut SlotState, stretch: ArrivedRange) -> Result<()> {
        if s.full {
            match s.tail.last_mut() {
                Some(back) if !stretch.starts && !back.ends_source => {
                    (back.end, back.ends_source) = (stretch.end, stretch.ends_source);
                }
                _ => s.tail.push(stretch),
            }
            return Ok(());
        }
        if stretch.starts && self.layout.numbers().is_none() {
            s.parsed = stretch.start;
        }
        let before = s.entries;
        loop {
            if self.open.is_some() && !self.move_on(s, stretch)? {
                break;
            }
            if s.full {
                break;
            }
            let is_long = self.parse(s, stretch.end)?;
            let Some(long) = self.long else { break };
            if s.full || !is_long && stretch.end - s.parsed <= long.limit {
                break;
            }
            (s.line_at, self.open) = (s.parsed, Some(OpenLine::begin(long)?));
        }
        if !s.full && stretch.ends_source && s.parsed < stretch.end {
            self.end_source(s, stretch.end)?;
        }
        if s.full && s.parsed < stretch.end {
            s.tail.push(ArrivedRange { start: s.parsed, starts: true, ..stretch });
        } else if stretch.end > stretch.start && self.layout.fixed_len().is_none() {
            let here = (s.entries - before) as f64 / (stretch.end - stretch.start) as f64;
            self.density = here.max(0.5 * (self.density + here));
        }
        Ok(())
    }

    /// Gives the last line of a source the terminator that it lacks. A binary record that is not
    /// whole is an error.
    fn end_source(&mut self, s: &mut SlotState, end: usize) -> Result<()> {
        let Some(terminator) = self.layout.terminator() else {
            let len = self.layout.fixed_len().unwrap_or(1);
            return Err(leftover(&self.feed.current, len, end - s.parsed));
        };
        s.arena.range(end, 1)?.lease_mut()?[0] = terminator;
        s.asked = s.asked.max(end + 1);
        self.parse(s, end + 1).map(|_| ())
    }

    /// Moves bytes of the open long line in `s.parsed..stretch.end` to the spill places. Returns
    /// whether the line ends there; then its stub takes its place.
    fn move_on(&mut self, s: &mut SlotState, stretch: ArrivedRange) -> Result<bool> {
        let Some(mut open) = self.open.take() else { return Ok(true) };
        let terminator = self.layout.terminator().unwrap_or(b'\n');
        let bytes = s.arena.range(s.parsed, stretch.end - s.parsed)?.lease()?;
        let end = memchr::memchr(terminator, &bytes);
        open.push(&bytes[..end.unwrap_or(bytes.len())])?;
        drop(bytes);
        s.parsed = end.map_or(stretch.end, |end| s.parsed + end + 1);
        if end.is_none() && !stretch.ends_source {
            self.open = Some(open);
            return Ok(false);
        }
        let stub = open.finish(self.layout)?;
        if stub.len() <= s.parsed - s.line_at && self.entry_room(s, s.asked.max(stretch.end)) > 0 {
            self.put_stub(s, s.line_at, &stub)?;
        } else {
            self.waiting = Some(stub);
            s.full = true;
        }
        Ok(true)
    }

    /// Puts the stub of a long line at offset `at`.
    fn put_stub(&mut self, s: &mut SlotState, at: usize, stub: &[u8]) -> Result<()> {
        s.arena.range(at, stub.len())?.lease_mut()?.copy_from_slice(stub);
        let prefix = match self.shared.prefix(self.layout, stub) {
            Prefix::Alike(prefix) => prefix,
            Prefix::Other(prefix) => {
                s.others += 1;
                prefix
            }
        };
        let top = s.arena.len() / ENTRY - s.entries - 1;
        let mut lease = s.arena.range(top * ENTRY, ENTRY)?.lease_mut()?;
        lease.as_slice_of::<Entry>()?[0] = entry::entry(prefix, at, stub.len());
        drop(lease);
        self.layout.count(&mut s.tally, stub);
        s.longest = s.longest.max(stub.len());
        s.entries += 1;
        Ok(())
    }

    /// Makes prefixes again, because many records do not begin as the others do.
    fn shorten(&mut self, s: &mut SlotState, other: Range<usize>) -> Result<()> {
        let bytes = s.arena.range(0, other.end.max(s.parsed))?.lease()?;
        let from = s.arena.len() / ENTRY - s.entries;
        let mut lease = s.arena.range(from * ENTRY, s.entries * ENTRY)?.lease_mut()?;
        self.shared.shorten(self.layout, &bytes[other], &bytes, lease.as_slice_of::<Entry>()?);
        s.others = 0;
        Ok(())
    }

    /// How many more entries have room, if records and what was asked for end at `end`. As much
    /// room as they take stays free below them.
    fn entry_room(&self, s: &SlotState, end: usize) -> usize {
        let bottom = end.div_ceil(ENTRY);
        ((s.arena.len() / ENTRY).saturating_sub(bottom) / 2).saturating_sub(s.entries)
    }

    /// Makes entries of the whole records in `s.parsed..end`. Returns whether a long line stopped
    /// that.
    fn parse(&mut self, s: &mut SlotState, end: usize) -> Result<bool> {
        if let Some(numbers) = self.layout.numbers() {
            // Numbers are counted when they are sorted.
            let count = (end - s.parsed) / numbers.kind.width();
            s.entries += count;
            s.parsed += count * numbers.kind.width();
            return Ok(false);
        }
        loop {
            match self.parse_alike(s, end)? {
                Stopped::AtEnd => return Ok(false),
                Stopped::Long => return Ok(true),
                Stopped::Other(other) => self.shorten(s, other)?,
            }
        }
    }

    /// Makes entries of whole records in `s.parsed..end`, until one is long or many do not begin as
    /// the others do.
    fn parse_alike(&mut self, s: &mut SlotState, end: usize) -> Result<Stopped> {
        let bytes = s.arena.range(s.parsed, end - s.parsed)?.lease()?;
        // Entries fill the arena downwards from its top.
        let top = s.arena.len() / ENTRY - s.entries;
        let room = self.entry_room(s, s.asked.max(end));
        let longest_of_all = self.long.map_or(usize::MAX, LongLines::longest);
        let mut lease = s.arena.range((top - room) * ENTRY, room * ENTRY)?.lease_mut()?;
        let out = lease.as_slice_of::<Entry>()?;
        self.shared.sample(self.layout, &bytes);
        let (base, mut left, mut others, before) = (s.parsed, room, s.others, s.entries);
        let (mut tally, mut longest, mut full, mut other) = (s.tally, s.longest, false, Stopped::AtEnd);
        let parsed = self.layout.scan(&bytes, 0, |from, to| {
            if left == 0 {
                full = true;
                return false;
            }
            let record = &bytes[from..to];
            if record.len() > longest_of_all {
                other = Stopped::Long;
                return false;
            }
            let prefix = match self.shared.prefix(self.layout, record) {
                Prefix::Alike(prefix) => prefix,
                Prefix::Other(prefix) => {
                    others += 1;
                    if shared_start::are_many(others, before + room - left) {
                        other = Stopped::Other(base + from..base + to);
                        return false;
                    }
                    prefix
                }
            };
            left -= 1;
            tally.add(record);
            longest = longest.max(record.len());
            out[left] = entry::entry(prefix, base + from, record.len());
            true
        });
        (s.tally, s.longest, s.others) = (tally, longest, others);
        s.entries += room - left;
        s.parsed += parsed;
        s.full = full;
        Ok(other)
    }
}

impl SlotState {
    fn new(arena: Dram) -> SlotState {
        let (tally, tail) = (Tally::default(), Vec::new());
        SlotState {
            arena,
            asked: 0,
            parsed: 0,
            entries: 0,
            others: 0,
            tally,
            longest: 0,
            full: false,
            tail,
            line_at: 0,
        }
    }
}
