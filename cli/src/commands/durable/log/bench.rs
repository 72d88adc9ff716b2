//! `dpipe log bench`: how fast records become durable here.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use datapipes::metrics::{CourseColumn, Histogram};
use datapipes::{HopReport, Result, Route};
use datapipes_durable::log::{Log, LogFolder, LogOptions, LogStats};
use datapipes_picture::page::{HtmlPage, PageBlock, PageCheck, PageSection, PageTable, TimelineChart, TimelineSeries};
use serde::Serialize;

use super::core_waits::{CoreWaits, CountedFolder};
use super::opening::open_shown;
use crate::arguments::ending::Ending;
use crate::arguments::units::{parse_count, parse_size};
use crate::metrics_file::CommandMetrics;
use crate::offering;
use crate::outcome::{CommandStatus, print, print_json, shown_path};
use crate::progress::{self, State};
use crate::report::bottleneck::{QUOTA, Share, headline};
use crate::report::held_up::{self, HeldUp};
use crate::report::options::{PageFile, ReportArgs};
use crate::report::parts;
use crate::report::recorder::{self, Recording};
use crate::system::files::{WorkFolder, is_in_memory};
use crate::system::side_files::SideFile;
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
    pub(super) report_page: ReportArgs,
    /// Print JSON: records, seconds, cpu_seconds, records_per_second,
    /// bytes_per_second, open_seconds, stats, route
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
    /// How long it took to make the first segment. It is not in `seconds`.
    open_seconds: f64,
    /// What batches moved, by primitive.
    #[serde(skip)]
    movements: Vec<HopReport>,
    /// What was read of the counters meanwhile, where a page is to be made.
    #[serde(skip)]
    recording: Option<Recording>,
}

pub(crate) fn run(args: &Args, metrics: &CommandMetrics<'_>, side_file: Option<SideFile>) -> Result<CommandStatus> {
    signals::catch(WaitsFor::Places);
    signals::undo_says("the log of the measurement was removed");
    let machine = datapipes::discover();
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let page_file = PageFile::open(side_file)?;
    let folder = WorkFolder::under(&parent, "dpipe-log-bench", false)?;
    let batch_bytes =
        u32::try_from(args.record_size.saturating_mul(2).max(1 << 20).next_multiple_of(4096)).unwrap_or(u32::MAX);
    let options =
        LogOptions::default().batch_bytes(batch_bytes).segment_bytes((u64::from(batch_bytes) * 4).max(64 << 20));
    let begun = Instant::now();
    let storage = LogFolder::at(&machine, folder.path());
    let stops = storage.clone();
    signals::when_asked(move || stops.stop_making_segments())?;
    let waits = args.report_page.report_html.is_some().then(CoreWaits::default);
    let log = open_shown(&storage.clone(), options, || match &waits {
        // To read the clock of a thread takes microseconds, so it is read for the page only.
        Some(waits) => {
            let counted = CountedFolder { folder: storage.clone(), waits: waits.clone() };
            Log::open(&machine, counted, options)
        }
        None => Log::open(&machine, storage.clone(), options),
    })?;
    let open_seconds = begun.elapsed().as_secs_f64();
    let outcome = metrics.during(|| log.stats().samples(), || measure(&log, args, open_seconds, waits.as_ref()))?;
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

fn measure(log: &Log, args: &Args, open_seconds: f64, waits: Option<&CoreWaits>) -> Result<Outcome> {
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
    let columns = waits.map(|_| columns());
    let work = || progress::during(progress::wanted(), state, all);
    let work = || offering::during("dpipe log bench", || log.stats().samples(), work);
    let (appended, recording) = recorder::record(columns, || values(log, waits), work);
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
        open_seconds,
        movements: log.movements(),
        recording,
    })
}

fn text(o: &Outcome, dir: &Path) -> String {
    let ns = |ns: u64| units::nanoseconds(ns as f64);
    let (a, s) = (&o.stats.acknowledged, &o.stats);
    format!(
        "{} records of {} by {} threads became durable in {:.2} s on {}: {:.0} a second ({:.1} MB/s), {:.2} s of processor time\n\
         acknowledged after {} (half of them), {} (99%), {} (99.9%), {} (the slowest)\n\
         {} batches, the largest of {} records; write {}, sync {} (half of them)\n\
         before that, making the first segment took {:.2} s\n{}",
        o.records,
        units::bytes(o.record_bytes),
        o.threads,
        o.seconds,
        shown_path(dir),
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
        o.open_seconds,
        o.route.as_ref().map_or_else(String::new, ToString::to_string),
    )
}

/// What the page says of its shares.
const NOTE: &str = "Time in which the thread of the batch had work and no core is taken off the syncs. Of the time \
                    between batches, and of writes and syncs that are copies in memory, what no core worked in and some \
                    thread waited for one in is taken off.";

const PAYLOAD: usize = 0;
const RECORDS: usize = 1;
const WRITE: usize = 2;
const SYNC: usize = 3;
const QUEUED_IN_SYNC: usize = 4;

/// The columns that are recorded: bytes, records, the seconds of writes and syncs that ended, and
/// how long threads waited for a core within syncs.
fn columns() -> Vec<CourseColumn> {
    vec![CourseColumn::Sum; 5]
}

fn values(log: &Log, waits: Option<&CoreWaits>) -> Vec<f64> {
    let stats = log.stats();
    let seconds = |times: &Histogram| times.sum_ns() as f64 / 1e9;
    vec![
        stats.payload_bytes as f64,
        stats.records as f64,
        seconds(&stats.latencies.write),
        seconds(&stats.latencies.sync),
        waits.map_or(0.0, CoreWaits::seconds),
    ]
}

/// What the time of a measurement went into, as parts of it. One batch is written and synced at a
/// time.
#[derive(Debug, PartialEq)]
struct BatchTimes {
    sync: f64,
    write: f64,
    /// Between the batches.
    between: f64,
    /// The thread of the batch, or between batches all of them, had work and no core.
    queued: f64,
}

impl BatchTimes {
    fn of(o: &Outcome, recording: &Recording, writes: Writes) -> BatchTimes {
        let grew = |column| recording.grew(column, 0.0, recording.seconds());
        let queued = [grew(QUEUED_IN_SYNC), grew(recording.queued())];
        BatchTimes::of_seconds(o.seconds, [grew(SYNC), grew(WRITE)], writes, queued, o.cpu_seconds)
    }

    fn of_seconds(
        seconds: f64,
        [sync, write]: [f64; 2],
        writes: Writes,
        [queued_in_sync, queued_at_all]: [f64; 2],
        cpu: f64,
    ) -> BatchTimes {
        let queued_in_sync = queued_in_sync.clamp(0.0, sync);
        let between = (seconds - sync - write).max(0.0);
        let synced = sync - queued_in_sync;
        // Between batches, and while bytes are copied, nobody waits for the disk. What is no work
        // waits for a core, or is asleep by itself.
        let (copied, synced_in_memory) = match writes {
            Writes::Disk => (0.0, 0.0),
            Writes::PageCache => (write, 0.0),
            Writes::Memory => (write, synced),
        };
        let busy = between + copied + synced_in_memory;
        let queued = (busy - cpu).clamp(0.0, (queued_at_all - queued_in_sync).max(0.0));
        let left = 1.0 - queued / busy.max(1e-9);
        let part = |part: f64| part / seconds.max(1e-9);
        BatchTimes {
            sync: part(synced - synced_in_memory + synced_in_memory * left),
            write: part(write - copied + copied * left),
            between: part(between * left),
            queued: part(queued_in_sync + queued),
        }
    }
}

/// What writes of batches are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Writes {
    /// Copies by a core, and syncs that have no disk to wait for.
    Memory,
    /// Copies by a core.
    PageCache,
    Disk,
}

/// The page about a measurement: `--report-html`.
fn page(o: &Outcome, dir: &Path, recording: &Recording) -> HtmlPage {
    let mut page = parts::page("Durable records");
    let is_cached =
        o.route.as_ref().is_some_and(|route| route.hops.iter().any(|hop| hop.primitive.ends_with("-cached")));
    let way = match (is_in_memory(dir), is_cached) {
        (true, _) => Writes::Memory,
        (false, true) => Writes::PageCache,
        (false, false) => Writes::Disk,
    };
    let times = BatchTimes::of(o, recording, way);
    let (syncs, writes) = match way {
        Writes::Memory => ("syncs of a file system without a disk", "copies into a file system in memory"),
        Writes::PageCache => ("the disk's syncs", "writes into the page cache"),
        Writes::Disk => ("the disk's syncs", "the disk's writes"),
    };
    let mut steps = vec![
        Share::new(syncs, times.sync),
        Share::new(writes, times.write),
        Share::new("appends, new segments, and threads that wake up", times.between),
    ];
    let whole = recording.seconds();
    let throttled = recording.grew(recording.throttled(), 0.0, whole) / o.seconds.max(1e-9);
    let [throttled, queued] = held_up::of_queue(times.queued, throttled, 1.0);
    let held = [(held_up::QUEUED, queued), (QUOTA, throttled)].into_iter().filter(|(_, part)| *part >= 0.005);
    steps.extend(held.map(|(what, part)| Share::new(what, part)));
    let stopped = HeldUp { stopped: HeldUp::of(recording, 1.0, 0.0, whole).stopped, ..HeldUp::default() };
    let shares = stopped.take_off(steps);
    let done = format!(
        "{} records of {} became durable in {:.2} s ({:.0} a second).",
        o.records,
        units::bytes(o.record_bytes),
        o.seconds,
        o.records_per_second
    );
    page.headline = headline(&done, &shares);
    parts::say_fallback(&mut page, &o.route);
    let ns = |ns: u64| units::nanoseconds(ns as f64);
    page.facts = [
        ("records", o.records.to_string()),
        ("threads", o.threads.to_string()),
        ("acknowledged (half)", ns(o.stats.acknowledged.p50_ns)),
        ("acknowledged (99%)", ns(o.stats.acknowledged.p99_ns)),
        ("batches", o.stats.batches.to_string()),
        ("processor time", format!("{:.2} s", o.cpu_seconds)),
        ("before that, making the first segment", format!("{:.2} s", o.open_seconds)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let records = TimelineSeries::new("records", recording.course.rates(RECORDS));
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
        note: NOTE.into(),
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
             read again: `dpipe log stat` does that to a log that is kept.",
            o.records, o.stats.durable_before
        ),
        holds: Some(o.stats.durable_before >= o.stats.next),
    };
    let blocks = vec![PageBlock::Checks(vec![check])];
    page.sections.push(PageSection { title: "What was verified".into(), blocks, ..PageSection::default() });
    page.sections.push(parts::process(recording, None));
    page.sections.push(parts::primitives(&parts::movements("batches", &o.movements)));
    if let Some(route) = &o.route {
        page.sections.push(parts::routes(&[("log".to_owned(), Ok(route.clone()))]));
    }
    page.sections.push(parts::printed(&text(o, dir)));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_of_the_batch_waits_for_a_core_and_the_others_hold_up_nothing() {
        // Eight threads on a core that others have: 2.1 s of syncs, 1.5 s of which waited for it.
        let busy = BatchTimes::of_seconds(3.0, [2.1, 0.1], Writes::Disk, [1.5, 8.0], 0.4);
        assert!((busy.queued - (1.5 + 0.4) / 3.0).abs() < 1e-9 && (busy.sync - 0.2).abs() < 1e-9, "{busy:?}");
        assert!((busy.between - 0.4 / 3.0).abs() < 1e-9, "{busy:?}");
        // Threads that wait for a core beside the sync of a batch.
        let quiet = BatchTimes::of_seconds(3.0, [2.8, 0.1], Writes::Disk, [0.05, 2.0], 0.4);
        assert!(quiet.queued < 0.02 && quiet.sync > 0.91, "{quiet:?}");
        // A limit of 15% of a core, in memory: copies take no more than all processor time.
        let limited = BatchTimes::of_seconds(3.0, [0.6, 1.1], Writes::Memory, [0.3, 7.0], 0.45);
        assert!(limited.sync + limited.write + limited.between <= 0.151 && limited.queued > 0.8, "{limited:?}");
    }
}
