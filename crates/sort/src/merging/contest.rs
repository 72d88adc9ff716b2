//! The contests of a merge: by the prefixes of records, by the offset-value codes of lines, and by
//! those of normalized keys.

use std::cmp::Ordering;

use datapipes_core::Result;

use crate::merging::loser_tree::{Contest, Entrant, Match};
use crate::records::layout::{Layout, NORMALIZED_LEN};
use crate::records::memo::{self, Scope};
use crate::records::offset_value::{CODED_LEN, Coding, EXHAUSTED, Settled};
use crate::runs::record_reader::RecordReader;

/// A contest between the readers of a merge.
pub(crate) trait MergeContest<'a, L>: Contest {
    fn readers(&self) -> &[RecordReader<'a, L>];

    /// The prefix of an entrant's record.
    fn prefix(&self, entrant: Entrant) -> u64;

    /// Whether the record of the winner has the same key as `last`, the winner's record before it.
    fn repeats(&self, winner: Entrant, last: &[u8]) -> bool;

    /// Whether `repeats` looks at the winner's record if it is the last.
    fn needs_last(&self, winner: Entrant) -> bool;
}

/// Records are compared by their prefixes, and in full where these are equal.
pub(crate) struct ByPrefix<'a, L> {
    layout: &'a L,
    readers: Vec<RecordReader<'a, L>>,
    done: Vec<bool>,
    /// Every long record is forgotten when it arrives.
    _scope: Scope,
}

impl<'a, L: Layout> ByPrefix<'a, L> {
    pub(crate) fn new(layout: &'a L, readers: Vec<RecordReader<'a, L>>) -> Self {
        let done = vec![true; readers.len()];
        ByPrefix { layout, readers, done, _scope: Scope::enter() }
    }

    /// Whether `a` comes before `b`, if their prefixes are equal.
    fn comes_first(&self, a: usize, b: usize) -> bool {
        if self.done[a] || self.done[b] {
            return !self.done[a];
        }
        let order = if self.layout.prefix_decides() {
            Ordering::Equal
        } else {
            self.layout.compare(self.readers[a].record(), self.readers[b].record())
        };
        // Of equal records the one of the earlier run comes first, which makes the merge stable.
        order.then(a.cmp(&b)).is_lt()
    }
}

impl<L: Layout> Contest for ByPrefix<'_, L> {
    fn count(&self) -> usize {
        self.readers.len()
    }

    #[inline]
    fn advance(&mut self, source: usize) -> Result<u64> {
        let reader = &mut self.readers[source];
        let there = reader.advance()?;
        self.done[source] = !there;
        if !there {
            return Ok(u64::MAX);
        }
        memo::forget_long(reader.record());
        Ok(self.layout.prefix(reader.record()))
    }

    #[inline]
    fn is_done(&self, entrant: Entrant) -> bool {
        self.done[entrant.source]
    }

    // A call is cheaper here than its code in the loop of all matches.
    #[inline(never)]
    fn settle(&self, a: Entrant, b: Entrant) -> Match {
        if self.comes_first(a.source, b.source) { Match { winner: a, loser: b } } else { Match { winner: b, loser: a } }
    }
}

impl<'a, L: Layout> MergeContest<'a, L> for ByPrefix<'a, L> {
    fn readers(&self) -> &[RecordReader<'a, L>] {
        &self.readers
    }

    #[inline]
    fn prefix(&self, entrant: Entrant) -> u64 {
        entrant.key
    }

    fn repeats(&self, winner: Entrant, last: &[u8]) -> bool {
        self.layout.same_key(last, self.readers[winner.source].record())
    }

    fn needs_last(&self, _winner: Entrant) -> bool {
        true
    }
}

/// Lines are compared by their offset-value codes.
pub(crate) struct ByCode<'a, L> {
    layout: &'a L,
    coding: Coding,
    readers: Vec<RecordReader<'a, L>>,
    ahead: Vec<Ahead>,
}

/// What is known of the line after the current one. It is coded before its turn comes, so that no
/// match waits for its bytes.
#[derive(Default)]
struct Ahead {
    /// Its end in the reader's buffer; `None` if it is not there in one piece.
    end: Option<usize>,
    code: u64,
    begun: bool,
    /// The start of the current line, kept while the reader's buffer changes.
    base: Vec<u8>,
}

impl<'a, L: Layout> ByCode<'a, L> {
    pub(crate) fn new(layout: &'a L, coding: Coding, readers: Vec<RecordReader<'a, L>>) -> Self {
        let ahead = readers.iter().map(|_| Ahead::default()).collect();
        ByCode { layout, coding, readers, ahead }
    }

    fn line(&self, source: usize) -> &[u8] {
        self.layout.coded_bytes(self.readers[source].record())
    }

    /// Goes to a line that was not looked at ahead.
    #[cold]
    fn advance_unseen(&mut self, source: usize) -> Result<u64> {
        let (reader, ahead) = (&mut self.readers[source], &mut self.ahead[source]);
        let current = self.layout.coded_bytes(reader.record());
        ahead.base.clear();
        ahead.base.extend_from_slice(&current[..current.len().min(CODED_LEN)]);
        if !reader.advance()? {
            return Ok(EXHAUSTED);
        }
        let line = self.layout.coded_bytes(reader.record());
        let begun = std::mem::replace(&mut ahead.begun, true);
        Ok(if begun { self.coding.beside(&ahead.base, line) } else { self.coding.first(line) })
    }
}

impl<L: Layout> Contest for ByCode<'_, L> {
    fn count(&self) -> usize {
        self.readers.len()
    }

    #[inline]
    fn advance(&mut self, source: usize) -> Result<u64> {
        let code = match self.ahead[source].end {
            Some(end) => {
                self.readers[source].step_to(end);
                self.ahead[source].code
            }
            None => self.advance_unseen(source)?,
        };
        let (reader, ahead) = (&self.readers[source], &mut self.ahead[source]);
        ahead.end = reader.next_end();
        if let Some(end) = ahead.end {
            let (current, next) = (reader.record(), reader.up_to(end));
            ahead.code = self.coding.beside(self.layout.coded_bytes(current), self.layout.coded_bytes(next));
        }
        Ok(code)
    }

    #[inline]
    fn is_done(&self, entrant: Entrant) -> bool {
        entrant.key == EXHAUSTED
    }

    #[inline(never)]
    fn settle(&self, a: Entrant, b: Entrant) -> Match {
        let Settled { order, later } = match a.key {
            EXHAUSTED => Settled { order: Ordering::Equal, later: EXHAUSTED },
            code => self.coding.settle(code, self.line(a.source), self.line(b.source)),
        };
        // Of equal lines the one of the earlier run comes first, which makes the merge stable.
        let (winner, loser) = if order.then(a.source.cmp(&b.source)).is_lt() { (a, b) } else { (b, a) };
        Match { winner, loser: Entrant { key: later, ..loser } }
    }
}

impl<'a, L: Layout> MergeContest<'a, L> for ByCode<'a, L> {
    fn readers(&self) -> &[RecordReader<'a, L>] {
        &self.readers
    }

    fn prefix(&self, entrant: Entrant) -> u64 {
        self.layout.prefix(self.readers[entrant.source].record())
    }

    /// The winner's base is the winner before it.
    #[inline]
    fn repeats(&self, winner: Entrant, last: &[u8]) -> bool {
        let equals = self.coding.equals_base(winner.key);
        equals.unwrap_or_else(|| self.layout.same_key(last, self.readers[winner.source].record()))
    }

    fn needs_last(&self, winner: Entrant) -> bool {
        self.readers[winner.source].record().len() > CODED_LEN
    }
}

/// Records are compared by the offset-value codes of their normalized keys.
pub(crate) struct ByKey<'a, L> {
    layout: &'a L,
    coding: Coding,
    readers: Vec<RecordReader<'a, L>>,
    keys: Vec<Keys>,
    /// Every long record is forgotten when it arrives.
    _scope: Scope,
}

/// The normalized keys of a source's current record, and of the one after it.
#[derive(Default)]
struct Keys {
    current: Vec<u8>,
    next: Vec<u8>,
    /// The end of the next record in the reader's buffer; `None` if it is not there in one piece.
    end: Option<usize>,
    /// The code of the next record.
    code: u64,
    begun: bool,
}

impl<'a, L: Layout> ByKey<'a, L> {
    pub(crate) fn new(layout: &'a L, readers: Vec<RecordReader<'a, L>>) -> Self {
        let keys = readers.iter().map(|_| Keys::default()).collect();
        ByKey { layout, coding: Coding::of_first(NORMALIZED_LEN), readers, keys, _scope: Scope::enter() }
    }

    /// Goes to a record that was not looked at ahead.
    #[cold]
    fn advance_unseen(&mut self, source: usize) -> Result<u64> {
        let (reader, keys) = (&mut self.readers[source], &mut self.keys[source]);
        if !reader.advance()? {
            return Ok(EXHAUSTED);
        }
        memo::forget_long(reader.record());
        self.layout.normalize(reader.record(), &mut keys.next);
        std::mem::swap(&mut keys.current, &mut keys.next);
        let begun = std::mem::replace(&mut keys.begun, true);
        let (base, key) = (&keys.next, &keys.current);
        Ok(if begun { self.coding.beside(base, key) } else { self.coding.first(key) })
    }
}

impl<L: Layout> Contest for ByKey<'_, L> {
    fn count(&self) -> usize {
        self.readers.len()
    }

    #[inline]
    fn advance(&mut self, source: usize) -> Result<u64> {
        let code = match self.keys[source].end {
            Some(end) => {
                let keys = &mut self.keys[source];
                self.readers[source].step_to(end);
                std::mem::swap(&mut keys.current, &mut keys.next);
                keys.code
            }
            None => self.advance_unseen(source)?,
        };
        let (reader, keys) = (&self.readers[source], &mut self.keys[source]);
        keys.end = reader.next_end();
        if let Some(end) = keys.end {
            let next = reader.up_to(end);
            memo::forget_long(next);
            self.layout.normalize(next, &mut keys.next);
            keys.code = self.coding.beside(&keys.current, &keys.next);
        }
        Ok(code)
    }

    #[inline]
    fn is_done(&self, entrant: Entrant) -> bool {
        entrant.key == EXHAUSTED
    }

    #[inline(never)]
    fn settle(&self, a: Entrant, b: Entrant) -> Match {
        let mut settled = match a.key {
            EXHAUSTED => Settled { order: Ordering::Equal, later: EXHAUSTED },
            code if self.coding.is_deep(code) => Settled { order: Ordering::Equal, later: code },
            code => self.coding.settle(code, &self.keys[a.source].current, &self.keys[b.source].current),
        };
        if self.coding.is_deep(settled.later) {
            // The keys agree in all bytes that were looked at.
            settled.order = self.layout.compare(self.readers[a.source].record(), self.readers[b.source].record());
        }
        // Of equal records the one of the earlier run comes first, which makes the merge stable.
        let (winner, loser) = if settled.order.then(a.source.cmp(&b.source)).is_lt() { (a, b) } else { (b, a) };
        Match { winner, loser: Entrant { key: settled.later, ..loser } }
    }
}

impl<'a, L: Layout> MergeContest<'a, L> for ByKey<'a, L> {
    fn readers(&self) -> &[RecordReader<'a, L>] {
        &self.readers
    }

    fn prefix(&self, entrant: Entrant) -> u64 {
        self.layout.prefix(self.readers[entrant.source].record())
    }

    /// The winner's base is the winner before it.
    #[inline]
    fn repeats(&self, winner: Entrant, last: &[u8]) -> bool {
        let equals = self.coding.equals_base(winner.key);
        equals.unwrap_or_else(|| self.layout.same_key(last, self.readers[winner.source].record()))
    }

    fn needs_last(&self, winner: Entrant) -> bool {
        self.keys[winner.source].current.len() >= NORMALIZED_LEN
    }
}
