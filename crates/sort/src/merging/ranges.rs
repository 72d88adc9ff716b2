//! Merging runs without duplicates on all cores.
//!
//! How many records of a range of keys are left is known only when they are merged. So a thread
//! does not know in advance where its records go in the output.
//!
//! ```text
//! each thread, until there are no more:
//!     takes the next range of keys, about as long as its memory for records, and finds its end in
//!         every run
//!     merges it into that memory
//!     waits until all ranges before it are written, and appends it to the output
//! ```
//! All records with one key are in one range. A range that is longer than the memory is appended in
//! several pieces once its turn has come. The first of all ranges waits for nobody, so there is
//! always a thread that goes on.

use std::sync::atomic::AtomicU64;

use datapipes_core::locks::{Condvar, Mutex, MutexGuard};
use datapipes_core::{Error, ErrorKind, LeaseMut, Pipe, Result, Staging};

use crate::memory::blocks::{PartWriter, PartialBlock, RecordWriter, Target};
use crate::memory::parallel::run_parts;
use crate::memory::short_copy::copy_record;
use crate::merging::merge::{MAX_BUFFER, MergeResult, Merger, WORTH_DIVIDING, crossing, keep_first};
use crate::records::layout::Layout;
use crate::records::record_buffer::RecordBuffer;
use crate::records::tally::verify_bytes;
use crate::report::MovementRole;
use crate::runs::checksum;
use crate::runs::record_reader::{Buffers, RecordReader, RunSearcher, Segment};
use crate::runs::spill::{IndexEntry, Run};
use crate::waits::SortWait;

/// Runs are merged by one thread if more than one in this many entries of their indexes has the
/// prefix of the entry before it.
const TOO_MANY: usize = 2;
/// The most memory for the records of a range; more gains nothing.
const MAX_ROOM: usize = 64 << 20;

/// How the memory is divided among threads that merge ranges.
struct RangeMemory {
    /// Bytes of each of the two buffers for searching a run.
    probe: usize,
    /// Bytes of a thread: those for records, and the buffers.
    share: usize,
    room: usize,
    /// Bytes of each of the two buffers of a run.
    size: usize,
}

/// A range of keys: its number, and its part of each run.
struct KeyRange {
    number: usize,
    segments: Vec<Segment>,
}

/// Finds the ranges one after the other.
struct RangeCutter<'a, L> {
    finder: RunSearcher<'a, L>,
    runs: &'a [Run],
    /// Records with the first keys of ranges: the run, and the offset there.
    splitters: Vec<(usize, u64)>,
    /// The number of ranges that were taken.
    taken: usize,
    /// The offset in each run where the next range begins.
    next: Vec<u64>,
}

impl<L: Layout> RangeCutter<'_, L> {
    /// Returns the next range.
    fn take(&mut self) -> Result<Option<KeyRange>> {
        if self.taken > self.splitters.len() {
            return Ok(None);
        }
        let end = match self.splitters.get(self.taken) {
            None => self.runs.iter().map(|run| run.len).collect(),
            Some(&(run, at)) => {
                let key = self.finder.record_at(&self.runs[run], at)?;
                // All records with the key are in the range that it begins.
                let mut end = self.finder.positions(self.runs, &key)?;
                end.iter_mut().zip(&self.next).for_each(|(end, next)| *end = (*end).max(*next));
                end
            }
        };
        let segments = self.next.iter().zip(&end).map(|(from, to)| Segment { from: *from, to: *to }).collect();
        self.next = end;
        self.taken += 1;
        Ok(Some(KeyRange { number: self.taken - 1, segments }))
    }
}

/// The output, to which ranges are appended in their order.
struct OrderedOutput<'a> {
    state: Mutex<OutputState<'a>>,
    turned: Condvar,
}

struct OutputState<'a> {
    /// The range whose turn it is.
    turn: usize,
    failed: bool,
    out: PartWriter<'a>,
}

impl<'a> OrderedOutput<'a> {
    /// Waits until all ranges before this one are written.
    fn wait_for(&self, range: usize) -> Result<MutexGuard<'_, OutputState<'a>>> {
        let mut state = self.state.lock();
        while state.turn != range {
            if state.failed {
                return Err(Error::new(ErrorKind::Interrupted, "merge", "another thread failed"));
            }
            state = self.turned.wait(state);
        }
        Ok(state)
    }

    fn fail(&self) {
        self.state.lock().failed = true;
        self.turned.notify_all();
    }
}

/// Ends the other threads if this one panics: its range will not be written.
struct FailOnPanic<'o, 'a>(&'o OrderedOutput<'a>);

impl Drop for FailOnPanic<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail();
        }
    }
}

/// What became of a range.
struct RangeEnd {
    range: usize,
    /// Bytes of the records that are left.
    len: u64,
    /// Offsets are those in the range.
    key_index: Vec<IndexEntry>,
}

/// Writes the records of one range: to memory first, and to the output when its turn has come.
struct RangeWriter<'w, 'a> {
    output: &'w OrderedOutput<'a>,
    range: usize,
    memory: &'w mut LeaseMut,
    filled: usize,
    /// Bytes of the range that are in the output already.
    appended: u64,
}

impl RangeWriter<'_, '_> {
    /// Appends what is in the memory to the output.
    fn append(&mut self) -> Result<()> {
        let mut state = self.output.wait_for(self.range)?;
        state.out.push(&self.memory[..self.filled])?;
        self.appended += self.filled as u64;
        self.filled = 0;
        Ok(())
    }
}

impl RecordWriter for RangeWriter<'_, '_> {
    /// The offset of the next byte in the range.
    #[inline]
    fn at(&self) -> u64 {
        self.appended + self.filled as u64
    }

    fn tail(&self, len: usize) -> Option<&[u8]> {
        self.memory.get(self.filled.checked_sub(len)?..self.filled)
    }

    #[inline]
    fn push_start(&mut self, bytes: &[u8], len: usize) -> Result<()> {
        if !copy_record(self.memory, self.filled, bytes, len) {
            self.append()?;
            if !copy_record(self.memory, 0, bytes, len) {
                let mut state = self.output.wait_for(self.range)?;
                self.appended += len as u64;
                return state.out.push(&bytes[..len]);
            }
        }
        self.filled += len;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.append()?;
        self.output.state.lock().turn += 1;
        self.output.turned.notify_all();
        Ok(())
    }
}

impl<L: Layout> Merger<'_, L> {
    /// Divides the memory among threads that merge ranges; `None` if one thread should merge all.
    fn range_memory(&self, runs: &[Run], target: Target<'_>) -> Option<RangeMemory> {
        let total: u64 = runs.iter().map(|run| run.len).sum();
        let long = runs.iter().any(|run| crossing(run.longest) > 0);
        if !self.unique || self.threads < 2 || self.layout.numbers().is_some() || long || total < WORTH_DIVIDING {
            return None;
        }
        target.place()?;
        let unit = |run: &Run| run.table.as_ref().map_or(self.grain, |table| table.frame);
        let probe = runs.iter().map(unit).max()?.max(self.grain);
        let share = self.buffers.1.saturating_sub(2 * probe * runs.len()) / self.threads / 4096 * 4096;
        // A range then takes most of the two buffers of each run, and both are read ahead.
        let room = (share * 9 / 20).min(MAX_ROOM) / 4096 * 4096;
        let size = ((share - room) / (2 * runs.len().max(1))).min(MAX_BUFFER) / self.grain * self.grain;
        (size >= self.min_buffer).then_some(RangeMemory { probe, share, room, size })
    }

    /// The places where ranges of about `len` bytes begin. Returns `None` if prefixes say too
    /// little about the order of records: then to find the ranges would take many reads.
    fn splitters(runs: &[Run], len: usize) -> Option<Vec<(usize, u64)>> {
        let total: u64 = runs.iter().map(|run| run.len).sum();
        let marks = runs.iter().enumerate().flat_map(|(r, run)| run.key_index.iter().map(move |m| (m.prefix, r, m.at)));
        let mut marks: Vec<(u64, usize, u64)> = marks.collect();
        marks.sort_unstable();
        let equal = marks.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
        if equal > marks.len() / TOO_MANY {
            return None;
        }
        let ranges = usize::try_from(total.div_ceil(len as u64)).unwrap_or(1).min(marks.len()).max(1);
        Some((1..ranges).map(|i| marks[i * marks.len() / ranges]).map(|(_, run, at)| (run, at)).collect())
    }

    /// Merges runs into the target without duplicates, on all cores. Returns `None` if one thread
    /// should do it.
    pub(crate) fn merge_ranges(
        &self,
        staging: &Staging,
        runs: &[Run],
        target: Target<'_>,
        (start, more_follows): (u64, bool),
        counter: &AtomicU64,
    ) -> Result<Option<(MergeResult, Vec<PartialBlock>)>> {
        let Some(RangeMemory { probe, share, room, size }) = self.range_memory(runs, target) else { return Ok(None) };
        let Some(splitters) = Self::splitters(runs, room) else { return Ok(None) };
        let connect = |_| self.machine.connect(staging, self.memory);
        let pipes: Vec<Pipe> = (0..=self.threads).map(connect).collect::<Result<_>>()?;
        let buffers = Buffers { at: self.buffers.0, size: probe, crossing: 0 };
        let waits = &self.control.progress.waits;
        let pipe = &pipes[self.threads];
        let (memory, control) = (self.memory, self.control);
        let finder = RunSearcher { layout: self.layout, pipe, memory, buffers, control };
        let next = vec![0; runs.len()];
        let cutter = Mutex::new(RangeCutter { finder, runs, splitters, taken: 0, next });
        let out = PartWriter::new(self.blocks, target, start, more_follows, self.control, counter);
        let state = Mutex::new(OutputState { turn: 0, failed: false, out });
        let output = OrderedOutput { state, turned: Condvar::new() };
        let far = self.lookahead(runs.len());
        let outcome = Mutex::new((Ok(()), Vec::<RangeEnd>::new(), MergeResult::default(), vec![0; self.threads]));
        run_parts(waits, self.threads, self.threads, |t| {
            let _guard = FailOnPanic(&output);
            let at = self.buffers.0 + 2 * probe * runs.len() + t * share;
            let work = || -> Result<()> {
                let mut memory = self.memory.range(at, room)?.lease_mut()?;
                loop {
                    let mut cutter = match cutter.try_lock() {
                        Some(cutter) => cutter,
                        None => {
                            // Whoever has it reads runs.
                            let _wait = waits.begin(SortWait::Runs, 1);
                            cutter.lock()
                        }
                    };
                    let Some(KeyRange { number, segments }) = cutter.take()? else { return Ok(()) };
                    drop(cutter);
                    let mut sources = Vec::with_capacity(runs.len());
                    for (i, (run, segment)) in runs.iter().zip(segments).enumerate() {
                        let buffers = Buffers { at: at + room + i * 2 * size, size, crossing: 0 };
                        let mut source =
                            RecordReader::of_run(self.layout, &pipes[t], self.memory, buffers, run, segment)?;
                        source.fetch_ahead(far);
                        sources.push(source.controlled(self.control));
                    }
                    let mut out =
                        RangeWriter { output: &output, range: number, memory: &mut memory, filled: 0, appended: 0 };
                    let last = RecordBuffer::new(0, 0);
                    let mut merged = self.merge_by_keys(sources, last, target.is_output(), &mut out, None)?;
                    let end =
                        RangeEnd { range: number, len: out.at(), key_index: std::mem::take(&mut merged.key_index) };
                    let mut outcome = outcome.lock();
                    outcome.3[t] += end.len;
                    outcome.1.push(end);
                    outcome.2.join(merged);
                }
            };
            if let Err(e) = work() {
                // Before others are told, and fail for that reason.
                keep_first(&mut outcome.lock().0, e);
                output.fail();
            }
        });
        drop(cutter);
        for pipe in pipes {
            self.movements.keep(MovementRole::Merge, pipe);
        }
        let (result, mut ends, mut merged, parts) = outcome.into_inner();
        result?;
        let mut out = output.state.into_inner().out;
        out.finish()?;
        ends.sort_unstable_by_key(|end| end.range);
        let mut at = start;
        for RangeEnd { len, key_index, .. } in ends {
            merged.key_index.extend(key_index.into_iter().map(|mark| IndexEntry { at: at + mark.at, ..mark }));
            at += len;
        }
        (merged.bytes, merged.parts) = (at - start, parts);
        merged.sums = checksum::assemble(out.take_sums(), self.grain);
        verify_bytes(runs.iter().map(|run| run.len).sum(), merged.bytes, merged.dropped)?;
        Ok(Some((merged, std::mem::take(&mut out.partial_blocks))))
    }
}
