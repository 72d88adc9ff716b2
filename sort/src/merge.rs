//! Merging sorted runs, each core a range of keys.
//!
//! ```text
//! merge(runs):
//!     cut the marks of all runs into as many equal parts as there are cores; the record at each cut is a splitter
//!     find every run's first record that is not before the splitter (records equal to it: by run, so even a file
//!         of one key is cut evenly, and stability holds)
//!     each core: a loser tree over its segments, two buffers a segment, its own blocks of output
//! ```

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use datapipes_core::{Dram, Error, ErrorKind, Locator, Machine, Pipe, Result};

use crate::blocks::{Blocks, Edge, Outflow, Target, write_edges};
use crate::control::{Control, count};
use crate::layout::Layout;
use crate::numbers::merge_part;
use crate::report::{Movements, Role};
use crate::source::{Segment, Source, position, record_at};
use crate::spill::{Mark, Run};
use crate::team::team;

/// The places from which runs are read.
pub(crate) type Places<'a> = &'a [&'a dyn Locator];

/// What merging needs besides the runs.
pub(crate) struct Merger<'a, L> {
    pub(crate) layout: &'a L,
    pub(crate) machine: &'a Machine,
    pub(crate) memory: &'a Dram,
    /// The part of the pool that is for reading buffers.
    pub(crate) buffers: (usize, usize),
    pub(crate) blocks: &'a Blocks,
    pub(crate) threads: usize,
    pub(crate) unique: bool,
    pub(crate) control: &'a Control,
    pub(crate) movements: &'a Movements,
}

/// What a merge made.
pub(crate) struct Merged {
    pub(crate) bytes: u64,
    pub(crate) records: u64,
    pub(crate) marks: Vec<Mark>,
}

/// The smallest useful buffer.
pub(crate) const MIN_BUFFER: usize = 64 << 10;

impl<L: Layout> Merger<'_, L> {
    /// The most runs that one pass takes.
    pub(crate) fn fan_in(&self) -> usize {
        (self.buffers.1 / (2 * MIN_BUFFER * self.threads)).max(2)
    }

    /// Merges all runs into the target; `counter` counts the bytes written, `last` says that it is the output.
    pub(crate) fn merge(
        &self,
        places: Places<'_>,
        runs: &[Run],
        target: Target<'_>,
        counter: &AtomicU64,
        last: bool,
    ) -> Result<Merged> {
        // Where duplicates are dropped, a part's place in the output is not known before; a stream takes one part.
        let parts = if self.unique || matches!(target, Target::Stream(_)) { 1 } else { self.threads };
        let pipes: Vec<Vec<Option<Pipe>>> = (0..parts).map(|_| self.connect(places, runs)).collect::<Result<_>>()?;
        let cuts = self.cut(&pipes[0], runs, parts)?;
        let share = self.buffers.1 / parts / 4096 * 4096;
        let size = (share / (2 * runs.len()) / 4096 * 4096).min(8 << 20);
        if size < 4096 {
            return Err(Error::new(ErrorKind::OutOfMemory, "merge", format!("{} runs at once", runs.len())));
        }
        let outcome: Mutex<(Result<()>, Vec<Edge>, Merged)> =
            Mutex::new((Ok(()), Vec::new(), Merged { bytes: 0, records: 0, marks: Vec::new() }));
        team(parts, |p| {
            let (from, to) = (&cuts[p], &cuts[p + 1]);
            let at: u64 = from.iter().sum();
            let mut out = Outflow::new(self.blocks, target, at, p + 1 < parts, self.control, counter);
            let part = Part {
                merger: self,
                runs,
                pipes: &pipes[p],
                segments: from.iter().zip(to).map(|(f, t)| Segment { from: *f, to: *t }).collect(),
                buffers: (self.buffers.0 + p * share, size),
                last,
            };
            let result = part.merge(&mut out);
            let mut outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok((records, marks)) => {
                    outcome.1.append(&mut out.edges);
                    outcome.2.bytes += out.at() - at;
                    outcome.2.records += records;
                    outcome.2.marks.extend(marks);
                }
                Err(e) => {
                    if outcome.0.is_ok() {
                        outcome.0 = Err(e);
                    }
                }
            }
        });
        let (result, edges, mut merged) = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        for pipe in pipes.into_iter().flatten().flatten() {
            self.movements.keep(Role::Merge, pipe);
        }
        result?;
        write_edges(self.blocks, target, edges)?;
        merged.marks.sort_unstable_by_key(|m| m.at);
        Ok(merged)
    }

    fn connect(&self, places: Places<'_>, runs: &[Run]) -> Result<Vec<Option<Pipe>>> {
        let used = |place: usize| runs.iter().any(|r| r.place == place);
        let connect = |(i, place): (usize, &&dyn Locator)| match used(i) {
            true => self.machine.connect(*place, self.memory).map(Some),
            false => Ok(None),
        };
        places.iter().enumerate().map(connect).collect()
    }

    /// For each cut (one more than there are parts), the offset in each run.
    fn cut(&self, pipes: &[Option<Pipe>], runs: &[Run], parts: usize) -> Result<Vec<Vec<u64>>> {
        let mut cuts = vec![vec![0; runs.len()]];
        let mut marks: Vec<(u64, usize, usize)> = Vec::new();
        if parts > 1 {
            for (r, run) in runs.iter().enumerate() {
                marks.extend(run.marks.iter().enumerate().map(|(i, m)| (m.prefix, r, i)));
            }
            marks.sort_unstable();
        }
        let buffer = (self.buffers.0, (self.buffers.1 / 2 / 4096 * 4096).min(256 << 10));
        for part in 1..parts {
            let Some(&(_, r, i)) = marks.get(part * marks.len() / parts) else {
                cuts.push(cuts[part - 1].clone());
                continue;
            };
            let at = runs[r].marks[i].at;
            let key = record_at(self.layout, pipe_of(pipes, &runs[r])?, self.memory, buffer, &runs[r], at)?;
            let mut cut = Vec::with_capacity(runs.len());
            for (other, run) in runs.iter().enumerate() {
                let previous: u64 = cuts[part - 1][other];
                cut.push(if other == r {
                    at.max(previous)
                } else {
                    let pipe = pipe_of(pipes, run)?;
                    position(self.layout, pipe, self.memory, buffer, run, (&key, other < r))?.max(previous)
                });
            }
            cuts.push(cut);
        }
        cuts.push(runs.iter().map(|r| r.len).collect());
        Ok(cuts)
    }
}

fn pipe_of<'p>(pipes: &'p [Option<Pipe>], run: &Run) -> Result<&'p Pipe> {
    pipes
        .get(run.place)
        .and_then(Option::as_ref)
        .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "merge", format!("a run in place {}", run.place)))
}

/// What one core merges.
struct Part<'a, 'm, L> {
    merger: &'a Merger<'m, L>,
    runs: &'a [Run],
    pipes: &'a [Option<Pipe>],
    segments: Vec<Segment>,
    buffers: (usize, usize),
    last: bool,
}

impl<L: Layout> Part<'_, '_, L> {
    /// Merges the segments; returns the records written and a mark for each block.
    fn merge(&self, out: &mut Outflow<'_>) -> Result<(u64, Vec<Mark>)> {
        let m = self.merger;
        let layout = m.layout;
        let (at, size) = self.buffers;
        let mut sources = Vec::with_capacity(self.runs.len());
        for (i, (run, segment)) in self.runs.iter().zip(&self.segments).enumerate() {
            let pipe = pipe_of(self.pipes, run)?;
            let buffer = (at + i * 2 * size, size);
            sources.push(Source::open(layout, pipe, m.memory, buffer, run, *segment)?);
        }
        let (mut records, mut marks, mut next_mark, mut moved) = (0, Vec::new(), 0, 0);
        if let Some(numbers) = layout.numbers() {
            let block = m.blocks.size as u64;
            records = merge_part(numbers, sources, m.unique, self.last, out, |at, prefix, bytes| {
                if at >= next_mark {
                    marks.push(Mark { at, prefix });
                    next_mark = at + block;
                }
                count(&m.control.progress.merged, bytes);
            })?;
            out.finish()?;
            return Ok((records, marks));
        }
        let mut tree = LoserTree::new(layout, &mut sources)?;
        let mut last: Vec<u8> = Vec::new();
        while let Some(winner) = tree.winner() {
            let record = sources[winner.source].record();
            moved += record.len() as u64;
            if !m.unique || records == 0 || !layout.same_key(&last, record) {
                if out.at() >= next_mark {
                    marks.push(Mark { at: out.at(), prefix: winner.key });
                    next_mark = out.at() + m.blocks.size as u64;
                    count(&m.control.progress.merged, moved);
                    moved = 0;
                }
                if m.unique {
                    last.clear();
                    last.extend_from_slice(record);
                }
                out.push(record)?;
                records += 1;
            }
            tree.advance(&mut sources)?;
        }
        count(&m.control.progress.merged, moved);
        out.finish()?;
        Ok((records, marks))
    }
}

/// A contestant: the prefix of its source's record, and the source. A source that is exhausted has the largest prefix.
#[derive(Clone, Copy)]
struct Entrant {
    key: u64,
    source: usize,
}

/// A tournament of sources: each inner node keeps the loser of its match, the winner stands beside.
struct LoserTree<'a, L> {
    layout: &'a L,
    done: Vec<bool>,
    winner: Entrant,
    /// The match of nodes 2n and 2n+1 is at n; source s enters at node s + count. Node 0 is not used.
    losers: Vec<Entrant>,
}

impl<'a, L: Layout> LoserTree<'a, L> {
    fn new(layout: &'a L, sources: &mut [Source<'_, L>]) -> Result<Self> {
        let count = sources.len();
        let nobody = Entrant { key: u64::MAX, source: 0 };
        let mut tree = LoserTree { layout, done: vec![true; count], winner: nobody, losers: vec![nobody; count] };
        // Play all matches from the leaves up.
        let mut winners = vec![nobody; 2 * count];
        for s in 0..count {
            winners[count + s] = tree.load(s, sources)?;
        }
        for node in (1..count).rev() {
            let (a, b) = (winners[2 * node], winners[2 * node + 1]);
            let a_wins = if a.key == b.key { tree.beats_closely(a, b, sources) } else { a.key < b.key };
            (winners[node], tree.losers[node]) = if a_wins { (a, b) } else { (b, a) };
        }
        tree.winner = winners.get(1).copied().unwrap_or(nobody);
        Ok(tree)
    }

    /// The source whose record is next, and that record's prefix.
    #[inline]
    fn winner(&self) -> Option<Entrant> {
        (!*self.done.get(self.winner.source)?).then_some(self.winner)
    }

    #[inline]
    fn load(&mut self, s: usize, sources: &mut [Source<'_, L>]) -> Result<Entrant> {
        let there = sources[s].advance()?;
        self.done[s] = !there;
        let key = if there { self.layout.prefix(sources[s].record()) } else { u64::MAX };
        Ok(Entrant { key, source: s })
    }

    /// The order of two whose prefixes are equal.
    fn beats_closely(&self, a: Entrant, b: Entrant, sources: &[Source<'_, L>]) -> bool {
        if self.done[a.source] || self.done[b.source] {
            return !self.done[a.source];
        }
        let order = if self.layout.prefix_decides() {
            std::cmp::Ordering::Equal
        } else {
            self.layout.compare(sources[a.source].record(), sources[b.source].record())
        };
        // Of equal records the one of the earlier run comes first: that is what makes it stable.
        order.then(a.source.cmp(&b.source)).is_lt()
    }

    /// Replaces the winner's record by its source's next, and plays its matches again.
    #[inline]
    fn advance(&mut self, sources: &mut [Source<'_, L>]) -> Result<()> {
        let mut winner = self.load(self.winner.source, sources)?;
        let mut node = (winner.source + sources.len()) / 2;
        while node > 0 {
            let other = self.losers[node];
            // Which of two random keys is smaller cannot be predicted: both results are selected, not jumped to.
            let mut other_wins = other.key < winner.key;
            if other.key == winner.key {
                other_wins = self.beats_closely(other, winner, sources);
            }
            self.losers[node] = select(other_wins, winner, other);
            winner = select(other_wins, other, winner);
            node /= 2;
        }
        self.winner = winner;
        Ok(())
    }
}

/// `yes` or `no`, without a branch.
#[inline]
fn select(which: bool, yes: Entrant, no: Entrant) -> Entrant {
    Entrant {
        key: std::hint::select_unpredictable(which, yes.key, no.key),
        source: std::hint::select_unpredictable(which, yes.source, no.source),
    }
}
