//! `dpipe log bench`: how fast records become durable here.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use datapipes::metrics::{CourseColumn, Histogram};
use datapipes::{Result, Route};
use datapipes_durable::log::{Log, LogFolder, LogOptions, LogStats};
use datapipes_picture::page::{HtmlPage, PageBlock, PageCheck, PageSection, PageTable, TimelineChart, TimelineSeries};
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::arguments::units::{parse_count, parse_size};
use crate::metrics_file::CommandMetrics;
use crate::offering;
use crate::outcome::{CommandStatus, print, print_json};
use crate::progress::{self, State};
use crate::report::bottleneck::{Share, headline};
use crate::report::options::ReportArgs;
use crate::report::parts;
use crate::report::recorder::{self, Recording};
use crate::system::files::WorkFolder;
use crate::system::signals::{self, WaitsFor};
use crate::{arguments::units, system::child};

const ENDING: Ending = Ending {
    notes: "\
Each thread appends a record and waits until it is durable, again and again. The log is removed
afterwards.",
    zero: "the measurement is shown",
    one: None,
    examples: &[
        "dpipe log bench --dir . --seconds 0.2",
        "dpipe log bench --threads 2 --record-size 4K --seconds 0.2 --json",
    ],
};

/// Measures how fast records become durable here.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Folder on the disk to measure [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Bytes of a record
    #[arg(long, alias = "record", default_value = "512", value_name = "SIZE", value_parser = parse_size)]
    record_size: u64,
    /// Threads that append
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = parse_count::<usize>)]
    threads: usize,
    /// Seconds to measure for
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    seconds: f64,
    #[command(flatten)]
    report_page: ReportArgs,
    /// Print JSON: records, seconds, cpu_seconds, records_per_second,
    /// bytes_per_second, stats, route
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Outcome {
    record_bytes: u64,
    threads: usize,
    /// Records that became durable.
    records: u64,
    seconds: f64,
    records_per_second: f64,
    bytes_per_second: f64,
    /// Processor time of the process meanwhile.
    cpu_seconds: f64,
    stats: LogStats,
    route: Option<Route>,
    /// What was read of the counters meanwhile, where a page is to be made.
    #[serde(skip)]
    recording: Option<Recording>,
}

pub(crate) fn run(args: &Args, metrics: &CommandMetrics<'_>) -> Result<CommandStatus> {
    signals::catch(WaitsFor::Places);
    signals::undo_says("the log of the measurement was removed");
    let machine = datapipes::discover();
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let page_file = args.report_page.open()?;
    let folder = WorkFolder::under(&parent, "dpipe-log-bench", false)?;
    let batch_bytes =
        u32::try_from(args.record_size.saturating_mul(2).max(1 << 20).next_multiple_of(4096)).unwrap_or(u32::MAX);
    let options =
        LogOptions::default().batch_bytes(batch_bytes).segment_bytes((u64::from(batch_bytes) * 4).max(64 << 20));
    let log = Log::open(&machine, LogFolder::at(&machine, folder.path()), options)?;
    let outcome = metrics.during(|| log.stats().samples(), || measure(&log, args))?;
    log.close()?;
    if args.json {
        print_json(&outcome)?;
    } else {
        print(&text(&outcome, &parent))?;
    }
    if let (Some(file), Some(recording)) = (page_file, &outcome.recording) {
        file.write(&page(&outcome, &parent, recording))?;
    }
    Ok(CommandStatus::Good)
}

fn measure(log: &Log, args: &Args) -> Result<Outcome> {
    let record = vec![0x5a; usize::try_from(args.record_size).unwrap_or(usize::MAX).min(1 << 30)];
    let (started, cpu) = (Instant::now(), child::own_cpu_seconds());
    let end = Duration::try_from_secs_f64(args.seconds).unwrap_or(Duration::MAX);
    let failed = AtomicBool::new(false);
    let work = || -> Result<()> {
        while started.elapsed() < end && !failed.load(Relaxed) && !signals::arrived() {
            if let Err(e) = log.append_durable(&record) {
                failed.store(true, Relaxed);
                return Err(e);
            }
        }
        Ok(())
    };
    let all = || {
        std::thread::scope(|scope| {
            let mut others = Vec::new();
            let mut outcome = Ok(());
            for _ in 1..args.threads.max(1) {
                match datapipes::threads::spawn_scoped(scope, "append", work) {
                    Ok(thread) => others.push(thread),
                    Err(error) => {
                        // Fewer threads are another measurement.
                        failed.store(true, Relaxed);
                        outcome = Err(error);
                        break;
                    }
                }
            }
            outcome = outcome.and(work());
            for thread in others {
                let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                outcome = outcome.and(result);
            }
            outcome
        })
    };
    let state = || State { phase: "appending", done: log.stats().payload_bytes, total: 0, later: 0 };
    let columns = args.report_page.report_html.is_some().then(columns);
    let work = || progress::during(progress::wanted(), state, all);
    let work = || offering::during("dpipe log bench", || log.stats().samples(), work);
    let (appended, recording) = recorder::record(columns, || values(log), work);
    appended?;
    let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), child::own_cpu_seconds() - cpu);
    signals::check("log")?;
    let stats = log.stats();
    Ok(Outcome {
        record_bytes: args.record_size,
        threads: args.threads.max(1),
        records: stats.records,
        seconds,
        records_per_second: stats.records as f64 / seconds,
        bytes_per_second: stats.payload_bytes as f64 / seconds,
        cpu_seconds,
        stats,
        route: log.route(),
        recording,
    })
}

fn text(o: &Outcome, dir: &Path) -> String {
    let ns = |ns: u64| units::nanoseconds(ns as f64);
    let (a, s) = (&o.stats.acknowledged, &o.stats);
    format!(
        "{} records of {} by {} threads became durable in {:.2} s on {}: {:.0} a second ({:.1} MB/s), {:.2} s of processor time\n\
         acknowledged after {} (half of them), {} (99%), {} (99.9%), {} (the slowest)\n\
         {} batches, the largest of {} records; write {}, sync {} (half of them)\n{}",
        o.records,
        units::bytes(o.record_bytes),
        o.threads,
        o.seconds,
        dir.display(),
        o.records_per_second,
        o.bytes_per_second / 1e6,
        o.cpu_seconds,
        ns(a.p50_ns),
        ns(a.p99_ns),
        ns(a.p999_ns),
        ns(a.max_ns),
        s.batches,
        s.largest_batch,
        ns(s.write.p50_ns),
        ns(s.sync.p50_ns),
        o.route.as_ref().map_or_else(String::new, ToString::to_string),
    )
}

const PAYLOAD: usize = 0;
const RECORDS: usize = 1;
const WRITE: usize = 2;
const SYNC: usize = 3;

/// The columns that are recorded: bytes, records, and the seconds of writes and syncs that ended.
fn columns() -> Vec<CourseColumn> {
    vec![CourseColumn::Sum; 4]
}

fn values(log: &Log) -> Vec<f64> {
    let stats = log.stats();
    let seconds = |times: &Histogram| times.sum_ns() as f64 / 1e9;
    vec![
        stats.payload_bytes as f64,
        stats.records as f64,
        seconds(&stats.latencies.write),
        seconds(&stats.latencies.sync),
    ]
}

/// The page about a measurement: `--report-html`.
fn page(o: &Outcome, dir: &Path, recording: &Recording) -> HtmlPage {
    let mut page = parts::page("Durable records");
    // One batch is written and synced at a time, so these are parts of the time.
    let part = |column| recording.grew(column, 0.0, recording.seconds()) / o.seconds.max(1e-9);
    let (write, sync) = (part(WRITE), part(SYNC));
    let shares = [
        Share::new("the disk's syncs", sync),
        Share::new("the disk's writes", write),
        Share::new("appends, and threads that wake up", 1.0 - sync - write),
    ];
    let done = format!(
        "{} records of {} became durable in {:.2} s ({:.0} a second).",
        o.records,
        units::bytes(o.record_bytes),
        o.seconds,
        o.records_per_second
    );
    page.headline = headline(&done, &shares);
    let ns = |ns: u64| units::nanoseconds(ns as f64);
    page.facts = [
        ("records", o.records.to_string()),
        ("threads", o.threads.to_string()),
        ("acknowledged (half)", ns(o.stats.acknowledged.p50_ns)),
        ("acknowledged (99%)", ns(o.stats.acknowledged.p99_ns)),
        ("batches", o.stats.batches.to_string()),
        ("processor time", format!("{:.2} s", o.cpu_seconds)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let records = TimelineSeries { name: "records".into(), values: recording.course.rates(RECORDS) };
    let records = TimelineChart {
        title: "Records that became durable".into(),
        unit: "records a second".into(),
        seconds: recording.course.seconds().to_vec(),
        series: vec![records],
        ..TimelineChart::default()
    };
    let waits = [(SYNC, "sync"), (WRITE, "write")];
    page.sections.push(PageSection {
        title: "Where the time went".into(),
        blocks: vec![
            parts::shares("Shares of the time", &shares),
            parts::threads(
                recording,
                "The batch under way",
                1.0,
                "no write or sync under way",
                &waits,
                &[],
                f64::INFINITY,
            ),
            PageBlock::Timeline(records),
            parts::rates(recording, "Bytes of records a second", &[(PAYLOAD, "payload")], &[]),
        ],
        ..PageSection::default()
    });
    let (h, row) = (&o.stats.latencies, |name: &str, times: &Histogram| {
        let percentiles = [50.0, 99.0, 99.9].map(|p| ns(times.percentile_ns(p)));
        let cells = [name.to_owned(), times.count().to_string()].into_iter().chain(percentiles);
        cells.chain([ns(times.max_ns())]).collect::<Vec<String>>()
    });
    page.sections.push(PageSection {
        title: "Times".into(),
        blocks: vec![PageBlock::Table(PageTable {
            caption: "How long it took (each figure is at most a sixteenth too high)".into(),
            columns: ["what", "times", "50%", "99%", "99.9%", "longest"].map(str::to_owned).into(),
            rows: vec![row("append to acknowledgement", &h.acknowledged), row("write", &h.write), row("sync", &h.sync)],
            numbers: 5,
        })],
        ..PageSection::default()
    });
    let check = PageCheck {
        text: format!(
            "{} records were appended, and the log says that all records before number {} are durable. They were not \
             read again: `dpipe log verify` does that to a log that is kept.",
            o.records, o.stats.durable_before
        ),
        holds: Some(o.stats.durable_before >= o.stats.next),
    };
    let blocks = vec![PageBlock::Checks(vec![check])];
    page.sections.push(PageSection { title: "What was verified".into(), blocks, ..PageSection::default() });
    page.sections.push(parts::process(recording, None));
    if let Some(route) = &o.route {
        page.sections.push(parts::routes(&[("log".to_owned(), Ok(route.clone()))]));
    }
    page.sections.push(parts::printed(&text(o, dir)));
    page
}
