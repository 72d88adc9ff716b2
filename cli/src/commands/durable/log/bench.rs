//! `dpipe log bench`: how fast records become durable here.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use datapipes::{Result, Route};
use datapipes_durable::log::{Log, LogFolder, LogOptions, LogStats};
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::arguments::units::{parse_count, parse_size};
use crate::metrics_file::CommandMetrics;
use crate::outcome::{CommandStatus, print, print_json};
use crate::progress::{self, State};
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
}

pub(crate) fn run(args: &Args, metrics: &CommandMetrics<'_>) -> Result<CommandStatus> {
    signals::catch(WaitsFor::Places);
    let machine = datapipes::discover();
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
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
    let state = || State { phase: "appending", done: log.stats().payload_bytes, total: 0 };
    progress::during(progress::wanted(), state, all)?;
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
