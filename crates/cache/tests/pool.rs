//! Many files in one pool, compared with a model of each. They are opened and closed while others
//! are read, written, and rejected by their checks.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use datapipes_cache::{BufferPool, CacheOptions, CachePolicy, ExternalChanges, FineGrained};
use datapipes_core::{ErrorKind, Ssd};
use datapipes_testkit::PATIENCE;
use fixture::{File, Random, machine, mix, noise, seed, steps};

const BUDGET: usize = 2 << 20;

fn pool(policy: CachePolicy) -> BufferPool {
    pool_that_looks(policy, ExternalChanges::Every(Duration::from_millis(20)))
}

fn pool_that_looks(policy: CachePolicy, outside: ExternalChanges) -> BufferPool {
    let mut config = CacheOptions::new(machine()).budget(BUDGET).policy(policy);
    config.prefault = false;
    config.outside = outside;
    // A machine that does much else may keep a reader from its lane for seconds.
    config.patience = PATIENCE;
    BufferPool::new(config).unwrap()
}

/// The bytes of a record. It begins with its version number. The rest follows from that, the file
/// and the record.
const RECORD: usize = 96;
const RECORDS: u64 = 700;

fn record(file: u64, number: u64, version: u64) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    for (word, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        let value = if word == 0 { version } else { mix(file << 48 ^ number << 24 ^ version << 4 ^ word as u64) };
        chunk.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// A file of records, and its known versions.
struct Model {
    number: u64,
    file: File,
    /// The least version of each record that a read which begins now must see.
    least: Vec<AtomicU64>,
    /// Held by the writer.
    writing: Mutex<()>,
    open: Mutex<Option<FineGrained>>,
}

impl Model {
    fn new(number: u64) -> Model {
        let bytes: Vec<u8> = (0..RECORDS).flat_map(|r| record(number, r, 1)).collect();
        let least = (0..RECORDS).map(|_| AtomicU64::new(1)).collect();
        Model { number, file: File::with(&bytes), least, writing: Mutex::default(), open: Mutex::default() }
    }

    /// Returns a handle, if the file is open.
    fn fine(&self) -> Option<FineGrained> {
        self.open.lock().unwrap().clone()
    }

    fn check(&self, at: u64, least: u64, bytes: &[u8]) {
        let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(version >= least, "file {} record {at}: version {version} after {least}", self.number);
        assert!(bytes == record(self.number, at, version), "file {} record {at} version {version}: torn", self.number);
    }

    fn read(&self, fine: &FineGrained, r: &mut Random) {
        let at = r.below(RECORDS);
        let offset = at * RECORD as u64;
        let least = self.least[at as usize].load(SeqCst);
        match r.below(4) {
            0 => self.check(at, least, &fine.get(offset, RECORD).unwrap()),
            1 => {
                let some: Vec<u64> = (0..20).map(|_| r.below(RECORDS)).collect();
                let leasts: Vec<u64> = some.iter().map(|&n| self.least[n as usize].load(SeqCst)).collect();
                let offsets: Vec<u64> = some.iter().map(|n| n * RECORD as u64).collect();
                let mut out = vec![0; 20 * RECORD];
                fine.gather(&offsets, RECORD, &mut out).unwrap().all().unwrap();
                for ((row, &n), &least) in out.chunks(RECORD).zip(&some).zip(&leasts) {
                    self.check(n, least, row);
                }
            }
            _ => {
                let mut out = [0; RECORD];
                fine.read(offset, &mut out).unwrap();
                self.check(at, least, &out);
            }
        }
    }

    fn write(&self, fine: &FineGrained, r: &mut Random) {
        let Ok(_only) = self.writing.try_lock() else { return };
        let at = r.below(RECORDS);
        let version = self.least[at as usize].load(SeqCst) + 1;
        fine.writer().unwrap().write(at * RECORD as u64, &record(self.number, at, version)).unwrap();
        self.least[at as usize].store(version, SeqCst);
    }
}

#[test]
fn every_read_is_of_its_own_file_whatever_is_opened_and_closed() {
    let (seed, steps) = (seed(), steps(4_000));
    for (n, policy) in [CachePolicy::Adaptive, CachePolicy::Pipette].into_iter().enumerate() {
        let pool = pool(policy);
        let models: Vec<Model> = (0..24).map(|i| Model::new(n as u64 * 100 + i)).collect();
        let read = AtomicU64::new(0);
        std::thread::scope(|threads| {
            for thread in 0..4u64 {
                let (pool, models, read) = (&pool, &models, &read);
                threads.spawn(move || {
                    let mut r = Random(seed ^ thread << 32);
                    for _ in 0..steps {
                        let model = &models[r.below(models.len() as u64) as usize];
                        match (r.below(24), model.fine()) {
                            (0, Some(_)) => {
                                // Other threads may still have handles of it.
                                let closed = model.open.lock().unwrap().take();
                                drop(closed);
                            }
                            (1, Some(fine)) => model.write(&fine, &mut r),
                            (_, None) => {
                                let mut open = model.open.lock().unwrap();
                                if open.is_none() {
                                    *open = Some(pool.open(&Ssd::open_rw(model.file.path()).unwrap()).unwrap());
                                }
                            }
                            (_, Some(fine)) => {
                                model.read(&fine, &mut r);
                                read.fetch_add(1, SeqCst);
                            }
                        }
                    }
                });
            }
        });
        let metrics = pool.metrics();
        assert!(metrics.hits > 0 && metrics.memory_bytes <= BUDGET, "{policy:?}: {metrics}");
        println!("{policy:?}: {} reads by hand, {} hits, {} misses", read.load(SeqCst), metrics.hits, metrics.misses);
        // The remaining bytes are right, too.
        for model in &models {
            let fine = model.fine().unwrap_or_else(|| pool.open(&Ssd::open(model.file.path()).unwrap()).unwrap());
            for at in 0..RECORDS {
                let mut out = [0; RECORD];
                fine.read(at * RECORD as u64, &mut out).unwrap();
                assert!(
                    out == record(model.number, at, model.least[at as usize].load(SeqCst)),
                    "DATAPIPES_SEED={seed}"
                );
            }
        }
    }
}

#[test]
fn a_check_that_fails_or_panics_is_its_own_files_alone() {
    let pool = pool(CachePolicy::default());
    let files: Vec<File> = (0..3).map(|n| File::with(&noise(64 << 10, n))).collect();
    let open = |n: usize, verify: Option<datapipes_cache::Verify>| {
        let mut options = pool.file_options();
        options.verify = verify;
        pool.open_with(&Ssd::open(files[n].path()).unwrap(), options).unwrap()
    };
    let good = open(0, None);
    let bad = open(1, Some(Arc::new(|_, _| Err("no good".into()))));
    let worse = open(2, Some(Arc::new(|_, _| panic!("a check of the test's"))));
    let expected = noise(64 << 10, 0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for (fine, panics) in [(&bad, false), (&worse, true)] {
            let stop = &stop;
            threads.spawn(move || {
                let mut r = Random(3);
                loop {
                    let at = r.below(60_000);
                    let outcome = catch_unwind(AssertUnwindSafe(|| fine.read(at, &mut [0; 64])));
                    match outcome {
                        Err(_) => assert!(panics),
                        Ok(read) => assert!(!panics && read.unwrap_err().kind() == ErrorKind::Corrupt),
                    }
                    if stop.load(SeqCst) {
                        break;
                    }
                }
            });
        }
        let mut r = Random(4);
        for _ in 0..3000 {
            let at = r.below(60_000) as usize;
            let mut out = [0; 200];
            good.read(at as u64, &mut out).unwrap();
            assert!(out == expected[at..at + 200]);
        }
        stop.store(true, SeqCst);
    });
    let metrics = (good.metrics(), bad.metrics(), worse.metrics());
    assert_eq!(metrics.0.failed, 0);
    assert!(metrics.1.failed > 0 && metrics.0.hits > 0);
}

#[test]
fn what_another_process_does_to_one_file_leaves_the_others_cached() {
    // Changes are found by events alone: these files are young, and by their times all are in
    // doubt.
    let pool = pool_that_looks(CachePolicy::default(), ExternalChanges::Events);
    let files: Vec<File> = (0..3).map(|n| File::with(&noise(64 << 10, n))).collect();
    let open: Vec<_> = match files.iter().map(|f| pool.open(&Ssd::open_rw(f.path()).unwrap())).collect() {
        Ok(open) => open,
        Err(e) => return println!("SKIPPED: what_another_process_does_to_one_file_leaves_the_others_cached: {e}"),
    };
    let mut out = [0; 64];
    open.iter().for_each(|f| f.read(640, &mut [0; 64]).unwrap());
    let script = "printf somebody | dd of=\"$0\" bs=1 seek=640 conv=notrunc 2>/dev/null";
    assert!(std::process::Command::new("sh").args(["-c", script]).arg(files[1].path()).status().unwrap().success());
    let started = std::time::Instant::now();
    while &out[..8] != b"somebody" {
        open[1].read(640, &mut out).unwrap();
        assert!(started.elapsed() < Duration::from_secs(20), "it is never noticed");
    }
    for n in [0, 2] {
        let before = open[n].metrics().device_reads;
        open[n].read(640, &mut out).unwrap();
        assert_eq!((open[n].metrics().device_reads, open[n].metrics().changes_outside), (before, 0), "file {n}");
    }
}

#[test]
fn a_file_that_grows_and_a_file_that_comes_after_it_are_kept_apart() {
    // What was read is not in doubt by the file's times.
    let pool = pool_that_looks(CachePolicy::default(), ExternalChanges::Never);
    // The file grows beyond its first part of 1 MiB, as a sparse file.
    let file = File::with(&noise(4096, 1));
    let ssd = Ssd::open_rw(file.path()).unwrap();
    let fine = pool.open(&ssd).unwrap();
    let raw = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
    for at in [5 << 20, 300 << 20, 3 << 30] {
        raw.write_all_at(b"far away", at).unwrap();
        let mut out = [0; 8];
        for hit in [false, true] {
            let before = fine.metrics().device_reads;
            fine.read(at, &mut out).unwrap();
            assert_eq!((&out, fine.metrics().device_reads == before), (b"far away", hit), "at {at}");
        }
        fine.writer().unwrap().write(at, b"far more").unwrap();
        fine.read(at, &mut out).unwrap();
        assert_eq!(&out, b"far more");
    }
    drop((fine, ssd));
    assert_eq!(pool.metrics().items, 0);
    let others: Vec<File> = (0..4).map(|n| File::with(&noise(8192, n))).collect();
    for (n, file) in others.iter().enumerate() {
        let fine = pool.open(&Ssd::open(file.path()).unwrap()).unwrap();
        let mut out = [0; 8192];
        fine.read(0, &mut out).unwrap();
        assert!(out == *noise(8192, n as u64));
        assert_eq!(fine.read(8192, &mut [0; 8]).unwrap_err().kind(), ErrorKind::EndOfFile);
    }
}

#[test]
fn a_snapshot_is_of_one_file() {
    // Nobody else writes. Otherwise files as young as these would be in doubt.
    let pool = pool_that_looks(CachePolicy::default(), ExternalChanges::Never);
    let files: Vec<File> = (0..2).map(|n| File::with(&noise(64 << 10, n))).collect();
    let open: Vec<_> = files.iter().map(|f| pool.open(&Ssd::open(f.path()).unwrap()).unwrap()).collect();
    for _ in 0..3 {
        (0..10).for_each(|i| open[0].read(i * 5000, &mut [0; 64]).unwrap());
        (0..20).for_each(|i| open[1].read(i * 3072, &mut [0; 64]).unwrap());
    }
    let snapshot = files[1].beside(".snapshot");
    assert_eq!(open[1].save(&snapshot).unwrap(), 20);
    drop(open);
    // The file has another position in the space of another pool.
    let other = pool_that_looks(CachePolicy::Sieve, ExternalChanges::Never);
    let _first = other.open(&Ssd::open(files[0].path()).unwrap()).unwrap();
    let again = other.open(&Ssd::open(files[1].path()).unwrap()).unwrap();
    let warmed = again.load(&snapshot).unwrap();
    assert_eq!((warmed.items, warmed.read_again), (20, false));
    let expected = noise(64 << 10, 1);
    for i in 0..20 {
        let mut out = [0; 64];
        again.read(i * 3072, &mut out).unwrap();
        assert!(out == expected[i as usize * 3072..][..64]);
    }
    assert_eq!(again.metrics().device_reads, 0);
    std::fs::remove_file(&snapshot).unwrap();
}
