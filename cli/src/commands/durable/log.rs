//! `dpipe log`: records that are durable when they are acknowledged.

mod bench;
mod core_waits;
mod opening;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use datapipes::{Error, ErrorKind, Machine, Result};
use datapipes_durable::log::{Log, LogFolder, LogOptions, LogReader, SegmentStorage, examine};
use serde::Serialize;

use self::opening::open_shown;
use crate::arguments::ending::Ending;
use crate::arguments::units::{self, parse_size};
use crate::metrics_file::{CommandMetrics, told};
use crate::outcome::{CommandStatus, print, print_json, shown_path};
use crate::system::side_files::{CommandPlaces, SideFileArgument, SideFiles};
use crate::system::standard_streams;

const LOG: Ending = Ending {
    notes: "\
A log is a folder of segment files. A record that was acknowledged survives kill -9 and a power
failure. A torn tail is cut off when the log is opened. Damage is an error with its offset.",
    zero: "done",
    one: Some("`stat` found damage"),
    examples: &["seq 3 | dpipe log append events", "dpipe log read events", "dpipe log stat events"],
};
const APPEND: Ending = Ending {
    notes: "",

    zero: "all records are durable",
    one: None,
    examples: &["seq 3 | dpipe log append events", "dpipe log append events --segment-size 64M --json < lines.txt"],
};
const READ: Ending = Ending {
    notes: "",

    zero: "the records are printed",
    one: None,
    examples: &["dpipe log read events", "dpipe log read events --first 1 --json"],
};
const STAT: Ending = Ending {
    notes: "",

    zero: "the log is intact",
    one: Some("the log is damaged"),
    examples: &["dpipe log stat events", "dpipe log stat events --json"],
};
const RELEASE: Ending = Ending {
    notes: "",
    zero: "the space is released",
    one: None,
    examples: &["dpipe log release events --before 2 --json"],
};

/// Appends records that are durable when they are acknowledged, and reads them.
#[derive(Debug, clap::Args)]
#[command(after_help = LOG.text())]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// Write metrics to FILE in Prometheus' text format, as a whole: at the start, every ten
    /// seconds and at the end
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    metrics: Option<SideFileArgument>,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Append the lines of the standard input, and print each line's number when it is durable
    Append(Append),
    /// Print the records, one a line
    Read(Read),
    /// Read and check the whole log, and show what it holds
    Stat(Stat),
    /// Release the space of old records, in whole segments
    Release(Release),
    /// Append records for some seconds, and show how fast they became durable
    Bench(bench::Args),
}

/// Settings of a log that is opened for appending.
#[derive(Debug, clap::Args)]
struct Settings {
    /// Bytes of a new segment
    #[arg(long, alias = "segment", default_value = "32M", value_name = "SIZE", value_parser = parse_size)]
    segment_size: u64,
    /// Bytes of a batch, which limit a record; memory holds two batches
    #[arg(long, alias = "batch", default_value = "1M", value_name = "SIZE", value_parser = parse_size)]
    batch_size: u64,
}

impl Settings {
    fn open(&self, machine: &Machine, dir: &Path) -> Result<Log> {
        let batch_bytes = u32::try_from(self.batch_size).unwrap_or(u32::MAX);
        let options = LogOptions::default().segment_bytes(self.segment_size).batch_bytes(batch_bytes);
        let folder = LogFolder::at(machine, dir);
        open_shown(&folder, options, || Log::open(machine, folder.clone(), options))
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = APPEND.text())]
struct Append {
    /// Folder of the log; it is created if it does not exist
    dir: PathBuf,
    /// Do not print the numbers
    #[arg(long, short)]
    quiet: bool,
    /// Print JSON at the end instead of the numbers: records, payload_bytes, written_bytes,
    /// batches, ...
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, clap::Args)]
#[command(after_help = READ.text())]
struct Read {
    /// Folder of the log
    dir: PathBuf,
    /// Number of the first record to print
    #[arg(long, alias = "from", default_value_t = 0, value_name = "N")]
    first: u64,
    /// Print a JSON object a line: number, and text or (if it is not UTF-8) bytes
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = STAT.text())]
struct Stat {
    /// Folder of the log
    dir: PathBuf,
    /// Print JSON: intact, damage, first, next, payload_bytes, segments, segment_bytes, epoch
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = RELEASE.text())]
struct Release {
    /// Folder of the log
    dir: PathBuf,
    /// Number of the first record that is still needed
    #[arg(long, value_name = "N")]
    before: u64,
    /// Print JSON: segments
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let name = match &args.action {
        Action::Append(_) => "log append",
        Action::Read(_) => "log read",
        Action::Stat(_) => "log stat",
        Action::Release(_) => "log release",
        Action::Bench(_) => "log bench",
    };
    let places = CommandPlaces::of("log");
    let mut side_files = SideFiles::beside(match &args.action {
        Action::Append(Append { dir, .. })
        | Action::Read(Read { dir, .. })
        | Action::Stat(Stat { dir, .. })
        | Action::Release(Release { dir, .. }) => places.files_of(dir),
        // It makes a log of its own, in a folder that nobody can name before.
        Action::Bench(_) => places,
    });
    let metrics = side_files.take("--metrics", args.metrics.as_ref())?;
    let page = if let Action::Bench(args) = &args.action { args.report_page.take(&mut side_files)? } else { None };
    told(metrics.as_ref(), name, |metrics| match &args.action {
        Action::Append(args) => append(args, metrics),
        Action::Read(args) => read(args),
        Action::Stat(args) => stat(args),
        Action::Release(args) => release(args),
        Action::Bench(args) => bench::run(args, metrics, page),
    })
}

/// Lines that are there already go together; before this waits for more, all are durable. A signal
/// simply ends it: what was acknowledged is safe, which is what a log is for.
fn append(args: &Append, metrics: &CommandMetrics<'_>) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    let log = args.settings.open(&machine, &args.dir)?;
    metrics.during(|| log.stats().samples(), || append_lines(args, &log))?;
    let stats = log.stats();
    log.close()?;
    if args.json {
        print_json(&stats)?;
    }
    Ok(CommandStatus::Good)
}

fn append_lines(args: &Append, log: &Log) -> Result<()> {
    let mut input = BufReader::with_capacity(1 << 20, standard_streams::input()?);
    let mut out = standard_streams::output()?;
    let mut line = Vec::new();
    let mut pending = Vec::new();
    loop {
        line.clear();
        let n = input.read_until(b'\n', &mut line).map_err(|e| Error::io("read", e, standard_streams::INPUT))?;
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
            out.write_all(numbers.as_bytes()).map_err(|e| Error::io("write", e, standard_streams::OUTPUT))?;
        }
        if n == 0 {
            return Ok(());
        }
    }
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
    let failed = |e: std::io::Error| Error::io("write", e, standard_streams::OUTPUT);
    for record in LogReader::open(&machine, &LogFolder::at(&machine, &args.dir), args.first)? {
        let record = match record {
            Ok(record) => record,
            Err(e) => {
                // The records before the damage are intact, and are shown.
                out.flush().map_err(failed)?;
                return Err(e);
            }
        };
        if args.json {
            let text = std::str::from_utf8(&record.payload).ok();
            let bytes = if text.is_none() { Some(&record.payload[..]) } else { None };
            serde_json::to_writer(&mut out, &Line { number: record.number, text, bytes })
                .map_err(|e| Error::io("write", e.into(), standard_streams::OUTPUT))?;
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
    /// Whether all frames of the log are intact.
    intact: bool,
    /// If not, what is wrong where.
    damage: Option<String>,
    #[serde(flatten)]
    summary: Option<datapipes_durable::log::LogSummary>,
}

fn stat(args: &Stat) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    let found = match examine(&machine, &LogFolder::at(&machine, &args.dir)) {
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
            shown_path(&args.dir),
            units::bytes(s.payload_bytes),
            s.segments,
            units::bytes(s.segment_bytes),
            s.epoch
        ))?;
    } else {
        print(&format!("{}: DAMAGED: {}\n", shown_path(&args.dir), found.damage.as_deref().unwrap_or_default()))?;
    }
    Ok(if found.intact { CommandStatus::Good } else { CommandStatus::Bad })
}

#[derive(Serialize)]
struct Released {
    /// Segments whose space was released.
    segments: usize,
}

fn release(args: &Release) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    if LogFolder::at(&machine, &args.dir).list()?.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "release", format!("{} holds no log", args.dir.display())));
    }
    let log = Log::open(&machine, LogFolder::at(&machine, &args.dir), LogOptions::default())?;
    let gone = log.release_before(args.before)?;
    log.close()?;
    match args.json {
        true => print_json(&Released { segments: gone })?,
        false => print(&format!("{gone} segments were released\n"))?,
    }
    Ok(CommandStatus::Good)
}
