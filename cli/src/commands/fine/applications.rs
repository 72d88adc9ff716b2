//! `dpipe fine recommender` and `dpipe fine social`: the two applications of Pipette (DAC'22,
//! section 4.3) on real files, through the cache and through the page cache, each in a process of
//! its own under the same limit of memory.
//!
//! The device here is an ordinary one that reads blocks, and the paper's was a board of its
//! authors': ratios of hits can be held against the paper's, times cannot.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use datapipes::{Error, ErrorKind, Result, Ssd};
use datapipes_cache::{CacheOptions, CachePolicy, FineGrained};
use datapipes_data::access::{ReadRequest, Recommender, Skew, SocialGraph};
use serde::{Deserialize, Serialize};

use super::content;
use super::limit::Limit;
use crate::arguments::ending::Ending;
use crate::arguments::units::{parse_count, parse_size};
use crate::outcome::{CommandStatus, print, print_json};
use crate::system::signals::{self, WaitsFor};
use crate::{arguments::units, system::child};

const RECOMMENDER: Ending = Ending {
    notes: "\
Writes the file once, warms up, and measures the hit ratio, memory and throughput, beside table 4
of the paper.",
    zero: "both sides are measured",
    one: None,
    examples: &["dpipe fine recommender --size 8M --reads 2000 --memory 4M --skew traces --json"],
};
const SOCIAL: Ending = Ending {
    notes: "\
Writes the file once, warms up, and measures the hit ratio, memory and throughput, beside table 4
of the paper.",
    zero: "both sides are measured",
    one: None,
    examples: &["dpipe fine social --size 8M --reads 2000 --memory 4M --json"],
};

/// Looks up embeddings of a recommender (the tables of Criteo Kaggle), beside the page cache.
#[derive(Debug, clap::Args)]
#[command(after_help = RECOMMENDER.text())]
pub(crate) struct RecommenderArgs {
    #[command(flatten)]
    common: Args,
    /// How unequal the rows are: `traces` (public DLRM statistics), or the exponent of a Zipf law
    /// within each table
    #[arg(long, default_value = "0.8", value_name = "SKEW")]
    skew: String,
}

impl RecommenderArgs {
    /// The arguments as both applications take them.
    pub(crate) fn all(&self) -> Args {
        Args { skew: Some(self.skew.clone()), ..self.common.clone() }
    }
}

/// Reads nodes, counts and link lists of a social graph (LinkBench), beside the page cache.
#[derive(Debug, clap::Args)]
#[command(after_help = SOCIAL.text())]
pub(crate) struct SocialArgs {
    #[command(flatten)]
    pub(crate) common: Args,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// File to read; it is kept, and written unless it has this size [default: a temporary one]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Approximate size of the file
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = file_size)]
    size: u64,
    /// Take a file as large as the paper's (4.1 GB of tables) or LinkBench's default (10 million
    /// nodes)
    #[arg(long, conflicts_with = "size")]
    full: bool,
    /// Memory budget of the cache or the page cache [default: a 45th of the file, as the paper's
    /// 91 MB of 4.1 GB, at least 16M]
    #[arg(long, alias = "budget", value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Reads to measure; half as many warm up
    #[arg(long, alias = "requests", default_value_t = 400_000, value_name = "N", value_parser = parse_count::<u64>)]
    reads: u64,
    /// Reads in one call of the cache [default: 26 for the recommender, a row of each
    /// table; 1 for the graph]
    #[arg(long, value_name = "N", value_parser = parse_count::<usize>)]
    batch: Option<usize>,
    /// Policy of the cache: adaptive, s3-fifo, sieve, w-tiny-lfu, pipette
    #[arg(long, default_value = "adaptive", value_name = "NAME")]
    policy: String,
    /// Of the recommender only.
    #[arg(skip)]
    skew: Option<String>,
    /// Measure the page cache once more with all the memory that it takes, as the paper does
    #[arg(long)]
    unlimited: bool,
    /// Print JSON: application, file_bytes, budget, limited, rows, paper
    #[arg(long)]
    json: bool,
    /// Side that a child of this command measures
    #[arg(long, hide = true, value_enum)]
    side: Option<Side>,
}

impl Args {
    fn skew(&self) -> &str {
        self.skew.as_deref().unwrap_or("0.8")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Application {
    Recommender,
    Social,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Side {
    Fine,
    Pages,
}

/// The measurement of one side.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    reader: String,
    hit_percent: f64,
    /// Memory of the cache with its tables, or of the page cache.
    memory_bytes: u64,
    /// Peak memory of the process with its page cache, if it ran in a cgroup.
    peak_bytes: Option<u64>,
    reads: u64,
    reads_per_second: f64,
    cpu_seconds: f64,
    device_bytes: u64,
    asked_bytes: u64,
    /// Anonymous memory of the process.
    anonymous_bytes: u64,
}

/// Table 4 of the paper.
#[derive(Clone, Copy, Debug, Serialize)]
struct Published {
    reader: &'static str,
    hit_percent: f64,
    memory_bytes: f64,
}

#[derive(Serialize)]
struct Outcome {
    application: &'static str,
    file_bytes: u64,
    budget: u64,
    /// How memory was limited, or why it was not limited.
    limited: String,
    note: String,
    rows: Vec<Row>,
    paper: [Published; 2],
}

/// Memory of a program that has a cache (stacks, rings, what was discovered), and of one that only
/// reads.
const BESIDE: u64 = 16 << 20;
const PROGRAM: u64 = 3 << 20;
const ROW_BYTES: u64 = 128;
const SEED: u64 = 1;

impl Application {
    fn name(self) -> &'static str {
        match self {
            Application::Recommender => "recommender",
            Application::Social => "social",
        }
    }

    fn paper(self) -> [Published; 2] {
        let of = |reader, hit_percent, mb: f64| Published { reader, hit_percent, memory_bytes: mb * 1e6 };
        match self {
            Application::Recommender => [of("Block I/O", 64.5, 2382.0), of("Pipette", 93.5, 91.0)],
            Application::Social => [of("Block I/O", 66.5, 1112.0), of("Pipette", 89.09, 70.0)],
        }
    }

    /// The reads, endless; the bytes of their file; what has to be said of them.
    fn reads(self, args: &Args) -> Result<(Box<dyn Iterator<Item = ReadRequest>>, u64, String)> {
        match self {
            Application::Recommender => {
                let skew = match args.skew() {
                    "traces" => Skew::Traces { reads: args.reads + args.reads / 2 },
                    text => Skew::PerTable { exponent: text.parse().map_err(|_| bad(format!("a skew of {text:?}")))? },
                };
                let rows = Recommender::rows();
                let kept = if args.full { rows } else { (args.size / ROW_BYTES).clamp(1, rows) };
                let note = match kept == rows {
                    true => format!("26 tables of {rows} rows of 128 bytes; skew {}", args.skew()),
                    false => format!(
                        "26 tables of {rows} rows of 128 bytes, about {:.1} rows folded into one (--full: none); skew {}",
                        rows as f64 / kept as f64,
                        args.skew()
                    ),
                };
                let fold = move |read: ReadRequest| {
                    let row = u128::from(read.offset / ROW_BYTES) * u128::from(kept) / u128::from(rows);
                    ReadRequest { offset: row as u64 * ROW_BYTES, len: read.len }
                };
                Ok((Box::new(Recommender::new(skew, SEED).map(fold)), kept * ROW_BYTES, note))
            }
            Application::Social => {
                let nodes = if args.full { 10_000_000 } else { (args.size / BYTES_A_NODE).max(1000) };
                let graph = SocialGraph::new(nodes, SEED);
                let bytes = graph.file_bytes();
                Ok((Box::new(graph), bytes, format!("{nodes} nodes, reads in the proportions of LinkBench")))
            }
        }
    }
}

/// About: payload, counts and links.
const BYTES_A_NODE: u64 = 400;

pub(crate) fn run(application: Application, args: &Args) -> Result<CommandStatus> {
    crate::objects::refuse_paths("fine", [args.file.as_ref()])?;
    signals::catch(WaitsFor::Places);
    let (reads, file_bytes, note) = application.reads(args)?;
    let budget = args.memory.unwrap_or((file_bytes / 45).max(16 << 20));
    let own = std::env::temp_dir().join(format!("dpipe-fine-{}-{file_bytes}.data", application.name()));
    let path = args.file.clone().unwrap_or(own);
    if let Some(side) = args.side {
        let row = match side {
            Side::Fine => through_cache(&path, application, args, budget, reads),
            Side::Pages => through_pages(&path, args, reads),
        }?;
        print_json(&row)?;
        return Ok(CommandStatus::Good);
    }
    drop(reads);
    content::make(&path, file_bytes)?;
    let outcome = both(application, args, &path, file_bytes, budget, note);
    if args.file.is_none() {
        // Its bytes follow from their places: nothing is lost.
        let _ = std::fs::remove_file(&path);
    }
    let outcome = outcome?;
    if args.json {
        print_json(&outcome)?;
    } else {
        print(&text(&outcome))?;
    }
    Ok(CommandStatus::Good)
}

fn both(
    application: Application,
    args: &Args,
    path: &Path,
    file_bytes: u64,
    budget: u64,
    note: String,
) -> Result<Outcome> {
    // The generator of the graph holds a byte a node, on both sides. What the cache's side may use
    // beside its budget, the page cache would fill with pages: there it is only what the program
    // needs.
    let graph = if application == Application::Social { file_bytes / BYTES_A_NODE * 2 } else { 0 };
    let (most, least) = (budget + graph + BESIDE, budget + graph + PROGRAM);
    let mut rows = Vec::new();
    let mut limited = String::new();
    let unlimited = args.unlimited.then_some((Side::Pages, "page cache, unlimited", 1u64 << 50));
    let sides = [(Side::Fine, "fine-grained cache", most), (Side::Pages, "page cache, random advice", least)];
    for (side, name, most) in sides.into_iter().chain(unlimited) {
        content::forget(path)?;
        let limit = Limit::new(most);
        if limited.is_empty() {
            limited = match &limit {
                Ok(_) => format!(
                    "each in a memory cgroup, page cache included: {} for the cache or the page cache, and the program's {} and {}",
                    units::memory(budget),
                    units::memory(most - budget),
                    units::memory(least - budget)
                ),
                Err(why) => format!("NOT limited ({why}): the page cache had all the memory it wanted"),
            };
        }
        let command = child(application, args, path, budget, side)?;
        let mut command = limit.as_ref().map_or_else(|_| None, |limit| Some(limit.within(&command))).unwrap_or(command);
        let (_, printed) = child::run(&mut command)?;
        let mut row: Row = serde_json::from_str(&printed)
            .map_err(|e| Error::new(ErrorKind::System, "read", format!("what {name} printed: {e}")))?;
        row.reader = name.to_owned();
        row.peak_bytes = limit.as_ref().ok().map(Limit::peak_bytes).transpose()?;
        if let (Side::Pages, Some(peak)) = (side, row.peak_bytes) {
            row.memory_bytes = peak.saturating_sub(row.anonymous_bytes);
        }
        rows.push(row);
        signals::check("fine")?;
    }
    let paper = application.paper();
    Ok(Outcome { application: application.name(), file_bytes, budget, limited, note, rows, paper })
}

/// This program again, for one side.
fn child(application: Application, args: &Args, path: &Path, budget: u64, side: Side) -> Result<Command> {
    let program = std::env::current_exe().map_err(|e| Error::io("find", e, "this program"))?;
    let mut command = Command::new(program);
    command.args(["fine", application.name(), "--side"]).arg(if side == Side::Fine { "fine" } else { "pages" });
    command.arg("--file").arg(path).args(["--memory", &budget.to_string(), "--reads", &args.reads.to_string()]);
    command.args(["--policy", &args.policy]);
    if let Some(skew) = &args.skew {
        command.args(["--skew", skew]);
    }
    match args.full {
        true => command.arg("--full"),
        false => command.args(["--size", &args.size.to_string()]),
    };
    if let Some(batch) = args.batch {
        command.args(["--batch", &batch.to_string()]);
    }
    Ok(command)
}

/// Time, processor time and device bytes of the measured part.
struct Meter {
    started: Instant,
    cpu_seconds: f64,
    device_bytes: u64,
}

impl Meter {
    fn start() -> Meter {
        Meter { started: Instant::now(), cpu_seconds: child::own_cpu_seconds(), device_bytes: device_bytes() }
    }

    fn row(&self, reads: u64, asked_bytes: u64) -> Row {
        Row {
            reader: String::new(),
            hit_percent: 0.0,
            memory_bytes: 0,
            peak_bytes: None,
            reads,
            reads_per_second: reads as f64 / self.started.elapsed().as_secs_f64(),
            cpu_seconds: child::own_cpu_seconds() - self.cpu_seconds,
            device_bytes: device_bytes() - self.device_bytes,
            asked_bytes,
            anonymous_bytes: field("/proc/self/status", "RssAnon:") * 1024,
        }
    }
}

fn through_cache(
    path: &Path,
    application: Application,
    args: &Args,
    budget: u64,
    mut reads: Box<dyn Iterator<Item = ReadRequest>>,
) -> Result<Row> {
    let machine = datapipes::discover();
    let policy: CachePolicy = args.policy.parse()?;
    let batch = args.batch.unwrap_or(if application == Application::Recommender { 26 } else { 1 }).max(1);
    let budget = usize::try_from(budget).map_err(|e| bad(e.to_string()))?;
    let config = CacheOptions::new(&machine).budget(budget).policy(policy).depth(batch.clamp(32, 256));
    let fine = FineGrained::over(&Ssd::open(path)?, config)?;
    let mut out = Vec::new();
    let mut ranges = Vec::with_capacity(batch);
    let mut play = |requests: u64, batch: usize| -> Result<u64> {
        let (mut left, mut asked) = (requests, 0);
        while left > 0 {
            ranges.clear();
            ranges.extend(reads.by_ref().take(batch.min(left as usize)).map(|r| (r.offset, r.len as usize)));
            out.resize(ranges.iter().map(|r| r.1).sum(), 0);
            match ranges[..] {
                [(offset, _)] => fine.read(offset, &mut out)?,
                _ => fine.gather_ranges(&ranges, &mut out).and_then(datapipes_cache::Gathered::all).map(|_| ())?,
            }
            let mut at = 0;
            for (offset, len) in &ranges {
                check(*offset, &out[at..at + len])?;
                at += len;
            }
            (left, asked) = (left - ranges.len() as u64, asked + at as u64);
            signals::check("fine")?;
        }
        Ok(asked)
    };
    // To warm up, many at once.
    play(args.reads / 2, 1024)?;
    let (before, meter) = (fine.metrics(), Meter::start());
    let asked = play(args.reads, batch)?;
    let after = fine.metrics();
    let mut row = meter.row(args.reads, asked);
    row.hit_percent = (after.hits - before.hits) as f64 * 100.0 / (after.reads - before.reads).max(1) as f64;
    row.memory_bytes = after.memory_bytes as u64;
    Ok(row)
}

fn through_pages(path: &Path, args: &Args, mut reads: Box<dyn Iterator<Item = ReadRequest>>) -> Result<Row> {
    let told = |e: std::io::Error| Error::io("read", e, path.display().to_string());
    let file = std::fs::File::open(path).map_err(told)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).map_err(|e| told(e.into()))?;
    let mut out = vec![0; 1 << 20];
    let mut play = |requests: u64| -> Result<(u64, u64)> {
        let (mut asked, mut pages) = (0, 0);
        for ReadRequest { offset, len } in reads.by_ref().take(requests as usize) {
            let out = &mut out[..len as usize];
            file.read_exact_at(out, offset).map_err(told)?;
            check(offset, out)?;
            asked += u64::from(len);
            pages += (offset + u64::from(len.max(1)) - 1) / 4096 - offset / 4096 + 1;
            signals::check("fine")?;
        }
        Ok((asked, pages))
    };
    play(args.reads / 2)?;
    let meter = Meter::start();
    let (asked, pages) = play(args.reads)?;
    let mut row = meter.row(args.reads, asked);
    // The kernel counts what it reads: of the pages that were asked for, those that it did not have
    // to.
    row.hit_percent = 100.0 - (row.device_bytes as f64 / 4096.0 * 100.0 / pages.max(1) as f64).min(100.0);
    Ok(row)
}

fn check(offset: u64, bytes: &[u8]) -> Result<()> {
    if content::is_right(offset, bytes) {
        return Ok(());
    }
    let why = format!("{} bytes are not those of the file", bytes.len());
    Err(Error::new(ErrorKind::Corrupt, "read", why).with_offset(offset))
}

/// Bytes that this process made the device read, through the page cache or past it.
fn device_bytes() -> u64 {
    field("/proc/self/io", "read_bytes:")
}

fn field(path: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn bad(why: String) -> Error {
    Error::new(ErrorKind::InvalidInput, "choose a load", why)
}

fn text(o: &Outcome) -> String {
    let mut out = format!(
        "{}: a file of {}, {}\n{}\n{:<28} {:>7} {:>11} {:>11} {:>11} {:>12} {:>9}\n",
        o.application,
        units::bytes(o.file_bytes),
        o.note,
        o.limited,
        "",
        "hits, %",
        "memory, MB",
        "reads/s",
        "CPU us/read",
        "device, MB",
        "MB a MB"
    );
    for row in &o.rows {
        out += &format!(
            "{:<28} {:>7.1} {:>11.0} {:>11.0} {:>11.2} {:>12.1} {:>9.2}\n",
            row.reader,
            row.hit_percent,
            row.memory_bytes as f64 / 1e6,
            row.reads_per_second,
            row.cpu_seconds * 1e6 / row.reads.max(1) as f64,
            row.device_bytes as f64 / 1e6,
            row.device_bytes as f64 / row.asked_bytes.max(1) as f64
        );
    }
    for paper in &o.paper {
        let name = format!("{} (paper, table 4)", paper.reader);
        out += &format!("{name:<28} {:>7.1} {:>11.0}\n", paper.hit_percent, paper.memory_bytes / 1e6);
    }
    out
}

/// The least file in which there is anything to choose.
const MIN_FILE_BYTES: u64 = 1 << 20;

fn file_size(text: &str) -> std::result::Result<u64, String> {
    let given = parse_size(text)?;
    if given < MIN_FILE_BYTES { Err(format!("a file of {given} bytes; give at least 1M")) } else { Ok(given) }
}
