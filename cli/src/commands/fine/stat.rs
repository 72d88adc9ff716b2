//! `dpipe fine stat`: a load over a file, and what the cache did under it.

mod outcome;
mod page;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use datapipes::{Error, ErrorKind, Result, Ssd, offer};
use datapipes_cache::{CacheOptions, CachePolicy, ExternalChanges, FineGrained, Metrics};
use datapipes_metrics::continued;

use super::load::{Phase, phases};
use super::memory;
use super::plot::{self, Sample};
use crate::arguments::ending::Ending;
use crate::arguments::units::{self, parse_count, parse_size};
use crate::columns;
use crate::metrics_file::{CommandMetrics, told};
use crate::objects::{AnyObject, ObjectAccess, is_object, shown};
use crate::offering;
use crate::outcome::{CommandStatus, draw, print, print_json, shown_path, with_names};
use crate::progress;
use crate::report::options::{PageFile, ReportArgs};
use crate::report::recorder::record;
use crate::report::thread_clock::ThreadClock;
use crate::system::side_files::{CommandPlaces, SideDraft, SideFile, SideFileArgument, SideFiles};
use crate::system::signals::{self, WaitsFor};
use crate::table::save;
use outcome::Outcome;

const ENDING: Ending = Ending {
    notes: "\
The files are not changed. An object (s3://BUCKET/KEY, gs://, az://, http://, https://) is read at
one version, in units that are as long as its requests pay. With --plot, the load changes, and the picture shows how the cache
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
    /// Files or objects to read, one after the other
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
    #[arg(long, alias = "svg", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<SideFileArgument>,
    #[command(flatten)]
    report_page: ReportArgs,
    /// Draw the memory of the cache of the first file, as it is at the end, as SVG
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot_memory: Option<SideFileArgument>,
    /// Write metrics to FILE in Prometheus' text format, as a whole: at the start, every ten
    /// seconds and at the end. Those of several files are added up
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    metrics: Option<SideFileArgument>,
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
    let mut side_files = SideFiles::beside(CommandPlaces::of("fine stat").files(&args.files));
    let metrics = side_files.take("--metrics", args.metrics.as_ref())?;
    let asked = Asked {
        plot: side_files.begin("--plot", args.plot.as_ref())?,
        plot_memory: side_files.begin("--plot-memory", args.plot_memory.as_ref())?,
        page: args.report_page.take(&mut side_files)?,
    };
    told(metrics.as_ref(), "fine stat", |metrics| run_told(args, metrics, asked))
}

/// The files to be made of how it went.
struct Asked {
    plot: Option<SideDraft>,
    plot_memory: Option<SideDraft>,
    page: Option<SideFile>,
}

fn run_told(args: &Args, told: &CommandMetrics<'_>, mut asked: Asked) -> Result<CommandStatus> {
    signals::catch(WaitsFor::Places);
    signals::undo_says("nothing is left behind");
    let default = if args.plot.is_some() { CHANGING } else { "128@zipf:0.8" };
    let bad = |why: String| Error::new(ErrorKind::InvalidInput, "choose a load", why);
    let load = args.load.clone().map_or_else(|| parse_load(default), Ok).map_err(bad)?;
    let budget = usize::try_from(args.memory).map_err(|e| bad(e.to_string()))?;
    let machine = datapipes::discover();
    // What cannot be read is told before anything is measured.
    for file in args.files.iter().filter(|file| !file.to_str().is_some_and(is_object)) {
        let len = Ssd::open(file)?.len()?;
        for phase in &load.0 {
            phase.items(len).map_err(|e| e.within(shown_path(file)))?;
        }
    }
    let page_file = PageFile::open(asked.page)?;
    let (mut outcomes, mut seen) = (Vec::new(), Vec::new());
    let mut done = Vec::new();
    for file in &args.files {
        let config = CacheOptions::new(&machine).budget(budget).policy(args.policy).depth(args.batch.clamp(32, 256));
        let cache = open(file, config)?;
        let fine = &cache.fine;
        let file_bytes = fine.len_bytes();
        let timed = timed_of(args);
        let clock = ThreadClock::of_this_thread();
        let listed = ListClock { clock: &clock, ns: AtomicU64::new(0) };
        let (samples, now) = (Vec::new(), Instant::now());
        let mut course = Course { args, cache: &cache, timed, listed: &listed, samples, shown: now, reads: 0 };
        fine.measure_latencies(timed == Some(1));
        let started = Instant::now();
        let mut begins = Vec::new();
        let mut page_marks = Vec::new();
        let columns = page_file.is_some().then(page::columns);
        // What the thread did before belongs to other files.
        let before = clock.read();
        let read_all = || {
            load.0.iter().try_for_each(|phase| {
                begins.push((phase.to_string(), course.reads));
                page_marks.push((started.elapsed().as_secs_f64(), phase.to_string()));
                course.run(phase, file_bytes)
            })
        };
        let samples = || continued(&done, cache.metrics().samples());
        let work = || told.during(samples, || offering::during("dpipe fine stat", samples, read_all));
        let (outcome, recording) = record(columns, || page::values(&cache.metrics(), &listed.ns, &clock, before), work);
        course.clear_line();
        outcome?;
        let (seconds, reads) = (started.elapsed().as_secs_f64(), course.reads);
        // They are of the first file.
        if let Some(to) = asked.plot.take() {
            let title =
                format!("A fine-grained cache of {} over {}", units::memory(args.memory), units::memory(file_bytes));
            let remark = format!("policy {}, as the load changes", args.policy.name());
            let picture = plot::svg(&title, &remark, &begins, &course.samples);
            save(to, &picture)?;
        }
        if let Some(to) = asked.plot_memory.take() {
            save(to, &memory::svg(&cache.metrics(), args.memory, reads))?;
        }
        done = continued(&done, cache.metrics().samples());
        let file = shown(&file.to_string_lossy());
        let (metrics, mut explain) = (cache.metrics(), fine.explain());
        let object = cache.object.as_ref().map(AnyObject::report);
        if let Some(object) = &object {
            explain = format!("{explain}\n{object}");
        }
        let (reads_per_second, rejected) = (reads as f64 / seconds, fine.rejected_ways());
        let outcome = Outcome { file, seconds, reads, reads_per_second, metrics, explain, object, rejected };
        if !args.json {
            print(&text(&outcome))?;
        }
        seen.extend(recording.map(|recording| page::Seen { begins: page_marks, recording }));
        outcomes.push(outcome);
    }
    if args.json {
        print_json(&outcomes)?;
    }
    if let Some(file) = page_file {
        file.write(&page::page(&outcomes, &seen))?;
    }
    Ok(CommandStatus::Good)
}

/// A cache over a file or an object.
struct OpenCache {
    fine: FineGrained,
    /// It says what was asked of its server.
    object: Option<AnyObject>,
}

impl OpenCache {
    /// What the cache counted. Of an object, what its server sent counts as what the device moved:
    /// that is whole units, of which the cache sees the bytes that it asked for.
    fn metrics(&self) -> Metrics {
        let mut metrics = self.fine.metrics();
        if let Some(object) = &self.object {
            (metrics.device_bytes, metrics.device_reads) = object.came();
        }
        metrics
    }
}

fn open(file: &Path, mut config: CacheOptions) -> Result<OpenCache> {
    if let Some(address) = file.to_str().filter(|name| is_object(name)) {
        let object = ObjectAccess::to_read()?.open(address)?;
        return Ok(OpenCache { fine: FineGrained::over_place(&object, config)?, object: Some(object) });
    }
    let ssd = Ssd::open(file)?;
    if ssd.file().is_block_device() {
        // Nobody gets the bytes, so it does not matter who changes them.
        config.outside = ExternalChanges::Never;
    }
    Ok(OpenCache { fine: FineGrained::over(&ssd, config)?, object: None })
}

fn text(o: &Outcome) -> String {
    format!(
        "{}: {:.0} reads a second for {:.1} s\n{}\n{}\n",
        shown_path(Path::new(&o.file)),
        o.reads_per_second,
        o.seconds,
        o.metrics,
        with_names(o.explain.clone(), [Path::new(&o.file)])
    )
}

/// One of so many single reads is timed for `dpipe top`. The two looks at the clock cost about as
/// much as half a hit.
const TIMED_OF: u64 = 64;

/// Of how many calls one is timed: all where metrics are written, or where a call makes many reads;
/// a few otherwise; none where nobody may look.
fn timed_of(args: &Args) -> Option<u64> {
    match (args.metrics.is_some(), offer::is_allowed()) {
        (true, _) => Some(1),
        (false, true) => Some(if args.batch > 1 { 1 } else { TIMED_OF }),
        (false, false) => None,
    }
}

/// How long the reading thread was asleep because another program, which lists the reads, had none.
struct ListClock<'a> {
    clock: &'a ThreadClock,
    ns: AtomicU64,
}

impl ListClock<'_> {
    /// Now, and how long the thread was on a core or waited for one.
    fn asks(&self) -> (Instant, f64) {
        (Instant::now(), self.clock.read().iter().sum())
    }

    fn has(&self, (asked, awake): (Instant, f64)) {
        let asleep = asked.elapsed().as_secs_f64() - (self.clock.read().iter().sum::<f64>() - awake);
        self.ns.fetch_add((asleep.max(0.0) * 1e9) as u64, Relaxed);
    }
}

/// A load that runs.
struct Course<'a> {
    args: &'a Args,
    cache: &'a OpenCache,
    /// Of how many calls one is timed.
    timed: Option<u64>,
    listed: &'a ListClock<'a>,
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
        let mut before = self.cache.metrics();
        let (mut ranges, mut out) = (Vec::new(), Vec::new());
        while done < most && end.is_none_or(|end| started.elapsed() < end) {
            ranges.clear();
            let is_listed = self.args.report_page.report_html.is_some() && phase.is_listed();
            let asks = is_listed.then(|| self.listed.asks());
            let batch = (self.args.batch.max(1) as u64).min(most - done) as usize;
            for read in requests.by_ref().take(batch) {
                let read = read?;
                ranges.push((read.offset, read.len as usize));
            }
            if let Some(asked) = asks {
                self.listed.has(asked);
            }
            if ranges.is_empty() {
                break;
            }
            out.resize(ranges.iter().map(|r| r.1).sum(), 0);
            match ranges[..] {
                [(offset, _)] => self.read(offset, &mut out)?,
                _ => self
                    .cache
                    .fine
                    .gather_ranges(&ranges, &mut out)
                    .and_then(datapipes_cache::Gathered::all)
                    .map(|_| ())?,
            }
            done += ranges.len() as u64;
            self.reads += ranges.len() as u64;
            if self.args.plot.is_some() && done - sampled >= every {
                sampled = done;
                let now = self.cache.metrics();
                self.samples.push(sample(self.reads, &before, &now));
                before = now;
            }
            self.show(phase, done, started);
            signals::check("fine")?;
        }
        Ok(())
    }

    /// One read, which is timed if its turn has come.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self.timed {
            Some(every) if every > 1 && self.reads.is_multiple_of(every) => {
                self.cache.fine.measure_latencies(true);
                let read = self.cache.fine.read(offset, out);
                self.cache.fine.measure_latencies(false);
                read
            }
            _ => self.cache.fine.read(offset, out),
        }
    }

    /// The line that tells how it goes.
    fn show(&mut self, phase: &Phase, done: u64, started: Instant) {
        if self.shown.elapsed() < SHOW_EVERY || !progress::wanted() {
            return;
        }
        self.shown = Instant::now();
        let m = self.cache.metrics();
        let rate = done as f64 / started.elapsed().as_secs_f64();
        let line = format!(
            "{phase}: {done} reads, {rate:.0} a second, {:.1}% hits, {:.2} bytes moved a byte, {} items",
            m.hit_percent(),
            m.amplification(),
            m.items
        );
        draw(&format!("\r{}\x1b[K", columns::shortened(&line, progress::width())));
    }

    fn clear_line(&self) {
        if progress::wanted() {
            draw("\r\x1b[K");
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
