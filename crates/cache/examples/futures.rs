//! The cost of reads by futures, and by one future for all, compared with `gather`, in CPU time a
//! read: `cargo run --release -p
//! datapipes-cache --example futures FILE`. It makes 64 random reads of 128 bytes at once, most of
//! them misses, and alternates between the two.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use datapipes_cache::{CacheOptions, FineGrained};
use datapipes_core::{Runtime, Ssd};

const LEN: usize = 128;
const AT_ONCE: usize = 64;
const ROUNDS: usize = 600;

/// Whether a future was woken since it was polled, as executors keep it: the others are not polled.
#[derive(Default)]
struct Woken {
    /// Nothing before the first poll.
    parent: Mutex<Option<Waker>>,
    is_quiet: AtomicBool,
}

impl Woken {
    /// Whether it is to be polled now; keeps the waker of the whole.
    fn take(&self, parent: &Waker) -> bool {
        self.parent.lock().unwrap().get_or_insert_with(|| parent.clone());
        !self.is_quiet.swap(true, Ordering::SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_quiet.store(false, Ordering::SeqCst);
        let parent = self.parent.lock().unwrap().clone();
        parent.into_iter().for_each(Waker::wake);
    }
}

/// CPU and wall-clock microseconds.
#[derive(Default)]
struct Cost {
    cpu: f64,
    wall: f64,
}

impl Cost {
    fn add(&mut self, work: impl FnOnce()) {
        let (before, started) = (cpu_us(), Instant::now());
        work();
        self.cpu += cpu_us() - before;
        self.wall += started.elapsed().as_secs_f64() * 1e6;
    }
}

/// The CPU time of the process, user and system, in microseconds.
fn cpu_us() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 * 1e6 + used.tv_nsec as f64 / 1e3
}

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let ssd = Ssd::open(path).unwrap();
    let machine = datapipes::discover();
    let fine = FineGrained::over(&ssd, CacheOptions::new(&machine).budget(16 << 20)).unwrap();
    let runtime = Runtime::start(&machine).unwrap();
    let reads = fine.on(&runtime, AT_ONCE).unwrap();
    let mut state = 7u64;
    let mut offset = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 20) % (fine.len_bytes() / LEN as u64) * LEN as u64
    };
    for turn in 0..5 {
        let (mut by_gather, mut by_futures, mut by_one) = (Cost::default(), Cost::default(), Cost::default());
        for _ in 0..ROUNDS {
            let offsets: Vec<u64> = (0..AT_ONCE).map(|_| offset()).collect();
            let mut out = vec![0; AT_ONCE * LEN];
            by_gather.add(|| drop(fine.gather(&offsets, LEN, &mut out).unwrap().all().unwrap()));
        }
        for _ in 0..ROUNDS {
            let offsets: Vec<u64> = (0..AT_ONCE).map(|_| offset()).collect();
            let out = vec![0; AT_ONCE * LEN];
            by_one.add(|| drop(runtime.block_on(reads.gather(offsets, LEN, out)).unwrap().1.all().unwrap()));
        }
        for _ in 0..ROUNDS {
            let offsets: Vec<u64> = (0..AT_ONCE).map(|_| offset()).collect();
            let work = || {
                let mut futures: Vec<_> = offsets.iter().map(|&at| Some(reads.read(at, LEN))).collect();
                let woken: Vec<_> = (0..AT_ONCE).map(|_| Arc::new(Woken::default())).collect();
                runtime.block_on(std::future::poll_fn(|context| {
                    let mut left = 0;
                    for (future, woken) in futures.iter_mut().zip(&woken) {
                        let Some(reading) = future else { continue };
                        left += 1;
                        if !woken.take(context.waker()) {
                            continue;
                        }
                        let waker = Waker::from(woken.clone());
                        if let Poll::Ready(read) = Pin::new(reading).poll(&mut Context::from_waker(&waker)) {
                            assert_eq!(read.unwrap().len(), LEN);
                            *future = None;
                            left -= 1;
                        }
                    }
                    if left == 0 { Poll::Ready(()) } else { Poll::Pending }
                }));
            };
            by_futures.add(work);
        }
        let each = |us: f64| us / (ROUNDS * AT_ONCE) as f64;
        let told = |name: &str, cost: &Cost| {
            println!(
                "turn {turn}: {name}: {:.2} us of CPU a read ({:.2} of gather), {:.2} us of time ({:.2} of gather)",
                each(cost.cpu),
                cost.cpu / by_gather.cpu,
                each(cost.wall),
                cost.wall / by_gather.wall
            );
        };
        told("gather", &by_gather);
        told("one future", &by_one);
        told("64 futures", &by_futures);
    }
}
