//! Merging sorted runs, each core a range of keys.
//!
//! ```text
//! merge(runs):
//!     cut the key indexes of all runs into as many equal parts as there are cores;
//!         the record at each cut is a splitter
//!     find the first record of every run that is not before the splitter
//!         (equal records are ordered by run, so even a file of one key is cut evenly and stably)
//!     each core: a loser tree over its segments, two buffers for each, its own output blocks;
//!         lines are matched by offset-value codes, other records by their prefixes
//! ```

use std::cmp::Ordering;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use datapipes_core::locks::Mutex;
use datapipes_core::{Dram, Error, ErrorKind, Machine, Pipe, Result, Staging};

use crate::control::{Control, count};
use crate::long::{LongLines, TiedStubs, Written as WrittenLines};
use crate::memory::blocks::{BlockPool, PartWriter, PartialBlock, RecordWriter, Target, write_partial_blocks};
use crate::memory::parallel::run_parts;
use crate::merging::contest::{ByCode, ByPrefix, LineBytes, MergeContest, NormalizedKeys};
use crate::merging::loser_tree::LoserTree;
use crate::numbers::{MergeRules, Numbers, merge_number_runs};
use crate::records::layout::Layout;
use crate::records::memo;
use crate::records::record_buffer::{RecordBuffer, SHORT_RECORD};
use crate::records::tally::{Tally, verify_bytes};
use crate::report::{MovementRole, Movements};
use crate::runs::checksum::{self, Partial};
use crate::runs::record_reader::{Buffers, RecordReader, RunSearcher, Segment};
use crate::runs::spill::{IndexEntry, Run, mark_distance};
use crate::waits::SortWait;

/// The context of a merge, besides the runs.
pub(crate) struct Merger<'a, L> {
    pub(crate) layout: &'a L,
    pub(crate) machine: &'a Machine,
    pub(crate) memory: &'a Dram,
    /// The part of the pool for reading buffers: its offset and its length.
    pub(crate) buffers: (usize, usize),
    /// The lengths of reading buffers are multiples of this.
    pub(crate) grain: usize,
    /// The smallest useful buffer, a multiple of `grain`.
    pub(crate) min_buffer: usize,
    pub(crate) blocks: &'a BlockPool,
    pub(crate) threads: usize,
    pub(crate) unique: bool,
    /// What has the lines of stubs, if there may be any.
    pub(crate) long: Option<&'a LongLines<'a>>,
    /// Whether lines are matched by their codes. All sources must then be in order.
    pub(crate) coded: bool,
    pub(crate) control: &'a Control,
    pub(crate) movements: &'a Movements,
}

/// The result of a merge.
#[derive(Default)]
pub(crate) struct MergeResult {
    pub(crate) bytes: u64,
    /// Bytes of records that came from the sources; 0 for numbers.
    record_bytes: u64,
    /// Bytes that each thread merged, in the order of the keys.
    pub(crate) parts: Vec<u64>,
    /// The first and the last record, if their order was checked.
    pub(crate) ends: Option<(Vec<u8>, Vec<u8>)>,
    /// For an output: the records written.
    pub(crate) written: Tally,
    /// Records that were dropped as duplicates.
    pub(crate) dropped: Tally,
    /// For a run: the index of its keys, and its checksums.
    pub(crate) key_index: Vec<IndexEntry>,
    pub(crate) sums: Vec<u32>,
    /// Bytes of the longest record.
    pub(crate) longest: usize,
    /// How many more bytes the lines of stubs have than these, modulo 2^64.
    extra: u64,
    /// Bytes that long records took beyond the memory that was set aside for them.
    pub(crate) excess: u64,
}

/// A check whether what several threads merge comes out in order. If one finds that it does not,
/// the others end.
#[derive(Default)]
pub(crate) struct OrderCheck {
    broken: AtomicBool,
}

impl OrderCheck {
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    pub(crate) fn set_broken(&self) {
        self.broken.store(true, Relaxed);
    }

    fn error(&self) -> Error {
        self.set_broken();
        Error::new(ErrorKind::InvalidInput, "merge", "an input is not in order")
    }
}

/// The last record that a thread wrote, to compare the next one with.
#[derive(Default)]
struct Written {
    prefix: u64,
    len: usize,
    /// The record, if the block that is being filled does not have all of it.
    kept: Vec<u8>,
    first: Option<Vec<u8>>,
}

impl Written {
    /// Returns the last record.
    fn last<'w>(&'w self, out: &'w impl RecordWriter) -> &'w [u8] {
        out.tail(self.len).filter(|_| self.kept.is_empty()).unwrap_or(&self.kept)
    }

    /// Whether a record does not come before the last one.
    #[inline]
    fn may_precede<L: Layout>(&self, layout: &L, prefix: u64, record: &[u8], out: &impl RecordWriter) -> bool {
        match prefix.cmp(&self.prefix) {
            Ordering::Greater => true,
            _ if self.first.is_none() => true,
            Ordering::Less => false,
            Ordering::Equal => layout.prefix_decides() || layout.compare(self.last(out), record) != Ordering::Greater,
        }
    }

    /// Notes a record that is not written as it is.
    fn note_kept(&mut self, prefix: u64, record: &[u8]) {
        if self.first.is_none() {
            self.first = Some(record.to_vec());
        }
        (self.prefix, self.len) = (prefix, record.len());
        self.kept.clear();
        self.kept.extend_from_slice(record);
    }

    /// Notes the record that was just written.
    #[inline]
    fn note(&mut self, prefix: u64, record: &[u8], out: &impl RecordWriter) {
        if self.first.is_none() {
            self.first = Some(record.to_vec());
        }
        (self.prefix, self.len) = (prefix, record.len());
        self.kept.clear();
        if out.tail(record.len()).is_none() {
            self.kept.extend_from_slice(record);
        }
    }
}

/// Sources of fewer bytes together are merged by one thread, where a division takes reads.
pub(crate) const WORTH_DIVIDING: u64 = 4 << 20;
/// The largest buffer; a larger one gains nothing.
pub(crate) const MAX_BUFFER: usize = 8 << 20;

/// The number of files from which on lines are merged by codes.
const WORTH_CODING: usize = 4;

/// How the memory for reading is divided into equal parts.
struct Division {
    parts: usize,
    /// Bytes of a part.
    share: usize,
    /// Bytes of each of the two buffers of a run.
    size: usize,
    /// Whether there is also room for the longest record of each run that has long ones.
    crossings: bool,
    /// Bytes for the last record written, at the end of `share`.
    last: usize,
}

/// Notes why a thread failed, unless another one failed before: that is the cause of the others.
pub(crate) fn keep_first(outcome: &mut Result<()>, e: Error) {
    if outcome.is_ok() {
        *outcome = Err(e);
    }
}

/// Bytes to set aside for records of a run that cross buffers.
pub(crate) fn crossing(longest: usize) -> usize {
    if longest as u64 > SHORT_RECORD { longest.next_multiple_of(4096) } else { 0 }
}

impl<L: Layout> Merger<'_, L> {
    /// The most runs that one pass takes, if their records are short.
    pub(crate) fn fan_in(&self) -> usize {
        (self.buffers.1 / (2 * self.min_buffer * self.threads)).max(2)
    }

    /// How many of the first of these runs can be merged within the memory; at least two.
    pub(crate) fn mergeable_count(&self, longest: impl Iterator<Item = usize>) -> usize {
        let mut left = self.buffers.1;
        let mut count = 0;
        let mut most = 0;
        for longest in longest {
            // If only unique keys are kept, the last record written is kept too.
            let kept = if self.unique { crossing(longest).saturating_sub(most) } else { 0 };
            let need = 2 * self.min_buffer + crossing(longest) + kept;
            if need > left {
                break;
            }
            most = most.max(crossing(longest));
            left -= need;
            count += 1;
        }
        count.max(2)
    }

    /// Makes as many parts as there are threads, as long as each has buffers for all runs.
    fn divide(&self, longest: &[usize], target: Target<'_>) -> Result<Division> {
        // If duplicates are dropped, a part's offset in the output is not known in advance (what
        // `merge_ranges` does needs more memory). A stream takes one part.
        let parts = if self.unique || target.stream().is_some() { 1 } else { self.threads };
        let all: usize = longest.iter().map(|l| crossing(*l)).sum();
        let last = if self.unique { longest.iter().map(|l| crossing(*l)).max().unwrap_or(0) } else { 0 };
        let division = |parts: usize, all: usize, last: usize| {
            let share = self.buffers.1 / parts / 4096 * 4096;
            let size = share.saturating_sub(all + last) / (2 * longest.len().max(1));
            Division { parts, share, size: size.min(MAX_BUFFER) / self.grain * self.grain, crossings: all > 0, last }
        };
        // Long records are merged by one thread: several would each need room for all of them.
        let first = if all == 0 { division(parts, 0, 0) } else { division(1, all, last) };
        let last = division(1, 0, 0);
        if first.size >= self.min_buffer {
            Ok(first)
        } else if last.size > 0 {
            Ok(last)
        } else {
            let context = format!("{} runs at once in {} bytes of memory", longest.len(), self.buffers.1);
            Err(Error::new(ErrorKind::OutOfMemory, "merge", context).with_advice("give more memory (`memory_bytes`)"))
        }
    }

    /// Merges spilled runs into the target. Each thread merges a range of keys; `counter` counts
    /// the bytes written.
    pub(crate) fn merge_runs(
        &self,
        staging: &Staging,
        runs: &[Run],
        target: Target<'_>,
        counter: &AtomicU64,
    ) -> Result<MergeResult> {
        let (merged, edges) = self.merge_runs_at(staging, runs, target, (0, false), counter)?;
        write_partial_blocks(self.blocks, target, self.control, edges)?;
        Ok(merged)
    }

    /// How many bytes of each of `runs` runs are fetched ahead. Those that are in use, and those
    /// that come next, share the L2 cache.
    pub(crate) fn lookahead(&self, runs: usize) -> usize {
        usize::try_from(self.machine.l2_size()).unwrap_or(0) / (2 * runs.max(1))
    }

    /// Merges spilled runs into the target from offset `start` on. `more_follows` says that other
    /// bytes of the target follow. Also returns the partial blocks that are still to be written,
    /// because other parts may share them.
    pub(crate) fn merge_runs_at(
        &self,
        staging: &Staging,
        runs: &[Run],
        target: Target<'_>,
        (start, more_follows): (u64, bool),
        counter: &AtomicU64,
    ) -> Result<(MergeResult, Vec<PartialBlock>)> {
        if let Some(merged) = self.merge_ranges(staging, runs, target, (start, more_follows), counter)? {
            return Ok(merged);
        }
        let longest: Vec<usize> = runs.iter().map(|r| r.longest).collect();
        let Division { parts, share, size, crossings, last } = self.divide(&longest, target)?;
        let pipes: Vec<Pipe> = (0..parts).map(|_| self.machine.connect(staging, self.memory)).collect::<Result<_>>()?;
        let cuts = self.cut(&pipes[0], runs, parts)?;
        let far = self.lookahead(runs.len());
        let outcome = Mutex::new((
            Ok(()),
            Vec::<PartialBlock>::new(),
            Vec::<Partial>::new(),
            MergeResult { parts: vec![0; parts], ..MergeResult::default() },
        ));
        run_parts(&self.control.progress.waits, self.threads, parts, |p| {
            let (from, to) = (&cuts[p], &cuts[p + 1]);
            let at = start + from.iter().sum::<u64>();
            let shared_end = p + 1 < parts || more_follows;
            let mut out = PartWriter::new(self.blocks, target, at, shared_end, self.control, counter);
            let mut free = self.buffers.0 + p * share;
            let mut sources = Vec::with_capacity(runs.len());
            let opened = runs.iter().zip(from.iter().zip(to)).try_for_each(|(run, (from, to))| {
                let crossing = if crossings { crossing(run.longest) } else { 0 };
                let buffers = Buffers { at: free, size, crossing };
                free += buffers.len();
                let segment = Segment { from: *from, to: *to };
                let mut source = RecordReader::of_run(self.layout, &pipes[p], self.memory, buffers, run, segment)?;
                source.fetch_ahead(far);
                sources.push(source.controlled(self.control));
                Ok(())
            });
            let last = RecordBuffer::new(free, last);
            let result = opened.and_then(|()| self.merge_part(sources, last, target.is_output(), &mut out, None));
            let mut outcome = outcome.lock();
            match result {
                Ok(merged) => {
                    outcome.1.append(&mut out.partial_blocks);
                    outcome.2.append(&mut out.take_sums());
                    outcome.3.bytes += out.at() - at;
                    outcome.3.parts[p] = out.at() - at;
                    outcome.3.join(merged);
                }
                Err(e) => keep_first(&mut outcome.0, e),
            }
        });
        let (result, edges, partials, mut merged) = outcome.into_inner();
        for pipe in pipes {
            self.movements.keep(MovementRole::Merge, pipe);
        }
        result?;
        merged.key_index.sort_unstable_by_key(|m| m.at);
        merged.sums = checksum::assemble(partials, self.grain);
        let records: u64 = runs.iter().map(|run| run.len).sum();
        verify_bytes(records.wrapping_add(merged.extra), merged.bytes, merged.dropped)?;
        Ok((merged, edges))
    }

    /// Merges sources, all on this thread. With a check, it fails if the records do not come out in
    /// order.
    pub(crate) fn merge_sources(
        &self,
        sources: Vec<RecordReader<'_, L>>,
        last: RecordBuffer,
        target: Target<'_>,
        counter: &AtomicU64,
        check: Option<&OrderCheck>,
    ) -> Result<MergeResult> {
        let mut out = PartWriter::new(self.blocks, target, 0, false, self.control, counter);
        let others = self.control.progress.waits.begin(SortWait::Idle, self.threads.saturating_sub(1));
        let merged = self.merge_part(sources, last, target.is_output(), &mut out, check);
        drop(others);
        let mut merged = merged?;
        merged.bytes = out.at();
        merged.parts = vec![merged.bytes];
        verify_bytes(merged.record_bytes.wrapping_add(merged.extra), merged.bytes, merged.dropped)?;
        merged.sums = checksum::assemble(out.take_sums(), self.grain);
        Ok(merged)
    }

    /// Divides the buffers among `count` sources with records of unknown length, and adds room for
    /// the last record written.
    pub(crate) fn buffers_of_inputs(&self, count: usize) -> Result<(Vec<Buffers>, RecordBuffer)> {
        self.buffers_within(self.buffers.0, self.buffers.1, count)
    }

    /// Does the same within `pool` bytes from `start` on.
    pub(crate) fn buffers_within(
        &self,
        start: usize,
        pool: usize,
        count: usize,
    ) -> Result<(Vec<Buffers>, RecordBuffer)> {
        let each = pool / count.max(1) / 4096 * 4096;
        // Half of a large share is for records that cross the two buffers.
        let size = (each / 4 / self.grain * self.grain).clamp(self.min_buffer, MAX_BUFFER);
        if each < 2 * size {
            let context = format!("{count} inputs at once in {pool} bytes of memory");
            return Err(
                Error::new(ErrorKind::OutOfMemory, "merge", context).with_advice("give more memory (`memory_bytes`)")
            );
        }
        let records = count + usize::from(self.unique);
        let crossing = (pool - count * 2 * size) / records.max(1) / 4096 * 4096;
        let buffers = Buffers { at: start, size, crossing };
        let each = buffers.len();
        let all = (0..count).map(|i| Buffers { at: start + i * each, ..buffers }).collect();
        Ok((all, RecordBuffer::new(start + count * each, if self.unique { crossing } else { 0 })))
    }

    /// Returns, for each cut (one more than there are parts), the offset in each run.
    fn cut(&self, pipe: &Pipe, runs: &[Run], parts: usize) -> Result<Vec<Vec<u64>>> {
        let mut cuts = vec![vec![0; runs.len()]];
        let mut marks: Vec<(u64, usize, usize)> = Vec::new();
        if parts > 1 {
            for (r, run) in runs.iter().enumerate() {
                marks.extend(run.key_index.iter().enumerate().map(|(i, m)| (m.prefix, r, i)));
            }
            marks.sort_unstable();
        }
        // Keys lie a block apart in an index, so no more than a block is searched.
        let most = self.blocks.size.min(256 << 10);
        let size = (self.buffers.1 / 2).min(most) / self.grain * self.grain;
        let buffers = Buffers { at: self.buffers.0, size, crossing: 0 };
        let waits = &self.control.progress.waits;
        let control = self.control;
        let finder = RunSearcher { layout: self.layout, pipe, memory: self.memory, buffers, control };
        let _others = waits.begin(SortWait::Idle, self.threads.saturating_sub(1));
        for part in 1..parts {
            let Some(&(_, r, i)) = marks.get(part * marks.len() / parts) else {
                cuts.push(cuts[part - 1].clone());
                continue;
            };
            let at = runs[r].key_index[i].at;
            let key = finder.record_at(&runs[r], at)?;
            let mut cut = Vec::with_capacity(runs.len());
            for (other, run) in runs.iter().enumerate() {
                let previous: u64 = cuts[part - 1][other];
                let position = if other == r { at } else { finder.position(run, &key, other < r)? };
                cut.push(position.max(previous));
            }
            cuts.push(cut);
        }
        cuts.push(runs.iter().map(|r| r.len).collect());
        Ok(cuts)
    }

    /// Merges the sources of one thread, and notes an index entry for each block. With a check, it
    /// fails if the records do not come out in order.
    pub(crate) fn merge_part(
        &self,
        sources: Vec<RecordReader<'_, L>>,
        last: RecordBuffer,
        output: bool,
        out: &mut PartWriter<'_>,
        check: Option<&OrderCheck>,
    ) -> Result<MergeResult> {
        if let Some(numbers) = self.layout.numbers() {
            return self.merge_numbers(numbers, sources, output, out);
        }
        self.merge_by_keys(sources, last, output, out, check)
    }

    /// Does the same for records that are not numbers.
    pub(crate) fn merge_by_keys(
        &self,
        sources: Vec<RecordReader<'_, L>>,
        last: RecordBuffer,
        output: bool,
        out: &mut impl RecordWriter,
        check: Option<&OrderCheck>,
    ) -> Result<MergeResult> {
        // Codes are right for sources in order, and a check finds the others. For few sources they
        // cost more than they save.
        let coded = self.coded || check.is_some() && sources.len() >= WORTH_CODING;
        let mut sources = sources;
        if coded {
            sources = match ByCode::<L, LineBytes>::new(self.layout, sources) {
                Ok(contest) => return self.merge_records(contest, last, output, out, check),
                Err(sources) => sources,
            };
        }
        if self.coded {
            sources = match ByCode::<L, NormalizedKeys>::new(self.layout, sources) {
                Ok(contest) => return self.merge_records(contest, last, output, out, check),
                Err(sources) => sources,
            };
        }
        self.merge_records(ByPrefix::new(self.layout, sources), last, output, out, check)
    }

    fn merge_numbers(
        &self,
        numbers: Numbers,
        sources: Vec<RecordReader<'_, L>>,
        output: bool,
        out: &mut PartWriter<'_>,
    ) -> Result<MergeResult> {
        let block = self.blocks.size as u64;
        let (mut merged, mut next_mark) = (MergeResult::default(), 0);
        let rules = MergeRules { unique: self.unique, decode: output, l2: self.machine.l2_size() };
        let counts = merge_number_runs(numbers, sources, rules, out, |at, prefix, bytes| {
            if at >= next_mark {
                merged.key_index.push(IndexEntry { at, prefix });
                next_mark = at + block;
            }
            count(&self.control.progress.merged, bytes);
        })?;
        out.finish()?;
        (merged.written, merged.dropped) = (counts.written, counts.dropped);
        Ok(merged)
    }

    fn merge_records<'a>(
        &self,
        mut contest: impl MergeContest<'a, L>,
        mut last: RecordBuffer,
        output: bool,
        out: &mut impl RecordWriter,
        check: Option<&OrderCheck>,
    ) -> Result<MergeResult>
    where
        L: 'a,
    {
        let distance = mark_distance(self.blocks.size, self.grain, self.unique) as u64;
        let (mut merged, mut next_mark, mut moved) = (MergeResult::default(), 0, 0);
        let mut tree = LoserTree::new(&mut contest)?;
        let mut any = false;
        let mut written = Written::default();
        let longest = self.long.map_or(usize::MAX, LongLines::longest);
        let mut stubs = self.long.filter(|_| output).map(|long| TiedStubs::new(self.layout, long));
        let mut lines = WrittenLines::default();
        while let Some(winner) = tree.winner(&contest) {
            let reader = &contest.readers()[winner.source];
            let record = reader.record();
            moved += record.len() as u64;
            if self.unique && any && contest.repeats(winner, last.bytes()) {
                if record.len() > longest {
                    let stub_len = record.len() as u64;
                    let before = merged.dropped.bytes;
                    self.layout.count(&mut merged.dropped, record);
                    let len = merged.dropped.bytes - before;
                    lines.extra = lines.extra.wrapping_add(len).wrapping_sub(stub_len);
                } else {
                    merged.dropped.add(record);
                }
            } else {
                if let Some(stubs) = stubs.as_mut().filter(|stubs| !stubs.is_empty())
                    && (record.len() <= longest || !stubs.takes(record))
                {
                    stubs.write(self.unique, out, &mut lines)?;
                }
                if out.at() >= next_mark {
                    merged.key_index.push(IndexEntry { at: out.at(), prefix: contest.prefix(winner) });
                    next_mark = out.at() + distance;
                    count(&self.control.progress.merged, moved);
                    moved = 0;
                    if let Some(check) = check.filter(|check| check.is_broken()) {
                        return Err(check.error());
                    }
                }
                if self.unique {
                    last.clear();
                    if contest.needs_last(winner) {
                        last.extend(self.memory, record)?;
                        memo::forget_long(last.bytes());
                    }
                    any = true;
                }
                merged.longest = merged.longest.max(record.len());
                if let (true, Some(stubs)) = (record.len() > longest, &mut stubs) {
                    if let Some(check) = check {
                        let prefix = contest.prefix(winner);
                        if !written.may_precede(self.layout, prefix, record, out) {
                            return Err(check.error());
                        }
                        written.note_kept(prefix, record);
                    }
                    stubs.add(record)?;
                    tree.advance(&mut contest)?;
                    continue;
                }
                if output {
                    merged.written.add(record);
                }
                if let Some(check) = check {
                    let prefix = contest.prefix(winner);
                    if !written.may_precede(self.layout, prefix, record, out) {
                        return Err(check.error());
                    }
                    out.push_start(reader.record_onwards(), record.len())?;
                    written.note(prefix, record, out);
                } else {
                    out.push_start(reader.record_onwards(), record.len())?;
                }
            }
            tree.advance(&mut contest)?;
        }
        if let Some(stubs) = stubs.as_mut().filter(|stubs| !stubs.is_empty()) {
            stubs.write(self.unique, out, &mut lines)?;
        }
        merged.written.join(lines.written);
        merged.dropped.join(lines.dropped);
        merged.extra = lines.extra;
        count(&self.control.progress.merged, moved);
        merged.ends = written.first.as_ref().map(|first| (first.clone(), written.last(out).to_vec()));
        out.finish()?;
        let readers = contest.readers();
        merged.excess = readers.iter().map(RecordReader::excess).sum::<u64>() + last.excess();
        merged.record_bytes = readers.iter().map(RecordReader::record_bytes).sum();
        Ok(merged)
    }
}

impl MergeResult {
    /// Adds what another thread merged, except for its `bytes` and what belongs to a part.
    pub(crate) fn join(&mut self, mut other: MergeResult) {
        self.written.join(other.written);
        self.dropped.join(other.dropped);
        self.key_index.append(&mut other.key_index);
        self.longest = self.longest.max(other.longest);
        self.extra = self.extra.wrapping_add(other.extra);
        self.excess += other.excess;
    }
}
