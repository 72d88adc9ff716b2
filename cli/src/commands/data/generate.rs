//! `dpipe gen`: data to sort.
//!
//! ```text
//! each thread: next block number -> fill a block of memory -> pipe to the file; meanwhile fill its other block
//! ```
//! On a slow device a block is written in short pieces, so that a signal is soon heard.
//! What a block holds depends on its place and the seed only, so any number of threads writes the
//! same file.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use datapipes::in_flight_limit::{InFlightLimit, InFlightMark};
use datapipes::locator::target_kind;
use datapipes::locks::Mutex;
use datapipes::{
    AtomicFile, Constraints, Dram, Error, FileMode, Locator, Machine, MapOptions, Pages, Pipe, Result, Span,
    TargetKind, Transfer,
};
use datapipes_data::generate::{Amount, Generator};
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::arguments::kind::{self, DataKind};
use crate::arguments::units;
use crate::arguments::units::{parse_count, parse_size};
use crate::objects::{ObjectAccess, ObjectAccount, is_object};
use crate::outcome::{CommandStatus, note, print, print_json, shown_path};
use crate::progress::{self, State};
use crate::system::files;
use crate::system::signals::{self, WaitsFor};
use crate::{system::standard_streams, system::threads};

/// Bytes that a thread makes and writes at a time.
const BLOCK: usize = 4 << 20;
/// The same of an object, whose parts may be longer than a thread should have memory for.
const MAX_BLOCK: usize = 32 << 20;
/// Blocks of a thread: one is filled while the other one is written.
const BLOCKS: usize = 2;
/// The least bytes of a piece, on a slow device.
const MIN_PIECE: usize = 64 << 10;
/// The bytes that a thread has under way at first, while the rate is not known.
const FIRST_IN_FLIGHT: usize = 512 << 10;

const ENDING: Ending = Ending {
    notes: "\
An object (s3://BUCKET/KEY, gs://, az://) appears when all its parts are stored and checked;
credentials and endpoint are those of the cloud's own tools.",
    zero: "the file is complete and on the disk, the object at the server",
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
    /// File or object to write; `-` is the standard output
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
    /// What was asked of the server, where an object was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<ObjectAccount>,
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
    let address = file.to_str().filter(|name| is_object(name));
    if address.is_none() && target_kind(file)? == TargetKind::Stream {
        let fail = |e: std::io::Error| Error::io("open", e, file.display().to_string());
        let mut out = std::fs::File::options().write(true).open(file).map_err(fail)?;
        return progress::during(progress::wanted(), state, || stream(&source, &mut out, file, &done))
            .map(|()| CommandStatus::Good);
    }
    let machine = datapipes::discover();
    let threads = args.threads.unwrap_or(machine.topology().usable_cores().count().max(1));
    signals::catch(WaitsFor::Places);
    let extent = |block, is_distant| Extent { bytes, threads, block, is_distant };
    let mut object = None;
    match address {
        Some(address) => {
            let written = ObjectAccess::to_write()?.create(address, Some(bytes), threads)?;
            written.notes().iter().for_each(|text| note(&format!("dpipe gen: note: {text}\n")));
            // A block that is a whole part is sent from where it is.
            let extent = extent(written.part_bytes().map_or(BLOCK, |part| part.clamp(BLOCK, MAX_BLOCK)), true);
            progress::during(progress::wanted(), state, || write(&machine, &source, &written, extent, &done))?;
            progress::syncing(|| written.publish(bytes))?;
            object = Some(written.report());
        }
        None => {
            let draft = AtomicFile::replacing(file, FileMode::USUAL)?;
            draft.ssd().preallocate(bytes)?;
            let extent = extent(BLOCK, false);
            progress::during(progress::wanted(), state, || write(&machine, &source, draft.ssd(), extent, &done))?;
            progress::syncing(|| files::publish(draft, bytes))?;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let bytes_per_second = units::bytes_per_second(bytes, seconds);
    let outcome = Outcome { bytes, records: source.records(), seconds, bytes_per_second, object };
    if args.json {
        print_json(&outcome)?;
    } else {
        let count = outcome.records.map_or_else(String::new, |n| format!("{n} records, "));
        print(&format!(
            "{}: {count}{} in {seconds:.2} s ({})\n",
            shown_path(file),
            units::bytes(bytes),
            units::rate(bytes, seconds)
        ))?;
        outcome.object.iter().try_for_each(|line| print(&format!("  {line}\n")))?;
    }
    Ok(CommandStatus::Good)
}

#[derive(Clone, Copy)]
struct Extent {
    bytes: u64,
    threads: usize,
    /// Bytes that a thread makes at a time.
    block: usize,
    /// Whether a server takes them. Its requests end when it is told to stop.
    is_distant: bool,
}

impl Extent {
    /// The bytes that all threads may have under way.
    fn in_flight(self) -> InFlightLimit {
        let of_all = |bytes: usize| bytes.saturating_mul(self.threads) as u64;
        let most = of_all(BLOCKS * self.block);
        match self.is_distant {
            true => InFlightLimit::fixed(most),
            false => InFlightLimit::new(of_all(MIN_PIECE), of_all(FIRST_IN_FLIGHT), most),
        }
    }
}

fn write(machine: &Machine, source: &Generator, target: &dyn Locator, extent: Extent, done: &AtomicU64) -> Result<()> {
    let block = extent.block;
    let options = MapOptions::default().pages(Pages::Huge).prefault(false);
    let memory = Dram::allocate_with((BLOCKS * extent.threads * block).next_multiple_of(4096), options)?;
    let constraints = Constraints::default().typical_len(block as u64);
    let pipe = machine.connect_with(&memory, target, &constraints)?;
    let (next, limit) = (AtomicU64::new(0), Mutex::new(extent.in_flight()));
    let work = |thread: usize| {
        let flying = VecDeque::new();
        Writer { source, memory: &memory, pipe: &pipe, next: &next, limit: &limit, done, extent, thread, flying }.run()
    };
    threads::map_on_threads("gen", extent.threads, work).map(|_| ())
}

/// A piece of a block under way.
struct Piece {
    /// Which block of the thread it is of, counted from 0.
    turn: usize,
    len: usize,
    transfer: Transfer,
    begun: InFlightMark,
}

/// One thread's share.
struct Writer<'a> {
    source: &'a Generator,
    memory: &'a Dram,
    pipe: &'a Pipe,
    next: &'a AtomicU64,
    limit: &'a Mutex<InFlightLimit>,
    done: &'a AtomicU64,
    extent: Extent,
    thread: usize,
    flying: VecDeque<Piece>,
}

impl Writer<'_> {
    fn run(mut self) -> Result<()> {
        let Extent { bytes, block, .. } = self.extent;
        for turn in 0.. {
            // What is there was written from the memory that is filled next.
            while self.flying.front().is_some_and(|piece| piece.turn + BLOCKS <= turn) {
                self.land()?;
            }
            let index = self.next.fetch_add(1, Relaxed);
            let target = index * block as u64;
            if target >= bytes {
                break;
            }
            signals::check("gen")?;
            let len = (bytes - target).min(block as u64) as usize;
            let at = (BLOCKS * self.thread + turn % BLOCKS) * block;
            self.source.fill(target, &mut self.memory.range(at, len)?.lease_mut()?);
            self.send(turn, at, target, len)?;
        }
        while !self.flying.is_empty() {
            signals::check("gen")?;
            self.land()?;
        }
        Ok(())
    }

    /// Begins to write a block, in pieces of which no more are under way than the limit says.
    fn send(&mut self, turn: usize, at: usize, target: u64, len: usize) -> Result<()> {
        let mut sent = 0;
        while sent < len {
            let (begun, most) = {
                let limit = self.limit.lock();
                (limit.begin(), limit.bytes() as usize / self.extent.threads)
            };
            let piece = (most / BLOCKS / MIN_PIECE * MIN_PIECE).clamp(MIN_PIECE, self.extent.block).min(len - sent);
            let under_way: usize = self.flying.iter().map(|piece| piece.len).sum();
            if under_way > 0 && under_way + piece > most {
                self.land()?;
                signals::check("gen")?;
                continue;
            }
            let span = Span { source: (at + sent) as u64, target: target + sent as u64, len: piece as u64 };
            let transfer = self.pipe.start(span)?;
            self.flying.push_back(Piece { turn, len: piece, transfer, begun });
            sent += piece;
        }
        Ok(())
    }

    /// Waits for the oldest piece.
    fn land(&mut self) -> Result<()> {
        let Some(Piece { len, transfer, begun, .. }) = self.flying.pop_front() else { return Ok(()) };
        transfer.wait()?;
        self.limit.lock().arrived(begun);
        self.done.fetch_add(len as u64, Relaxed);
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
