//! `dpipe gen`: data to sort.
//!
//! ```text
//! each thread: next block number -> fill a block of memory -> pipe to the file; meanwhile fill its other block
//! ```
//! What a block holds depends on its place and the seed only, so any number of threads writes the
//! same file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use datapipes::locator::target_kind;
use datapipes::{
    AtomicFile, Constraints, Dram, Error, FileMode, Machine, MapOptions, Pages, Pipe, Result, Span, TargetKind,
    Transfer,
};
use datapipes_data::generate::{Amount, Generator};
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::arguments::kind::{self, DataKind};
use crate::arguments::units;
use crate::arguments::units::{parse_count, parse_size};
use crate::outcome::{CommandStatus, print, print_json};
use crate::progress::{self, State};
use crate::system::files;
use crate::system::signals::{self, WaitsFor};
use crate::{system::standard_streams, system::threads};

/// Bytes that a thread makes and writes at a time.
const BLOCK: usize = 4 << 20;

const ENDING: Ending = Ending {
    notes: "",

    zero: "the file is complete and on the disk",
    one: None,
    examples: &[
        "dpipe gen records --size 10MB input.records",
        "dpipe gen lines --size 1M --seed 7 - | dpipe sort -o sorted.txt",
        "dpipe gen u64 --size 8M --threads 1 --json numbers.u64",
    ],
};

/// Writes data to sort. The file appears under its name when it is complete and synced.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.after(&kind::help()))]
pub(crate) struct Args {
    /// Kind of data to write; the list is below
    #[arg(value_parser = kind::parser(), hide_possible_values = true)]
    kind: DataKind,
    /// File to write; `-` is the standard output
    file: PathBuf,
    /// Bytes to write; only whole records and numbers are written, so there may be a little less
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// Seed of the data: the same seed gives the same bytes; `records` and `records-ascii` are
    /// gensort's, which have none
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of the first record, as gensort -b has it
    #[arg(long, default_value_t = 0, value_name = "N")]
    begin: u64,
    /// Threads that write [default: one a core]
    #[arg(long, value_name = "N", value_parser = parse_count::<usize>)]
    threads: Option<usize>,
    /// Print JSON: bytes, records (null for lines), seconds, bytes_per_second
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Outcome {
    bytes: u64,
    records: Option<u64>,
    seconds: f64,
    bytes_per_second: f64,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let (size, file) = (args.size, &args.file);
    let source =
        Generator::new(args.kind, Amount::Bytes(size)).with_seed(args.seed).with_first_record(u128::from(args.begin));
    let bytes = source.len_bytes();
    let to_stdout = file == Path::new("-");
    let done = AtomicU64::new(0);
    let state = || State { phase: "writing", done: done.load(Relaxed), total: bytes, later: 0 };
    let started = Instant::now();
    if to_stdout {
        let mut out = standard_streams::output()?;
        let name = Path::new(standard_streams::OUTPUT);
        return progress::during(progress::wanted(), state, || stream(&source, &mut out, name, &done))
            .map(|()| CommandStatus::Good);
    }
    if target_kind(file)? == TargetKind::Stream {
        let fail = |e: std::io::Error| Error::io("open", e, file.display().to_string());
        let mut out = std::fs::File::options().write(true).open(file).map_err(fail)?;
        return progress::during(progress::wanted(), state, || stream(&source, &mut out, file, &done))
            .map(|()| CommandStatus::Good);
    }
    let machine = datapipes::discover();
    let threads = args.threads.unwrap_or(machine.topology().usable_cores().count().max(1));
    let draft = AtomicFile::replacing(file, FileMode::USUAL)?;
    draft.ssd().preallocate(bytes)?;
    signals::catch(WaitsFor::Places);
    progress::during(progress::wanted(), state, || write(&machine, &source, &draft, Extent { bytes, threads }, &done))?;
    files::publish(draft, bytes)?;
    let seconds = started.elapsed().as_secs_f64();
    let bytes_per_second = units::bytes_per_second(bytes, seconds);
    let outcome = Outcome { bytes, records: source.records(), seconds, bytes_per_second };
    if args.json {
        print_json(&outcome)?;
    } else {
        let count = outcome.records.map_or_else(String::new, |n| format!("{n} records, "));
        print(&format!(
            "{}: {count}{} in {seconds:.2} s ({})\n",
            file.display(),
            units::bytes(bytes),
            units::rate(bytes, seconds)
        ))?;
    }
    Ok(CommandStatus::Good)
}

#[derive(Clone, Copy)]
struct Extent {
    bytes: u64,
    threads: usize,
}

fn write(machine: &Machine, source: &Generator, draft: &AtomicFile, extent: Extent, done: &AtomicU64) -> Result<()> {
    let block = BLOCK;
    let options = MapOptions::default().pages(Pages::Huge).prefault(false);
    let memory = Dram::allocate_with((2 * extent.threads * block).next_multiple_of(4096), options)?;
    let constraints = Constraints::default().typical_len(block as u64);
    let pipe = machine.connect_with(&memory, draft.ssd(), &constraints)?;
    let next = AtomicU64::new(0);
    let writer =
        |thread: usize| Writer { source, memory: &memory, pipe: &pipe, next: &next, done, bytes: extent.bytes, thread };
    threads::map_on_threads("gen", extent.threads, |thread| writer(thread).run()).map(|_| ())
}

/// One thread's share.
struct Writer<'a> {
    source: &'a Generator,
    memory: &'a Dram,
    pipe: &'a Pipe,
    next: &'a AtomicU64,
    done: &'a AtomicU64,
    bytes: u64,
    thread: usize,
}

impl Writer<'_> {
    fn run(&self) -> Result<()> {
        let block = BLOCK;
        let mut flying: [Option<(u64, Transfer)>; 2] = [None, None];
        for turn in 0.. {
            let slot = turn % 2;
            if let Some((len, transfer)) = flying[slot].take() {
                transfer.wait()?;
                self.done.fetch_add(len, Relaxed);
            }
            let index = self.next.fetch_add(1, Relaxed);
            let target = index * block as u64;
            if target >= self.bytes {
                break;
            }
            signals::check("gen")?;
            let len = (self.bytes - target).min(block as u64);
            let at = (2 * self.thread + slot) * block;
            self.source.fill(target, &mut self.memory.range(at, len as usize)?.lease_mut()?);
            flying[slot] = Some((len, self.pipe.start(Span { source: at as u64, target, len })?));
        }
        for (len, transfer) in flying.into_iter().flatten() {
            transfer.wait()?;
            self.done.fetch_add(len, Relaxed);
        }
        Ok(())
    }
}

/// Block after block to what is no file.
fn stream(source: &Generator, out: &mut (impl Write + Send), name: &Path, done: &AtomicU64) -> Result<()> {
    let fail = |e: std::io::Error| Error::io("write", e, name.display().to_string());
    let mut buffer = vec![0; BLOCK];
    let mut at = 0;
    loop {
        let len = source.fill(at, &mut buffer);
        if len == 0 {
            return out.flush().map_err(fail);
        }
        out.write_all(&buffer[..len]).map_err(|e| fail(e).with_offset(at))?;
        at += len as u64;
        done.store(at, Relaxed);
    }
}
