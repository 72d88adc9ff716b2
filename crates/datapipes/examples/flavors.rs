//! The cost of each flavor of a pipe: 4 KiB reads one at a time, 4 KiB reads at depth 32, and 64
//! bytes of memory.
//!
//! `cargo run --release -p datapipes --example flavors [-- --small] [--only=WAY] [DIR]` prints a
//! JSON object for each row. All ways read the same random offsets of one file, past the page
//! cache, in turns. Everything is set up, and has read a little, before the clock starts.
#![allow(unsafe_code, clippy::unwrap_used)] // Peers by hand: rings.

#[path = "flavors/by_hand.rs"]
mod by_hand;
mod measuring;

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use by_hand::{ByHand, Polled};
use datapipes::{Constraints, Dram, Machine, Pipe, PipeFd, Result, Runtime, RuntimePipe, Span, Ssd};
use measuring::{Random, cpu_seconds, file_in, median};
use rustix::event::epoll::{self, EventData, EventFlags};

const BLOCK: u64 = 4096;
/// Reads of each way before the clock starts.
const WARM: u64 = 64;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let small = args.iter().any(|a| a == "--small");
    let only = args.iter().find_map(|a| a.strip_prefix("--only=")).map(str::to_owned);
    let dir = args.iter().find(|a| !a.starts_with('-')).cloned().unwrap_or_else(|| ".".into());
    let (len, reads, turns) = if small { (16 << 20, 50, 1) } else { (1 << 30, 2000, 5) };
    let scene = Scene::new(&dir, len)?;
    latency(&scene, reads, turns, only.as_deref())?;
    if only.is_some() {
        return Ok(());
    }
    throughput(&scene, if small { 500 } else { 20_000 }, turns)?;
    memory(if small { 10_000 } else { 1_000_000 }, turns)
}

struct Scene {
    machine: Machine,
    runtime: Runtime,
    ssd: Ssd,
    dram: Dram,
    blocks: u64,
}

impl Scene {
    fn new(dir: &str, len: u64) -> Result<Scene> {
        let machine = datapipes::discover();
        let ssd = file_in(&machine, dir, len)?;
        let dram = Dram::allocate(64 * BLOCK as usize)?;
        let runtime = Runtime::start(&machine)?;
        Ok(Scene { machine, runtime, ssd, dram, blocks: len / BLOCK })
    }

    fn constraints(&self) -> Constraints {
        Constraints::default().bypass_page_cache(true).typical_len(BLOCK).queue_depth(32)
    }

    fn pipe(&self) -> Result<Pipe> {
        self.machine.connect_with(&self.ssd, &self.dram, &self.constraints())
    }

    fn connect(&self) -> datapipes::ConnectOptions {
        datapipes::ConnectOptions::default().constraints(self.constraints())
    }

    fn runtime_pipe(&self) -> Result<RuntimePipe> {
        self.runtime.connect_with(&self.ssd, &self.dram, &self.connect())
    }

    fn span(&self, random: &mut Random, slot: u64) -> Span {
        Span { source: random.below(self.blocks) * BLOCK, target: slot * BLOCK, len: BLOCK }
    }
}

/// The latencies of reads one by one, and what they cost.
struct Timed {
    us: Vec<f64>,
    /// Cores kept busy meanwhile.
    cores: f64,
    cpu_us_a_read: f64,
}

/// Looks at the clocks around each read, and around all.
struct Clocks {
    us: Vec<f64>,
    cpu: f64,
    begun: Instant,
}

impl Clocks {
    fn start(reads: u64) -> Clocks {
        Clocks { us: Vec::with_capacity(reads as usize), cpu: cpu_seconds(), begun: Instant::now() }
    }

    fn read_since(&mut self, at: Instant) {
        self.us.push(at.elapsed().as_nanos() as f64 / 1e3);
    }

    fn stop(self) -> Timed {
        let (cpu, seconds) = (cpu_seconds() - self.cpu, self.begun.elapsed().as_secs_f64());
        Timed { cores: cpu / seconds, cpu_us_a_read: cpu * 1e6 / self.us.len() as f64, us: self.us }
    }
}

/// Measures the time and the processor time of `reads` reads, one by one.
fn timed(scene: &Scene, reads: u64, mut read: impl FnMut(Span) -> Result<()>) -> Result<Timed> {
    let mut random = Random(0x1234_5678_9abc_def1);
    for _ in 0..WARM {
        read(scene.span(&mut random, 0))?;
    }
    let mut clocks = Clocks::start(reads);
    for _ in 0..reads {
        let at = Instant::now();
        read(scene.span(&mut random, 0))?;
        clocks.read_since(at);
    }
    Ok(clocks.stop())
}

/// The same as `timed`, for futures.
async fn timed_async(scene: &Scene, reads: u64, pipe: &RuntimePipe) -> Result<Timed> {
    let mut random = Random(0x1234_5678_9abc_def1);
    for _ in 0..WARM {
        pipe.transfer(scene.span(&mut random, 0))?.await?;
    }
    let mut clocks = Clocks::start(reads);
    for _ in 0..reads {
        let at = Instant::now();
        pipe.transfer(scene.span(&mut random, 0))?.await?;
        clocks.read_since(at);
    }
    Ok(clocks.stop())
}

fn latency(scene: &Scene, reads: u64, turns: u32, only: Option<&str>) -> Result<()> {
    let pipe = scene.pipe()?;
    let runtime = scene.runtime_pipe()?;
    let fd = scene.runtime.connect_fd_with(
        &scene.ssd,
        &scene.dram,
        &datapipes::ConnectFdOptions::default().connect(scene.connect()),
    )?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&epoll, &fd, EventData::new_u64(0), EventFlags::IN).unwrap();
    let mut polled = Polled::new(scene);
    let mut ring = ByHand::new(scene, 1);
    let aligned = Dram::allocate(BLOCK as usize)?;
    let mut rows: Vec<(&str, Vec<Timed>)> = [
        "busy poll of a ring",
        "poll with sleeps of 100 us",
        "ring by hand, waits",
        "pread",
        "blocking",
        "runtime, wait",
        "runtime, await (thread parks)",
        "runtime, await (block_on)",
        "descriptor, epoll",
    ]
    .map(|name| (name, Vec::new()))
    .into();
    rows.retain(|row| only.is_none_or(|only| row.0.contains(only)));
    for _ in 0..turns {
        for (name, all) in &mut rows {
            all.push(match *name {
                "busy poll of a ring" => timed(scene, reads, |span| polled.read(span, None))?,
                "poll with sleeps of 100 us" => {
                    timed(scene, reads, |span| polled.read(span, Some(Duration::from_micros(100))))?
                }
                "ring by hand, waits" => timed(scene, reads, |span| ring.read(span))?,
                "pread" => {
                    let file = scene.ssd.file().direct_fd().unwrap().try_clone_to_owned().unwrap();
                    let file = std::fs::File::from(file);
                    let mut bytes = aligned.lease_mut()?;
                    timed(scene, reads, |span| {
                        file.read_exact_at(&mut bytes, span.source).unwrap();
                        Ok(())
                    })?
                }
                "blocking" => timed(scene, reads, |span| pipe.transfer(span))?,
                "runtime, wait" => timed(scene, reads, |span| runtime.transfer(span)?.wait())?,
                "runtime, await (thread parks)" => pollster::block_on(timed_async(scene, reads, &runtime))?,
                "runtime, await (block_on)" => scene.runtime.block_on(timed_async(scene, reads, &runtime))?,
                _ => timed(scene, reads, |span| by_descriptor(&fd, &epoll, span))?,
            });
        }
    }
    for (name, turns) in rows {
        let of = |figure: fn(&Timed) -> f64| median(turns.iter().map(figure).collect());
        let mut us: Vec<f64> = turns.iter().flat_map(|timed| timed.us.iter().copied()).collect();
        us.sort_by(f64::total_cmp);
        let at = |share: f64| us[((us.len() - 1) as f64 * share) as usize];
        println!(
            "{}",
            serde_json::json!({
                "what": "4 KiB read, depth 1", "way": name, "p50_us": at(0.5), "p99_us": at(0.99),
                "cores": of(|timed| timed.cores), "cpu_us_a_read": of(|timed| timed.cpu_us_a_read),
            })
        );
    }
    Ok(())
}

fn by_descriptor(fd: &PipeFd, epoll: &std::os::fd::OwnedFd, span: Span) -> Result<()> {
    fd.submit(span)?;
    let mut events = Vec::with_capacity(1);
    loop {
        // EINTR does not end the wait, as in any event loop.
        let _ = epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None);
        if let Some(done) = fd.complete()? {
            return done.result;
        }
        events.clear();
    }
}

/// Reads per second with 32 in flight: by a ring by hand, by the blocking flavor's `start`, and by
/// the runtime.
fn throughput(scene: &Scene, reads: u64, turns: u32) -> Result<()> {
    const WAYS: [&str; 5] = [
        "ring by hand, waits for 1",
        "ring by hand, waits for 8",
        "blocking, started",
        "runtime, wait",
        "runtime, callbacks",
    ];
    let (pipe, runtime, mut ring) = (scene.pipe()?, scene.runtime_pipe()?, ByHand::new(scene, by_hand::DEPTH));
    let mut go = |way: usize, reads: u64| match way {
        0 => ring.read_many(scene, reads, 1),
        1 => ring.read_many(scene, reads, 8),
        2 => window(scene, reads, |span| pipe.start(span), |t| t.wait()),
        3 => window(scene, reads, |span| runtime.transfer(span), |t| t.wait()),
        _ => callbacks(scene, reads, &runtime),
    };
    let mut rates: [Vec<(f64, f64)>; WAYS.len()] = Default::default();
    for _ in 0..turns {
        for (way, rates) in rates.iter_mut().enumerate() {
            go(way, WARM)?;
            let (cpu, begun) = (cpu_seconds(), Instant::now());
            go(way, reads)?;
            let seconds = begun.elapsed().as_secs_f64();
            rates.push((reads as f64 / seconds, (cpu_seconds() - cpu) / reads as f64 * 1e6));
        }
    }
    for (way, rates) in WAYS.into_iter().zip(rates) {
        let rate = median(rates.iter().map(|turn| turn.0).collect());
        let cpu_us = median(rates.iter().map(|turn| turn.1).collect());
        println!(
            "{}",
            serde_json::json!({"what": "4 KiB reads, depth 32", "way": way, "reads_s": rate, "cpu_us_a_read": cpu_us})
        );
    }
    Ok(())
}

fn window<T>(
    scene: &Scene,
    reads: u64,
    start: impl Fn(Span) -> Result<T>,
    finish: impl Fn(T) -> Result<()>,
) -> Result<()> {
    let mut random = Random(0x5eed);
    let mut under_way = std::collections::VecDeque::new();
    for i in 0..reads {
        if under_way.len() == 32 {
            finish(under_way.pop_front().unwrap())?;
        }
        under_way.push_back(start(scene.span(&mut random, i % 64))?);
    }
    under_way.into_iter().try_for_each(finish)
}

/// Each completion starts the next read.
fn callbacks(scene: &Scene, reads: u64, pipe: &RuntimePipe) -> Result<()> {
    use std::sync::{Mutex, mpsc};
    struct Chain {
        pipe: RuntimePipe,
        spans: Mutex<Vec<Span>>,
        done: mpsc::Sender<Result<()>>,
    }
    fn go(chain: &Arc<Chain>, slot: u64) {
        let next = chain.spans.lock().unwrap().pop();
        let Some(span) = next else { return chain.done.send(Ok(())).unwrap() };
        let again = chain.clone();
        match chain.pipe.try_transfer(Span { target: slot * BLOCK, ..span }) {
            Ok(handle) => handle.on_done(move |result| match result {
                Ok(()) => go(&again, slot),
                Err(e) => again.done.send(Err(e)).unwrap(),
            }),
            Err(refused) => chain.done.send(Err(refused.error)).unwrap(),
        }
    }
    let mut random = Random(0x5eed);
    let spans = (0..reads).map(|_| scene.span(&mut random, 0)).collect();
    let (done, ends) = mpsc::channel();
    let chain = Arc::new(Chain { pipe: pipe.clone(), spans: Mutex::new(spans), done });
    (0..32).for_each(|slot| go(&chain, slot));
    (0..32).try_for_each(|_| ends.recv().unwrap())
}

fn memory(times: u64, turns: u32) -> Result<()> {
    let machine = datapipes::discover();
    let runtime = Runtime::start(&machine)?;
    let (source, target) = (Dram::allocate(4096)?, Dram::allocate(4096)?);
    let (pipe, under) = (machine.connect(&source, &target)?, runtime.connect(&source, &target)?);
    let span = Span { source: 0, target: 0, len: 64 };
    let mut ns: [Vec<f64>; 2] = Default::default();
    for _ in 0..turns {
        for (way, ns) in ns.iter_mut().enumerate() {
            let begun = Instant::now();
            for _ in 0..times {
                if way == 0 {
                    pipe.transfer(std::hint::black_box(span))?
                } else {
                    under.transfer(std::hint::black_box(span))?.wait()?
                }
            }
            ns.push(begun.elapsed().as_nanos() as f64 / times as f64);
        }
    }
    let [blocking, runtime] = ns.map(|ns| median(ns).unwrap_or(f64::NAN));
    println!(
        "{}",
        serde_json::json!({"what": "64 B, memory to memory", "blocking_ns": blocking, "runtime_ns": runtime, "more_ns": runtime - blocking})
    );
    Ok(())
}
