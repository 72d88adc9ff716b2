//! Figures 3 and 4 of *Data Pipes*: reads from storage at a queue depth, each summed when it
//! arrives, beside a load that takes the memory's bandwidth.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use datapipes::backend::Constraints;
use datapipes::topology::BlockDevice;
use datapipes::{Dram, Error, ErrorKind, FileAccess, Machine, Result, Span, Ssd};
use datapipes_counters::{CounterSet, difference};
use datapipes_knobs::{KnobTransaction, MachineKnob, MachineTree, list};
use datapipes_models::io_cache::{AccessAgent, AccessKind, TraceAccess};

use super::figure::{CHUNKS, Curve, Figure, Latencies, Point, absence, misses_per_line, pin};
use super::load::MemoryLoad;
use crate::arguments::ending::Ending;
use crate::arguments::units::parse_size;
use crate::commands::host::knobs::guard_of;
use crate::system::side_files::{CommandPlaces, SideDraft, SideFileArgument, SideFiles};
use crate::system::signals::{self, WaitsFor};

const ENDING: Ending = Ending {
    notes: "\
A file is written and read past the page cache, with as many chunks under way as the depth. Each
word is checked by its sum. The knobs ddio.* are set where this machine has them and permits it, and
are restored at the end.",
    zero: "measured",
    one: None,
    examples: &[
        "dpipe experiment fig3 --size 8M --ms 5 --chunks 4K,64K --plot fig3.svg",
        "dpipe experiment fig4 --size 8M --ms 5 --chunks 64K --json",
        "dpipe experiment fig3 --size 8M --ms 5 --chunks 64K --trace t && dpipe model ddio --trace t",
    ],
};

/// Reads from storage at a queue depth, and sums what arrives.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// The folder on the storage that is read
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// The length of the file that is written there
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Sizes of chunks
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    chunks: Vec<u64>,
    /// Requests under way
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// The time of each point, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    ms: u64,
    /// Print JSON: experiment, paper, processor, kernel, setup, curves (name, primitive, points),
    /// left_out
    #[arg(long)]
    json: bool,
    /// Draw the curves as SVG
    #[arg(long, alias = "svg", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<SideFileArgument>,
    /// Write what the device wrote and the core read, for `dpipe model ddio --trace`; fig3 alone,
    /// for one size of chunks, without the load
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    trace: Option<SideFileArgument>,
}

/// What differs from curve to curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Varied {
    /// Whether there is a load, and whether devices write into the cache (figure 3).
    Load,
    /// The ways that devices write to (figure 4).
    Ways,
}

/// The most memory for chunks.
const MAX_BUFFERS: u64 = 4 << 30;
/// What direct requests are multiples of.
const BLOCK: u64 = 4096;
/// The most accesses that are written to a trace.
const MAX_TRACED: usize = 1 << 20;
/// The bytes that are written at once.
const WRITTEN_AT_ONCE: usize = 1 << 20;

pub(crate) fn run(args: &Args, varied: Varied) -> Result<()> {
    let mut side_files = SideFiles::beside(CommandPlaces::of("experiment"));
    let plot = side_files.begin("--plot", args.plot.as_ref())?;
    let trace_file = side_files.begin("--trace", args.trace.as_ref())?;
    let chunks = if args.chunks.is_empty() { &CHUNKS[..] } else { &args.chunks };
    for chunk in chunks {
        if chunk % BLOCK != 0
            || *chunk == 0
            || *chunk > args.size
            || chunk.saturating_mul(args.depth.into()) > MAX_BUFFERS
        {
            let why = format!("chunks of {chunk} bytes at depth {} of a file of {} bytes", args.depth, args.size);
            let advice = "give multiples of 4K, up to the file's length, and 4G for all that are under way";
            return Err(Error::new(ErrorKind::InvalidInput, "experiment", why).with_advice(advice));
        }
    }
    if args.trace.is_some() && varied == Varied::Ways {
        let error = Error::new(ErrorKind::InvalidInput, "experiment", "a trace of a reader with a load beside it");
        return Err(error.with_advice("a trace is of the reader alone: `dpipe experiment fig3 --trace` writes it"));
    }
    if args.trace.is_some() && chunks.len() != 1 {
        let why = format!("a trace of {} sizes of chunks", chunks.len());
        return Err(Error::new(ErrorKind::InvalidInput, "experiment", why).with_advice("give one size: --chunks 64K"));
    }
    signals::catch(WaitsFor::Places);
    let machine = datapipes::discover();
    let setup = Setup::new(&machine, args, chunks)?;
    let (experiment, paper) = match varied {
        Varied::Load => ("fig3", "Figure 3 of Data Pipes (CIDR 2023)"),
        Varied::Ways => ("fig4", "Figure 4 of Data Pipes (CIDR 2023)"),
    };
    let words = format!(
        "depth {}, a file of {} in {}, load on {} cores beside it",
        args.depth,
        crate::arguments::units::memory(args.size),
        args.dir.display(),
        setup.load_cores.len()
    );
    let mut figure = Figure::new(machine.topology(), experiment, paper, words);
    if setup.load_cores.is_empty() {
        figure.leave_out("a load beside the reader", "this process may use one core");
    }
    let knobs = list(&MachineTree::live());
    match varied {
        Varied::Load => {
            setup.measure(&mut figure, "alone", false)?;
            if !setup.load_cores.is_empty() {
                setup.measure(&mut figure, "with load", true)?;
            }
            let ports: Vec<_> = knobs.iter().filter(|knob| knob.name.starts_with("ddio.port")).collect();
            for value in ["off", "on"] {
                setup.under(&mut figure, &ports, value, &format!("with load, DDIO {value}"))?;
            }
        }
        Varied::Ways => {
            setup.measure(&mut figure, "ways as set", !setup.load_cores.is_empty())?;
            let ways: Vec<_> = knobs.iter().filter(|knob| knob.name == "ddio.ways").collect();
            for count in [2, 4, 6, 8, 11] {
                // The ways of devices are the highest ones (Farshin et al., ATC 2020).
                let mask = ((1u64 << count) - 1) << (WAYS - count);
                setup.under(&mut figure, &ways, &format!("{mask:#x}"), &format!("{count} ways"))?;
            }
        }
    }
    if let Some(why) = absence(&CounterSet::open().read(), "llc_misses") {
        figure.leave_out("misses of the last-level cache (figures 3b and 4)", why);
    }
    if let (Some(file), Some(trace)) = (trace_file, &setup.trace) {
        write_trace(file, &trace.borrow())?;
    }
    figure.show(args.json, plot)
}

/// Writes a trace. The program knows when it asks for a chunk and when it reads it; the device
/// writes in between, so a chunk counts as written when it is asked for.
fn write_trace(file: SideDraft, accesses: &[TraceAccess]) -> Result<()> {
    let mut text = String::from("# who what address bytes; chunks count as written when they are asked for\n");
    accesses.iter().for_each(|access| _ = writeln!(text, "{access}"));
    if accesses.len() == MAX_TRACED {
        text += "# there were more accesses, which are not here\n";
    }
    file.write_text(&text)
}

/// The ways of the register: those of the paper's processor.
const WAYS: u32 = 11;

struct Setup<'a> {
    machine: &'a Machine,
    file: Ssd,
    file_bytes: u64,
    chunks: &'a [u64],
    depth: u64,
    span: Duration,
    load_cores: Vec<usize>,
    /// What is traced, if anything.
    trace: Option<RefCell<Vec<TraceAccess>>>,
}

impl<'a> Setup<'a> {
    fn new(machine: &'a Machine, args: &Args, chunks: &'a [u64]) -> Result<Setup<'a>> {
        let file = Ssd::unlinked_in(&args.dir)?;
        let file_bytes = args.size / BLOCK * BLOCK;
        match BlockDevice::behind(&args.dir)?.available_bytes {
            Some(free) if free < file_bytes => {
                let why = format!("{} has {free} bytes free, and {file_bytes} are needed", args.dir.display());
                let error = Error::new(ErrorKind::NoSpace, "experiment", why);
                return Err(error.with_advice("give a smaller --size, or another --dir"));
            }
            _ => {}
        }
        fill(machine, &file, file_bytes)?;
        let mut cores: Vec<usize> = machine.topology().usable_cores().map(|core| core.index).collect();
        if !cores.is_empty() {
            // The first one is the reader's, as in the paper: one core moves and sums.
            pin(cores.remove(0))?;
        }
        Ok(Setup {
            machine,
            file: file.with_access(FileAccess::Direct)?,
            file_bytes,
            chunks,
            depth: args.depth.into(),
            span: Duration::from_millis(args.ms),
            load_cores: cores,
            trace: args.trace.is_some().then(RefCell::default),
        })
    }

    /// Measures a curve under a setting of knobs, or leaves it out with the reason.
    fn under(&self, figure: &mut Figure, knobs: &[&MachineKnob], value: &str, name: &str) -> Result<()> {
        let missing = match knobs.iter().find(|knob| knob.value.is_none()) {
            _ if knobs.is_empty() => Some("this machine has no such knob".to_owned()),
            Some(knob) => Some(format!("{}: {}", knob.name, knob.absent.as_deref().unwrap_or("absent"))),
            None => None,
        };
        if let Some(why) = missing {
            figure.leave_out(name, why);
            return Ok(());
        }
        let tree = MachineTree::live();
        let settings: Vec<_> = knobs.iter().map(|knob| (knob.name.clone(), value.to_owned())).collect();
        let guard = guard_of(&tree)?;
        match KnobTransaction::begin(&tree, &settings, &[], Some(&guard), &mut |_| {}) {
            Err(why) => {
                figure.leave_out(name, why.to_string());
                Ok(())
            }
            Ok(transaction) => {
                let measured = self.measure(figure, name, !self.load_cores.is_empty());
                transaction.restore(&mut |_| {})?;
                measured
            }
        }
    }

    fn measure(&self, figure: &mut Figure, name: &str, with_load: bool) -> Result<()> {
        let mut curve = Curve { name: name.into(), primitive: String::new(), points: Vec::new() };
        for chunk in self.chunks {
            signals::check("experiment")?;
            let point = self.point(*chunk, with_load, &mut curve.primitive)?;
            // What was cut off is no measurement.
            signals::check("experiment")?;
            curve.points.push(point);
        }
        figure.curves.push(curve);
        Ok(())
    }

    fn point(&self, chunk: u64, with_load: bool, primitive: &mut String) -> Result<Point> {
        let len = usize::try_from(chunk * self.depth).map_err(|e| refused(chunk).with_source(e))?;
        let buffers = Dram::allocate(len)?;
        // Nothing of the load is counted: it is started before.
        let load = with_load.then(|| MemoryLoad::start(self.machine.topology(), &self.load_cores)).transpose()?;
        let counters = CounterSet::open();
        let demands = Constraints::default()
            .bypass_page_cache(true)
            .typical_len(chunk)
            .queue_depth(u32::try_from(self.depth).ok());
        let pipe = self.machine.connect_with(&self.file, &buffers, &demands)?;
        *primitive = pipe.route().primitives().join(", ");
        let chunks_of_file = self.file_bytes / chunk;
        let mut batch = pipe.batch();
        let mut started = vec![Instant::now(); self.depth as usize];
        let mut at = vec![0u64; self.depth as usize];
        let mut next = 0u64;
        let mut latencies = Latencies::default();
        let (before, cpu, load_before) = (counters.read(), thread_cpu(), load.as_ref().map(MemoryLoad::bytes));
        let since = Instant::now();
        let first = buffers.memory().address().addr() as u64;
        let note = |agent: AccessAgent, kind: AccessKind, buffer: u64| {
            let Some(trace) = self.trace.as_ref().filter(|_| !with_load) else { return };
            let mut trace = trace.borrow_mut();
            if trace.len() < MAX_TRACED {
                trace.push(TraceAccess { agent, kind, address: first + buffer * chunk, bytes: chunk });
            }
        };
        let mut submit =
            |batch: &mut datapipes::pipe::Batch<'_>, buffer: u64, started: &mut [Instant], at: &mut [u64]| {
                note(AccessAgent::Device, AccessKind::Write, buffer);
                let source = next % chunks_of_file * chunk;
                next += 1;
                (started[buffer as usize], at[buffer as usize]) = (Instant::now(), source);
                batch.submit([(buffer, Span { source, target: buffer * chunk, len: chunk })]);
            };
        for buffer in 0..self.depth {
            submit(&mut batch, buffer, &mut started, &mut at);
        }
        let mut done = 0u64;
        while let Some(finished) = batch.next()? {
            finished.result?;
            let buffer = finished.tag;
            // The place is that of a buffer that has `chunk` bytes.
            let place = (buffer * chunk) as usize;
            let sum = sum(&buffers.range(place, chunk as usize)?.lease()?);
            note(AccessAgent::Core, AccessKind::Read, buffer);
            latencies.add(started[buffer as usize]);
            if sum != sum_of(at[buffer as usize], chunk) {
                let where_ =
                    format!("the bytes at {} of the file are not those that were written", at[buffer as usize]);
                return Err(Error::new(ErrorKind::Corrupt, "experiment", where_));
            }
            done += 1;
            if since.elapsed() < self.span && !signals::arrived() {
                submit(&mut batch, buffer, &mut started, &mut at);
            }
        }
        drop(batch);
        let seconds = since.elapsed().as_secs_f64();
        let cpu = thread_cpu() - cpu;
        let counted = difference(&before, &counters.read());
        let bytes = done * chunk;
        Ok(Point {
            chunk_bytes: chunk,
            chunks: done,
            bytes_per_second: bytes as f64 / seconds,
            p50_us: latencies.below(0.5),
            p99_us: latencies.below(0.99),
            cpu_share: cpu / seconds,
            load_bytes_per_second: load
                .as_ref()
                .zip(load_before)
                .map(|(load, before)| (load.bytes() - before) as f64 / seconds),
            llc_misses_per_line: misses_per_line(&counted, bytes),
        })
    }
}

fn refused(chunk: u64) -> Error {
    Error::new(ErrorKind::InvalidInput, "experiment", format!("chunks of {chunk} bytes"))
}

/// Processor time of the calling thread, in seconds: the load's threads are not in it.
fn thread_cpu() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// Writes a file in which each word is its number.
fn fill(machine: &Machine, file: &Ssd, len: u64) -> Result<()> {
    let buffer = Dram::allocate(WRITTEN_AT_ONCE)?;
    let pipe = machine.connect(&buffer, file)?;
    let mut at = 0;
    while at < len {
        signals::check("experiment")?;
        let part = (len - at).min(WRITTEN_AT_ONCE as u64);
        let mut bytes = buffer.lease_mut()?;
        for (word, number) in bytes.chunks_exact_mut(8).zip(at / 8..) {
            word.copy_from_slice(&number.to_le_bytes());
        }
        drop(bytes);
        pipe.transfer(Span { source: 0, target: at, len: part })?;
        at += part;
    }
    file.sync()
}

/// The sum of all words.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0;
    words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// The sum of the words of a part of the file, which [`fill`] wrote.
fn sum_of(at: u64, len: u64) -> u64 {
    let (first, count) = (u128::from(at / 8), u128::from(len / 8));
    (count * first + count * count.saturating_sub(1) / 2) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_numbers_in_a_row() {
        for (at, len) in [(0, 8), (0, 4096), (4096, 4096), (1 << 40, 1 << 20), (8, 0)] {
            let slow = (at / 8..(at + len) / 8).fold(0u64, u64::wrapping_add);
            assert_eq!(sum_of(at, len), slow, "{at} {len}");
        }
    }
}
