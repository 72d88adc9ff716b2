//! From buckets to the output: each lane loads a portion while it sorts and writes another.
//!
//! A portion's place in the output is known when those before it are sorted, because `-u` drops
//! records. So lanes take places in turn, and gather side by side.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datapipes_core::locks::{Condvar, Mutex};
use datapipes_core::{Error, ErrorKind, Pipe, Result};

use super::buckets::{Bucket, Portion, Step, steps};
use super::load::Loading;
use super::narrow::NarrowSorter;
use super::numbers::SortedNumbers;
use super::plan::Shape;
use crate::control::count;
use crate::engine::Engine;
use crate::memory::blocks::{BlockPool, PartWriter, PartialBlock, Target, write_partial_blocks};
use crate::memory::parallel::run_parts;
use crate::merging::merge::keep_first;
use crate::records::layout::Layout;
use crate::records::prefetch::prefetch_record;
use crate::records::tally::Tally;
use crate::report::{MovementRole, SortReport};
use crate::runs::checksum;
use crate::runs::spill::{IndexEntry, Run, Spill};
use crate::sink::Sink;
use crate::waits::SortWait;

/// How many entries ahead a record is prefetched. Records lie in the order of the input, so each is
/// a cache miss.
const PREFETCH_ENTRIES: usize = 40;

/// What all lanes work with.
struct Lanes<'a> {
    record: usize,
    shape: Shape,
    buckets: &'a [Bucket],
    /// From the spill to memory.
    pipe: Pipe,
    blocks: &'a BlockPool,
}

/// A portion whose records are in order.
struct SortedPortion<'a, L> {
    /// Its number in its step.
    index: usize,
    content: Content<'a, L>,
}

/// The records of a portion.
enum Content<'a, L> {
    /// Entries in order, and what they point into.
    Entries(NarrowSorter<'a, L>, &'a [u64]),
    /// Numbers in order, encoded.
    Numbers(SortedNumbers<'a>),
}

impl<L: Layout> Content<'_, L> {
    /// Bytes of the records.
    fn len(&self) -> u64 {
        match self {
            Content::Entries(sorter, entries) => (entries.len() * sorter.record) as u64,
            Content::Numbers(numbers) => numbers.len(),
        }
    }
}

/// What was written to the output so far.
#[derive(Default)]
struct Written {
    bytes: u64,
    tally: Tally,
    dropped: Tally,
    partial_blocks: Vec<PartialBlock>,
}

impl<L: Layout> Engine<'_, L> {
    /// Sorts all buckets into the output. Returns what was written, and what was dropped as a
    /// duplicate.
    pub(super) fn write_buckets(
        &self,
        record: usize,
        shape: &Shape,
        buckets: &[Bucket],
        blocks: &BlockPool,
        (sink, spill): (&Sink<'_>, &Spill<'_>),
        report: &mut SortReport,
    ) -> Result<(Tally, Tally)> {
        // Under -u only one record of a bucket of equal keys is left, and all are needed for that.
        let in_order = |b: &Bucket| b.low == b.high && self.layout.prefix_decides() && !self.settings.unique;
        // Numbers that were counted need no memory.
        let most = |b: &Bucket| if b.counted && self.settings.unique { u64::MAX } else { shape.portion as u64 };
        let steps = steps(buckets, most, in_order);
        let portions = steps.iter().flat_map(|step| match step {
            Step::Write(portions) | Step::Merge(portions) => portions,
        });
        // Memory that is not needed is not touched.
        let longest = portions.map(|p| p.bytes as usize).max().unwrap_or(0);
        let shape = Shape { portion: longest.min(shape.portion), ..*shape };
        let pipe = self.machine.connect(&spill.staging()?, &self.memory)?;
        let lanes = Lanes { record, shape, buckets, pipe, blocks };
        let total: u64 = buckets.iter().map(Bucket::len).sum();
        sink.begin(Some(total).filter(|_| !self.settings.unique))?;
        let mut written = Written::default();
        for step in &steps {
            let outcome = match step {
                Step::Write(portions) => self.write_portions(&lanes, portions, sink.target(), &mut written),
                Step::Merge(portions) => self.merge_portions(&lanes, portions, (sink, spill), &mut written, report),
            };
            // The first error counts, but no write may be in flight when this returns.
            let waits = self.control.progress.waits.begin(SortWait::Output, shape.threads);
            let drained = blocks.drain();
            drop(waits);
            outcome?;
            drained?;
        }
        write_partial_blocks(blocks, sink.target(), self.control, std::mem::take(&mut written.partial_blocks))?;
        blocks.drain()?;
        self.movements.keep(MovementRole::Merge, lanes.pipe);
        (report.bytes_out, report.records_out) = (written.bytes, written.tally.records);
        Ok((written.tally, written.dropped))
    }

    /// Sorts portions that follow each other in the output.
    fn write_portions(
        &self,
        lanes: &Lanes<'_>,
        portions: &[Portion],
        target: Target<'_>,
        written: &mut Written,
    ) -> Result<()> {
        let turns = Turns::from(written.bytes);
        let sum = Mutex::new(std::mem::take(written));
        let fail = || {
            turns.fail();
            if let Some(stream) = target.stream() {
                stream.abandon();
            }
        };
        let outcome = self.each_portion(lanes, portions, fail, |portion, dropped| {
            let bytes = portion.content.len();
            let waits = self.control.waits_for(SortWait::Turn);
            let at = turns.take(portion.index, bytes)?;
            drop(waits);
            let counter = &self.control.progress.written;
            let mut out = PartWriter::new(lanes.blocks, target, at, true, self.control, counter);
            let mut tally = Tally::default();
            match &portion.content {
                Content::Entries(sorter, entries) => gather(sorter, entries, &mut out, |_, r| tally.add(r))?,
                Content::Numbers(numbers) => tally.join(numbers.write(&mut out)?),
            }
            let mut sum = sum.lock();
            sum.tally.join(tally);
            sum.dropped.join(dropped);
            sum.bytes += bytes;
            sum.partial_blocks.append(&mut out.partial_blocks);
            Ok(())
        });
        *written = sum.into_inner();
        outcome
    }

    /// Sorts a bucket that does not fit: each portion becomes a run, and the runs are merged.
    fn merge_portions(
        &self,
        lanes: &Lanes<'_>,
        portions: &[Portion],
        (sink, spill): (&Sink<'_>, &Spill<'_>),
        written: &mut Written,
        report: &mut SortReport,
    ) -> Result<()> {
        let staging = spill.staging()?;
        let pipe = self.machine.connect(&self.memory, &staging)?;
        let formed = Mutex::new((Vec::with_capacity(portions.len()), Tally::default()));
        let outcome = self.each_portion(
            lanes,
            portions,
            || {},
            |portion, dropped| {
                let run = self.write_run(lanes, &portion, &pipe, spill)?;
                let mut formed = formed.lock();
                formed.0.push((portion.index, run));
                formed.1.join(dropped);
                Ok(())
            },
        );
        let drained = lanes.blocks.drain();
        self.movements.keep(MovementRole::Spill, pipe);
        outcome?;
        drained?;
        let (mut runs, dropped) = formed.into_inner();
        // The order of the input makes the sort stable.
        runs.sort_by_key(|(index, _)| *index);
        let runs: Vec<Run> = runs.into_iter().map(|(_, run)| run).collect();
        let merger = self.merger(lanes.blocks, None, false, false);
        let counter = &self.control.progress.written;
        let place = (written.bytes, true);
        let (merged, edges) = merger.merge_runs_at(&staging, &runs, sink.target(), place, counter)?;
        report.runs += runs.len() as u64;
        // The output may need the space, and its length may not be known.
        spill.free_now(&runs, self.control)?;
        written.bytes += merged.bytes;
        written.tally.join(merged.written);
        written.dropped.join(dropped);
        written.dropped.join(merged.dropped);
        written.partial_blocks.extend(edges);
        report.merge_passes += 1;
        report.method.merged_buckets += 1;
        Ok(())
    }

    /// Writes a portion as a run.
    fn write_run(
        &self,
        lanes: &Lanes<'_>,
        portion: &SortedPortion<'_, L>,
        pipe: &Pipe,
        spill: &Spill<'_>,
    ) -> Result<Run> {
        let mut run = spill.reserve(portion.content.len(), self.control)?;
        run.grain = self.budget.grain;
        run.longest = lanes.record;
        let target = Target::Run { pipe, base: run.offset, grain: run.grain };
        let counter = &self.control.progress.spilled;
        let mut out = PartWriter::new(lanes.blocks, target, 0, false, self.control, counter);
        let mut next_mark = 0;
        let mut mark = |at, record: &[u8]| {
            if at >= next_mark {
                run.key_index.push(IndexEntry { at, prefix: self.layout.prefix(record) });
                next_mark = at + lanes.blocks.size as u64;
            }
        };
        match &portion.content {
            Content::Entries(sorter, entries) => gather(sorter, entries, &mut out, mark)?,
            Content::Numbers(numbers) => numbers.write_encoded(&mut out, &mut mark)?,
        }
        run.sums = checksum::assemble(out.take_sums(), run.grain);
        Ok(run)
    }

    /// Loads and sorts every portion and gives it to `work`, with the records dropped as
    /// duplicates. `fail` is called if a portion fails, to wake lanes that wait for it.
    fn each_portion(
        &self,
        lanes: &Lanes<'_>,
        portions: &[Portion],
        fail: impl Fn() + Sync,
        work: impl Fn(SortedPortion<'_, L>, Tally) -> Result<()> + Sync,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let outcome = Mutex::new(Ok(()));
        let count = lanes.shape.lanes;
        run_parts(&self.control.progress.waits, count, count.min(portions.len()), |lane| {
            if let Err(e) = self.run_lane(lanes, lane, portions, &next, &work) {
                // The other lanes find nothing more to do.
                next.store(portions.len(), Relaxed);
                keep_first(&mut outcome.lock(), e);
                fail();
            }
        });
        outcome.into_inner()
    }

    fn run_lane(
        &self,
        lanes: &Lanes<'_>,
        lane: usize,
        portions: &[Portion],
        next: &AtomicUsize,
        work: &impl Fn(SortedPortion<'_, L>, Tally) -> Result<()>,
    ) -> Result<()> {
        let Lanes { record, shape, .. } = *lanes;
        let (loaded_len, entries_len) = (shape.loaded_len(), shape.entries_len(record));
        let start = self.budget.arenas_at + lane * (2 * loaded_len + entries_len);
        let places = [start + entries_len, start + entries_len + loaded_len];
        // Counted numbers are not loaded.
        let load = |at: usize| -> Result<Option<(usize, Option<Loading<'_>>)>> {
            let index = next.fetch_add(1, Relaxed);
            let Some(portion) = portions.get(index) else { return Ok(None) };
            let bucket = &lanes.buckets[portion.bucket];
            if bucket.counted {
                return Ok(Some((index, None)));
            }
            let loading =
                Loading::start((&lanes.pipe, self.control), portion, bucket, (shape.block, shape.extent), at)?;
            Ok(Some((index, Some(loading))))
        };
        let mut lease = self.memory.range(start, entries_len)?.lease_mut()?;
        let mut turn = 0;
        let mut coming = load(places[turn])?;
        while let Some((index, loading)) = coming {
            self.control.check()?;
            let at = places[turn];
            turn ^= 1;
            coming = load(places[turn])?;
            let portion = &portions[index];
            let bucket = &lanes.buckets[portion.bucket];
            count(&self.control.progress.merged, portion.bytes);
            let Some(loading) = loading else {
                let Some(numbers) = self.layout.numbers() else {
                    return Err(Error::new(ErrorKind::InvalidInput, "sort", "records were counted like numbers"));
                };
                let (numbers, dropped) =
                    SortedNumbers::counted(numbers, bucket.low, portion.bytes, self.settings.unique);
                work(SortedPortion { index, content: Content::Numbers(numbers) }, dropped)?;
                continue;
            };
            let (places, end) = loading.finish(&self.memory, self.control)?;
            let raw = self.memory.range(at, end)?.lease()?;
            let range = (bucket.low, bucket.high);
            if let Some(numbers) = self.layout.numbers() {
                let (sorted, dropped) =
                    SortedNumbers::sort(numbers, &raw, &places, range, &mut lease, self.settings.unique)?;
                work(SortedPortion { index, content: Content::Numbers(sorted) }, dropped)?;
                continue;
            }
            let sorter = NarrowSorter { layout: self.layout, raw: &raw, record };
            let entries = &mut lease.as_slice_of::<u64>()?[..portion.bytes as usize / record];
            sorter.sort(&places, range, entries);
            let (kept, dropped) = match self.settings.unique {
                true => sorter.drop_duplicates(entries),
                false => (entries.len(), Tally::default()),
            };
            work(SortedPortion { index, content: Content::Entries(sorter, &entries[..kept]) }, dropped)?;
        }
        Ok(())
    }
}

/// Writes the records of a portion, and calls `each` with the offset and the bytes of each.
fn gather<L: Layout>(
    sorter: &NarrowSorter<'_, L>,
    entries: &[u64],
    out: &mut PartWriter<'_>,
    mut each: impl FnMut(u64, &[u8]),
) -> Result<()> {
    for (i, entry) in entries.iter().enumerate() {
        if let Some(ahead) = entries.get(i + PREFETCH_ENTRIES) {
            prefetch_record(sorter.raw, sorter.offset(*ahead), sorter.record);
        }
        // With the bytes that follow it: such a record is copied without a call.
        let bytes = &sorter.raw[sorter.offset(*entry)..];
        each(out.at(), &bytes[..sorter.record]);
        out.push_start(bytes, sorter.record)?;
    }
    out.finish()
}

/// The places of portions in the output, taken in turn.
struct Turns {
    state: Mutex<Turn>,
    turned: Condvar,
}

struct Turn {
    /// The portion whose turn it is, and its place.
    index: usize,
    at: u64,
    failed: bool,
}

impl Turns {
    /// Begins with the first portion at offset `at`.
    fn from(at: u64) -> Turns {
        Turns { state: Mutex::new(Turn { index: 0, at, failed: false }), turned: Condvar::new() }
    }

    /// Waits for the turn of a portion, and returns its place. The next one comes `bytes` behind.
    fn take(&self, index: usize, bytes: u64) -> Result<u64> {
        let mut state = self.state.lock();
        while state.index != index {
            if state.failed {
                return Err(Error::new(ErrorKind::Interrupted, "write", "the bytes before it were not written"));
            }
            state = self.turned.wait(state);
        }
        let at = state.at;
        (state.index, state.at) = (index + 1, at + bytes);
        self.turned.notify_all();
        Ok(at)
    }

    /// Wakes the lanes that wait for a portion that will not come.
    fn fail(&self) {
        self.state.lock().failed = true;
        self.turned.notify_all();
    }
}
