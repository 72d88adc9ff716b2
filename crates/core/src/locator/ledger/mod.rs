//! The ledger of a staging: it records which bytes are where. It decides and counts, and does no
//! I/O. It is locked only for moments, and no I/O is done under the lock.
//!
//! ```text
//! map:     offset in the staging -> (place, offset in the place), piece by piece, to the byte
//! a place: ready   bytes that it owns and that are unused (memory; reserved blocks of a file)
//!          open    bytes that it may be asked for (the rest of a file, up to the place's limit)
//!          flying  bytes under a transfer; if returned meanwhile, they are unused when it ended
//! claim:   ready bytes of the first place in use, else more from its device, else the rest of
//!          ready, else the next place
//! ```

mod holes;
use std::collections::BTreeMap;
use std::ops::Range;

use holes::Holes;

pub(super) use holes::GRAIN;

/// Files grow by at least this, so that small transfers do not each ask the file system.
const GROWTH: u64 = 1 << 20;
/// A place with less than this left is full.
const MIN_EXTENT: u64 = 64 << 10;
/// Places of one tier take turns after this many bytes.
const TURN: u64 = 1 << 20;

/// A contiguous part of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The offset in the staging.
    pub(crate) offset: u64,
    /// Its length in bytes.
    pub(crate) len: u64,
    /// The index of the place.
    pub(crate) place: usize,
    /// The offset in the place.
    pub(crate) at: u64,
}

impl Part {
    pub(super) fn bytes(&self) -> Range<u64> {
        self.at..self.at + self.len
    }

    /// Its range in the staging.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }

    /// Returns what is left after `done` bytes.
    pub(crate) fn after(&self, done: u64) -> Part {
        let done = done.min(self.len);
        Part { offset: self.offset + done, len: self.len - done, place: self.place, at: self.at + done }
    }
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    len: u64,
    place: usize,
    at: u64,
}

/// Why a place takes no more bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Out {
    /// It has no room. It is used again when bytes of it are freed.
    Full(String),
    /// It failed, with this errno. It is not used again.
    Failed(String, Option<i32>),
}

/// The state of a place.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub(super) tier: usize,
    pub(super) reason: String,
    /// Whether all of it is ready from the start, so that no device is asked.
    fixed: bool,
    ready: Holes,
    open: Holes,
    /// The most bytes that may be held at once.
    budget: u64,
    /// Bytes held: mapped, ready, or being asked for.
    held: u64,
    mapped: u64,
    /// The most to ask for at once, since more was refused.
    hint: u64,
    pub(super) out: Option<Out>,
    /// Why it was full, if it ever was.
    pub(super) was: Option<String>,
    flying: Vec<Range<u64>>,
    returning: Vec<Range<u64>>,
    /// Bytes that were ever mapped; below, those ever returned.
    pub(super) placed: u64,
    pub(super) freed: u64,
}

impl Store {
    /// Makes a place of a fixed length, or one that grows. `limit` is the most bytes to use.
    pub(super) fn new(len: Option<u64>, limit: Option<u64>) -> Store {
        let limit = limit.map(|l| l / GRAIN * GRAIN);
        let (ready, open) = match len {
            Some(len) => (Holes::of(0..len.min(limit.unwrap_or(len))), Holes::default()),
            None => (Holes::default(), Holes::of(0..i64::MAX as u64 / GRAIN * GRAIN)),
        };
        Store {
            tier: 0,
            reason: String::new(),
            fixed: len.is_some(),
            held: ready.total(),
            ready,
            open,
            budget: limit.unwrap_or(u64::MAX),
            mapped: 0,
            hint: u64::MAX,
            out: None,
            was: None,
            flying: Vec::new(),
            returning: Vec::new(),
            placed: 0,
            freed: 0,
        }
    }

    /// Returns how many bytes to ask the device for, so that `len` bytes at an offset like `like`
    /// find room; 0 if it must not be asked.
    fn ask(&self, len: u64, like: u64) -> u64 {
        let whole = (like % GRAIN + len).next_multiple_of(GRAIN).max(GROWTH);
        let left = self.budget.saturating_sub(self.held) / GRAIN * GRAIN;
        if self.fixed || self.out.is_some() { 0 } else { whole.min(self.hint).min(left) }
    }

    fn full(&mut self, why: &str) {
        if self.out.is_none() {
            let why = format!("full after {} bytes: {why}", self.mapped);
            self.out = Some(Out::Full(why.clone()));
            self.was = Some(why);
        }
    }

    fn is_flying(&self, range: &Range<u64>) -> bool {
        self.flying.iter().any(|f| f.start < range.end && range.start < f.end)
    }
}

/// The result of claiming room.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// This many bytes are mapped now.
    Mapped(u64),
    /// The caller must ask the place's device for this range and report the result.
    Ask { place: usize, range: Range<u64> },
    /// No place takes any bytes.
    Nothing,
}

/// Bytes of a place that are no longer needed but not yet unused: they may first go back to the
/// device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Return {
    pub(super) place: usize,
    pub(super) range: Range<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Ledger {
    map: BTreeMap<u64, Piece>,
    pub(super) places: Vec<Store>,
    /// Where the next extent begins for which the caller chose no offset.
    next: u64,
    turn: usize,
    in_turn: u64,
}

impl Ledger {
    pub(super) fn new(places: Vec<Store>) -> Ledger {
        Ledger { map: BTreeMap::new(), places, next: 0, turn: 0, in_turn: 0 }
    }

    /// Allocates an offset for `len` unused bytes.
    pub(super) fn fresh(&mut self, len: u64) -> Option<u64> {
        let at = self.next;
        self.next = at.checked_add(len)?.checked_next_multiple_of(GRAIN).filter(|n| *n <= i64::MAX as u64)?;
        Some(at)
    }

    /// Takes back a [`fresh`](Self::fresh) range for which there was no space. Its offsets are
    /// reused, unless others were allocated behind them.
    pub(super) fn stale(&mut self, offset: u64, len: u64) {
        let next = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(GRAIN));
        if next == Some(self.next) {
            self.next = offset;
        }
    }

    /// Returns the places in the order in which they are to be asked for `len` bytes now.
    pub(super) fn order(&mut self, len: u64) -> Vec<usize> {
        let turn = self.turn;
        self.in_turn += len;
        if self.in_turn >= TURN {
            self.in_turn = 0;
            self.turn += 1;
        }
        let mut order: Vec<usize> = (0..self.places.len()).collect();
        order.sort_by_key(|i| self.places[*i].tier);
        for tier in order.chunk_by_mut(|a, b| self.places[*a].tier == self.places[*b].tier) {
            tier.rotate_left(turn % tier.len());
        }
        order
    }

    /// Maps bytes from `offset` on, as many of the `len` as can be had at once. Nothing may be
    /// mapped there yet.
    pub(super) fn claim(&mut self, offset: u64, len: u64, order: &[usize]) -> Claim {
        for &place in order {
            let store = &mut self.places[place];
            if matches!(store.out, Some(Out::Failed(..))) {
                continue;
            }
            let mut taken = store.ready.take(len, offset);
            if taken.is_none() {
                let size = store.ask(len, offset);
                let whole = if size > 0 { store.open.take(size, 0) } else { None };
                if let Some(range) = whole {
                    store.held += range.end - range.start;
                    return Claim::Ask { place, range };
                }
                // A piece of less than a grain only serves a request that is no longer.
                taken = store.ready.take_some(len, len.min(GRAIN), offset);
            }
            if let Some(range) = taken {
                let piece = Piece { len: range.end - range.start, place, at: range.start };
                store.mapped += piece.len;
                store.placed += piece.len;
                self.insert(offset, piece);
                return Claim::Mapped(piece.len);
            }
            if store.out.is_none() {
                let why = if store.fixed { "all of it is used" } else { "its limit is reached" };
                store.full(why);
            }
        }
        Claim::Nothing
    }

    /// The number of bytes of a range that are not mapped.
    pub(super) fn unmapped(&self, range: &Range<u64>) -> u64 {
        let mapped: u64 = self.parts(range).iter().map(|part| part.len).sum();
        (range.end - range.start).saturating_sub(mapped)
    }

    /// The bytes that all places could take, given the unused bytes of their devices. `None` if
    /// that is not known, or if a place failed: then the failure is to be reported instead.
    pub(super) fn room(&self, unused: &[Option<u64>]) -> Option<u64> {
        let of_place = |(store, unused): (&Store, &Option<u64>)| {
            if matches!(store.out, Some(Out::Failed(..))) {
                return None;
            }
            // Bytes that others are asking for may come back.
            let ready = store.held.saturating_sub(store.mapped);
            let more = if store.fixed { 0 } else { (*unused)?.min(store.budget.saturating_sub(store.held)) };
            Some(ready.saturating_add(more))
        };
        self.places.iter().zip(unused).map(of_place).try_fold(0u64, |sum, room| Some(sum.saturating_add(room?)))
    }

    /// Notes that the device was not asked in the end.
    pub(super) fn unasked(&mut self, place: usize, range: Range<u64>) {
        let store = &mut self.places[place];
        store.held -= range.end - range.start;
        store.open.put(range);
    }

    /// Notes that the device granted a range.
    pub(super) fn granted(&mut self, place: usize, range: Range<u64>) {
        self.places[place].ready.put(range);
    }

    /// Notes that the device had no space for a range.
    pub(super) fn refused(&mut self, place: usize, range: Range<u64>, why: &str) {
        let store = &mut self.places[place];
        let len = range.end - range.start;
        store.open.put(range);
        store.held -= len;
        if len > MIN_EXTENT {
            store.hint = store.hint.min((len / 2).next_multiple_of(GRAIN));
        } else {
            self.full(place, why);
        }
    }

    /// Notes that the place takes no more until bytes are freed.
    pub(super) fn full(&mut self, place: usize, why: &str) {
        self.places[place].full(why);
    }

    /// Notes that the place failed and takes no more.
    pub(super) fn failed(&mut self, place: usize, why: &str, errno: Option<i32>) {
        if !self.is_failed(place) {
            self.places[place].out = Some(Out::Failed(format!("failed: {why}"), errno));
        }
    }

    pub(super) fn is_failed(&self, place: usize) -> bool {
        matches!(self.places[place].out, Some(Out::Failed(..)))
    }

    /// Forgets that places were full: others may have freed space on their devices.
    pub(super) fn try_again(&mut self) {
        for store in &mut self.places {
            store.hint = u64::MAX;
            store.out.take_if(|out| matches!(out, Out::Full(_)));
        }
    }

    /// Returns the mapped parts of the range, in order.
    pub(super) fn parts(&self, range: &Range<u64>) -> Vec<Part> {
        let first = self.map.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let clip = |(&start, piece): (&u64, &Piece)| {
            let from = start.max(range.start);
            let to = (start + piece.len).min(range.end);
            (from < to).then(|| Part {
                offset: from,
                len: to - from,
                place: piece.place,
                at: piece.at + (from - start),
            })
        };
        self.map.range(first..range.end).filter_map(clip).collect()
    }

    /// Returns the first unmapped bytes of the range.
    pub(super) fn gap(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let mut at = range.start;
        for part in self.parts(range) {
            if part.offset > at {
                return Some(at..part.offset);
            }
            at = part.offset + part.len;
        }
        (at < range.end).then_some(at..range.end)
    }

    /// Marks the parts as under a transfer until they [`land`](Self::land).
    pub(super) fn fly(&mut self, parts: &[Part]) {
        for part in parts {
            self.places[part.place].flying.push(part.bytes());
        }
    }

    /// Ends a transfer of parts. Returns bytes that were unmapped meanwhile and may now be reused.
    pub(super) fn land(&mut self, parts: &[Part]) -> Vec<Return> {
        let mut returns = Vec::new();
        for part in parts {
            let store = &mut self.places[part.place];
            if let Some(index) = store.flying.iter().position(|f| *f == part.bytes()) {
                store.flying.swap_remove(index);
            }
            let mut waiting = std::mem::take(&mut store.returning);
            waiting.retain(|range| {
                let flies = store.is_flying(range);
                if !flies {
                    returns.push(Return { place: part.place, range: range.clone() });
                }
                flies
            });
            store.returning = waiting;
        }
        returns
    }

    /// Unmaps all of the range.
    pub(super) fn unmap(&mut self, range: &Range<u64>) -> Vec<Return> {
        self.split(range.start);
        self.split(range.end);
        let starts: Vec<u64> = self.map.range(range.clone()).map(|(start, _)| *start).collect();
        let mut returns = Vec::new();
        for start in starts {
            let Some(piece) = self.map.remove(&start) else { continue };
            let store = &mut self.places[piece.place];
            let bytes = piece.at..piece.at + piece.len;
            store.mapped -= piece.len;
            store.freed += piece.len;
            if store.is_flying(&bytes) {
                store.returning.push(bytes);
            } else {
                returns.push(Return { place: piece.place, range: bytes });
            }
        }
        returns
    }

    /// Returns the whole grains of a return that should go back to the device, if any.
    pub(super) fn device_wants(&self, back: &Return) -> Option<Range<u64>> {
        let store = &self.places[back.place];
        let whole = back.range.start.next_multiple_of(GRAIN)..back.range.end / GRAIN * GRAIN;
        (!store.fixed && !self.is_failed(back.place) && whole.start < whole.end).then_some(whole)
    }

    /// Whether returned bytes are to be kept as blocks of their file, of which at most `most` bytes
    /// are unused then.
    pub(super) fn keeps(&self, back: &Return, most: u64) -> bool {
        let unused = self.places[back.place].ready.total();
        unused.saturating_add(back.range.end - back.range.start) <= most
    }

    /// Takes out the unused bytes that could go back to the devices.
    pub(super) fn take_unused(&mut self) -> Vec<Return> {
        let mut unused = Vec::new();
        for (place, store) in self.places.iter_mut().enumerate().filter(|(_, store)| !store.fixed) {
            let ready = std::mem::take(&mut store.ready);
            unused.extend(ready.ranges().map(|range| Return { place, range }));
        }
        unused
    }

    /// Marks returned bytes as unused; `given` of them went back to the device.
    pub(super) fn returned(&mut self, back: Return, given: Option<Range<u64>>) {
        let Return { place, range } = back;
        let store = &mut self.places[place];
        match given {
            Some(given) => {
                store.ready.put(range.start..given.start);
                store.ready.put(given.end..range.end);
                store.held -= given.end - given.start;
                store.open.put(given);
            }
            None => store.ready.put(range),
        }
        store.hint = u64::MAX;
        store.out.take_if(|out| matches!(out, Out::Full(_)));
    }

    fn insert(&mut self, mut offset: u64, mut piece: Piece) {
        self.next = self.next.max((offset + piece.len).next_multiple_of(GRAIN));
        if let Some((&before, p)) = self.map.range(..offset).next_back()
            && before + p.len == offset
            && (p.place, p.at + p.len) == (piece.place, piece.at)
        {
            piece = Piece { len: p.len + piece.len, at: p.at, ..piece };
            offset = before;
        }
        let end = offset + piece.len;
        if let Some(after) = self.map.get(&end)
            && (after.place, after.at) == (piece.place, piece.at + piece.len)
        {
            piece.len += after.len;
            self.map.remove(&end);
        }
        self.map.insert(offset, piece);
    }

    /// Splits the piece that crosses `at`, if there is one.
    fn split(&mut self, at: u64) {
        if let Some((&start, piece)) = self.map.range_mut(..at).next_back()
            && start + piece.len > at
        {
            let head = at - start;
            let tail = Piece { len: piece.len - head, place: piece.place, at: piece.at + head };
            piece.len = head;
            self.map.insert(at, tail);
        }
    }
}

#[cfg(test)]
mod tests;
