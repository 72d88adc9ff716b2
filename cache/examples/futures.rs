//! What reads by futures cost beside `gather`, in CPU time a read: `cargo run --release -p
//! datapipes-cache --example futures FILE`. 64 at once, of 128 bytes at random, most of them
//! misses; the two in turns.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use datapipes_cache::{CacheConfig, FineGrained};
use datapipes_core::{Runtime, Ssd};

const LEN: usize = 128;
const AT_ONCE: usize = 64;
const ROUNDS: usize = 600;

/// CPU time of the process, user and system, in microseconds.
fn cpu_us() -> f64 {
    // SAFETY: an all-zero rusage is a value of its type, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let of = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
    of(usage.ru_utime) + of(usage.ru_stime)
}

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let ssd = Ssd::open(path).unwrap();
    let machine = datapipes::discover();
    let fine = FineGrained::over(&ssd, CacheConfig::new(&machine).budget(16 << 20)).unwrap();
    let runtime = Runtime::start(&machine).unwrap();
    let reads = fine.on(&runtime, AT_ONCE).unwrap();
    let mut state = 7u64;
    let mut offset = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 20) % (fine.len_bytes() / LEN as u64) * LEN as u64
    };
    for turn in 0..5 {
        let (mut by_gather, mut by_futures) = (0.0, 0.0);
        for _ in 0..ROUNDS {
            let offsets: Vec<u64> = (0..AT_ONCE).map(|_| offset()).collect();
            let mut out = vec![0; AT_ONCE * LEN];
            let before = cpu_us();
            fine.gather(&offsets, LEN, &mut out).unwrap().all().unwrap();
            by_gather += cpu_us() - before;
        }
        for _ in 0..ROUNDS {
            let offsets: Vec<u64> = (0..AT_ONCE).map(|_| offset()).collect();
            let before = cpu_us();
            let mut futures: Vec<_> = offsets.iter().map(|&at| (reads.read(at, LEN), false)).collect();
            runtime.block_on(std::future::poll_fn(|context| {
                let mut left = 0;
                for (future, done) in futures.iter_mut().filter(|(_, done)| !done) {
                    match Pin::new(future).poll(context) {
                        Poll::Ready(read) => *done = read.unwrap().len() == LEN,
                        Poll::Pending => left += 1,
                    }
                }
                if left == 0 { Poll::Ready(()) } else { Poll::Pending }
            }));
            by_futures += cpu_us() - before;
        }
        let each = |us: f64| us / (ROUNDS * AT_ONCE) as f64;
        println!(
            "turn {turn}: gather {:.2} us a read, {AT_ONCE} futures {:.2} us, {:.2} times",
            each(by_gather),
            each(by_futures),
            by_futures / by_gather
        );
    }
}
