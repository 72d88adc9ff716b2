//! What all phases of a job work with: the machine, the memory, the layout of the records.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use datapipes_core::topology::BlockDevice;
use datapipes_core::{Constraints, Dram, Error, ErrorKind, Machine, MapOptions, Pages, Pool, Result, StagePlace};

use crate::control::Control;
use crate::cut::CUT_ADVICE;
use crate::input::Input;
use crate::long::{self, LongLines};
use crate::memory::blocks::{ALIGN, OrderedStream};
use crate::memory::budget::{Budget, MIN_MEMORY, address_space};
use crate::output::Output;
use crate::records::entry::Entry;
use crate::records::layout::Layout;
use crate::report::{MethodReport, Movements, Phase, SortReport, SpacePlan};
use crate::runs::packing::SpillCompression;
use crate::runs::spill::Spill;
use crate::sink::{Sink, open_file};
use crate::sort_method::SortMethod;
use crate::space::Space;
use crate::waits::SortWait;

#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) memory_bytes: u64,
    pub(crate) threads: usize,
    /// Whether the user chose that many threads, and not only the most.
    pub(crate) threads_are_given: bool,
    pub(crate) unique: bool,
    pub(crate) in_order: bool,
    pub(crate) fan_in: usize,
    pub(crate) method: SortMethod,
    pub(crate) compression: SpillCompression,
}

pub(crate) struct Work<'a> {
    pub(crate) inputs: Vec<Input>,
    pub(crate) output: Output,
    pub(crate) spill: Spill<'a>,
    pub(crate) places: Vec<StagePlace>,
    /// Bytes of all inputs, if that is known.
    pub(crate) total: Option<u64>,
    /// The least bytes that the inputs must give, known or not.
    pub(crate) least: u64,
    /// Memory to use instead of fresh memory.
    pub(crate) pool: Option<Pool>,
}

/// The machine, the memory and the layout of a job.
pub(crate) struct Engine<'a, L> {
    pub(crate) machine: &'a Machine,
    pub(crate) layout: &'a L,
    pub(crate) settings: Settings,
    /// The budget before the system refused to map that much.
    memory_asked_bytes: u64,
    pub(crate) control: &'a Control,
    pub(crate) budget: Budget,
    /// Bytes of all inputs, if that is known.
    pub(crate) total: Option<u64>,
    /// The least bytes that the inputs must give.
    least: u64,
    /// Records of all inputs, as far as a sample tells.
    pub(crate) expected_records: Option<u64>,
    /// Whether the whole input is expected to fit the memory at once.
    pub(crate) fits: bool,
    /// The most bytes of a line that is sorted as it is, if longer ones get stubs.
    long_limit: Option<usize>,
    pub(crate) memory: Dram,
    pub(crate) movements: Movements,
}

impl<'a, L: Layout> Engine<'a, L> {
    /// Fails where the inputs gave fewer bytes than they had when the job began: one of them was
    /// cut before its turn came, or while it was opened.
    pub(crate) fn verify_read(&self, bytes: u64) -> Result<()> {
        if bytes >= self.least {
            return Ok(());
        }
        let context = format!("the inputs had {} bytes at the beginning, but gave only {bytes}", self.least);
        Err(Error::new(ErrorKind::EndOfFile, "read", context).with_advice(CUT_ADVICE))
    }

    pub(crate) fn new(
        machine: &'a Machine,
        layout: &'a L,
        settings: Settings,
        control: &'a Control,
        work: &Work<'_>,
    ) -> Result<Self> {
        let mut settings = settings;
        let memory_asked_bytes = settings.memory_bytes;
        let mean_len = mean_len(machine, layout, work);
        let weight = weight(layout, mean_len);
        let expected_records = work.total.map(|total| (total as f64 / mean_len) as u64);
        loop {
            let mut budget = Budget::new(settings.memory_bytes, settings.threads, work.total, weight)?;
            let fits = fits(weight, &budget, work);
            if let (false, Some(total)) = (fits, work.total) {
                budget.limit(total);
            }
            // Pages are touched as the job needs them, so a small input does not pay for a large
            // budget. An input that would leave most of a huge page unused gets small pages, so
            // that the rest of it is not zeroed either.
            let huge_page = machine.topology().memory.thp_bytes.unwrap_or(2 << 20);
            let small = work.total.is_some_and(|total| total < huge_page);
            let pages = if small { Pages::Small } else { Pages::Huge };
            let options = MapOptions::default().pages(pages).prefault(false);
            let given = work.pool.as_ref().and_then(|pool| Dram::from_pool(pool, budget.pool).ok());
            let fresh = || Dram::from_pool(&Pool::new(budget.pool, options)?, budget.pool);
            let memory = match given.map_or_else(fresh, Ok) {
                Err(e) if e.kind() == ErrorKind::OutOfMemory && settings.memory_bytes > MIN_MEMORY => {
                    settings.memory_bytes = less(settings.memory_bytes);
                    continue;
                }
                memory => memory?,
            };
            let (total, movements) = (work.total, Movements::default());
            // Records in memory are merged where they are.
            let in_memory = work.inputs.iter().all(|input| matches!(input, Input::Memory { .. }));
            let long_limit = (!fits && !in_memory && layout.terminator().is_some())
                .then(|| long::limit(settings.memory_bytes.max(MIN_MEMORY)));
            if let Some(limit) = long_limit {
                layout.set_long_limit(limit);
            }
            return Ok(Engine {
                machine,
                layout,
                settings,
                memory_asked_bytes,
                control,
                budget,
                total,
                least: work.least,
                expected_records,
                fits,
                long_limit,
                memory,
                movements,
            });
        }
    }

    /// Returns what takes lines that are too long, if any may be.
    pub(crate) fn long_lines<'l>(&'l self, spill: &'l Spill<'l>) -> Option<LongLines<'l>> {
        let terminator = self.layout.terminator()?;
        self.long_limit.map(|limit| LongLines::new(self.machine, (spill, self.control), (limit, terminator)))
    }

    /// Notes in the report what was set aside.
    pub(crate) fn close_long_lines(&self, long: Option<LongLines<'_>>, report: &mut SortReport) {
        if let Some(long) = long {
            (report.long_lines, report.long_line_bytes) = long.counted();
            report.long_line_limit = long.limit as u64;
            long.close(&self.movements);
        }
    }

    pub(crate) fn report(&self) -> SortReport {
        SortReport {
            memory_bytes: self.settings.memory_bytes,
            memory_asked_bytes: self.memory_asked_bytes,
            threads: self.budget.threads as u64,
            method: MethodReport::new("merge", "the inputs are sorted already"),
            ..SortReport::default()
        }
    }

    /// Notes how much of the memory was touched, and which pages the kernel gave for it.
    pub(crate) fn note_memory(&self, report: &mut SortReport) {
        let found = self.memory.memory().resident().unwrap_or_default();
        (report.memory_touched_bytes, report.memory_huge_bytes) = (found.bytes, found.huge_bytes);
    }

    pub(crate) fn space_plan(&self, total: Option<u64>, places: &[StagePlace]) -> SpacePlan {
        let free =
            |p: &StagePlace| p.as_folder().and_then(BlockDevice::available_at).into_iter().chain(p.most_bytes()).min();
        SpacePlan {
            input_bytes: total,
            memory_bytes: self.settings.memory_bytes,
            spill_bytes: if self.fits { Some(0) } else { total },
            places: places.iter().map(|p| (p.name().to_owned(), free(p))).collect(),
        }
    }

    /// The bytes that must find room outside memory.
    pub(crate) fn space(&self, total: Option<u64>, fits: bool) -> Space {
        // How many bytes are left after duplicates are dropped is not known.
        let total = total.filter(|_| !self.settings.unique);
        Space { output_bytes: total, spill_bytes: total.filter(|_| !fits) }
    }

    /// Opens the output, and decides whether it is written in place, before anything is read.
    pub(crate) fn open_sink(&self, output: Output) -> Result<Sink<'_>> {
        match output {
            Output::File { path, sync } => {
                let file = open_file(&path, sync)?;
                // The file is still empty: the planner is told how long it is likely to become.
                let typical_len = Some(self.control.progress.total.load(Relaxed).max(self.budget.block as u64));
                let constraints = Constraints::default().typical_len(typical_len);
                let pipe = Box::new(self.machine.connect_with(&self.memory, file.ssd(), &constraints)?);
                Ok(Sink::File { file, pipe })
            }
            Output::Memory { name, memory } => {
                if !memory.len().is_multiple_of(ALIGN) {
                    let context = format!("{}: {} bytes of memory for the output", name.display(), memory.len());
                    return Err(Error::new(ErrorKind::InvalidInput, "sort", context)
                        .with_advice("give it a multiple of 4096 bytes"));
                }
                let pipe = Box::new(self.machine.connect(&self.memory, &memory)?);
                Ok(Sink::Memory { len: memory.len() as u64, pipe })
            }
            Output::Place(place) => {
                let typical_len = Some(self.control.progress.total.load(Relaxed).max(self.budget.block as u64));
                let constraints = Constraints::default().typical_len(typical_len);
                let pipe = Box::new(self.machine.connect_with(&self.memory, &*place, &constraints)?);
                Ok(Sink::Place { place, pipe })
            }
            Output::Stream { name, file } => {
                Ok(Sink::Stream(OrderedStream::new(name, file, self.control, &self.movements)))
            }
        }
    }

    /// A large file that the output replaces is left to the spill's keeper.
    pub(crate) fn publish(&self, sink: Sink<'_>, spill: &Spill<'_>, report: &mut SortReport) -> Result<()> {
        let started = Instant::now();
        self.control.progress.publishes.store(true, Relaxed);
        let waits = self.control.progress.waits.begin(SortWait::Output, self.budget.threads);
        report.output = sink.publish(report.bytes_out, &self.movements, spill.keeper.as_ref())?;
        drop(waits);
        report.phases.push(Phase { name: "publish", seconds: started.elapsed().as_secs_f64() });
        Ok(())
    }
}

/// The bytes that a slot needs for each byte of the input, as far as that is known: for the
/// records, and for their entries and the room to sort them.
fn weight<L: Layout>(layout: &L, mean_len: f64) -> f64 {
    if layout.numbers().is_some() {
        return 1.0;
    }
    1.0 + (2 * size_of::<Entry>()) as f64 / mean_len * 1.02
}

/// The mean length of records: of the first lines, if their lengths differ.
fn mean_len<L: Layout>(machine: &Machine, layout: &L, work: &Work<'_>) -> f64 {
    match layout.fixed_len() {
        Some(len) => len as f64,
        None => sample_mean(machine, &work.inputs, layout.terminator().unwrap_or(b'\n')),
    }
}

/// Whether records and entries fit the memory at once, as far as that is known.
fn fits(weight: f64, budget: &Budget, work: &Work<'_>) -> bool {
    let Some(total) = work.total else { return false };
    let (_, arena) = budget.whole();
    let slack = budget.chunk + work.inputs.len() * 8192 + (64 << 10);
    total as f64 * weight + slack as f64 <= arena as f64
}

/// The mean length of the first lines of the first file that can be sampled.
fn sample_mean(machine: &Machine, inputs: &[Input], terminator: u8) -> f64 {
    let mut sample = vec![0; 256 << 10];
    let read = inputs.iter().find_map(|input| input.sample(machine, &mut sample));
    let bytes = &sample[..read.unwrap_or(0)];
    bytes.len() as f64 / (memchr::memchr_iter(terminator, bytes).count() as f64 + 1.0).max(1.0)
}

/// A smaller budget to try after the system refused to map memory for this one.
fn less(memory_bytes: u64) -> u64 {
    let half = memory_bytes / 2;
    // The program itself, its stacks and its rings need some of the address space too.
    address_space().map_or(half, |limit| half.min(limit / 2)).max(MIN_MEMORY)
}
