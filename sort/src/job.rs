//! A sort from its description to its report.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use datapipes_core::topology::{BlockDevice, Topology};
use datapipes_core::{
    Constraints, Dram, Error, ErrorKind, FileMode, Machine, MapOptions, OutputFile, Pages, Pool, Result, StageOrder,
    StagePlace,
};

use crate::control::Control;
use crate::form::phase::FormedRuns;
use crate::input::Input;
use crate::memory::blocks::{BlockPool, OrderedStream};
use crate::memory::budget::{Budget, MIN_MEMORY};
use crate::numbers::{NumberKind, Numbers};
use crate::output::Output;
use crate::records::entry::Entry;
use crate::records::layout::{Fixed, KeyedLines, Layout, PlainLines};
use crate::report::{Movements, Phase, SortReport, SpacePlan};
use crate::runs::spill::Spill;
use crate::sink::Sink;
use crate::space::{Space, check_space};
use crate::text::TextOrder;

/// What the records are, and their order.
#[derive(Clone, Debug)]
pub enum RecordFormat {
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
        order: TextOrder,
        /// What ends a line: a newline, or NUL for `-z`.
        terminator: u8,
    },
}

impl RecordFormat {
    /// Records of the sort benchmark: 100 bytes, of which the first 10 are the key.
    pub const SORT_BENCHMARK: RecordFormat = RecordFormat::Records { len: 100, key_at: 0, key_len: 10, reverse: false };
}

/// A sort to be done.
#[derive(Debug)]
pub struct SortJob {
    /// What the records are.
    pub format: RecordFormat,
    /// Where they come from, in this order.
    pub inputs: Vec<Input>,
    /// Where they go.
    pub output: Output,
    /// All the memory that the process may use, in bytes.
    pub memory_bytes: u64,
    /// Places for runs that do not fit the memory, by tiers: those of one tier take turns, the next
    /// comes when they are full. Memory among them is beside `memory_bytes`.
    pub spill: Vec<StagePlace>,
    /// Whether the tiers count, or what the places cost.
    pub spill_order: StageOrder,
    /// Threads that sort and merge.
    pub threads: usize,
    /// Of records with the same key, keep the first.
    pub unique: bool,
    /// A program that compresses spilled runs: it is started as `PROGRAM` and as `PROGRAM -d`.
    pub compress_program: Option<PathBuf>,
    /// The most runs merged at once; 0 for as many as the memory has buffers.
    pub fan_in: usize,
    /// To watch and to stop it.
    pub control: Control,
}

impl SortJob {
    /// A sort of one file into another, with what else a job has as it is by default: half of the
    /// available memory, a thread a core, and runs that do not fit the memory in the output's
    /// folder. The fields may be changed.
    ///
    /// ```no_run
    /// use datapipes_sort::{RecordFormat, SortJob, sort};
    /// let machine = datapipes::discover();
    /// let mut job = SortJob::new(&machine, RecordFormat::SORT_BENCHMARK, "records", "sorted")?;
    /// job.memory_bytes = 256 << 20;
    /// println!("{:?}", sort(&machine, job)?);
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    ///
    /// # Errors
    /// What opening the input meets; an output's path that cannot be a file's ([`Output::to`]).
    pub fn new(
        machine: &Machine,
        format: RecordFormat,
        input: impl AsRef<Path>,
        output: impl AsRef<Path>,
    ) -> Result<SortJob> {
        let output = output.as_ref();
        let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(SortJob {
            format,
            inputs: vec![Input::open(input.as_ref())?],
            output: Output::to(output)?,
            memory_bytes: default_memory(machine.topology()),
            spill: vec![StagePlace::folder(folder)],
            spill_order: StageOrder::default(),
            threads: machine.topology().usable_cores().count().max(1),
            unique: false,
            compress_program: None,
            fan_in: 0,
            control: Control::default(),
        })
    }
}

/// Half of the available memory; limits of the container and of the process (`ulimit -v`, `-d`) are
/// honoured.
pub fn default_memory(topology: &Topology) -> u64 {
    let available = topology.memory.usable_bytes().unwrap_or(1 << 30);
    let most = address_space().map_or(available, |limit| available.min(limit));
    (most / 2).max(MIN_MEMORY)
}

/// Bytes of address space that the process may have, if they are limited.
fn address_space() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    [Resource::As, Resource::Data].into_iter().filter_map(|resource| getrlimit(resource).current).min()
}

/// A budget to try where the system refused to map memory for this one.
fn less(memory_bytes: u64) -> u64 {
    let half = memory_bytes / 2;
    // The program itself, stacks and rings need some of it too.
    address_space().map_or(half, |limit| half.min(limit / 2)).max(MIN_MEMORY)
}

/// Sorts.
///
/// # Errors
/// `NoSpace` before it starts where spill or output certainly do not fit, and later where they do
/// not; `OutOfMemory` where the memory does not suffice for a record; `Interrupted`; errors of the
/// inputs and outputs. Whatever happens, inputs are intact, and neither spill files nor a part of
/// the output are left.
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
    let SortJob { format, inputs, output, memory_bytes, spill, spill_order, threads, unique, fan_in, .. } = job;
    let (program, control) = (job.compress_program, job.control);
    let settings = Settings { memory_bytes, threads: threads.max(1), unique, fan_in };
    let total = total_len(&inputs)?;
    control.progress.total.store(total.unwrap_or(0), Relaxed);
    if let (Some(program), RecordFormat::Numbers { .. }) = (&program, &format) {
        let context = format!("numbers with the compress program {}", program.display());
        return Err(Error::new(ErrorKind::InvalidInput, "sort", context).advice("runs of numbers are not compressed"));
    }
    let places = spill.clone();
    let work = Work { inputs, output, spill: Spill::new(machine, spill, spill_order, program)?, places, total };
    match format {
        RecordFormat::Records { len, key_at, key_len, reverse } => {
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
        RecordFormat::Numbers { kind, reverse } => {
            // Merging takes runs, in which numbers are encoded; sorting files that are sorted is as
            // good.
            let layout = Numbers { kind, reverse };
            Engine::new(machine, &layout, settings, &control, &work)?.run(Task::Sort, work)
        }
        RecordFormat::Lines { order, terminator } if order.is_plain_bytes() || order.plain_reverse() => {
            let layout = PlainLines { terminator, reverse: order.plain_reverse() };
            Engine::new(machine, &layout, settings, &control, &work)?.run(task, work)
        }
        RecordFormat::Lines { order, terminator } => {
            let layout = KeyedLines { terminator, order };
            Engine::new(machine, &layout, settings, &control, &work)?.run(task, work)
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) memory_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) unique: bool,
    pub(crate) fan_in: usize,
}

pub(crate) struct Work<'a> {
    pub(crate) inputs: Vec<Input>,
    pub(crate) output: Output,
    pub(crate) spill: Spill<'a>,
    pub(crate) places: Vec<StagePlace>,
    /// Bytes of all inputs, where that is known.
    pub(crate) total: Option<u64>,
}

/// The machine, the memory and the layout of a job.
pub(crate) struct Engine<'a, L> {
    pub(crate) machine: &'a Machine,
    pub(crate) layout: &'a L,
    pub(crate) settings: Settings,
    /// What the settings said before the system refused to map so much.
    memory_asked_bytes: u64,
    pub(crate) control: &'a Control,
    pub(crate) budget: Budget,
    /// Bytes of all inputs, where that is known.
    pub(crate) total: Option<u64>,
    /// Whether everything is expected to fit the memory at once.
    pub(crate) fits: bool,
    pub(crate) memory: Dram,
    pub(crate) movements: Movements,
}

impl<'a, L: Layout> Engine<'a, L> {
    fn new(
        machine: &'a Machine,
        layout: &'a L,
        settings: Settings,
        control: &'a Control,
        work: &Work<'_>,
    ) -> Result<Self> {
        let mut settings = settings;
        let memory_asked_bytes = settings.memory_bytes;
        loop {
            let mut budget = Budget::new(settings.memory_bytes, settings.threads, work.total)?;
            let fits = fits(layout, &budget, work);
            if let (false, Some(total)) = (fits, work.total) {
                budget.limit(total);
            }
            // Pages are touched as the job needs them: a small input does not pay for a large
            // budget. One that would leave most of a huge page unused does not pay for its zeros
            // either.
            let huge_page = machine.topology().memory.thp_bytes.unwrap_or(2 << 20);
            let small = work.total.is_some_and(|total| total < huge_page);
            let pages = if small { Pages::Small } else { Pages::Huge };
            let options = MapOptions { pages, prefault: false, node: None };
            let pool = match Pool::new(budget.pool, options) {
                Err(e) if e.kind() == ErrorKind::OutOfMemory && settings.memory_bytes > MIN_MEMORY => {
                    settings.memory_bytes = less(settings.memory_bytes);
                    continue;
                }
                pool => pool?,
            };
            let memory = Dram::from_pool(&pool, budget.pool)?;
            let (total, movements) = (work.total, Movements::default());
            return Ok(Engine {
                machine,
                layout,
                settings,
                memory_asked_bytes,
                control,
                budget,
                total,
                fits,
                memory,
                movements,
            });
        }
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
        let sink = self.open_sink(output)?;
        // How long runs become that a program compresses, nobody knows.
        let needed = self.space(total, self.fits || spill.compressor.is_some());
        check_space(&places, sink.room()?, needed)?;
        let plan = self.space_plan(total, &places);
        let _ = self.control.progress.plan.set(plan.clone());
        let mut report = SortReport { plan, ..self.report() };
        let blocks = BlockPool::new(&self.memory, 0, self.budget.block, self.budget.blocks);

        self.write(inputs, &blocks, &sink, &spill, &mut report).map_err(|e| sink.explain(e))?;
        self.publish(sink, &mut report)?;
        report.spill = spill.uses();
        report.movements = self.movements.take();
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// From the inputs to the output, and what was counted on the way.
    fn write(
        &self,
        inputs: Vec<Input>,
        blocks: &BlockPool,
        sink: &Sink<'_>,
        spill: &Spill<'_>,
        report: &mut SortReport,
    ) -> Result<()> {
        let FormedRuns { runs, read, mut dropped, direct } = self.form_runs(inputs, blocks, sink, spill, report)?;
        report.records = read.records;
        report.bytes = self.control.progress.read.load(Relaxed);
        let written = match direct {
            Some(written) => {
                (report.bytes_out, report.records_out) = (written.bytes, written.records);
                written
            }
            None => {
                let (written, more) = self.merge_formed(runs, blocks, sink, spill, report)?;
                dropped.join(more);
                written
            }
        };
        read.verify(written, dropped)
    }

    pub(crate) fn report(&self) -> SortReport {
        SortReport {
            memory_bytes: self.settings.memory_bytes,
            memory_asked_bytes: self.memory_asked_bytes,
            threads: self.budget.threads as u64,
            ..SortReport::default()
        }
    }

    fn space_plan(&self, total: Option<u64>, places: &[StagePlace]) -> SpacePlan {
        let free =
            |p: &StagePlace| p.as_folder().and_then(BlockDevice::available_at).into_iter().chain(p.most_bytes()).min();
        SpacePlan {
            input_bytes: total,
            memory_bytes: self.settings.memory_bytes,
            spill_bytes: if self.fits { Some(0) } else { total },
            places: places.iter().map(|p| (p.name().to_owned(), free(p))).collect(),
        }
    }

    /// What must find room outside memory.
    pub(crate) fn space(&self, total: Option<u64>, fits: bool) -> Space {
        // How much is left where duplicates are dropped, nobody knows.
        let total = total.filter(|_| !self.settings.unique);
        Space { output_bytes: total, spill_bytes: total.filter(|_| !fits) }
    }

    /// Whether the output is written in place is decided here, before anything is read.
    pub(crate) fn open_sink(&self, output: Output) -> Result<Sink<'_>> {
        match output {
            Output::File(path) => {
                let file = OutputFile::open(&path, FileMode::USUAL)?;
                // The file is empty yet: the planner is told that it will not stay so.
                let typical_len = Some(self.control.progress.total.load(Relaxed).max(self.budget.block as u64));
                let constraints = Constraints { typical_len, ..Constraints::default() };
                let pipe = Box::new(self.machine.connect_with(&self.memory, file.ssd(), &constraints)?);
                Ok(Sink::File { file, pipe })
            }
            Output::Stream { name, file } => Ok(Sink::Stream(OrderedStream::new(name, file, &self.movements))),
        }
    }

    pub(crate) fn publish(&self, sink: Sink<'_>, report: &mut SortReport) -> Result<()> {
        let started = Instant::now();
        report.output = sink.publish(report.bytes_out, &self.movements)?;
        report.phases.push(Phase { name: "publish", seconds: started.elapsed().as_secs_f64() });
        Ok(())
    }
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

/// The mean length of the first lines of the first file.
fn sample_mean(inputs: &[Input], terminator: u8) -> f64 {
    let mut sample = vec![0; 256 << 10];
    let read = inputs.iter().find_map(|input| input.sample(&mut sample));
    let bytes = &sample[..read.unwrap_or(0)];
    bytes.len() as f64 / (memchr::memchr_iter(terminator, bytes).count() as f64 + 1.0).max(1.0)
}
