//! A sort from its description to its report.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Instant;

use datapipes_core::topology::{BlockDevice, Topology};
use datapipes_core::{
    Constraints, Draft, Dram, Error, ErrorKind, Identity, Locator, Machine, MapOptions, Pages, Pipe, Pool, Result,
    StageOrder, StagePlace, Staging,
};

use crate::arrange::Arranger;
use crate::blocks::{ALIGN, Blocks, StreamOut, Target};
use crate::budget::Budget;
use crate::control::Control;
use crate::entry::Entry;
use crate::gather::Gather;
use crate::input::{Feed, Input};
use crate::layout::{Fixed, KeyedLines, Layout, PlainLines};
use crate::merge::Merger;
use crate::numbers::{Flying, NumberKind, Numbers, SortedNumbers, land};
use crate::output::Output;
use crate::report::{Movements, Phase, Role, SortReport, SpacePlan};
use crate::slot::{Filled, Filler};
use crate::space::{Space, check_space};
use crate::spill::{Run, Spill};
use crate::team::team;
use crate::text::Order;

/// What the records are, and their order.
#[derive(Clone, Debug)]
pub enum Format {
    /// Binary records of one length, in the order of a key's bytes.
    Records {
        /// Bytes of a record.
        len: usize,
        /// Where the key begins in it.
        key_at: usize,
        /// Bytes of the key.
        key_len: usize,
        /// Descending.
        reverse: bool,
    },
    /// Little-endian numbers, in ascending or descending order.
    Numbers {
        /// Which.
        kind: NumberKind,
        /// Descending.
        reverse: bool,
    },
    /// Lines in the order of GNU sort's options.
    Lines {
        /// The order.
        order: Order,
        /// What ends a line: a newline, or NUL for `-z`.
        terminator: u8,
    },
}

impl Format {
    /// Records of the sort benchmark: 100 bytes, of which the first 10 are the key.
    pub const SORT_BENCHMARK: Format = Format::Records { len: 100, key_at: 0, key_len: 10, reverse: false };
}

/// A sort to be done.
#[derive(Debug)]
pub struct SortJob {
    /// What the records are.
    pub format: Format,
    /// Where they come from, in this order.
    pub inputs: Vec<Input>,
    /// Where they go.
    pub output: Output,
    /// All the memory that the process may use, in bytes.
    pub memory_bytes: u64,
    /// Places for runs that do not fit the memory, by tiers: those of one tier take turns, the next comes when they are
    /// full. Memory among them is beside `memory_bytes`.
    pub spill: Vec<StagePlace>,
    /// Whether the tiers count, or what the places cost.
    pub spill_order: StageOrder,
    /// Threads that sort and merge.
    pub threads: usize,
    /// Of records with the same key, keep the first.
    pub unique: bool,
    /// The most runs merged at once; 0 for as many as the memory has buffers.
    pub fan_in: usize,
    /// To watch and to stop it.
    pub control: Control,
}

/// What half of the available memory is, limits of the container honoured.
pub fn default_memory(topology: &Topology) -> u64 {
    (topology.memory.usable_bytes().unwrap_or(1 << 30) / 2).max(crate::budget::MIN_MEMORY)
}

/// Sorts.
///
/// # Errors
/// `NoSpace` before it starts where spill or output certainly do not fit, and later where they do not; `OutOfMemory`
/// where the memory does not suffice for a record; `Interrupted`; errors of the inputs and outputs. Whatever happens,
/// inputs are intact, and neither spill files nor a part of the output are left.
pub fn sort(machine: &Machine, job: SortJob) -> Result<SortReport> {
    run(machine, job, Task::Sort)
}

/// Merges inputs that are sorted already.
///
/// # Errors
/// As [`sort`].
pub fn merge(machine: &Machine, job: SortJob) -> Result<SortReport> {
    run(machine, job, Task::Merge)
}

#[derive(Clone, Copy)]
enum Task {
    Sort,
    Merge,
}

fn run(machine: &Machine, job: SortJob, task: Task) -> Result<SortReport> {
    let SortJob { format, inputs, output, memory_bytes, spill, spill_order, threads, unique, fan_in, control } = job;
    let settings = Settings { memory_bytes, threads: threads.max(1), unique, fan_in };
    let total = total_len(&inputs)?;
    control.progress.total.store(total.unwrap_or(0), Relaxed);
    let work = Work { inputs, output, spill: Spill::new(machine, spill.clone(), spill_order), places: spill, total };
    match format {
        Format::Records { len, key_at, key_len, reverse } => {
            if key_len == 0 || key_at.checked_add(key_len).is_none_or(|end| end > len) {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    "sort",
                    format!("a key of {key_len} bytes at {key_at} in records of {len}"),
                )
                .advice("the key has at least one byte and lies within the record"));
            }
            let layout = Fixed { len, key_at, key_len, reverse };
            Engine::new(machine, &layout, settings, &control, &work)?.run(task, work)
        }
        Format::Numbers { kind, reverse } => {
            // Merging takes runs, in which numbers are encoded; sorting files that are sorted is as good.
            let layout = Numbers { kind, reverse };
            Engine::new(machine, &layout, settings, &control, &work)?.run(Task::Sort, work)
        }
        Format::Lines { order, terminator } if order.is_plain_bytes() || order.plain_reverse() => {
            let layout = PlainLines { terminator, reverse: order.plain_reverse() };
            Engine::new(machine, &layout, settings, &control, &work)?.run(task, work)
        }
        Format::Lines { order, terminator } => {
            let layout = KeyedLines { terminator, order };
            Engine::new(machine, &layout, settings, &control, &work)?.run(task, work)
        }
    }
}

#[derive(Clone, Copy)]
struct Settings {
    memory_bytes: u64,
    threads: usize,
    unique: bool,
    fan_in: usize,
}

struct Work<'a> {
    inputs: Vec<Input>,
    output: Output,
    spill: Spill<'a>,
    places: Vec<StagePlace>,
    /// Bytes of all inputs, where that is known.
    total: Option<u64>,
}

/// The machine, the memory and the layout of a job.
struct Engine<'a, L> {
    machine: &'a Machine,
    layout: &'a L,
    settings: Settings,
    control: &'a Control,
    budget: Budget,
    /// Bytes of all inputs, where that is known.
    total: Option<u64>,
    /// Whether everything fits the memory at once.
    fits: bool,
    memory: Dram,
    movements: Movements,
}

/// An output that has been opened.
enum Sink<'a> {
    Draft { draft: Draft, pipe: Box<Pipe> },
    Stream(StreamOut<'a>),
}

impl<'a> Sink<'a> {
    fn target(&'a self) -> Target<'a> {
        match self {
            Sink::Draft { pipe, .. } => Target::Place { pipe, base: 0 },
            Sink::Stream(stream) => Target::Stream(stream),
        }
    }

    /// Reserves room for the output, where it is a file.
    fn preallocate(&self, bytes: u64) -> Result<()> {
        match self {
            Sink::Draft { draft, .. } => draft.ssd().preallocate(bytes).map(|_| ()),
            Sink::Stream(_) => Ok(()),
        }
    }
}

/// What the lanes of the first phase share.
struct Lanes<'s> {
    /// Slots to fill; taken away to end the phase.
    free: Mutex<Option<mpsc::Sender<Dram>>>,
    to_sort: Mutex<mpsc::Receiver<Result<Filled>>>,
    forming: Mutex<Forming>,
    /// To the spill places, connected when it is needed.
    pipe: OnceLock<Pipe>,
    spill: &'s Spill<'s>,
}

struct Forming {
    /// With its rank in the input: the number of its slot, then its place there.
    runs: Vec<(u64, Run)>,
    error: Option<Error>,
    /// Bytes and records, where everything went straight to the output.
    direct: Option<(u64, u64)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs and how they came to be.
struct Formed {
    runs: Vec<Run>,
    records: u64,
}

impl<'a, L: Layout> Engine<'a, L> {
    fn new(
        machine: &'a Machine,
        layout: &'a L,
        settings: Settings,
        control: &'a Control,
        work: &Work<'_>,
    ) -> Result<Self> {
        let mut budget = Budget::new(settings.memory_bytes, settings.threads)?;
        let fits = fits(layout, &budget, work);
        if let (false, Some(total)) = (fits, work.total) {
            budget.limit(total, settings.threads);
        }
        // Pages are touched as the job needs them: a small input does not pay for a large budget.
        let options = MapOptions { pages: Pages::Huge, prefault: false, node: None };
        let pool = Pool::new(budget.pool, options)?;
        let memory = Dram::from_pool(&pool, budget.pool)?;
        let (total, movements) = (work.total, Movements::default());
        Ok(Engine { machine, layout, settings, control, budget, total, fits, memory, movements })
    }

    fn run(&self, task: Task, work: Work<'_>) -> Result<SortReport> {
        match task {
            Task::Sort => self.sort(work),
            Task::Merge => self.merge_inputs(work),
        }
    }

    fn sort(&self, work: Work<'_>) -> Result<SortReport> {
        let started = Instant::now();
        let Work { inputs, output, spill, places, total } = work;
        check_space(&places, &output, self.space(total, self.fits))?;
        let plan = self.space_plan(total, &places);
        let _ = self.control.progress.plan.set(plan.clone());
        let sink = self.open_sink(output)?;
        let mut report = SortReport { plan, ..self.report() };
        let blocks = Blocks::new(&self.memory, 0, self.budget.block, self.budget.blocks);

        let formed = self.form_runs(inputs, &blocks, &sink, &spill, &mut report)?;
        report.records = formed.records;
        report.bytes = self.control.progress.read.load(Relaxed);
        if !formed.runs.is_empty() {
            self.merge_runs(formed.runs, &blocks, &sink, &spill, &mut report)?;
        }
        self.publish(sink, &mut report)?;
        report.spill = spill.uses();
        report.movements = self.movements.take();
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    fn report(&self) -> SortReport {
        SortReport {
            memory_bytes: self.settings.memory_bytes,
            threads: self.settings.threads as u64,
            ..SortReport::default()
        }
    }

    fn space_plan(&self, total: Option<u64>, places: &[StagePlace]) -> SpacePlan {
        let behind = |dir: &Path| BlockDevice::behind(dir).ok().and_then(|s| s.available_bytes);
        let free = |p: &StagePlace| p.as_folder().and_then(behind).into_iter().chain(p.most_bytes()).min();
        SpacePlan {
            input_bytes: total,
            memory_bytes: self.settings.memory_bytes,
            spill_bytes: if self.fits { Some(0) } else { total },
            places: places.iter().map(|p| (p.name().to_owned(), free(p))).collect(),
        }
    }

    /// What must find room outside memory.
    fn space(&self, total: Option<u64>, fits: bool) -> Space {
        Space { output_bytes: total.filter(|_| !self.settings.unique), spill_bytes: total.filter(|_| !fits) }
    }

    fn open_sink(&self, output: Output) -> Result<Sink<'_>> {
        match output {
            Output::File(path) => {
                let draft = Draft::beside(&path)?;
                // The file is empty yet: the planner is told that it will not stay so.
                let typical_len = Some(self.control.progress.total.load(Relaxed).max(self.budget.block as u64));
                let constraints = Constraints { typical_len, ..Constraints::default() };
                let pipe = Box::new(self.machine.connect_with(&self.memory, draft.ssd(), &constraints)?);
                Ok(Sink::Draft { draft, pipe })
            }
            Output::Stream { name, file } => Ok(Sink::Stream(StreamOut::new(name, file, &self.movements))),
        }
    }

    fn publish(&self, sink: Sink<'_>, report: &mut SortReport) -> Result<()> {
        let started = Instant::now();
        if let Sink::Draft { draft, pipe } = sink {
            self.movements.keep(Role::Output, *pipe);
            draft.publish(report.bytes_out, Identity::OfReplaced)?;
        }
        report.phases.push(Phase { name: "publish", seconds: started.elapsed().as_secs_f64() });
        Ok(())
    }

    /// Reads, sorts and spills slot by slot. The reader fills one slot while each lane sorts and spills another, so that
    /// reading, sorting and writing overlap. An input that fits is one slot, which all threads sort, and goes straight
    /// to the output.
    fn form_runs(
        &self,
        inputs: Vec<Input>,
        blocks: &Blocks,
        sink: &Sink<'_>,
        spill: &Spill<'_>,
        report: &mut SortReport,
    ) -> Result<Formed> {
        let started = Instant::now();
        let feed = Feed::new(self.machine, &self.memory, inputs, &self.movements);
        let mut filler = Filler::new(self.layout, feed, self.control, self.budget.chunk);
        let (free, to_fill) = mpsc::channel::<Dram>();
        let (filled, to_sort) = mpsc::channel::<Result<Filled>>();
        let slots = if self.fits { vec![self.budget.whole()] } else { self.budget.slots() };
        for (at, len) in slots {
            // The receiver lives until the scope below.
            let _ = free.send(self.memory.range(at, len)?);
        }
        let lanes = Lanes {
            free: Mutex::new(Some(free)),
            to_sort: Mutex::new(to_sort),
            forming: Mutex::new(Forming { runs: Vec::new(), error: None, direct: None }),
            pipe: OnceLock::new(),
            spill,
        };
        let records = std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                for arena in to_fill {
                    let outcome = filler.fill(arena);
                    let ends = outcome.as_ref().map_or(true, |f| f.last);
                    if filled.send(outcome).is_err() || ends {
                        break;
                    }
                }
                filler.records()
            });
            team(self.budget.lanes, |_| {
                if let Err(e) = self.run_lane(&lanes, blocks, sink) {
                    let mut forming = lock(&lanes.forming);
                    if forming.error.is_none() {
                        forming.error = Some(e);
                    }
                    drop(forming);
                    // Without free slots the reader ends, and with it the other lanes.
                    lock(&lanes.free).take();
                }
            });
            lock(&lanes.free).take();
            reader.join().unwrap_or(0)
        });
        let drained = blocks.drain();
        let Lanes { forming, pipe, .. } = lanes;
        let Forming { mut runs, error, direct } = forming.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(e) = error {
            return Err(e);
        }
        drained?;
        if let Some(pipe) = pipe.into_inner() {
            self.movements.keep(Role::Spill, pipe);
        }
        // In the order of the input: that is what makes it stable.
        runs.sort_by_key(|r| r.0);
        let runs: Vec<Run> = runs.into_iter().map(|r| r.1).collect();
        if let Some((bytes, records)) = direct {
            (report.bytes_out, report.records_out) = (bytes, records);
        }
        report.runs = runs.len() as u64;
        let name = if runs.is_empty() { "sort" } else { "runs" };
        report.phases.push(Phase { name, seconds: started.elapsed().as_secs_f64() });
        Ok(Formed { runs, records })
    }

    /// Takes filled slots until there are no more.
    fn run_lane(&self, lanes: &Lanes<'_>, blocks: &Blocks, sink: &Sink<'_>) -> Result<()> {
        loop {
            let Ok(slot) = lock(&lanes.to_sort).recv() else { return Ok(()) };
            let slot = slot?;
            // The only slot of all: there is nobody to share the cores with.
            let only = slot.last && slot.index == 0;
            let threads = if only { self.settings.threads } else { (self.settings.threads / self.budget.lanes).max(1) };
            let only_sink = only.then_some(sink);
            match self.layout.numbers() {
                Some(numbers) => self.sort_numbers(numbers, &slot, threads, blocks, lanes, only_sink)?,
                None => self.sort_entries(&slot, threads, blocks, lanes, only_sink)?,
            }
            let free = lock(&lanes.free);
            if let (Some(free), false) = (&*free, slot.last) {
                let mut again = vec![(slot.arena.memory().at(), slot.arena.len())];
                if self.fits {
                    // It did not fit after all: from now on several slots.
                    if slot.index == 0 {
                        again = self.budget.slots();
                    }
                }
                for (at, len) in again {
                    // The reader is gone only where it has sent its last slot, or an error.
                    let _ = free.send(self.memory.range(at, len)?);
                }
            }
        }
    }

    /// Sorts a slot's entries; their records go to the output, if that is given, otherwise to a run.
    fn sort_entries(
        &self,
        slot: &Filled,
        threads: usize,
        blocks: &Blocks,
        lanes: &Lanes<'_>,
        output: Option<&Sink<'_>>,
    ) -> Result<()> {
        const SIZE: usize = size_of::<Entry>();
        let n = slot.entries;
        let raw = slot.arena.range(0, slot.raw_len)?.lease()?;
        let top = slot.arena.len() / SIZE * SIZE;
        let mut lease = slot.arena.range(top - 2 * n * SIZE, 2 * n * SIZE)?.lease_mut()?;
        let (scratch, entries) = lease.as_slice_of::<Entry>()?.split_at_mut(n);
        let arranger = Arranger { layout: self.layout, raw: &raw, threads, unique: self.settings.unique };
        let (entries, pieces) = arranger.arrange(entries, scratch);
        let gather = Gather { arranger, entries, pieces };
        let progress = &self.control.progress;
        if let Some(sink) = output {
            sink.preallocate(gather.bytes())?;
            gather.write(blocks, sink.target(), self.control, &progress.written)?;
            lock(&lanes.forming).direct = Some((gather.bytes(), gather.records()));
            return Ok(());
        }
        let (mut run, pipe) = self.reserve(gather.bytes(), lanes)?;
        let target = Target::Place { pipe, base: run.offset };
        run.marks = gather.write(blocks, target, self.control, &progress.spilled)?;
        lock(&lanes.forming).runs.push((slot.index << 32, run));
        Ok(())
    }

    /// As `sort_entries`, for numbers.
    fn sort_numbers(
        &self,
        numbers: Numbers,
        slot: &Filled,
        threads: usize,
        blocks: &Blocks,
        lanes: &Lanes<'_>,
        output: Option<&Sink<'_>>,
    ) -> Result<()> {
        let unique = self.settings.unique;
        let progress = &self.control.progress;
        if let Some(sink) = output {
            let sorted = SortedNumbers::sort(numbers, &slot.arena, slot.entries, threads, unique)?;
            sink.preallocate(sorted.bytes())?;
            let (bytes, records) = sorted.write_output(blocks, sink.target(), self.control, &progress.written)?;
            lock(&lanes.forming).direct = Some((bytes, records));
            return Ok(());
        }
        // One thread sorts a run (other lanes keep the others busy), and writes it while it sorts the next.
        let width = numbers.kind.width();
        let each = self.number_run_len() / width;
        let mut flying = Flying::new();
        for (i, from) in (0..slot.entries).step_by(each).enumerate() {
            let count = each.min(slot.entries - from);
            let arena = slot.arena.range(from * width, slot.arena.len() - from * width)?;
            let sorted = SortedNumbers::sort(numbers, &arena, count, 1, unique)?;
            let (mut run, pipe) = self.reserve(sorted.bytes(), lanes)?;
            run.marks = sorted.write_run(pipe, run.offset, self.control, &progress.spilled, &mut flying)?;
            lock(&lanes.forming).runs.push((slot.index << 32 | i as u64, run));
        }
        land(&mut flying, &progress.spilled)
    }

    /// Bytes of a run of numbers: short runs are sorted in less time, as long as one merge has buffers for all.
    fn number_run_len(&self) -> usize {
        const SHORT: usize = 16 << 20;
        const BUFFER: usize = 256 << 10;
        let Some(total) = self.total else { return self.budget.pool };
        let runs = (self.budget.arenas() / (2 * self.settings.threads * BUFFER)).max(4);
        ((total as usize).div_ceil(runs)).max(SHORT).next_multiple_of(4096)
    }

    /// Room for a run, and the pipe to it.
    fn reserve<'p>(&self, bytes: u64, lanes: &'p Lanes<'_>) -> Result<(Run, &'p Pipe)> {
        let run = lanes.spill.reserve(bytes)?;
        if lanes.pipe.get().is_none() {
            // Two lanes may both connect at first; one pipe is kept.
            let _ = lanes.pipe.set(self.machine.connect(&self.memory, &lanes.spill.staging()?)?);
        }
        match lanes.pipe.get() {
            Some(pipe) => Ok((run, pipe)),
            None => Err(Error::new(ErrorKind::InvalidInput, "spill", "there is no pipe to the spill places")),
        }
    }

    /// Merges runs to the output, in several passes where there are more runs than buffers.
    fn merge_runs(
        &self,
        mut runs: Vec<Run>,
        blocks: &Blocks,
        sink: &Sink<'_>,
        spill: &Spill<'_>,
        report: &mut SortReport,
    ) -> Result<()> {
        let started = Instant::now();
        let merger = self.merger(blocks);
        let most = if self.settings.fan_in >= 2 { self.settings.fan_in } else { usize::MAX }.min(merger.fan_in());
        let staging = spill.staging()?;
        let mut at = 0;
        while runs.len() > most {
            // Just enough for the last pass to take all that remain, and neighbours, so that stability holds.
            let excess = runs.len() - most + 1;
            let count = excess.min(most);
            if at + count > runs.len() {
                at = 0;
            }
            let group = &runs[at..at + count];
            let mut made = spill.reserve(group.iter().map(|r| r.len).sum())?;
            let end = made.offset + made.len;
            let pipe = self.machine.connect(&self.memory, &staging)?;
            let target = Target::Place { pipe: &pipe, base: made.offset };
            let merged = self.settle(blocks, self.merge_group(&merger, &staging, group, target, false))?;
            self.movements.keep(Role::Spill, pipe);
            (made.len, made.marks) = (merged.bytes, merged.marks);
            spill.cut(&made, end)?;
            for run in group {
                spill.free(run)?;
            }
            runs.splice(at..at + count, [made]);
            report.merge_passes += 1;
            at += 1;
        }
        if !self.settings.unique {
            sink.preallocate(runs.iter().map(|r| r.len).sum())?;
        }
        let merged = self.settle(blocks, self.merge_group(&merger, &staging, &runs, sink.target(), true))?;
        report.bytes_out = merged.bytes;
        report.records_out = merged.records;
        report.merge_passes += 1;
        report.phases.push(Phase { name: "merge", seconds: started.elapsed().as_secs_f64() });
        Ok(())
    }

    fn merger<'m>(&'m self, blocks: &'m Blocks) -> Merger<'m, L> {
        Merger {
            layout: self.layout,
            machine: self.machine,
            memory: &self.memory,
            buffers: (self.budget.arenas_at, self.budget.arenas()),
            blocks,
            threads: self.settings.threads,
            unique: self.settings.unique,
            control: self.control,
            movements: &self.movements,
        }
    }

    fn merge_group(
        &self,
        merger: &Merger<'_, L>,
        staging: &Staging,
        runs: &[Run],
        target: Target<'_>,
        last: bool,
    ) -> Result<crate::merge::Merged> {
        let progress = &self.control.progress;
        merger.merge(&[staging], runs, target, if last { &progress.written } else { &progress.spilled }, last)
    }

    /// Waits for all writes; the merge's own error comes first.
    fn settle<T>(&self, blocks: &Blocks, outcome: Result<T>) -> Result<T> {
        let drained = blocks.drain();
        let value = outcome?;
        drained.map(|()| value)
    }

    fn merge_inputs(&self, work: Work<'_>) -> Result<SortReport> {
        let started = Instant::now();
        let Work { inputs, output, spill, places, total } = work;
        check_space(&places, &output, self.space(total, true))?;
        let mut report = self.report();
        let sink = self.open_sink(output)?;
        let blocks = Blocks::new(&self.memory, 0, self.budget.block, self.budget.blocks);
        let mut places: Vec<Box<dyn Locator>> = Vec::new();
        let mut runs = Vec::new();
        for (i, input) in inputs.into_iter().enumerate() {
            let (place, offset, len): (Box<dyn Locator>, u64, u64) = match input {
                Input::Place { ssd, from } => {
                    let len = ssd.len()?.saturating_sub(from);
                    (Box::new(ssd), from, len)
                }
                Input::Stream { name, fd } => {
                    // What cannot be read twice is copied to the spill places first.
                    let (staging, offset) = (spill.staging()?, i as u64 * STREAM);
                    let len = self.stage_stream(&name, fd, &staging, offset, &blocks)?;
                    (Box::new(staging), offset, len)
                }
            };
            // Where its records begin is not known, so there are no marks and one core merges.
            runs.push(Run { place: places.len(), offset, len, marks: Vec::new() });
            places.push(place);
        }
        report.bytes = runs.iter().map(|r| r.len).sum();
        self.control.progress.total.store(report.bytes, Relaxed);
        let places: Vec<&dyn Locator> = places.iter().map(AsRef::as_ref).collect();
        let merger = Merger { threads: 1, ..self.merger(&blocks) };
        if runs.len() > merger.fan_in() {
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                "merge",
                format!("{} files at once, where the memory has buffers for {}", runs.len(), merger.fan_in()),
            )
            .advice("give more memory with -S, or merge in two steps"));
        }
        let outcome = merger.merge(&places, &runs, sink.target(), &self.control.progress.written, true);
        let merged = self.settle(&blocks, outcome)?;
        report.bytes_out = merged.bytes;
        report.records_out = merged.records;
        report.records = merged.records;
        report.merge_passes = 1;
        report.phases.push(Phase { name: "merge", seconds: started.elapsed().as_secs_f64() });
        self.publish(sink, &mut report)?;
        report.spill = spill.uses();
        report.movements = self.movements.take();
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Copies a stream to the staging, from `offset` on; returns its length.
    fn stage_stream(&self, name: &Path, fd: OwnedFd, staging: &Staging, offset: u64, blocks: &Blocks) -> Result<u64> {
        let pipe = self.machine.connect(&self.memory, staging)?;
        let mut stream = File::from(fd);
        let mut len = 0;
        let copied = loop {
            if let Err(e) = self.control.check() {
                break Err(e);
            }
            let mut block = match blocks.take() {
                Ok(block) => block,
                Err(e) => break Err(e),
            };
            let filled = match fill(&mut stream, &mut block.bytes) {
                Ok(filled) => filled,
                Err(e) => {
                    blocks.cancel(block);
                    break Err(Error::io("read", &e, name.display().to_string()).offset(len));
                }
            };
            if filled == 0 {
                blocks.cancel(block);
                break Ok(len);
            }
            let whole = filled.next_multiple_of(ALIGN);
            block.bytes[filled..whole].fill(0);
            if let Err(e) = blocks.write(&pipe, block, 0, whole, offset + len) {
                break Err(e);
            }
            len += filled as u64;
            if filled < blocks.size {
                break Ok(len);
            }
        };
        let outcome = self.settle(blocks, copied);
        self.movements.keep(Role::Spill, pipe);
        outcome
    }
}

/// Streams that are to be merged are staged so far apart.
const STREAM: u64 = 1 << 44;

/// Reads until the buffer is full or the stream ends.
fn fill(stream: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

/// Whether records and entries fit the memory at once, as far as that is known.
fn fits<L: Layout>(layout: &L, budget: &Budget, work: &Work<'_>) -> bool {
    let Some(total) = work.total else { return false };
    let (_, arena) = budget.whole();
    let mean = match layout.fixed_len() {
        Some(len) => len as f64,
        None => sample_mean(&work.inputs, layout.terminator().unwrap_or(b'\n')),
    };
    let slack = budget.chunk + work.inputs.len() * 8192 + (64 << 10);
    let per_record = if layout.numbers().is_some() { 0 } else { 2 * size_of::<Entry>() };
    let entries = total as f64 / mean * per_record as f64 * 1.02;
    total as f64 + entries + slack as f64 <= arena as f64
}

fn total_len(inputs: &[Input]) -> Result<Option<u64>> {
    let mut total = 0;
    for input in inputs {
        let Some(len) = input.len()? else { return Ok(None) };
        total += len;
    }
    Ok(Some(total))
}

/// The mean length of the first lines of the first place; what is read is not used otherwise.
fn sample_mean(inputs: &[Input], terminator: u8) -> f64 {
    let mut sample = vec![0; 256 << 10];
    let read = inputs.iter().find_map(|input| match input {
        Input::Place { ssd, from } => rustix::io::pread(ssd.file().cached_fd(), &mut sample, *from).ok(),
        Input::Stream { .. } => None,
    });
    let bytes = &sample[..read.unwrap_or(0)];
    bytes.len() as f64 / (memchr::memchr_iter(terminator, bytes).count() as f64 + 1.0).max(1.0)
}
