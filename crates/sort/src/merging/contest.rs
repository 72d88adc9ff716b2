//! The contests of a merge: by the prefixes of records, and by the offset-value codes of lines or
//! of normalized keys.

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
    fn settle(&mut self, a: Entrant, b: Entrant) -> Match {
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

/// Records are matched by offset-value codes. `F` says what of a record is coded.
pub(crate) struct ByCode<'a, L, F> {
    layout: &'a L,
    coding: Coding,
    readers: Vec<RecordReader<'a, L>>,
    sources: Vec<Source<F>>,
    /// Every long record is forgotten when it arrives.
    _scope: Scope,
}

/// What is known of a source's records. The record after the current one is coded before its turn
/// comes, so that no match waits for its bytes.
#[derive(Default)]
struct Source<F> {
    /// The end of the next record in the reader's buffer; `None` if it is not there in one piece.
    next_end: Option<usize>,
    next_code: u64,
    begun: bool,
    form: F,
}

/// What is coded of the records of one source.
pub(crate) trait CodedForm<L>: Default {
    fn coding(layout: &L) -> Option<Coding>;

    /// Codes the record behind the current one.
    fn code_next(&mut self, layout: &L, coding: Coding, current: &[u8], next: &[u8]) -> u64;

    /// Goes to the record that was coded last.
    fn step(&mut self);

    /// Keeps what is needed to code another record beside the current one, whose bytes will go.
    fn keep(&mut self, layout: &L, current: &[u8]);

    /// Codes the record that came after the one that was kept, or the first one.
    fn code_unseen(&mut self, layout: &L, coding: Coding, record: &[u8], first: bool) -> u64;

    /// Decides between the current records of two sources, whose codes are equal.
    fn settle(layout: &L, coding: Coding, code: u64, a: (&mut Self, &[u8]), b: (&mut Self, &[u8])) -> Settled;

    /// Whether codes may be unable to tell whether the record after this one is equal to it.
    fn may_be_deep(&self, record: &[u8]) -> bool;
}

impl<'a, L: Layout, F: CodedForm<L>> ByCode<'a, L, F> {
    /// Gives the readers back if records of this layout have no such codes.
    pub(crate) fn new(layout: &'a L, readers: Vec<RecordReader<'a, L>>) -> Result<Self, Vec<RecordReader<'a, L>>> {
        let Some(coding) = F::coding(layout) else { return Err(readers) };
        let sources = readers.iter().map(|_| Source::default()).collect();
        Ok(ByCode { layout, coding, readers, sources, _scope: Scope::enter() })
    }

    /// Goes to a record that was not looked at ahead.
    #[cold]
    fn advance_unseen(&mut self, source: usize) -> Result<u64> {
        let (reader, source) = (&mut self.readers[source], &mut self.sources[source]);
        source.form.keep(self.layout, reader.record());
        if !reader.advance()? {
            return Ok(EXHAUSTED);
        }
        memo::forget_long(reader.record());
        let first = !std::mem::replace(&mut source.begun, true);
        Ok(source.form.code_unseen(self.layout, self.coding, reader.record(), first))
    }
}

impl<L: Layout, F: CodedForm<L>> Contest for ByCode<'_, L, F> {
    fn count(&self) -> usize {
        self.readers.len()
    }

    #[inline]
    fn advance(&mut self, source: usize) -> Result<u64> {
        let code = match self.sources[source].next_end {
            Some(end) => {
                self.readers[source].step_to(end);
                self.sources[source].form.step();
                self.sources[source].next_code
            }
            None => self.advance_unseen(source)?,
        };
        let (reader, source) = (&self.readers[source], &mut self.sources[source]);
        source.next_end = reader.next_end();
        if let Some(end) = source.next_end {
            let next = reader.up_to(end);
            memo::forget_long(next);
            source.next_code = source.form.code_next(self.layout, self.coding, reader.record(), next);
        }
        Ok(code)
    }

    #[inline]
    fn is_done(&self, entrant: Entrant) -> bool {
        entrant.key == EXHAUSTED
    }

    #[inline(never)]
    fn settle(&mut self, a: Entrant, b: Entrant) -> Match {
        let records = (self.readers[a.source].record(), self.readers[b.source].record());
        let settled = match (a.key, self.sources.get_disjoint_mut([a.source, b.source])) {
            (EXHAUSTED, _) | (_, Err(_)) => Settled { order: Ordering::Equal, later: EXHAUSTED },
            (code, Ok([x, y])) => {
                F::settle(self.layout, self.coding, code, (&mut x.form, records.0), (&mut y.form, records.1))
            }
        };
        // Of equal records the one of the earlier run comes first, which makes the merge stable.
        let (winner, loser) = if settled.order.then(a.source.cmp(&b.source)).is_lt() { (a, b) } else { (b, a) };
        Match { winner, loser: Entrant { key: settled.later, ..loser } }
    }
}

impl<'a, L: Layout, F: CodedForm<L>> MergeContest<'a, L> for ByCode<'a, L, F> {
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
        self.sources[winner.source].form.may_be_deep(self.readers[winner.source].record())
    }
}

/// The bytes of a line are coded as they are.
#[derive(Default)]
pub(crate) struct LineBytes {
    /// The start of the current line, kept while the reader's buffer changes.
    base: Vec<u8>,
}

impl<L: Layout> CodedForm<L> for LineBytes {
    fn coding(layout: &L) -> Option<Coding> {
        layout.coding()
    }

    #[inline]
    fn code_next(&mut self, layout: &L, coding: Coding, current: &[u8], next: &[u8]) -> u64 {
        coding.beside(layout.coded_bytes(current), layout.coded_bytes(next))
    }

    #[inline]
    fn step(&mut self) {}

    fn keep(&mut self, layout: &L, current: &[u8]) {
        let current = layout.coded_bytes(current);
        self.base.clear();
        self.base.extend_from_slice(&current[..current.len().min(CODED_LEN)]);
    }

    fn code_unseen(&mut self, layout: &L, coding: Coding, record: &[u8], first: bool) -> u64 {
        let line = layout.coded_bytes(record);
        if first { coding.first(line) } else { coding.beside(&self.base, line) }
    }

    #[inline]
    fn settle(layout: &L, coding: Coding, code: u64, a: (&mut Self, &[u8]), b: (&mut Self, &[u8])) -> Settled {
        let (line, other) = (layout.coded_bytes(a.1), layout.coded_bytes(b.1));
        let mut settled = coding.settle(code, line, other);
        if coding.is_folded() && settled.order == Ordering::Equal && coding.tie_order(line).is_none() {
            // Their letters may differ in case.
            settled.order = layout.compare(a.1, b.1);
        }
        settled
    }

    fn may_be_deep(&self, record: &[u8]) -> bool {
        record.len() > CODED_LEN
    }
}

/// The prefix of a record is coded, and behind it what the prefix lacks of the normalized key. That
/// is made only where prefixes do not differ in the bytes that a code holds.
#[derive(Default)]
pub(crate) struct NormalizedKeys {
    current: NormalizedKey,
    next: NormalizedKey,
}

#[derive(Default)]
struct NormalizedKey {
    prefix: u64,
    /// The prefix, and the rest of the key; not valid unless `made`.
    bytes: Vec<u8>,
    made: bool,
}

impl NormalizedKey {
    #[inline]
    fn begin(&mut self, prefix: u64) {
        (self.prefix, self.made) = (prefix, false);
    }

    #[inline]
    fn of<L: Layout>(&mut self, layout: &L, record: &[u8]) -> &[u8] {
        if !self.made {
            self.bytes.clear();
            self.bytes.extend_from_slice(&self.prefix.to_be_bytes());
            layout.push_behind_prefix(record, self.prefix, &mut self.bytes);
            self.made = true;
        }
        &self.bytes
    }
}

impl<L: Layout> CodedForm<L> for NormalizedKeys {
    fn coding(layout: &L) -> Option<Coding> {
        layout.has_normalized_keys().then(|| Coding::of_first(NORMALIZED_LEN))
    }

    #[inline]
    fn code_next(&mut self, layout: &L, coding: Coding, current: &[u8], next: &[u8]) -> u64 {
        self.next.begin(layout.prefix(next));
        match coding.of_words(self.current.prefix, self.next.prefix) {
            Some(code) => code,
            None => coding.beside(self.current.of(layout, current), self.next.of(layout, next)),
        }
    }

    #[inline]
    fn step(&mut self) {
        std::mem::swap(&mut self.current, &mut self.next);
    }

    fn keep(&mut self, layout: &L, current: &[u8]) {
        self.current.of(layout, current);
    }

    fn code_unseen(&mut self, layout: &L, coding: Coding, record: &[u8], first: bool) -> u64 {
        std::mem::swap(&mut self.current, &mut self.next);
        self.current.begin(layout.prefix(record));
        let key = self.current.of(layout, record);
        if first { coding.first(key) } else { coding.beside(&self.next.bytes, key) }
    }

    #[inline]
    fn settle(layout: &L, coding: Coding, code: u64, a: (&mut Self, &[u8]), b: (&mut Self, &[u8])) -> Settled {
        let mut settled = match coding.is_deep(code) {
            true => Settled { order: Ordering::Equal, later: code },
            false => coding.settle(code, a.0.current.of(layout, a.1), b.0.current.of(layout, b.1)),
        };
        if coding.is_deep(settled.later) {
            // The keys agree in all bytes that were looked at.
            settled.order = layout.compare(a.1, b.1);
        }
        settled
    }

    /// A key that was not made agrees with no other in more than the bytes of a code.
    fn may_be_deep(&self, _record: &[u8]) -> bool {
        self.current.made && self.current.bytes.len() >= NORMALIZED_LEN
    }
}
