//! Warm-up, then phases: so many threads, so many requests a call, for so many seconds.

use std::time::{Duration, Instant};

use datapipes_data::access::{Items, Scatter};
use serde_json::{Value, json};

use crate::load::{self, Load};
use crate::reader::{Outcome, Reader, Session};

/// One thing that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    pub threads: usize,
    /// Requests of a call; 1: single reads.
    pub batch: usize,
    /// At the device at once.
    pub depth: usize,
}

impl Phase {
    /// `THREADSxBATCH` or `THREADSxBATCH/DEPTH`.
    pub fn parse(text: &str) -> Outcome<Phase> {
        let parts: Vec<usize> = text.split(['x', '/']).filter_map(|n| n.parse().ok()).collect();
        match parts[..] {
            [threads, batch] => Ok(Phase { threads, batch, depth: batch }),
            [threads, batch, depth] => Ok(Phase { threads, batch, depth }),
            _ => Err(format!("no phase `{text}`")),
        }
    }
}

/// Requests that are drawn at a time; drawing is not measured.
const CHUNK: usize = 1 << 14;
/// Requests from the beginning of a phase to that of the next.
const STEP: usize = 600_000;
/// One single read of so many is timed by itself, so that looking at the clock costs hits little.
const TIMED: usize = 8;

/// Plays so many requests, of which the last are enough for some readers; returns the stream as it
/// goes on.
pub fn warm_up(reader: &dyn Reader, load: &Load, count: usize, depth: usize) -> Outcome<Items> {
    let len = load.layout.item_bytes as usize;
    let (needed, threads) = reader.warm_up().unwrap_or((count, 1));
    let skipped = count.saturating_sub(needed);
    let mut all = load.requests();
    all.by_ref().take(skipped).for_each(drop);
    let work = |thread: usize| -> Outcome<()> {
        let mut session = reader.session()?;
        let mut requests = load::share(&all, thread, threads);
        let most = at_once(len);
        let mut offsets = Vec::with_capacity(most);
        let mut out = vec![0; most * len];
        let mut left = (count - skipped) / threads;
        while left > 0 {
            let n = left.min(most);
            offsets.clear();
            for offset in requests.by_ref().take(n) {
                if !reader.admit(offset, &|bytes| load::fill(offset, bytes)) {
                    offsets.push(offset);
                }
            }
            session.batch(&offsets, len, depth, &mut out[..offsets.len() * len])?;
            left -= n;
        }
        Ok(())
    };
    on_threads(threads, work)?;
    all.by_ref().take(count - skipped).for_each(drop);
    Ok(all)
}

/// Items of a call that warms up: a quarter of a megabyte.
fn at_once(len: usize) -> usize {
    ((256 << 10) / len).max(1)
}

/// Reads every item once, neighbours at different times.
pub fn fill(reader: &dyn Reader, load: &Load, depth: usize) -> Outcome<()> {
    let len = load.layout.item_bytes as usize;
    let mut session = reader.session()?;
    let mut out = vec![0; at_once(len) * len];
    let scatter = Scatter::new(load.layout.items, load.seed);
    let all: Vec<u64> = (0..load.layout.items).map(|i| scatter.place(i) * load.layout.stride_bytes).collect();
    for offsets in all.chunks(at_once(len)) {
        let bytes = |offset: u64| move |out: &mut [u8]| load::fill(offset, out);
        let offsets: Vec<u64> = offsets.iter().copied().filter(|o| !reader.admit(*o, &bytes(*o))).collect();
        session.batch(&offsets, len, depth, &mut out[..offsets.len() * len])?;
    }
    Ok(())
}

/// What one thread measured.
#[derive(Default)]
struct Part {
    reads: u64,
    seconds: f64,
    /// Processor time of drawing, which is not the reader's.
    drawing: f64,
    hits: (u64, u64),
    latency: Histogram,
}

/// Measures one phase, and moves the stream on behind what it read.
pub fn phase(reader: &dyn Reader, load: &Load, phase: Phase, seconds: f64, stream: &mut Items) -> Outcome<Value> {
    let before = (reader.counts(), cpu(libc::RUSAGE_SELF), device_bytes());
    let parts = on_threads(phase.threads, |thread| one_thread(reader, load, phase, seconds, stream, thread))?;
    let (counts, cpu_now, device) = (reader.counts(), cpu(libc::RUSAGE_SELF), device_bytes());
    let system_s = cpu_now.1 - before.1.1;
    let reads: u64 = parts.iter().map(|p| p.reads).sum();
    // Readers of any speed meet the same requests in the phases that follow, unless they are very
    // fast.
    stream.take((reads as usize).max(STEP)).for_each(drop);
    let asked = reads as f64 * f64::from(load.layout.item_bytes);
    let cpu_s = cpu_now.0 - before.1.0 + system_s - parts.iter().map(|p| p.drawing).sum::<f64>();
    let (read, written) = (device.0 - before.2.0, device.1 - before.2.1);
    let (hits, looked) = match (counts, before.0) {
        (Some(now), Some(then)) => (now.0 - then.0, now.1 - then.1),
        _ => parts.iter().fold((0, 0), |sum, p| (sum.0 + p.hits.0, sum.1 + p.hits.1)),
    };
    // A reader that cannot know it: pages that did not have to be read.
    let pages = || 1.0 - (read as f64 / 4096.0 / reads as f64).min(1.0);
    let hit = if looked == 0 { pages() } else { hits as f64 / looked as f64 };
    let mut latency = Histogram::default();
    parts.iter().for_each(|p| latency.add_all(&p.latency));
    let mut row = json!({
        "threads": phase.threads, "batch": phase.batch, "depth": phase.depth, "reads": reads,
        "ops_s": parts.iter().map(|p| p.reads as f64 / p.seconds).sum::<f64>(),
        "p50_us": latency.quantile(0.5) / 1e3,
        "p99_us": latency.quantile(0.99) / 1e3,
        "amplification": read as f64 / asked,
        "written_per_byte": written as f64 / asked,
        "cpu_us": cpu_s * 1e6 / reads as f64,
        "system_us": system_s * 1e6 / reads as f64,
    });
    if reader.hits_by() != "unknown" {
        row["hit_pct"] = json!(hit * 100.0);
    }
    Ok(row)
}

fn one_thread(
    reader: &dyn Reader,
    load: &Load,
    phase: Phase,
    seconds: f64,
    stream: &Items,
    thread: usize,
) -> Outcome<Part> {
    let len = load.layout.item_bytes as usize;
    let mut session = reader.session()?;
    let mut requests = load::share(stream, thread, phase.threads);
    let mut offsets = Vec::with_capacity(CHUNK);
    let mut out = vec![0; phase.batch.min(CHUNK) * len];
    let mut part = Part::default();
    let found = session.counts();
    let chunk = CHUNK / phase.batch * phase.batch;
    while part.seconds < seconds {
        let drawing = thread_cpu();
        offsets.clear();
        offsets.extend(requests.by_ref().take(chunk));
        part.drawing += thread_cpu() - drawing;
        // In pieces, so that a slow reader ends in time.
        for offsets in offsets.chunks(phase.batch.max(256)) {
            let started = Instant::now();
            match phase.batch {
                1 => single(&mut *session, offsets, &mut out, &mut part)?,
                batch => {
                    for offsets in offsets.chunks(batch) {
                        let called = Instant::now();
                        let out = &mut out[..offsets.len() * len];
                        session.batch(offsets, len, phase.depth, out)?;
                        part.latency.add(called.elapsed());
                        let wrong = offsets.iter().zip(out.chunks_exact(len)).find(|(o, b)| !load::is_right(**o, b));
                        if let Some((offset, _)) = wrong {
                            return Err(format!("WRONG: bytes at {offset}"));
                        }
                    }
                }
            }
            part.seconds += started.elapsed().as_secs_f64();
            part.reads += offsets.len() as u64;
            if part.seconds >= seconds {
                break;
            }
        }
    }
    let now = session.counts();
    part.hits = (now.0 - found.0, now.1 - found.1);
    Ok(part)
}

#[inline]
fn single(session: &mut dyn Session, offsets: &[u64], out: &mut [u8], part: &mut Part) -> Outcome<()> {
    for (at, offset) in offsets.iter().enumerate() {
        if at % TIMED == 0 {
            let called = Instant::now();
            session.read(*offset, out)?;
            part.latency.add(called.elapsed());
        } else {
            session.read(*offset, out)?;
        }
        if !load::is_right(*offset, out) {
            return Err(format!("WRONG: bytes at {offset}"));
        }
    }
    Ok(())
}

fn on_threads<T: Send>(threads: usize, work: impl Fn(usize) -> Outcome<T> + Sync) -> Outcome<Vec<T>> {
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|n| {
                scope.spawn({
                    let work = &work;
                    move || work(n)
                })
            })
            .collect();
        started.into_iter().map(|t| t.join().map_err(|_| "a thread panicked".to_string())?).collect()
    })
}

/// Times in buckets a sixteenth of their size wide.
#[derive(Clone)]
pub struct Histogram(Vec<u64>);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram(vec![0; 64 * 16])
    }
}

impl Histogram {
    fn add(&mut self, took: Duration) {
        let ns = (took.as_nanos() as u64).max(16);
        let power = 63 - ns.leading_zeros() as usize;
        self.0[power * 16 + (ns >> (power - 4) & 15) as usize] += 1;
    }

    fn add_all(&mut self, other: &Histogram) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a += b);
    }

    fn quantile(&self, part: f64) -> f64 {
        let wanted = (self.0.iter().sum::<u64>() as f64 * part) as u64;
        let mut seen = 0;
        for (at, count) in self.0.iter().enumerate() {
            seen += count;
            if seen > wanted {
                let (power, sixteenth) = (at / 16, at % 16);
                return (16 + sixteenth) as f64 / 16.0 * (1u64 << power) as f64;
            }
        }
        0.0
    }
}

/// Processor seconds of the process: user, system.
pub fn cpu(who: i32) -> (f64, f64) {
    // SAFETY: rusage is a structure of numbers, for which zeros are values; getrusage fills our own
    // variable.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}

fn thread_cpu() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime fills our own variable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Bytes that this process made the devices read and write, as the kernel counts them when a
/// request is handed to a device: for the page cache and past it alike.
pub fn device_bytes() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        line.and_then(|v| v.trim().parse().ok()).unwrap_or(0)
    };
    (field("read_bytes:"), field("write_bytes:"))
}

/// Memory of this process that is no file's, in bytes.
pub fn anonymous_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}
