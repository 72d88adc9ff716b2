//! A sort, from its description to its report.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use datapipes_core::topology::Topology;
use datapipes_core::{Error, ErrorKind, Machine, Pool, Result, StageOrder, StagePlace};

use crate::control::Control;
use crate::distribute::Attempt;
use crate::engine::{Engine, Settings, Work};
use crate::form::phase::FormedRuns;
use crate::input::Input;
use crate::long::LongLines;
use crate::memory::blocks::BlockPool;
use crate::memory::budget::MIN_MEMORY;
use crate::memory::budget::address_space;
use crate::numbers::{NumberKind, Numbers};
use crate::output::Output;
use crate::processor_time::processor_seconds;
use crate::records::folded_lines::FoldedLines;
use crate::records::layout::{Fixed, KeyedLines, Layout, PlainLines};
use crate::report::{SortReport, WaitReport};
use crate::runs::packing::SpillCompression;
use crate::runs::spill::{Spill, SpillFiles, advised};
use crate::sink::Sink;
use crate::sort_method::SortMethod;
use crate::space::check_space;
use crate::text::TextOrder;

/// The kind of records, and their order.
#[derive(Clone, Debug)]
pub enum RecordFormat {
    /// Binary records of one length, in the order of their keys' bytes.
    Records {
        /// Length of a record, in bytes.
        len: usize,
        /// Offset of the key in the record, in bytes.
        key_at: usize,
        /// Length of the key, in bytes.
        key_len: usize,
        /// Whether the order is descending.
        reverse: bool,
    },
    /// Little-endian numbers.
    Numbers {
        /// Their type.
        kind: NumberKind,
        /// Whether the order is descending.
        reverse: bool,
    },
    /// Lines in the order of GNU sort's options.
    Lines {
        /// The order.
        order: TextOrder,
        /// The byte that ends a line: a newline, or NUL for `-z`.
        terminator: u8,
    },
}

impl RecordFormat {
    /// Records of the sort benchmark: 100 bytes, of which the first 10 are the key.
    pub const SORT_BENCHMARK: RecordFormat = RecordFormat::Records { len: 100, key_at: 0, key_len: 10, reverse: false };
}

/// The description of a sort.
///
/// ```
/// use datapipes::sort::{NumberKind, RecordFormat, SortJob, sort};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let dir = std::env::temp_dir().join(format!("datapipes-sort-{}", std::process::id()));
///     std::fs::create_dir_all(&dir)?;
///     let (input, output) = (dir.join("numbers"), dir.join("sorted"));
///     let numbers: Vec<u8> = (0..100_000u64).rev().flat_map(u64::to_le_bytes).collect();
///     std::fs::write(&input, numbers)?;
///
///     let machine = datapipes::discover();
///     let format = RecordFormat::Numbers { kind: NumberKind::U64, reverse: false };
///     let job = SortJob::new(&machine, format, &input, &output)?.memory_bytes(256 << 20);
///     let report = sort(&machine, job)?;
///     assert_eq!(report.records, 100_000);
///     assert_eq!(std::fs::read(&output)?[8..16], 1u64.to_le_bytes());
///     std::fs::remove_dir_all(&dir)?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct SortJob {
    /// The kind of records, and their order.
    pub format: RecordFormat,
    /// The sources of the records, in this order.
    pub inputs: Vec<Input>,
    /// The target of the sorted records.
    pub output: Output,
    /// All the memory that the process may use, in bytes.
    pub memory_bytes: u64,
    /// Places for runs that do not fit the memory, in tiers. Places of one tier take turns; the
    /// next tier is used when they are full. Memory among the places is not part of `memory_bytes`.
    pub spill: Vec<StagePlace>,
    /// Whether the tiers decide which place is taken first, or the places' costs.
    pub spill_order: StageOrder,
    /// The number of threads that sort and merge, at least 1. More than four for each usable core,
    /// or 64 on a machine with fewer than 16, are not started. `None` for `max_threads`, or fewer
    /// if the spill places do not feed so many.
    pub threads: Option<usize>,
    /// The most threads if `threads` is `None`.
    pub max_threads: usize,
    /// Whether only the first of records with the same key is kept.
    pub unique: bool,
    /// Whether inputs of [`merge`] are known to be in order. One that is not is then an error.
    /// Otherwise the merge compares the first records that are left, as GNU sort does.
    pub in_order: bool,
    /// A program that compresses spilled runs. It is started as `PROGRAM` to compress and as
    /// `PROGRAM -d` to decompress.
    pub compress_program: Option<PathBuf>,
    /// Whether runs are compressed without a program.
    pub compression: SpillCompression,
    /// The most runs that are merged at once; 0 for as many as the memory has buffers for.
    pub fan_in: usize,
    /// How an input that does not fit the memory is sorted.
    pub method: SortMethod,
    /// The handle that takes the files of the runs when the sort has succeeded; without one they
    /// are freed before it returns.
    pub spill_files: Option<SpillFiles>,
    /// Memory that is used instead of fresh memory, as far as it suffices. So of several sorts only
    /// the first one pays for touching it.
    pub pool: Option<Pool>,
    /// The handle to watch the sort and to stop it.
    pub control: Control,
}

datapipes_core::setters! {
    SortJob {
        format: RecordFormat,
        inputs: Vec<Input>,
        output: Output,
        memory_bytes: u64,
        spill: Vec<StagePlace>,
        spill_order: StageOrder,
        threads: into Option<usize>,
        max_threads: usize,
        unique: bool,
        in_order: bool,
        compress_program: into Option<PathBuf>,
        compression: SpillCompression,
        fan_in: usize,
        method: SortMethod,
        spill_files: Option<SpillFiles>,
        pool: Option<Pool>,
        control: Control,
    }
}

impl SortJob {
    /// Describes a sort of one file into another, with defaults for the rest: half of the available
    /// memory, a thread for each core or fewer, and runs that do not fit the memory in the output's
    /// folder. Setters with the fields' names change that.
    ///
    /// # Errors
    /// Errors of opening the input; those of [`Output::to`].
    pub fn new(
        machine: &Machine,
        format: RecordFormat,
        input: impl AsRef<Path>,
        output: impl AsRef<Path>,
    ) -> Result<SortJob> {
        let inputs = vec![Input::open(input.as_ref())?];
        Ok(SortJob::between(machine, format, inputs, Output::to(output.as_ref())?))
    }

    /// Describes a sort of these inputs into this output, else as [`new`](Self::new). Runs that do
    /// not fit the memory go to the output's folder, or to that of temporary files if the output is
    /// a stream, memory or a place.
    pub fn between(machine: &Machine, format: RecordFormat, inputs: Vec<Input>, output: Output) -> SortJob {
        let folder = match &output {
            Output::File { path, .. } => match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
                _ => PathBuf::from("."),
            },
            Output::Stream { .. } | Output::Memory { .. } | Output::Place(_) => std::env::temp_dir(),
        };
        SortJob {
            format,
            inputs,
            output,
            memory_bytes: default_memory(machine.topology()),
            spill: vec![StagePlace::folder(folder)],
            spill_order: StageOrder::default(),
            threads: None,
            max_threads: machine.topology().usable_cores().count().max(1),
            unique: false,
            in_order: false,
            compress_program: None,
            compression: SpillCompression::default(),
            fan_in: 0,
            method: SortMethod::default(),
            spill_files: None,
            pool: None,
            control: Control::default(),
        }
    }
}

/// Returns half of the available memory, in bytes. Limits of the container and of the process
/// (`ulimit -v`, `-d`) are honoured.
pub fn default_memory(topology: &Topology) -> u64 {
    let available = topology.memory.usable_bytes().unwrap_or(1 << 30);
    let most = address_space().map_or(available, |limit| available.min(limit));
    (most / 2).max(MIN_MEMORY)
}

/// Sorts the inputs of `job` into its output.
///
/// # Errors
/// `NoSpace`: before the sort starts if the spill or the output certainly do not fit, or later if
/// they turn out not to fit. `OutOfMemory`: the memory does not suffice for a record.
/// `Interrupted`: the sort was asked to stop. Also errors of the inputs and outputs. After any
/// error the inputs are intact, and neither spill files nor a part of the output are left.
pub fn sort(machine: &Machine, job: SortJob) -> Result<SortReport> {
    run(machine, job, Task::Sort)
}

/// Merges inputs that are already sorted.
///
/// # Errors
/// The same as for [`sort`].
pub fn merge(machine: &Machine, job: SortJob) -> Result<SortReport> {
    run(machine, job, Task::Merge)
}

/// The most threads that one sort starts. More would only divide its memory further, and take
/// turns.
fn most_threads(machine: &Machine) -> usize {
    (4 * machine.topology().usable_cores().count()).max(64)
}

#[derive(Clone, Copy)]
enum Task {
    Sort,
    Merge,
}

fn run(machine: &Machine, job: SortJob, task: Task) -> Result<SortReport> {
    let (memory_bytes, threads) = (job.memory_bytes, job.threads.unwrap_or(job.max_threads) as u64);
    let span = datapipes_metrics::span!(Info, "sort", [memory_bytes = memory_bytes, threads = threads], empty: []);
    let sorted = run_now(machine, job, task).map_err(advised);
    span.ended(sorted.is_ok());
    sorted
}

fn run_now(machine: &Machine, job: SortJob, task: Task) -> Result<SortReport> {
    let SortJob { format, inputs, output, memory_bytes, spill, spill_order, threads, unique, fan_in, method, .. } = job;
    let (program, control, spill_files) = (job.compress_program, job.control, job.spill_files);
    let threads_are_given = threads.is_some();
    let threads = threads.unwrap_or(job.max_threads).clamp(1, most_threads(machine));
    let (in_order, compression) = (job.in_order, job.compression);
    let settings = Settings { memory_bytes, threads, threads_are_given, unique, in_order, fan_in, method, compression };
    let total = total_len(&inputs)?;
    let mut least = 0_u64;
    for input in &inputs {
        least = least.saturating_add(input.least_len()?);
    }
    control.progress.total.store(total.unwrap_or(0), Relaxed);
    if let (Some(program), RecordFormat::Numbers { .. }) = (&program, &format) {
        let context = format!("numbers with the compress program {}", program.display());
        return Err(
            Error::new(ErrorKind::InvalidInput, "sort", context).with_advice("runs of numbers are not compressed")
        );
    }
    let places = spill.clone();
    let mut spill = Spill::new(machine, spill, spill_order, program)?;
    spill.keeper = spill_files;
    let work = Work { inputs, output, spill, places, total, least, pool: job.pool };
    match format {
        RecordFormat::Records { len, key_at, key_len, reverse } => {
            check_key(len, key_at, key_len)?;
            let layout = Fixed { len, key_at, key_len, reverse };
            Engine::new(machine, &layout, settings, &control, &work)?.run(task, work)
        }
        RecordFormat::Numbers { kind, reverse } => {
            // Merging takes runs, in which numbers are encoded. The files are sorted instead, which
            // gives the same output.
            let layout = Numbers { kind, reverse };
            Engine::new(machine, &layout, settings, &control, &work)?.run(Task::Sort, work)
        }
        RecordFormat::Lines { order, terminator } if order.is_plain_bytes() || order.plain_reverse() => {
            let layout = PlainLines::new(terminator, order.plain_reverse());
            Engine::new(machine, &layout, settings, &control, &work)?.run(task, work)
        }
        RecordFormat::Lines { order, terminator } => {
            // Inputs of a merge need not be in order, which codes of lines rely on.
            let is_sort = matches!(task, Task::Sort) && !settings.unique;
            let folded = is_sort.then(|| FoldedLines::new(terminator, &order)).flatten();
            if let Some(layout) = folded {
                return Engine::new(machine, &layout, settings, &control, &work)?.run(task, work);
            }
            let layout = KeyedLines::new(terminator, order);
            Engine::new(machine, &layout, settings, &control, &work)?.run(task, work)
        }
    }
}

/// Refuses a key that does not lie within its record.
pub(crate) fn check_key(len: usize, key_at: usize, key_len: usize) -> Result<()> {
    if key_len > 0 && key_at.checked_add(key_len).is_some_and(|end| end <= len) {
        return Ok(());
    }
    let context = format!("a key of {key_len} bytes at {key_at} in records of {len}");
    Err(Error::new(ErrorKind::InvalidInput, "sort", context)
        .with_advice("the key has at least one byte and lies within the record"))
}

impl<L: Layout> Engine<'_, L> {
    fn run(&self, task: Task, work: Work<'_>) -> Result<SortReport> {
        match task {
            Task::Sort => self.sort(work),
            Task::Merge => self.merge_inputs(work),
        }
    }

    fn sort(&self, work: Work<'_>) -> Result<SortReport> {
        let started = Instant::now();
        let Work { inputs, output, spill, places, total, .. } = work;
        let sink = self.open_sink(output)?;
        // The length of compressed runs is not known.
        let compressed = spill.compressor.is_some() || self.compresses_runs();
        let needed = self.space(total, self.fits || compressed);
        check_space(&places, sink.room()?, needed)?;
        let plan = self.space_plan(total, &places);
        let _ = self.control.progress.plan.set(plan.clone());
        let mut report = SortReport { plan, ..self.report() };
        let blocks = BlockPool::new(&self.memory, 0, self.budget.block, self.budget.blocks);

        let long = self.long_lines(&spill);
        self.write(inputs, (&blocks, long.as_ref()), &sink, &spill, &mut report).map_err(|e| sink.explain(e))?;
        // Whoever asks to stop while the last bytes are written does not want them.
        self.control.check()?;
        self.publish(sink, &spill, &mut report)?;
        self.close_long_lines(long, &mut report);
        report.spill = spill.uses();
        report.spill_left_bytes = spill.leave();
        report.movements = self.movements.take();
        self.note_memory(&mut report);
        report.waits = WaitReport::all(&self.control.progress.waits);
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Whether runs were asked to be compressed, whatever the place's rate is.
    fn compresses_runs(&self) -> bool {
        self.settings.compression == SpillCompression::On && self.layout.numbers().is_none()
    }

    /// Moves the records from the inputs to the output, and notes in `report` what was counted.
    fn write(
        &self,
        inputs: Vec<Input>,
        (blocks, long): (&BlockPool, Option<&LongLines<'_>>),
        sink: &Sink<'_>,
        spill: &Spill<'_>,
        report: &mut SortReport,
    ) -> Result<()> {
        if let Some(key) = self.key_of_long_records() {
            return self.sort_long_records(inputs, key, blocks, (sink, spill), report);
        }
        let feed = self.measure_feed(spill);
        let most = self.budget.threads;
        let choice = feed.and_then(|feed| feed.threads_for_numbers(most));
        let threads = choice.as_ref().map_or(most, |choice| choice.threads);
        let inputs = match self.try_distribution(inputs, threads, blocks, (sink, spill), report)? {
            Attempt::Done { read, written, dropped } => {
                report.records = read.records;
                report.bytes = self.control.progress.read.load(Relaxed);
                report.record_sum = Some(read.sum());
                (report.written, report.dropped) = (written.report(), dropped.report());
                if let Some(choice) = choice {
                    report.threads_why = Some(choice.why);
                }
                self.verify_read(report.bytes)?;
                return read.verify(written, dropped);
            }
            Attempt::Merge(inputs) => inputs,
        };
        let begun = processor_seconds();
        let FormedRuns { runs, read, mut dropped, direct } =
            self.form_runs(inputs, (blocks, long), sink, spill, report)?;
        let seconds = processor_seconds() - begun;
        report.records = read.records;
        report.record_sum = Some(read.sum());
        report.bytes = self.control.progress.read.load(Relaxed);
        let written = match direct {
            Some(written) => {
                (report.bytes_out, report.records_out) = (written.bytes, written.records);
                written
            }
            None => {
                let bytes = report.bytes;
                let choice = feed.map(|feed| feed.threads_after(most, seconds, bytes));
                report.threads_why = choice.as_ref().map(|choice| choice.why.clone());
                let threads = choice.map_or(most, |choice| choice.threads);
                let (written, more) = self.merge_formed(runs, threads, (blocks, long), (sink, spill), report)?;
                dropped.join(more);
                written
            }
        };
        (report.written, report.dropped) = (written.report(), dropped.report());
        self.verify_read(report.bytes)?;
        read.verify(written, dropped)
    }
}

fn total_len(inputs: &[Input]) -> Result<Option<u64>> {
    let mut total = 0;
    for input in inputs {
        let Some(len) = input.len()? else { return Ok(None) };
        total += len;
    }
    Ok(Some(total))
}
