//! `dpipe fine stat`: a load over a file, and what the cache did under it.

mod outcome;
mod page;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use datapipes::{Error, ErrorKind, Result, Ssd};
use datapipes_cache::{CacheOptions, CachePolicy, ExternalChanges, FineGrained, Metrics};

use super::load::{Phase, phases};
use super::memory;
use super::plot::{self, Sample};
use crate::arguments::ending::Ending;
use crate::arguments::units::{self, parse_count, parse_size};
use crate::metrics_file::{CommandMetrics, told};
use crate::offering;
use crate::outcome::{CommandStatus, note, print, print_json};
use crate::progress;
use crate::report::options::ReportArgs;
use crate::report::recorder::record;
use crate::report::thread_clock::ThreadClock;
use crate::system::side_files::keep_apart;
use crate::system::signals::{self, WaitsFor};
use crate::table::save;
use outcome::Outcome;

const ENDING: Ending = Ending {
    notes: "\
The files are not changed. With --plot, the load changes, and the picture shows how the cache
follows: its hit ratio, threshold and slabs of each size class over the reads. With
--plot-memory, the picture shows how the memory budget is divided at the end.",
    zero: "the metrics are shown",
    one: None,
    examples: &[
        "dpipe fine stat data.bin --reads 20000 --memory 4M",
        "dpipe fine stat data.bin --load 128@zipf:1.1,512@scan --reads 5000 --memory 4M --json",
        "seq 0 4096 409600 | dpipe fine stat data.bin --load 100@stdin --batch 1 --memory 4M",
        "dpipe fine stat data.bin --reads 5000 --memory 4M --plot cache.svg",
        "dpipe fine stat data.bin --reads 5000 --memory 4M --plot-memory memory.svg --metrics cache.prom",
    ],
};

/// Reads files under a load, and shows what the cache did: hits, amplification, classes, threshold.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Files to read, one after the other
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Load as LEN@LAW, or several in turn with commas; laws are uniform, zipf:EXPONENT,
    /// drift:EXPONENT, scan, and stdin (lines of OFFSET or OFFSET LEN) [default: zipf:0.8 of 128
    /// bytes; with --plot a load of five phases]
    #[arg(long, value_name = "LOAD", value_parser = parse_load)]
    load: Option<Load>,
    /// Memory budget of the cache, with its tables
    #[arg(long, alias = "budget", default_value = "64M", value_name = "SIZE", value_parser = parse_size)]
    memory: u64,
    /// Policy of the cache
    #[arg(long, default_value = "adaptive", value_name = "NAME", value_parser = policy_parser())]
    policy: CachePolicy,
    /// Reads in one call of the cache
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = parse_count::<usize>)]
    batch: usize,
    /// Reads of each phase [default: 1000000, or as many as --seconds allows]
    #[arg(long, alias = "requests", value_name = "N", value_parser = parse_count::<u64>)]
    reads: Option<u64>,
    /// Seconds that each phase lasts at most
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Seed of the load
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Draw how the cache of the first file followed the load, as SVG
    #[arg(long, alias = "svg", value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    report_page: ReportArgs,
    /// Draw the memory of the cache of the first file, as it is at the end, as SVG
    #[arg(long, value_name = "FILE")]
    plot_memory: Option<PathBuf>,
    /// Write metrics to FILE in Prometheus' text format, as a whole: at the start, every ten
    /// seconds and at the end
    #[arg(long, value_name = "FILE")]
    metrics: Option<PathBuf>,
    /// Print JSON: of each file its name, seconds, reads, reads_per_second, metrics, explain
    #[arg(long)]
    json: bool,
}

/// Phases in turn.
#[derive(Clone, Debug)]
struct Load(Vec<Phase>);

fn parse_load(text: &str) -> std::result::Result<Load, String> {
    phases(text).map(Load)
}

/// Returns the parser of a policy's name. Shells complete the names.
fn policy_parser() -> impl TypedValueParser<Value = CachePolicy> {
    PossibleValuesParser::new(CachePolicy::ALL.map(CachePolicy::name)).try_map(|name| name.parse::<CachePolicy>())
}

/// Other sizes, another order of popularity, none at all, and back.
const CHANGING: &str = "128@zipf:0.8,512@zipf:0.8,128@drift:0.9,128@uniform,128@zipf:0.8";
/// Samples of a phase, for the picture.
const SAMPLES: u64 = 60;
const SHOW_EVERY: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let places: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    let pictures = [("--plot", args.plot.as_deref()), ("--plot-memory", args.plot_memory.as_deref())];
    let [plot, memory] = pictures;
    keep_apart(&[("--metrics", args.metrics.as_deref()), plot, memory, args.report_page.side_file()], &places)?;
    told(args.metrics.as_deref(), "fine stat", |metrics| run_told(args, metrics))
}

fn run_told(args: &Args, told: &CommandMetrics<'_>) -> Result<CommandStatus> {
    signals::catch(WaitsFor::Places);
    signals::undo_says("nothing is left behind");
    let default = if args.plot.is_some() { CHANGING } else { "128@zipf:0.8" };
    let bad = |why: String| Error::new(ErrorKind::InvalidInput, "choose a load", why);
    let load = args.load.clone().map_or_else(|| parse_load(default), Ok).map_err(bad)?;
    let budget = usize::try_from(args.memory).map_err(|e| bad(e.to_string()))?;
    let machine = datapipes::discover();
    let mut page_file = args.report_page.open()?;
    let mut outcomes = Vec::new();
    for (number, file) in args.files.iter().enumerate() {
        let ssd = Ssd::open(file)?;
        let mut config =
            CacheOptions::new(&machine).budget(budget).policy(args.policy).depth(args.batch.clamp(32, 256));
        if ssd.file().is_block_device() {
            // Nobody gets the bytes, so it does not matter who changes them.
            config.outside = ExternalChanges::Never;
        }
        let fine = FineGrained::over(&ssd, config)?;
        let mut course = Course { args, fine: &fine, samples: Vec::new(), shown: Instant::now(), reads: 0 };
        let started = Instant::now();
        let mut begins = Vec::new();
        let mut page_marks = Vec::new();
        let columns = page_file.is_some().then(page::columns);
        let clock = ThreadClock::of_this_thread();
        let read_all = || {
            load.0.iter().try_for_each(|phase| {
                begins.push((phase.to_string(), course.reads));
                page_marks.push((started.elapsed().as_secs_f64(), phase.to_string()));
                course.run(phase, ssd.len()?)
            })
        };
        let samples = || fine.metrics().samples();
        let work = || told.during(samples, || offering::during("dpipe fine stat", samples, read_all));
        let (outcome, recording) = record(columns, || page::values(&fine, &clock), work);
        outcome?;
        course.clear_line();
        let (seconds, reads) = (started.elapsed().as_secs_f64(), course.reads);
        if let (Some(path), 0) = (&args.plot, number) {
            let title =
                format!("A fine-grained cache of {} over {}", units::memory(args.memory), units::memory(ssd.len()?));
            let remark = format!("policy {}, as the load changes", args.policy.name());
            let picture = plot::svg(&title, &remark, &begins, &course.samples);
            crate::system::files::write_text(path, &picture)?;
            note(&format!("drawn in {}\n", path.display()));
        }
        if let (Some(path), 0) = (&args.plot_memory, number) {
            save(path, &memory::svg(&fine.metrics(), args.memory, reads))?;
        }
        let file = file.display().to_string();
        let (metrics, explain) = (fine.metrics(), fine.explain());
        let outcome = Outcome { file, seconds, reads, reads_per_second: reads as f64 / seconds, metrics, explain };
        if !args.json {
            print(&text(&outcome))?;
        }
        // The page, like the picture, is about the first file.
        if let (Some(recording), Some(page_file)) = (recording, page_file.take()) {
            page_file.write(&page::page(&outcome, &page_marks, &recording))?;
        }
        outcomes.push(outcome);
    }
    if args.json {
        print_json(&outcomes)?;
    }
    Ok(CommandStatus::Good)
}

fn text(o: &Outcome) -> String {
    format!(
        "{}: {:.0} reads a second for {:.1} s\n{}\n{}\n",
        o.file, o.reads_per_second, o.seconds, o.metrics, o.explain
    )
}

/// A load that runs.
struct Course<'a> {
    args: &'a Args,
    fine: &'a FineGrained,
    samples: Vec<Sample>,
    shown: Instant,
    reads: u64,
}

impl Course<'_> {
    fn run(&mut self, phase: &Phase, file_bytes: u64) -> Result<()> {
        let end = self.args.seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
        let most = self.args.reads.unwrap_or(if end.is_some() { u64::MAX } else { 1_000_000 });
        // Where time is what ends a phase, a drift cannot go by the number of reads.
        let expected = if most == u64::MAX { 1_000_000 } else { most };
        let mut requests = phase.requests(file_bytes, expected, self.args.seed)?;
        let (started, every) = (Instant::now(), (expected / SAMPLES).max(1));
        let (mut done, mut sampled) = (0, 0);
        let mut before = self.fine.metrics();
        let (mut ranges, mut out) = (Vec::new(), Vec::new());
        while done < most && end.is_none_or(|end| started.elapsed() < end) {
            ranges.clear();
            let batch = (self.args.batch.max(1) as u64).min(most - done) as usize;
            for read in requests.by_ref().take(batch) {
                let read = read?;
                ranges.push((read.offset, read.len as usize));
            }
            if ranges.is_empty() {
                break;
            }
            out.resize(ranges.iter().map(|r| r.1).sum(), 0);
            match ranges[..] {
                [(offset, _)] => self.fine.read(offset, &mut out)?,
                _ => self.fine.gather_ranges(&ranges, &mut out).and_then(datapipes_cache::Gathered::all).map(|_| ())?,
            }
            done += ranges.len() as u64;
            self.reads += ranges.len() as u64;
            if self.args.plot.is_some() && done - sampled >= every {
                sampled = done;
                let now = self.fine.metrics();
                self.samples.push(sample(self.reads, &before, &now));
                before = now;
            }
            self.show(phase, done, started);
            signals::check("fine")?;
        }
        Ok(())
    }

    /// The line that tells how it goes.
    fn show(&mut self, phase: &Phase, done: u64, started: Instant) {
        if self.shown.elapsed() < SHOW_EVERY || !progress::wanted() {
            return;
        }
        self.shown = Instant::now();
        let m = self.fine.metrics();
        let rate = done as f64 / started.elapsed().as_secs_f64();
        let line = format!(
            "{phase}: {done} reads, {rate:.0} a second, {:.1}% hits, {:.2} bytes moved a byte, {} items",
            m.hit_percent(),
            m.amplification(),
            m.items
        );
        note(&format!("\r{}\x1b[K", progress::cut(&line, progress::width())));
    }

    fn clear_line(&self) {
        if progress::wanted() {
            note("\r\x1b[K");
        }
    }
}

/// What happened since the last look, and how it stands.
fn sample(reads: u64, before: &Metrics, now: &Metrics) -> Sample {
    let (hits, all) = (now.hits - before.hits, now.reads - before.reads);
    Sample {
        reads,
        hit_percent: if all == 0 { 0.0 } else { hits as f64 * 100.0 / all as f64 },
        threshold: now.threshold,
        recency: now.recency,
        slabs: now.classes.iter().map(|c| (c.capacity, c.slabs)).collect(),
    }
}
