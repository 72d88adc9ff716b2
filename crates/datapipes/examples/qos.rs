//! What a runtime guarantees beside bulk work: a 4 KiB copy beside endless copies of 64 MiB, and a
//! 4 KiB read beside endless reads of 1 MiB, with classes and in one class.
//!
//! `cargo run --release -p datapipes --example qos [-- --small] [--disk] [--cap=BYTES]
//! [--chunk=BYTES] [DIR]` prints a JSON object for each row.
//!
//! ```text
//! memory  by class, scheduled             the short copy goes through the scheduler, as every transfer
//!         one class, scheduled            the same runtime, only the classes are equal
//!         by class, copied by the caller  as by default: the caller makes a short copy at once
//!         one class, whole transfers      nothing is cut either: a queue, first in, first out
//! disk    by class; one class             the same runtime, only the classes are equal
//!         one class, nothing held back    as much outstanding as the device takes, long chunks
//!         by class, reads back to back    without pauses between the short reads
//! ```
#![allow(clippy::unwrap_used)]

mod measuring;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datapipes::runtime::{ConnectOptions, RuntimeOptions};
use datapipes::{Constraints, Dram, PriorityClass, Result, Runtime, RuntimePipe, ServiceLevel, Span};
use measuring::{Random, cpu_seconds, file_in, median};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let small = args.iter().any(|a| a == "--small");
    let dir = args.iter().find(|a| !a.starts_with('-')).cloned().unwrap_or_else(|| ".".into());
    let (seconds, turns) = if small { (0.1, 1) } else { (1.0, 3) };
    if !args.iter().any(|a| a == "--disk") {
        memory(seconds, turns)?;
    }
    disk(&dir, if small { 32 << 20 } else { 2 << 30 }, seconds, turns)
}

/// Keeps `depth` transfers of `len` bytes in flight until it is told to stop. Adds the bytes moved
/// to `moved`.
fn bulk(pipe: &RuntimePipe, len: u64, places: u64, depth: u64, stop: &AtomicBool, moved: &AtomicU64) -> Result<()> {
    let mut under_way = std::collections::VecDeque::new();
    let mut i = 0;
    while !stop.load(Ordering::Relaxed) {
        if under_way.len() as u64 == depth {
            let handle: datapipes::Handle = under_way.pop_front().unwrap();
            handle.wait()?;
            moved.fetch_add(len, Ordering::Relaxed);
        }
        under_way.push_back(pipe.transfer(Span { source: i % places * len, target: i % depth * len, len })?);
        i += 1;
    }
    under_way.into_iter().try_for_each(|handle| handle.wait())
}

/// Measures the latency of `one`, once every `pause`, for `seconds`.
fn probe(seconds: f64, pause: Duration, mut one: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let begun = Instant::now();
    let mut us = Vec::new();
    while begun.elapsed().as_secs_f64() < seconds {
        let at = Instant::now();
        one()?;
        us.push(at.elapsed().as_nanos() as f64 / 1e3);
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    us.sort_by(f64::total_cmp);
    Ok(us)
}

/// What one way gave, a value a turn.
#[derive(Default)]
struct Row {
    p50: Vec<f64>,
    p99: Vec<f64>,
    rate: Vec<f64>,
    cores: Vec<f64>,
}

/// What runs in a row: the short transfers, the bulk work, or both.
struct Way<'a> {
    name: &'static str,
    probe: Option<&'a RuntimePipe>,
    /// Between two short transfers.
    pause: Duration,
    bulk: Option<&'a RuntimePipe>,
}

/// The bulk work of all rows.
struct Bulk {
    len: u64,
    places: u64,
    depth: u64,
}

/// Takes the turns, and prints a row for each way. The rate of the way `bulk alone` is that by
/// which the others' are divided.
fn measure(
    what: &str,
    (seconds, turns): (f64, u32),
    ways: &[Way<'_>],
    work: &Bulk,
    mut span: impl FnMut() -> Span,
) -> Result<()> {
    let mut rows: Vec<Row> = ways.iter().map(|_| Row::default()).collect();
    for _ in 0..turns {
        for (way, row) in ways.iter().zip(&mut rows) {
            turn(row, seconds, way, work, &mut span)?;
        }
    }
    let alone =
        ways.iter().zip(&rows).find(|(way, _)| way.probe.is_none()).and_then(|(_, row)| median(row.rate.clone()));
    for (way, row) in ways.iter().zip(rows) {
        let rate = median(row.rate);
        println!(
            "{}",
            serde_json::json!({
                "what": what, "way": way.name, "p50_us": median(row.p50), "p99_us": median(row.p99), "bulk_gb_s": rate,
                "bulk_of_alone": rate.zip(alone).map(|(rate, alone)| rate / alone), "cores": median(row.cores),
            })
        );
    }
    Ok(())
}

/// Runs the short transfers, the bulk work, or both, and adds the results to the row.
fn turn(row: &mut Row, seconds: f64, way: &Way<'_>, work: &Bulk, span: &mut dyn FnMut() -> Span) -> Result<()> {
    let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let thread = way.bulk.map(|pipe| scope.spawn(|| bulk(pipe, work.len, work.places, work.depth, &stop, &moved)));
        if thread.is_some() {
            std::thread::sleep(Duration::from_millis(100));
        }
        let (before, cpu, begun) = (moved.load(Ordering::Relaxed), cpu_seconds(), Instant::now());
        let probed = match way.probe {
            Some(pipe) => probe(seconds, way.pause, || pipe.transfer(span())?.wait()).map(|us| {
                row.p50.push(us[us.len() / 2]);
                row.p99.push(us[us.len() * 99 / 100]);
            }),
            None => {
                std::thread::sleep(Duration::from_secs_f64(seconds));
                Ok(())
            }
        };
        row.cores.push((cpu_seconds() - cpu) / begun.elapsed().as_secs_f64());
        if let Some(thread) = thread {
            row.rate.push((moved.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64() / 1e9);
            // Also after an error: the thread would go on for ever.
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap()?;
        }
        probed
    })
}

/// A pipe of a class.
fn asking(class: PriorityClass) -> ConnectOptions {
    ConnectOptions::default().service(ServiceLevel::default().class(class))
}

fn memory(seconds: f64, turns: u32) -> Result<()> {
    use PriorityClass::{Bulk as InBulk, Latency, Normal};
    let machine = datapipes::discover();
    let long = 64 << 20;
    let (from, to) = (Dram::allocate(long)?, Dram::allocate(2 * long)?);
    let (small_from, small_to) = (Dram::allocate(4096)?, Dram::allocate(4096)?);
    let by_default = Runtime::start(&machine)?;
    // The caller makes no copy itself: all go through the scheduler.
    let scheduled = Runtime::start_with(&machine, RuntimeOptions::new(&machine).max_inline_bytes(0))?;
    let mut options = RuntimeOptions::new(&machine).max_inline_bytes(0);
    options.memory.chunk_bytes = 1 << 30;
    options.memory.contended_chunk_bytes = 1 << 30;
    let whole = Runtime::start_with(&machine, options)?;
    let short = |runtime: &Runtime, class| runtime.connect_with(&small_from, &small_to, &asking(class));
    let bulk = |runtime: &Runtime, class| runtime.connect_with(&from, &to, &asking(class));
    let (at_once, beside) = (short(&by_default, Latency)?, bulk(&by_default, InBulk)?);
    let (quick, slow) = (short(&scheduled, Latency)?, bulk(&scheduled, InBulk)?);
    let (one, other) = (short(&scheduled, Normal)?, bulk(&scheduled, Normal)?);
    let (queued, queue) = (short(&whole, Normal)?, bulk(&whole, Normal)?);
    let pause = Duration::from_micros(200);
    let way = |name, probe, bulk| Way { name, probe, pause, bulk };
    let ways = [
        way("alone, scheduled", Some(&quick), None),
        way("alone, copied by the caller", Some(&at_once), None),
        way("bulk alone", None, Some(&slow)),
        way("both, by class, scheduled", Some(&quick), Some(&slow)),
        way("both, one class, scheduled", Some(&one), Some(&other)),
        way("both, by class, copied by the caller", Some(&at_once), Some(&beside)),
        way("both, one class, whole transfers", Some(&queued), Some(&queue)),
    ];
    let work = Bulk { len: long as u64, places: 1, depth: 2 };
    let span = || Span { source: 0, target: 0, len: 4096 };
    measure("4 KiB copy beside copies of 64 MiB", (seconds, turns), &ways, &work, span)
}

fn disk(dir: &str, len: u64, seconds: f64, turns: u32) -> Result<()> {
    use PriorityClass::{Bulk as InBulk, Latency, Normal};
    let machine = datapipes::discover();
    let ssd = file_in(&machine, dir, len)?;
    let (block, mega) = (Dram::allocate(4096)?, Dram::allocate(32 << 20)?);
    let mut options = RuntimeOptions::new(&machine);
    let number = |name: &str| std::env::args().find_map(|arg| arg.strip_prefix(name)?.parse().ok());
    options.device.contended_bytes = number("--cap=").unwrap_or(options.device.contended_bytes);
    options.device.contended_chunk_bytes = number("--chunk=").unwrap_or(options.device.contended_chunk_bytes);
    let runtime = Runtime::start_with(&machine, options)?;
    let mut options = RuntimeOptions::new(&machine);
    options.device.contended_bytes = options.device.outstanding_bytes;
    options.device.contended_chunk_bytes = options.device.chunk_bytes;
    let free = Runtime::start_with(&machine, options)?;
    let constraints = Constraints::default().bypass_page_cache(true);
    let asking = |class, typical| asking(class).constraints(constraints.clone().typical_len(typical));
    let short = |runtime: &Runtime, class| runtime.connect_with(&ssd, &block, &asking(class, 4096));
    let bulk = |runtime: &Runtime, class| runtime.connect_with(&ssd, &mega, &asking(class, 1 << 20));
    let (quick, slow) = (short(&runtime, Latency)?, bulk(&runtime, InBulk)?);
    let (one, other) = (short(&runtime, Normal)?, bulk(&runtime, Normal)?);
    let (plain, unlimited) = (short(&free, Normal)?, bulk(&free, Normal)?);
    let pause = Duration::from_millis(1);
    let way = |name, probe, bulk| Way { name, probe, pause, bulk };
    let ways = [
        way("alone", Some(&quick), None),
        way("bulk alone", None, Some(&slow)),
        way("both, by class", Some(&quick), Some(&slow)),
        way("both, one class", Some(&one), Some(&other)),
        way("both, one class, nothing held back", Some(&plain), Some(&unlimited)),
        Way {
            name: "both, by class, reads back to back",
            probe: Some(&quick),
            pause: Duration::ZERO,
            bulk: Some(&slow),
        },
    ];
    let work = Bulk { len: 1 << 20, places: len >> 20, depth: 32 };
    let mut random = Random(88_172_645_463_325_252);
    let span = || Span { source: random.below(len / 4096) * 4096, target: 0, len: 4096 };
    measure("4 KiB read beside reads of 1 MiB at depth 32", (seconds, turns), &ways, &work, span)
}
