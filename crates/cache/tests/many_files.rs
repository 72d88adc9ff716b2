//! The cost of a file in a pool: threads, descriptors, memory. This is the only test of its
//! process, because it reads the figures of the process.
#![allow(clippy::unwrap_used)]

mod fixture;

use datapipes_cache::{BufferPool, CacheOptions, ExternalChanges, FineGrained};
use datapipes_core::Ssd;
use fixture::{File, machine, noise};

const FILES: usize = 300;
const LEN: usize = 96 << 10;
const BUDGET: usize = 8 << 20;
/// The most bytes of a file beside the budget. The actual cost is printed.
const A_FILE: usize = 16 << 10;

#[derive(Clone, Copy, Debug)]
struct Figures {
    threads: usize,
    descriptors: usize,
    resident: usize,
}

fn figures() -> Figures {
    let count = |dir: &str| std::fs::read_dir(dir).unwrap().count();
    // The kernel's own workers of a ring are excluded: they depend on the load, not on files.
    let is_of_ring = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("iou-"))
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap).filter(|t| !is_of_ring(t)).count();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    Figures { threads: tasks, descriptors: count("/proc/self/fd"), resident: pages * 4096 }
}

#[test]
fn three_hundred_files_take_one_thread_and_their_own_descriptors() {
    let files: Vec<File> = (0..FILES).map(|n| File::with(&noise(LEN, n as u64))).collect();
    let _ = machine();
    let start = figures();
    // The whole budget is allocated at once, so later growth is caused by files.
    let mut config = CacheOptions::new(machine()).budget(BUDGET);
    // These files are young, so by their times their cached items would be doubted and dropped now
    // and then.
    config.outside = ExternalChanges::Events;
    if let Err(e) = FineGrained::over(&Ssd::open(files[0].path()).unwrap(), config.clone()) {
        println!("without events: {e}");
        config.outside = ExternalChanges::Never;
    }
    let pool = BufferPool::new(config).unwrap();
    let warm = pool.open(&Ssd::open(files[0].path()).unwrap()).unwrap();
    warm.read(0, &mut [0; 64]).unwrap();
    let one = figures();
    let mut open: Vec<FineGrained> = vec![warm];
    open.extend(files[1..].iter().map(|f| pool.open(&Ssd::open(f.path()).unwrap()).unwrap()));
    let all = figures();
    for (n, fine) in open.iter().enumerate() {
        let expected = noise(LEN, n as u64);
        let mut out = vec![0; 24 * 200];
        let offsets: Vec<u64> = (0..24).map(|i| i * 4000).collect();
        let got = fine.gather(&offsets, 200, &mut out).unwrap().all().unwrap();
        assert_eq!(got.hits + got.misses, 24);
        for (row, &at) in out.chunks(200).zip(&offsets) {
            assert!(row == &expected[at as usize..at as usize + 200], "file {n} at {at}");
        }
    }
    let used = figures();
    println!("before: {start:?}\none file: {one:?}\n{FILES} files: {all:?}\nread: {used:?}");
    let more = FILES - 1;
    let each = |f: fn(&Figures) -> usize| (f(&used) - f(&one)) as f64 / more as f64;
    println!("a file: {:.2} descriptors, {:.0} bytes", each(|f| f.descriptors), each(|f| f.resident));
    assert!(used.threads <= start.threads + 4, "threads: {start:?}, {used:?}");
    assert!(used.threads <= one.threads, "a file costs no thread: {one:?}, {used:?}");
    // The constant covers rings, the thread's eventfd, and the queue of events.
    assert!(used.descriptors <= start.descriptors + 2 * FILES + 8, "descriptors: {start:?}, {used:?}");
    assert!(used.resident <= one.resident + more * A_FILE, "memory: {one:?}, {used:?}");
    let metrics = pool.metrics();
    assert!(metrics.memory_bytes <= BUDGET, "{metrics}");
    assert!(metrics.items > FILES * 12, "{metrics}");
    assert_eq!((pool.files(), metrics.failed), (FILES, 0));
    drop(open);
    let metrics = pool.metrics();
    assert_eq!((pool.files(), metrics.items), (0, 0), "what is cached goes with its file");
    assert!(metrics.device_reads > 0, "what files did that are closed counts");
}
