//! `dpipe log`: records that are durable when they are acknowledged.

mod bench;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes::{Error, ErrorKind, Machine, Result};
use datapipes_durable::log::{Log, LogFolder, LogOptions, LogReader, SegmentStorage, examine};
use serde::Serialize;

use crate::arguments::command_line::size;
use crate::arguments::units;
use crate::outcome::{CommandStatus, print, print_json};
use crate::system::standard_streams;

/// A log is a folder of segment files. A record that was acknowledged survives kill -9 and a power
/// failure; a torn tail is cut off when the log is opened; damage is an error with its offset (exit
/// code 1 from `stat`).
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Append the lines of the standard input, and print each one's number when it is durable
    Append(Append),
    /// Print records, a line each
    Read(Read),
    /// Read and check all of it, and say what is there
    Stat(Stat),
    /// Give back the space of old records, by whole segments
    Release(Release),
    /// Append records for some seconds, and say how fast they became durable
    Bench(bench::Args),
}

/// Settings of a log that is opened for appending.
#[derive(Debug, clap::Args)]
struct Settings {
    /// Bytes of a new segment
    #[arg(long, default_value = "32M", value_name = "SIZE", value_parser = size)]
    segment: u64,
    /// Bytes of a batch, and the limit of a record; two are held in memory
    #[arg(long, default_value = "1M", value_name = "SIZE", value_parser = size)]
    batch: u64,
}

impl Settings {
    fn open(&self, machine: &Machine, dir: &Path) -> Result<Log> {
        let batch_bytes = u32::try_from(self.batch).unwrap_or(u32::MAX);
        Log::open(machine, LogFolder::at(machine, dir), LogOptions { segment_bytes: self.segment, batch_bytes })
    }
}

#[derive(Debug, clap::Args)]
struct Append {
    /// The log's folder; made if it is not there
    dir: PathBuf,
    /// Do not print the numbers
    #[arg(long, short)]
    quiet: bool,
    /// At the end print JSON: records, bytes, batches, acknowledged and others, instead of the
    /// numbers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, clap::Args)]
struct Read {
    /// The log's folder
    dir: PathBuf,
    /// The number of the first record to print
    #[arg(long, default_value_t = 0, value_name = "N")]
    from: u64,
    /// Print a JSON object a line: number, and text or (where that is no UTF-8) bytes
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Stat {
    /// The log's folder
    dir: PathBuf,
    /// Print JSON: intact, damage, first, next, payload_bytes, segments, segment_bytes, epoch
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Release {
    /// The log's folder
    dir: PathBuf,
    /// Records before this number are not needed any more
    #[arg(long, value_name = "N")]
    before: u64,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    match &args.action {
        Action::Append(args) => append(args),
        Action::Read(args) => read(args),
        Action::Stat(args) => stat(args),
        Action::Release(args) => release(args),
        Action::Bench(args) => bench::run(args),
    }
}

fn storage(machine: &Machine, dir: &Path) -> Arc<dyn SegmentStorage> {
    Arc::new(LogFolder::at(machine, dir))
}

/// Lines that are there already go together; before this waits for more, all are durable. A signal
/// simply ends it: what was acknowledged is safe, which is what a log is for.
fn append(args: &Append) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    let log = args.settings.open(&machine, &args.dir)?;
    let mut input = BufReader::with_capacity(1 << 20, standard_streams::input()?);
    let mut out = standard_streams::output()?;
    let mut line = Vec::new();
    let mut pending = Vec::new();
    loop {
        line.clear();
        let n = input.read_until(b'\n', &mut line).map_err(|e| Error::io("read", &e, standard_streams::INPUT))?;
        if n > 0 {
            line.pop_if(|last| *last == b'\n');
            pending.push(log.append(&line)?);
        }
        if n == 0 || !input.buffer().contains(&b'\n') || pending.len() == 4096 {
            let mut numbers = String::new();
            for ticket in pending.drain(..) {
                let number = ticket.wait()?;
                if !args.quiet && !args.json {
                    numbers += &format!("{number}\n");
                }
            }
            out.write_all(numbers.as_bytes()).map_err(|e| Error::io("write", &e, standard_streams::OUTPUT))?;
        }
        if n == 0 {
            break;
        }
    }
    let stats = log.stats();
    drop(pending);
    log.close()?;
    if args.json {
        print_json(&stats)?;
    }
    Ok(CommandStatus::Good)
}

#[derive(Serialize)]
struct Line<'a> {
    number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<&'a [u8]>,
}

fn read(args: &Read) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    let mut out = std::io::BufWriter::with_capacity(1 << 20, standard_streams::output()?);
    let failed = |e: std::io::Error| Error::io("write", &e, standard_streams::OUTPUT);
    for record in LogReader::open(&machine, &storage(&machine, &args.dir), args.from)? {
        let record = match record {
            Ok(record) => record,
            Err(e) => {
                // What came before the damage is right, and is shown.
                out.flush().map_err(failed)?;
                return Err(e);
            }
        };
        if args.json {
            let text = std::str::from_utf8(&record.payload).ok();
            let bytes = if text.is_none() { Some(&record.payload[..]) } else { None };
            serde_json::to_writer(&mut out, &Line { number: record.number, text, bytes })
                .map_err(|e| Error::io("write", &e.into(), standard_streams::OUTPUT))?;
        } else {
            out.write_all(&record.payload).map_err(failed)?;
        }
        out.write_all(b"\n").map_err(failed)?;
    }
    out.flush().map_err(failed)?;
    Ok(CommandStatus::Good)
}

#[derive(Serialize)]
struct Found {
    /// Whether every frame of it checks.
    intact: bool,
    /// If not, what is wrong where.
    damage: Option<String>,
    #[serde(flatten)]
    summary: Option<datapipes_durable::log::LogSummary>,
}

fn stat(args: &Stat) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    let found = match examine(&machine, &storage(&machine, &args.dir)) {
        Ok(summary) => Found { intact: true, damage: None, summary: Some(summary) },
        Err(e) if e.kind() == ErrorKind::Corrupt => Found { intact: false, damage: Some(e.to_string()), summary: None },
        Err(e) => return Err(e),
    };
    if args.json {
        print_json(&found)?;
    } else if let Some(s) = &found.summary {
        let records = match s.next - s.first {
            0 => format!("no records, the next is {}", s.next),
            n => format!("{n} records, {} to {}", s.first, s.next - 1),
        };
        print(&format!(
            "{}: intact; {records}; {} in {} segments of {}; opened {} times\n",
            args.dir.display(),
            units::bytes(s.payload_bytes),
            s.segments,
            units::bytes(s.segment_bytes),
            s.epoch
        ))?;
    } else {
        print(&format!("{}: DAMAGED: {}\n", args.dir.display(), found.damage.as_deref().unwrap_or_default()))?;
    }
    Ok(if found.intact { CommandStatus::Good } else { CommandStatus::Bad })
}

fn release(args: &Release) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    if storage(&machine, &args.dir).list()?.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "release", format!("{} holds no log", args.dir.display())));
    }
    let log = Log::open(&machine, LogFolder::at(&machine, &args.dir), LogOptions::default())?;
    let gone = log.release_before(args.before)?;
    log.close()?;
    print(&format!("{gone} segments were given back\n"))?;
    Ok(CommandStatus::Good)
}
