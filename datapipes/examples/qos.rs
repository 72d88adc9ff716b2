//! What a runtime promises beside bulk work: a 4 KiB copy beside endless copies of 64 MiB, and a 4
//! KiB read beside endless reads of 1 MiB; with classes, and without.
//!
//! `cargo run --release -p datapipes --example qos [-- --small] [--disk] [--cap=BYTES]
//! [--chunk=BYTES] [DIR]` prints one JSON object a row.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use datapipes::runtime::{ConnectOptions, RuntimeConfig};
use datapipes::{Constraints, Dram, FileAccess, PriorityClass, Result, Runtime, RuntimePipe, ServiceLevel, Span, Ssd};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let small = args.iter().any(|a| a == "--small");
    let dir = args.iter().find(|a| !a.starts_with('-')).cloned().unwrap_or_else(|| ".".into());
    let (seconds, turns) = if small { (0.1, 1) } else { (2.0, 3) };
    if !args.iter().any(|a| a == "--disk") {
        memory(seconds, turns)?;
    }
    disk(&dir, if small { 32 << 20 } else { 2 << 30 }, seconds, turns)
}

fn service(class: PriorityClass) -> ServiceLevel {
    ServiceLevel { class, ..ServiceLevel::default() }
}

/// Keeps `depth` transfers of `len` bytes under way until told to stop; returns bytes moved.
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

/// Latencies of `read`, one every `pause`, for so long.
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

struct Row {
    p50: Vec<f64>,
    p99: Vec<f64>,
    rate: Vec<f64>,
}

fn rows(what: &str, names: &[&str], rows: Vec<Row>) {
    let median = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    };
    let alone = median(&rows[1].rate);
    for (name, row) in names.iter().zip(rows) {
        let rate = median(&row.rate);
        println!(
            "{}",
            serde_json::json!({
                "what": what, "way": name, "p50_us": median(&row.p50), "p99_us": median(&row.p99), "bulk_gb_s": rate,
                "bulk_of_alone": rate.zip(alone).map(|(rate, alone)| rate / alone),
            })
        );
    }
}

/// Runs the probe, the bulk, or both, and adds to the row.
fn turn(
    row: &mut Row,
    probe: Option<&mut dyn FnMut() -> Result<Vec<f64>>>,
    seconds: f64,
    work: Option<&Work<'_>>,
) -> Result<()> {
    let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let thread = work.map(|work| scope.spawn(|| bulk(work.pipe, work.len, work.places, work.depth, &stop, &moved)));
        if thread.is_some() {
            std::thread::sleep(Duration::from_millis(100));
        }
        let (before, begun) = (moved.load(Ordering::Relaxed), Instant::now());
        match probe {
            Some(probe) => {
                let us = probe()?;
                row.p50.push(us[us.len() / 2]);
                row.p99.push(us[us.len() * 99 / 100]);
            }
            None => std::thread::sleep(Duration::from_secs_f64(seconds)),
        }
        if let Some(thread) = thread {
            row.rate.push((moved.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64() / 1e9);
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap()?;
        }
        Ok(())
    })
}

struct Work<'a> {
    pipe: &'a RuntimePipe,
    len: u64,
    places: u64,
    depth: u64,
}

fn new_rows(count: usize) -> Vec<Row> {
    (0..count).map(|_| Row { p50: Vec::new(), p99: Vec::new(), rate: Vec::new() }).collect()
}

fn memory(seconds: f64, turns: u32) -> Result<()> {
    let machine = datapipes::discover();
    let long = 64 << 20;
    let (from, to) = (Dram::allocate(long)?, Dram::allocate(2 * long)?);
    let (small_from, small_to) = (Dram::allocate(4096)?, Dram::allocate(4096)?);
    let with = Runtime::start(&machine)?;
    // One class, whole transfers, everything through the queue: a mover without QoS.
    let mut config = RuntimeConfig::of(&machine);
    config.memory.chunk_bytes = 1 << 30;
    config.memory.contended_chunk_bytes = 1 << 30;
    config.max_inline_bytes = 0;
    let without = Runtime::start_with(&machine, config)?;
    let connect = |runtime: &Runtime, class| -> Result<(RuntimePipe, RuntimePipe)> {
        let ask = |class| ConnectOptions { service: service(class), ..ConnectOptions::default() };
        let bulk = if class == PriorityClass::Latency { PriorityClass::Bulk } else { class };
        Ok((runtime.connect_with(&small_from, &small_to, &ask(class))?, runtime.connect_with(&from, &to, &ask(bulk))?))
    };
    let (quick, bulk_with) = connect(&with, PriorityClass::Latency)?;
    let (queued, bulk_without) = connect(&without, PriorityClass::Normal)?;
    let span = Span { source: 0, target: 0, len: 4096 };
    let work = |pipe| Work { pipe, len: long as u64, places: 1, depth: 2 };
    let mut all = new_rows(4);
    for _ in 0..turns {
        for (i, row) in all.iter_mut().enumerate() {
            let pipe = if i == 3 { &queued } else { &quick };
            let mut probe = || probe(seconds, Duration::from_micros(200), || pipe.transfer(span)?.wait());
            let bulk = work(if i == 3 { &bulk_without } else { &bulk_with });
            match i {
                0 => turn(row, Some(&mut probe), seconds, None)?,
                1 => turn(row, None, seconds, Some(&bulk))?,
                _ => turn(row, Some(&mut probe), seconds, Some(&bulk))?,
            }
        }
    }
    rows("4 KiB copy beside copies of 64 MiB", &["alone", "bulk alone", "both, by class", "both, without QoS"], all);
    Ok(())
}

fn disk(dir: &str, len: u64, seconds: f64, turns: u32) -> Result<()> {
    let machine = datapipes::discover();
    let ssd = Ssd::unlinked_in(dir)?;
    let filled = Dram::allocate(8 << 20)?;
    let write = machine.connect(&filled, &ssd)?;
    for at in (0..len).step_by(8 << 20) {
        write.transfer(Span { source: 0, target: at, len: 8 << 20 })?;
    }
    ssd.sync()?;
    let ssd = ssd.with_access(FileAccess::Direct)?;
    let (block, mega) = (Dram::allocate(4096)?, Dram::allocate(32 << 20)?);
    let mut config = RuntimeConfig::of(&machine);
    let number = |name: &str| std::env::args().find_map(|arg| arg.strip_prefix(name)?.parse().ok());
    config.device.contended_bytes = number("--cap=").unwrap_or(config.device.contended_bytes);
    config.device.contended_chunk_bytes = number("--chunk=").unwrap_or(config.device.contended_chunk_bytes);
    let with = Runtime::start_with(&machine, config)?;
    let mut config = RuntimeConfig::of(&machine);
    config.device.contended_bytes = config.device.outstanding_bytes;
    config.device.contended_chunk_bytes = config.device.chunk_bytes;
    let without = Runtime::start_with(&machine, config)?;
    let connect = |runtime: &Runtime, class| -> Result<(RuntimePipe, RuntimePipe)> {
        let constraints = Constraints { bypass_page_cache: true, ..Constraints::default() };
        let ask = |class, typical| ConnectOptions {
            constraints: Constraints { typical_len: Some(typical), ..constraints.clone() },
            service: service(class),
            queue: None,
        };
        let bulk = if class == PriorityClass::Latency { PriorityClass::Bulk } else { class };
        Ok((
            runtime.connect_with(&ssd, &block, &ask(class, 4096))?,
            runtime.connect_with(&ssd, &mega, &ask(bulk, 1 << 20))?,
        ))
    };
    let (quick, bulk_with) = connect(&with, PriorityClass::Latency)?;
    let (plain, bulk_without) = connect(&without, PriorityClass::Normal)?;
    let mut x = 88_172_645_463_325_252u64;
    let mut all = new_rows(5);
    for _ in 0..turns {
        for (i, row) in all.iter_mut().enumerate() {
            let pipe = if i == 3 { &plain } else { &quick };
            let mut probe = || {
                probe(seconds, if i == 4 { Duration::ZERO } else { Duration::from_millis(1) }, || {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    pipe.transfer(Span { source: x % (len / 4096) * 4096, target: 0, len: 4096 })?.wait()
                })
            };
            let pipe = if i == 3 { &bulk_without } else { &bulk_with };
            let bulk = Work { pipe, len: 1 << 20, places: len >> 20, depth: 32 };
            match i {
                0 => turn(row, Some(&mut probe), seconds, None)?,
                1 => turn(row, None, seconds, Some(&bulk))?,
                _ => turn(row, Some(&mut probe), seconds, Some(&bulk))?,
            }
        }
    }
    let names = ["alone", "bulk alone", "both, by class", "both, without QoS", "both, by class, reads back to back"];
    rows("4 KiB read beside reads of 1 MiB at depth 32", &names, all);
    Ok(())
}
