//! What each flavor of a pipe costs: 4 KiB reads one at a time, 4 KiB reads at depth 32, and 64
//! bytes of memory.
//!
//! `cargo run --release -p datapipes --example flavors [-- --small] [--only=WAY] [DIR]` prints one
//! JSON object a row. All ways read the same random offsets of one file, past the page cache, in
//! turns.
#![allow(unsafe_code, clippy::unwrap_used)] // A peer by hand: a ring, polled.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use datapipes::{Constraints, Dram, FileAccess, Machine, Pipe, PipeFd, Result, Runtime, RuntimePipe, Span, Ssd};
use io_uring::{IoUring, opcode, types};
use rustix::event::epoll::{self, EventData, EventFlags};
use std::os::fd::AsRawFd;

const BLOCK: u64 = 4096;

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
        let ssd = Ssd::unlinked_in(dir)?;
        let filled = Dram::allocate(8 << 20)?;
        filled.lease_mut()?.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 31) as u8);
        let write = machine.connect(&filled, &ssd)?;
        for at in (0..len).step_by(8 << 20) {
            write.transfer(Span { source: 0, target: at, len: 8 << 20 })?;
        }
        ssd.sync()?;
        let ssd = ssd.with_access(FileAccess::Direct)?;
        let dram = Dram::allocate(64 * BLOCK as usize)?;
        let runtime = Runtime::start(&machine)?;
        Ok(Scene { machine, runtime, ssd, dram, blocks: len / BLOCK })
    }

    fn constraints(&self) -> Constraints {
        Constraints {
            bypass_page_cache: true,
            typical_len: Some(BLOCK),
            queue_depth: Some(32),
            ..Constraints::default()
        }
    }

    fn pipe(&self) -> Result<Pipe> {
        self.machine.connect_with(&self.ssd, &self.dram, &self.constraints())
    }

    fn connect(&self) -> datapipes::ConnectOptions {
        datapipes::ConnectOptions { constraints: self.constraints(), ..datapipes::ConnectOptions::default() }
    }

    fn runtime_pipe(&self) -> Result<RuntimePipe> {
        self.runtime.connect_with(&self.ssd, &self.dram, &self.connect())
    }

    fn span(&self, random: &mut u64, slot: u64) -> Span {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        Span { source: *random % self.blocks * BLOCK, target: slot * BLOCK, len: BLOCK }
    }
}

/// Time and processor time of `reads` reads, one by one.
fn timed(scene: &Scene, reads: u64, mut read: impl FnMut(Span) -> Result<()>) -> Result<(Vec<f64>, f64)> {
    let mut random = 0x1234_5678_9abc_def1;
    for _ in 0..20 {
        read(scene.span(&mut random, 0))?;
    }
    let mut us = Vec::with_capacity(reads as usize);
    let (cpu, begun) = (cpu_seconds(), Instant::now());
    for _ in 0..reads {
        let at = Instant::now();
        read(scene.span(&mut random, 0))?;
        us.push(at.elapsed().as_nanos() as f64 / 1e3);
    }
    Ok((us, (cpu_seconds() - cpu) / begun.elapsed().as_secs_f64()))
}

/// As `timed`, for futures.
async fn timed_async(scene: &Scene, reads: u64, pipe: &RuntimePipe) -> Result<(Vec<f64>, f64)> {
    let mut random = 0x1234_5678_9abc_def1;
    for _ in 0..20 {
        pipe.transfer(scene.span(&mut random, 0))?.await?;
    }
    let mut us = Vec::with_capacity(reads as usize);
    let (cpu, begun) = (cpu_seconds(), Instant::now());
    for _ in 0..reads {
        let at = Instant::now();
        pipe.transfer(scene.span(&mut random, 0))?.await?;
        us.push(at.elapsed().as_nanos() as f64 / 1e3);
    }
    Ok((us, (cpu_seconds() - cpu) / begun.elapsed().as_secs_f64()))
}

fn latency(scene: &Scene, reads: u64, turns: u32, only: Option<&str>) -> Result<()> {
    let pipe = scene.pipe()?;
    let runtime = scene.runtime_pipe()?;
    let fd = scene.runtime.connect_fd_with(
        &scene.ssd,
        &scene.dram,
        &datapipes::ConnectFdOptions { connect: scene.connect(), ..datapipes::ConnectFdOptions::default() },
    )?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(&epoll, &fd, EventData::new_u64(0), EventFlags::IN).unwrap();
    let mut ring = Polled::new(scene);
    let mut rows: Vec<(&str, Vec<f64>, Vec<f64>)> = [
        "busy poll of a ring",
        "poll with sleeps of 100 us",
        "blocking",
        "runtime, wait",
        "runtime, await (thread parks)",
        "runtime, await (block_on)",
        "descriptor, epoll",
    ]
    .map(|name| (name, Vec::new(), Vec::new()))
    .into();
    rows.retain(|row| only.is_none_or(|only| row.0.contains(only)));
    for _ in 0..turns {
        for (name, all, cpus) in &mut rows {
            let (us, cpu) = match *name {
                "busy poll of a ring" => timed(scene, reads, |span| ring.read(span, None))?,
                "poll with sleeps of 100 us" => {
                    timed(scene, reads, |span| ring.read(span, Some(Duration::from_micros(100))))?
                }
                "blocking" => timed(scene, reads, |span| pipe.transfer(span))?,
                "runtime, wait" => timed(scene, reads, |span| runtime.transfer(span)?.wait())?,
                "runtime, await (thread parks)" => park_on(timed_async(scene, reads, &runtime))?,
                "runtime, await (block_on)" => scene.runtime.block_on(timed_async(scene, reads, &runtime))?,
                _ => timed(scene, reads, |span| by_descriptor(&fd, &epoll, span))?,
            };
            all.extend(us);
            cpus.push(cpu);
        }
    }
    for (name, mut us, mut cpus) in rows {
        us.sort_by(f64::total_cmp);
        cpus.sort_by(f64::total_cmp);
        let at = |share: f64| us[((us.len() - 1) as f64 * share) as usize];
        println!(
            "{}",
            serde_json::json!({
                "what": "4 KiB read, depth 1", "way": name, "p50_us": at(0.5), "p99_us": at(0.99),
                "cores": cpus[cpus.len() / 2],
            })
        );
    }
    Ok(())
}

fn by_descriptor(fd: &PipeFd, epoll: &std::os::fd::OwnedFd, span: Span) -> Result<()> {
    fd.submit(span)?;
    let mut events = Vec::with_capacity(1);
    loop {
        // EINTR is no reason to stop, as in any event loop.
        let _ = epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None);
        if let Some(done) = fd.complete()? {
            return done.result;
        }
        events.clear();
    }
}

/// The peer: a ring whose completions are looked for, with or without pauses.
struct Polled {
    ring: IoUring,
    fd: i32,
    buffer: Dram,
}

impl Polled {
    fn new(scene: &Scene) -> Polled {
        let ring = IoUring::new(32).unwrap();
        let buffer = Dram::allocate(BLOCK as usize).unwrap();
        let vector = libc::iovec { iov_base: buffer.memory().address().cast(), iov_len: BLOCK as usize };
        // SAFETY: the buffer lives as long as the ring, in the same structure.
        unsafe { ring.submitter().register_buffers(&[vector]) }.unwrap();
        let fd = scene.ssd.file().direct_fd().unwrap().as_raw_fd();
        ring.submitter().register_files(&[fd]).unwrap();
        Polled { ring, fd: 0, buffer }
    }

    fn read(&mut self, span: Span, pause: Option<Duration>) -> Result<()> {
        let address = self.buffer.memory().address();
        let entry = opcode::ReadFixed::new(types::Fixed(self.fd as u32), address, BLOCK as u32, 0).offset(span.source);
        // SAFETY: the buffer and the file outlive the request, which is waited for here.
        unsafe { self.ring.submission().push(&entry.build()) }.unwrap();
        self.ring.submit().unwrap();
        loop {
            if let Some(done) = self.ring.completion().next() {
                assert_eq!(done.result(), BLOCK as i32);
                return Ok(());
            }
            match pause {
                Some(pause) => std::thread::sleep(pause),
                None => std::hint::spin_loop(),
            }
        }
    }
}

/// The smallest executor.
fn park_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Reads per second with 32 outstanding: a ring by hand, the blocking flavor's start, the runtime.
fn throughput(scene: &Scene, reads: u64, turns: u32) -> Result<()> {
    let (pipe, runtime) = (scene.pipe()?, scene.runtime_pipe()?);
    let mut rates: [Vec<(f64, f64)>; 4] = Default::default();
    for _ in 0..turns {
        for (way, rates) in rates.iter_mut().enumerate() {
            let (cpu, begun) = (cpu_seconds(), Instant::now());
            match way {
                0 => by_hand(scene, reads),
                1 => window(scene, reads, |span| pipe.start(span), |t| t.wait())?,
                2 => window(scene, reads, |span| runtime.transfer(span), |t| t.wait())?,
                _ => callbacks(scene, reads, &runtime)?,
            }
            let seconds = begun.elapsed().as_secs_f64();
            rates.push((reads as f64 / seconds, (cpu_seconds() - cpu) / reads as f64 * 1e6));
        }
    }
    for (way, mut rates) in
        ["ring by hand", "blocking, started", "runtime, wait", "runtime, callbacks"].into_iter().zip(rates)
    {
        rates.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (rate, cpu_us) = rates[rates.len() / 2];
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
    let mut random = 0x5eed;
    let mut under_way = std::collections::VecDeque::new();
    for i in 0..reads {
        if under_way.len() == 32 {
            finish(under_way.pop_front().unwrap())?;
        }
        under_way.push_back(start(scene.span(&mut random, i % 64))?);
    }
    under_way.into_iter().try_for_each(finish)
}

/// Each completion starts the next one.
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
    let mut random = 0x5eed;
    let spans = (0..reads).map(|_| scene.span(&mut random, 0)).collect();
    let (done, ends) = mpsc::channel();
    let chain = Arc::new(Chain { pipe: pipe.clone(), spans: Mutex::new(spans), done });
    (0..32).for_each(|slot| go(&chain, slot));
    (0..32).try_for_each(|_| ends.recv().unwrap())
}

fn by_hand(scene: &Scene, reads: u64) {
    let mut ring = IoUring::new(32).unwrap();
    let buffer = Dram::allocate(32 * BLOCK as usize).unwrap();
    let address = buffer.memory().address();
    let vector = libc::iovec { iov_base: address.cast(), iov_len: 32 * BLOCK as usize };
    // SAFETY: the buffer is dropped after the ring, which is declared before it is used last.
    unsafe { ring.submitter().register_buffers(&[vector]) }.unwrap();
    let fd = scene.ssd.file().direct_fd().unwrap().as_raw_fd();
    ring.submitter().register_files(&[fd]).unwrap();
    let (mut started, mut done, mut random) = (0, 0, 0x5eed);
    let mut free: Vec<u64> = (0..32).collect();
    while done < reads {
        while started < reads && !free.is_empty() {
            let slot = free.pop().unwrap();
            let span = scene.span(&mut random, slot);
            // SAFETY: within the buffer.
            let at = unsafe { address.add(span.target as usize) };
            let entry = opcode::ReadFixed::new(types::Fixed(0), at, BLOCK as u32, 0).offset(span.source).build();
            // SAFETY: the slot's bytes are used by this request only, until it is done.
            unsafe { ring.submission().push(&entry.user_data(slot)) }.unwrap();
            started += 1;
        }
        ring.submit_and_wait(1).unwrap();
        for answer in ring.completion() {
            assert_eq!(answer.result(), BLOCK as i32);
            free.push(answer.user_data());
            done += 1;
        }
    }
    drop(ring);
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
    ns.iter_mut().for_each(|ns| ns.sort_by(f64::total_cmp));
    let [blocking, runtime] = ns.map(|ns| ns[ns.len() / 2]);
    println!(
        "{}",
        serde_json::json!({"what": "64 B, memory to memory", "blocking_ns": blocking, "runtime_ns": runtime, "more_ns": runtime - blocking})
    );
    Ok(())
}

fn cpu_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a live variable of the type that the call writes, all of whose
    // patterns are valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
