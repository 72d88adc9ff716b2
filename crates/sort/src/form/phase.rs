//! Run formation: the input is read, and sorted slot by slot.
//!
//! ```text
//! reader   fills one slot after another (slot.rs)
//! lanes    each sorts a filled slot and spills it as a run, while the reader fills the next
//! ```
//! An input that fits the memory is one slot, which all threads sort and write directly to the
//! output. A single lane for which no second thread could be started reads and sorts in turns.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{OnceLock, mpsc};
use std::time::Instant;

use datapipes_core::locks::{Mutex, MutexGuard};
use datapipes_core::threads;
use datapipes_core::{Dram, Error, ErrorKind, Pipe, Result};

use crate::engine::Engine;
use crate::form::gather::Gather;
use crate::form::slot::{FilledSlot, SlotFiller, SlotPool};
use crate::form::slot_sorter::SlotSorter;
use crate::form::touch::{ExpectedUse, WORTH_TOUCHING, touch_ahead};
use crate::input::{Input, InputReader};
use crate::long::LongLines;
use crate::memory::blocks::{BlockPool, Target};
use crate::memory::parallel::run_parts;
use crate::merging::passes::MergeInput;
use crate::numbers::{Numbers, SortedNumbers, WritesInFlight};
use crate::records::entry::Entry;
use crate::records::layout::Layout;
use crate::records::tally::Tally;
use crate::report::{MovementRole, Phase, SortReport};
use crate::runs::packing::{FrameTable, Packing};
use crate::runs::spill::{Run, Spill};
use crate::sink::Sink;
use crate::waits::SortWait;

/// The runs, and what was counted while they were formed.
pub(crate) struct FormedRuns {
    pub(crate) runs: Vec<MergeInput>,
    /// The records read.
    pub(crate) read: Tally,
    /// The records dropped as duplicates.
    pub(crate) dropped: Tally,
    /// The records written, if the only slot was written directly to the output.
    pub(crate) direct: Option<Tally>,
}

/// The state that the lanes share.
struct SorterContext<'s> {
    /// Sends slots to be filled. It is taken away to end the phase.
    free: Mutex<Option<mpsc::Sender<Dram>>>,
    to_sort: Mutex<mpsc::Receiver<Result<FilledSlot>>>,
    forming: Mutex<Forming>,
    /// The pipe to the spill places, connected when it is first needed.
    pipe: OnceLock<Pipe>,
    spill: &'s Spill<'s>,
    blocks: &'s BlockPool,
    sink: &'s Sink<'s>,
    packing: Packing<'s>,
    long: Option<&'s LongLines<'s>>,
}

#[derive(Default)]
struct Forming {
    /// Runs with their rank in the input: the number of the slot, then the position in it.
    runs: Vec<(u64, MergeInput)>,
    error: Option<Error>,
    /// The numbers read; 0 for other records.
    read: Tally,
    dropped: Tally,
    direct: Option<Tally>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl SorterContext<'_> {
    fn fail(&self, e: Error) {
        lock(&self.forming).error.get_or_insert(e);
        // Without free slots the reader ends, and with it the other lanes.
        lock(&self.free).take();
    }
}

impl<L: Layout> Engine<'_, L> {
    /// Reads, sorts and spills slot by slot.
    pub(crate) fn form_runs(
        &self,
        inputs: Vec<Input>,
        (blocks, long): (&BlockPool, Option<&LongLines<'_>>),
        sink: &Sink<'_>,
        spill: &Spill<'_>,
        report: &mut SortReport,
    ) -> Result<FormedRuns> {
        let started = Instant::now();
        let (at, len) = self.budget.whole();
        let all = self.memory.range(at, len)?;
        let each = self.budget.slots().into_iter().map(|(slot, len)| (slot - at, len)).collect();
        let slots = SlotPool { all, each, whole_first: self.fits, carry: self.budget.carry() };
        let feed = InputReader::new(self.machine, &self.memory, inputs, &self.movements, self.control);
        let mut filler = SlotFiller::new(self.layout, feed, self.control, self.budget.chunk, slots, long)?;
        let (free, to_fill) = mpsc::channel::<Dram>();
        let (filled, to_sort) = mpsc::channel::<Result<FilledSlot>>();
        let lanes = SorterContext {
            free: Mutex::new(Some(free)),
            to_sort: Mutex::new(to_sort),
            forming: Mutex::default(),
            pipe: OnceLock::new(),
            spill,
            blocks,
            sink,
            packing: Packing::new(
                self.settings.compression,
                self.budget.concurrent_slots,
                self.budget.min_buffer(),
                &self.control.progress.waits,
            ),
            long,
        };
        let read = self.run_sorters(&lanes, &mut filler, filled, to_fill);
        drop(filler);
        let what = if lock(&lanes.forming).direct.is_some() { SortWait::Output } else { SortWait::Spill };
        let waits = self.control.progress.waits.begin(what, self.budget.threads);
        let drained = blocks.drain();
        drop(waits);
        let SorterContext { forming, pipe, packing, .. } = lanes;
        let Forming { mut runs, error, read: numbers, dropped, direct } = forming.into_inner();
        if let Some(e) = error {
            return Err(e);
        }
        drained?;
        let mut read = read?;
        read.join(numbers);
        if let Some(pipe) = pipe.into_inner() {
            self.movements.keep(MovementRole::Spill, pipe);
        }
        // The order of the input makes the sort stable.
        runs.sort_by_key(|r| r.0);
        let runs: Vec<MergeInput> = runs.into_iter().map(|r| r.1).collect();
        report.runs = runs.len() as u64;
        let formed = runs.iter().any(|run| matches!(run, MergeInput::Run(_)));
        report.compression = (formed && self.layout.numbers().is_none()).then(|| packing.report());
        let name = if direct.is_some() { "sort" } else { "runs" };
        report.phases.push(Phase { name, seconds: started.elapsed().as_secs_f64() });
        Ok(FormedRuns { runs, read, dropped, direct })
    }

    /// Runs the reader and the lanes; returns what was read.
    fn run_sorters(
        &self,
        lanes: &SorterContext<'_>,
        filler: &mut SlotFiller<'_, L>,
        filled: mpsc::Sender<Result<FilledSlot>>,
        to_fill: mpsc::Receiver<Dram>,
    ) -> Result<Tally> {
        let reading = Mutex::new((filler, to_fill, Some(filled)));
        let has_read = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if self.fits && self.budget.threads > 1 && self.total.is_some_and(|total| total >= WORTH_TOUCHING) {
                // If it cannot be started, the reader touches the memory.
                let _ = threads::spawn_scoped(scope, "touch", || self.touch_slot(&has_read));
            }
            let read = || {
                let mut reading = lock(&reading);
                let (filler, to_fill, filled) = &mut *reading;
                let waits_for_memory = || {
                    let _waits = self.control.waits_for(SortWait::Memory);
                    to_fill.recv().ok()
                };
                while let Some(outcome) = filler.next(waits_for_memory).transpose() {
                    let ends = outcome.as_ref().map_or(true, |f| f.last);
                    if filled.as_ref().is_none_or(|filled| filled.send(outcome).is_err()) || ends {
                        break;
                    }
                }
                // This tells the lanes that no more slots come.
                filled.take();
                has_read.store(true, Relaxed);
            };
            match threads::spawn_scoped(scope, "read", read) {
                Ok(reader) => {
                    let lanes_in_all = self.budget.concurrent_slots;
                    run_parts(&self.control.progress.waits, lanes_in_all, lanes_in_all, |_| {
                        if let Err(e) = self.run_sorter(lanes) {
                            lanes.fail(e);
                        }
                    });
                    lock(&lanes.free).take();
                    // The reader sends its errors to the lanes.
                    let _ = reader.join();
                }
                Err(_) => self.alternate(lanes, lock(&reading).0),
            }
            has_read.store(true, Relaxed);
        });
        Ok(lock(&reading).0.tally())
    }

    /// Touches the memory that an input that fits is expected to use, ahead of the reader.
    fn touch_slot(&self, stop: &AtomicBool) {
        let length = |bytes: Option<u64>| bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let (Some(total), Some(records)) = (length(self.total), length(self.expected_records)) else { return };
        let entries = if self.layout.numbers().is_some() { 0 } else { records.saturating_mul(size_of::<Entry>()) };
        // The first lines may be much shorter than the others.
        let expected = ExpectedUse { records: total, entries: entries.min(total / 2) };
        let (at, len) = self.budget.whole();
        if let Ok(slot) = self.memory.range(at, len) {
            touch_ahead(&slot, expected, stop);
        }
    }

    /// Reads and sorts in turns, if no second thread could be started.
    fn alternate(&self, lanes: &SorterContext<'_>, filler: &mut SlotFiller<'_, L>) {
        let mut back = Vec::new();
        loop {
            let outcome = match filler.next(|| back.pop()) {
                Ok(None) => return,
                Ok(Some(slot)) => self.sort_slot(&slot, lanes).map(|()| slot),
                Err(e) => Err(e),
            };
            match outcome {
                Ok(slot) if slot.last => return,
                Ok(slot) => back.push(slot.arena),
                Err(e) => return lanes.fail(e),
            }
        }
    }

    /// Takes filled slots until there are no more.
    fn run_sorter(&self, lanes: &SorterContext<'_>) -> Result<()> {
        loop {
            // All threads of this lane are idle meanwhile.
            let lane = (self.budget.threads / self.budget.concurrent_slots).max(1);
            let waits = self.control.progress.waits.begin(SortWait::Records, lane);
            let Ok(slot) = lock(&lanes.to_sort).recv() else { return Ok(()) };
            drop(waits);
            let slot = slot?;
            self.sort_slot(&slot, lanes)?;
            if let (Some(free), false) = (&*lock(&lanes.free), slot.last) {
                // If the reader is gone, it has sent its last slot or an error.
                let _ = free.send(slot.arena);
            }
        }
    }

    fn sort_slot(&self, slot: &FilledSlot, lanes: &SorterContext<'_>) -> Result<()> {
        // Stubs are not what the output takes.
        let has_stubs = lanes.long.is_some_and(|long| long.counted().0 > 0);
        let only = slot.last && slot.index == 0 && !has_stubs;
        // The only slot, and all slots used as one, share the cores with no other lane.
        let alone = only || slot.whole;
        let threads =
            if alone { self.budget.threads } else { (self.budget.threads / self.budget.concurrent_slots).max(1) };
        let output = only.then_some(lanes.sink);
        match self.layout.numbers() {
            Some(numbers) => self.sort_numbers(numbers, slot, threads, lanes, output),
            None => self.sort_entries(slot, threads, lanes, output),
        }
    }

    /// Sorts a slot's entries and writes their records to the output if one is given, otherwise to
    /// a run.
    fn sort_entries(
        &self,
        slot: &FilledSlot,
        threads: usize,
        lanes: &SorterContext<'_>,
        output: Option<&Sink<'_>>,
    ) -> Result<()> {
        const SIZE: usize = size_of::<Entry>();
        let n = slot.entries;
        let raw = slot.arena.range(0, slot.raw_len)?.lease()?;
        let top = slot.arena.len() / SIZE * SIZE;
        let mut lease = slot.arena.range(top - 2 * n * SIZE, 2 * n * SIZE)?.lease_mut()?;
        let (scratch, entries) = lease.as_slice_of::<Entry>()?.split_at_mut(n);
        let (unique, depth) = (self.settings.unique, slot.depth);
        let arranger = SlotSorter { layout: self.layout, raw: &raw, threads, unique, depth };
        let buckets = arranger.divide(entries, scratch);
        let gather = Gather { arranger, buckets };
        lock(&lanes.forming).dropped.join(gather.dropped());
        let progress = &self.control.progress;
        if let Some(sink) = output {
            sink.begin(Some(gather.bytes()))?;
            let gathered = gather.write(lanes.blocks, sink.target(), self.control, &progress.written, None)?;
            lock(&lanes.forming).direct = Some(gathered.tally);
            return Ok(());
        }
        if let Some(packer) = &lanes.spill.compressor {
            let (packing, stream) = packer.start(&self.movements, self.control)?;
            let gathered =
                gather.write(lanes.blocks, Target::CompressedRun(&stream), self.control, &progress.spilled, None);
            let sum = stream.close();
            let packed = packing.finish(gathered.map(|_| sum), slot.longest)?;
            lock(&lanes.forming).runs.push((slot.index << 32, MergeInput::Compressed(packed)));
            return Ok(());
        }
        let (mut run, pipe) = self.reserve(gather.bytes(), lanes)?;
        let target = Target::Run { pipe, base: run.offset, grain: self.budget.grain };
        let packing = Some(&lanes.packing).filter(|packing| packing.may_pack());
        let gathered = gather.write(lanes.blocks, target, self.control, &progress.spilled, packing)?;
        if !gathered.frames.is_empty() {
            lanes.spill.cut_packed(&run, gathered.stored, self.control)?;
            run.table = Some(FrameTable { frame: lanes.packing.frame, frames: gathered.frames });
        }
        (run.key_index, run.sums, run.grain) = (gathered.key_index, gathered.sums, self.budget.grain);
        run.longest = slot.longest;
        lock(&lanes.forming).runs.push((slot.index << 32, MergeInput::Run(run)));
        Ok(())
    }

    /// Does the same as `sort_entries` for numbers.
    fn sort_numbers(
        &self,
        numbers: Numbers,
        slot: &FilledSlot,
        threads: usize,
        lanes: &SorterContext<'_>,
        output: Option<&Sink<'_>>,
    ) -> Result<()> {
        let unique = self.settings.unique;
        let progress = &self.control.progress;
        if let Some(sink) = output {
            let sorted = SortedNumbers::sort(numbers, &slot.arena, slot.entries, threads, unique)?;
            sink.begin(Some(sorted.bytes()))?;
            let counts = sorted.write_output(
                (lanes.blocks, self.machine.l2_size()),
                sink.target(),
                self.control,
                &progress.written,
            )?;
            let mut forming = lock(&lanes.forming);
            forming.read.join(sorted.read);
            forming.dropped.join(sorted.dropped);
            forming.dropped.join(counts.dropped);
            forming.direct = Some(counts.written);
            return Ok(());
        }
        // One thread sorts a run and writes it while it sorts the next. Other lanes keep the other
        // cores busy.
        let width = numbers.kind.width();
        let each = self.number_run_len() / width;
        let mut writes = WritesInFlight::new(self.control, &progress.spilled);
        for (i, from) in (0..slot.entries).step_by(each).enumerate() {
            let count = each.min(slot.entries - from);
            let arena = slot.arena.range(from * width, slot.arena.len() - from * width)?;
            let sorted = SortedNumbers::sort(numbers, &arena, count, 1, unique)?;
            let (mut run, pipe) = self.reserve(sorted.bytes(), lanes)?;
            let target = Target::Run { pipe, base: run.offset, grain: self.budget.grain };
            let facts = sorted.write_run(target, &mut writes)?;
            (run.key_index, run.sums, run.grain) = (facts.key_index, facts.sums, self.budget.grain);
            run.longest = width;
            let mut forming = lock(&lanes.forming);
            forming.read.join(sorted.read);
            forming.dropped.join(sorted.dropped);
            forming.runs.push((slot.index << 32 | i as u64, MergeInput::Run(run)));
        }
        writes.drain()
    }

    /// The length of a run of numbers, in bytes. Short runs are sorted in less time, as long as one
    /// merge has buffers for all of them.
    fn number_run_len(&self) -> usize {
        const SHORT: usize = 16 << 20;
        const BUFFER: usize = 256 << 10;
        let Some(total) = self.total else { return self.budget.pool };
        let runs = (self.budget.arenas() / (2 * self.budget.threads * BUFFER)).max(4);
        ((total as usize).div_ceil(runs)).max(SHORT).next_multiple_of(4096)
    }

    /// Reserves room for a run, and returns it with the pipe to it.
    fn reserve<'p>(&self, bytes: u64, lanes: &'p SorterContext<'_>) -> Result<(Run, &'p Pipe)> {
        let run = lanes.spill.reserve(bytes, self.control)?;
        if lanes.pipe.get().is_none() {
            // Two lanes may both connect at first; one of the pipes is kept.
            let _ = lanes.pipe.set(self.machine.connect(&self.memory, &lanes.spill.staging()?)?);
        }
        match lanes.pipe.get() {
            Some(pipe) => Ok((run, pipe)),
            None => Err(Error::new(ErrorKind::InvalidInput, "spill", "there is no pipe to the spill places")),
        }
    }
}
