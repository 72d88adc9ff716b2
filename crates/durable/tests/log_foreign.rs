//! Foreign storage that panics, and a kernel that gives no threads: no thread hangs, and
//! acknowledged records are there.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use datapipes_core::{ErrorKind, Locator, Machine, Result};
use datapipes_durable::log::{
    Log, LogFolder, LogOptions, LogReader, LogRecord, SegmentSpace, SegmentStorage, UnpublishedSegment,
};
use datapipes_testkit::child::{NoThreads, as_another_user};
use scene::{Scratch, machine, record};

fn options() -> LogOptions {
    LogOptions::default().segment_bytes(32 << 10).batch_bytes(8 << 10)
}

/// The call that panics, and its number.
#[derive(Default)]
struct Plan {
    syncs: AtomicU64,
    prepares: AtomicU64,
    /// With `usize::MAX` no call panics.
    at_sync: AtomicU64,
    at_prepare: AtomicU64,
}

impl Plan {
    fn count(calls: &AtomicU64, at: &AtomicU64, what: &str) {
        let nth = calls.fetch_add(1, SeqCst) + 1;
        assert!(nth != at.load(SeqCst), "{what} number {nth} panics, as it was told to");
    }
}

struct Panicky {
    folder: LogFolder,
    plan: Arc<Plan>,
}

struct PanickyMedium(Arc<dyn SegmentSpace>, Arc<Plan>);

impl SegmentSpace for PanickyMedium {
    fn target(&self) -> &dyn Locator {
        self.0.target()
    }

    fn source(&self) -> &dyn Locator {
        self.0.source()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.0.len_bytes()
    }

    fn sync(&self) -> Result<()> {
        Plan::count(&self.1.syncs, &self.1.at_sync, "sync");
        self.0.sync()
    }
}

struct PanickySpare(Box<dyn UnpublishedSegment>, Arc<Plan>);

impl SegmentSpace for PanickySpare {
    fn target(&self) -> &dyn Locator {
        self.0.target()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.0.len_bytes()
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
}

impl UnpublishedSegment for PanickySpare {
    fn publish(self: Box<Self>) -> Result<Arc<dyn SegmentSpace>> {
        Ok(Arc::new(PanickyMedium(self.0.publish()?, self.1)))
    }
}

impl SegmentStorage for Panicky {
    fn name(&self) -> String {
        self.folder.name()
    }

    fn lock(&self) -> Result<Box<dyn Any + Send + Sync>> {
        self.folder.lock()
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.folder.list()
    }

    fn prepare(&self, number: u64, len: u64) -> Result<Box<dyn UnpublishedSegment>> {
        Plan::count(&self.plan.prepares, &self.plan.at_prepare, "prepare");
        Ok(Box::new(PanickySpare(self.folder.prepare(number, len)?, self.plan.clone())))
    }

    fn open(&self, number: u64, writable: bool) -> Result<Arc<dyn SegmentSpace>> {
        Ok(Arc::new(PanickyMedium(self.folder.open(number, writable)?, self.plan.clone())))
    }

    fn remove(&self, number: u64) -> Result<()> {
        self.folder.remove(number)
    }
}

fn read(machine: &Machine, dir: &PathBuf) -> Vec<LogRecord> {
    let storage: Arc<dyn SegmentStorage> = Arc::new(LogFolder::at(machine, dir));
    LogReader::open(machine, &*storage, 0).unwrap().collect::<Result<_>>().unwrap()
}

#[test]
fn storage_that_panics_ends_the_log_for_everybody_and_nobody_hangs() {
    let machine = machine();
    for at in [1, 2, 7] {
        let (scratch, plan) = (Scratch::new(), Arc::new(Plan::default()));
        let dir = scratch.path("log");
        let storage = Panicky { folder: LogFolder::at(&machine, &dir), plan: plan.clone() };
        let log = Log::open(&machine, storage, options()).unwrap();
        log.append_durable(b"one").unwrap();
        plan.at_sync.store(plan.syncs.load(SeqCst) + at, SeqCst);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // A hang fails the test instead of blocking the run.
            scope.spawn(|| {
                for _ in 0..60_000 {
                    if over.load(SeqCst) {
                        return;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                eprintln!("threads wait for a log whose storage panicked");
                std::process::abort();
            });
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..50).map(|n| log.append_durable(&record(n, 100))).find_map(Result::err)))
                .collect();
            for thread in threads {
                let error = thread.join().unwrap().unwrap();
                assert!(
                    error.kind() == ErrorKind::Panicked && error.to_string().contains("as it was told to"),
                    "{error}"
                );
            }
            over.store(true, SeqCst);
        });
        assert_eq!(log.append_durable(b"more").unwrap_err().kind(), ErrorKind::Panicked);
        let durable = log.stats().durable_before;
        assert!(log.close().is_err());
        let found = read(&machine, &dir);
        assert!(found.len() as u64 >= durable - 1 && found[0].payload == b"one", "{}", found.len());
    }
}

#[test]
fn storage_that_panics_ahead_of_need_is_asked_again() {
    let machine = machine();
    let (scratch, plan) = (Scratch::new(), Arc::new(Plan::default()));
    let dir = scratch.path("log");
    plan.at_prepare.store(2, SeqCst);
    let log =
        Log::open(&machine, Panicky { folder: LogFolder::at(&machine, &dir), plan: plan.clone() }, options()).unwrap();
    for number in 1..=200 {
        log.append_durable(&record(number, 500)).unwrap();
    }
    assert!(log.stats().segments_begun > 1 && plan.prepares.load(SeqCst) > 2);
    log.close().unwrap();
    assert_eq!(read(&machine, &dir).len(), 200);
}

#[test]
fn without_threads_segments_are_made_when_they_are_needed() {
    if !as_another_user("without_threads_segments_are_made_when_they_are_needed") {
        return;
    }
    // This user may not write where the others do.
    let dir = std::env::temp_dir().join(format!("durable-nobody-{}", std::process::id()));
    let machine = machine();
    let log = Log::open(&machine, LogFolder::at(&machine, &dir), options()).unwrap();
    let limit = NoThreads::from_now_on();
    for number in 1..=200 {
        log.append_durable(&record(number, 500)).unwrap();
    }
    assert!(log.stats().segments_begun > 1);
    log.close().unwrap();
    drop(limit);
    let found = read(&machine, &dir);
    assert!(found.len() == 200 && found.iter().all(|r| r.payload == record(r.number, 500)));
    std::fs::remove_dir_all(&dir).unwrap();
}
