//! The log on files whose requests fail or fall short, and in a process that is killed.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use datapipes_core::{ErrorKind, Machine, Result};
use datapipes_durable::log::{Log, LogFolder, LogOptions, LogReader, LogRecord, SegmentStorage};
use datapipes_file::{FaultInjector, FaultVerdict, FileBackendOptions, Operation};
use scene::{Killed, Random, Scratch, machine, machine_with, record, seed};

fn options() -> LogOptions {
    LogOptions::default().segment_bytes(128 << 10).batch_bytes(16 << 10)
}

fn read(machine: &Machine, dir: &Path) -> Result<Vec<LogRecord>> {
    let storage: Arc<dyn SegmentStorage> = Arc::new(LogFolder::at(machine, dir));
    LogReader::open(machine, &*storage, 0)?.collect()
}

/// The outcome of the n-th write from now; reads and other writes succeed.
struct Script {
    writes: AtomicU64,
    at: AtomicU64,
    verdict: FaultVerdict,
    hits: AtomicU64,
}

impl Script {
    fn new(at: u64, verdict: FaultVerdict) -> Arc<Script> {
        Arc::new(Script { writes: AtomicU64::new(0), at: AtomicU64::new(at), verdict, hits: AtomicU64::new(0) })
    }
}

impl FaultInjector for Script {
    fn verdict(&self, op: &Operation) -> FaultVerdict {
        let every = matches!(self.verdict, FaultVerdict::Short(_));
        let at = self.at.load(SeqCst);
        if !op.write || !(self.writes.fetch_add(1, SeqCst) == at || every && op.len > 16) {
            return FaultVerdict::Pass;
        }
        self.hits.fetch_add(1, SeqCst);
        match self.verdict {
            FaultVerdict::Short(part) => FaultVerdict::Short((op.len / part).max(1)),
            other => other,
        }
    }
}

#[test]
fn short_writes_and_reads_change_nothing() {
    let (scratch, faults) = (Scratch::new(), Script::new(u64::MAX, FaultVerdict::Short(3)));
    let machine = machine_with(FileBackendOptions::default().faults(faults.clone()));
    let log = Log::open(&machine, LogFolder::at(&machine, scratch.path("log")), options()).unwrap();
    for number in 1..=200 {
        drop(log.append(&record(number, 2000)).unwrap());
        if number % 7 == 0 {
            log.sync().unwrap();
        }
    }
    log.close().unwrap();
    assert!(faults.hits.load(SeqCst) > 20);
    let all: Vec<LogRecord> = (1..=200).map(|number| LogRecord { number, payload: record(number, 2000) }).collect();
    assert_eq!(read(&machine, &scratch.path("log")).unwrap(), all);
}

#[test]
fn an_error_of_any_write_loses_nothing_that_was_acknowledged() {
    for (errno, kind) in [(libc::EIO, ErrorKind::Device), (libc::ENOSPC, ErrorKind::NoSpace)] {
        let mut met = 0;
        for at in (0..90).step_by(7) {
            let name = format!("errno {errno} at write {at}");
            let (scratch, faults) = (Scratch::new(), Script::new(at, FaultVerdict::Errno(errno)));
            let dir = scratch.path("log");
            let machine = machine_with(FileBackendOptions::default().faults(faults.clone()));
            let mut acknowledged = 0;
            let outcome = Log::open(&machine, LogFolder::at(&machine, &dir), options()).and_then(|log| {
                for number in 1..=60 {
                    log.append_durable(&record(number, 4000))?;
                    acknowledged = number;
                }
                log.close()
            });
            let hit = faults.hits.load(SeqCst) > 0;
            // The space for the next segment is made ahead, and made again if that failed. Then no
            // error is reported.
            if let Err(error) = &outcome {
                assert!(hit, "{name}: {error}");
                assert_eq!((error.kind(), error.errno()), (kind, Some(errno)), "{name}: {error}");
                met += 1;
            }
            faults.at.store(u64::MAX, SeqCst);
            let log =
                Log::open(&machine, LogFolder::at(&machine, &dir), options()).unwrap_or_else(|e| panic!("{name}: {e}"));
            let found: Vec<LogRecord> = log.read_from(0).unwrap().collect::<Result<_>>().unwrap();
            assert!(found.len() as u64 >= acknowledged && found.len() as u64 <= acknowledged + 1, "{name}");
            for r in &found {
                assert_eq!(r.payload, record(r.number, 4000), "{name}");
            }
            assert_eq!(log.append_durable(b"on").unwrap(), found.len() as u64 + 1, "{name}");
            let names = scratch.names("log");
            assert!(names.iter().all(|n| n.ends_with(".log")), "{name}: leftovers {names:?}");
        }
        assert!(met >= 3, "errno {errno} was met {met} times");
    }
}

/// The child process of the test below. It appends from several threads until it is killed, and
/// prints which records are durable.
#[test]
#[ignore = "run by killed_at_any_moment, which kills it"]
fn child_appends_until_killed() {
    let dir = std::env::var_os("DURABLE_CHILD").expect("its parent names the folder");
    let machine = machine();
    let log = Log::open(&machine, LogFolder::at(&machine, dir), options()).unwrap();
    let next = log.stats().next;
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let log = &log;
            scope.spawn(move || {
                let mut random = Random(next * 3 + thread);
                loop {
                    // The content follows from its first eight bytes, which are printed with the
                    // number.
                    let key = random.next();
                    let number = log.append_durable(&record(key, 700)).unwrap();
                    // One write, so that lines of threads do not mix, and past the test's capture.
                    let line = format!("ack {number} {key}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

#[test]
fn killed_at_any_moment() {
    let seed = seed(11);
    let random = &mut Random(seed);
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    let mut acknowledged: Vec<(u64, u64)> = Vec::new();
    let mut bare = 0;
    for kill in 0..14 {
        let name = format!("seed {seed}, kill {kill}");
        // It is killed between the opening of the log and some segments later.
        let child = Killed::child("child_appends_until_killed", &dir);
        let wait_for = if random.below(4) == 0 { 0 } else { random.below(250) };
        let lines = child.after(wait_for, random.next() % 20_000);
        let acks = lines.iter().filter_map(|line| {
            // The first line may follow the harness's own words.
            let (number, key) = line.split("ack ").nth(1)?.split_once(' ')?;
            Some((number.parse::<u64>().ok()?, key.parse::<u64>().ok()?))
        });
        let acks: Vec<(u64, u64)> = acks.collect();
        bare += usize::from(acks.is_empty());
        acknowledged.extend(acks);
        match read(&machine, &dir) {
            Err(e) if acknowledged.is_empty() && e.kind() == ErrorKind::NotFound => continue,
            Err(e) => panic!("{name}: {e}"),
            Ok(found) => {
                for (at, r) in found.iter().enumerate() {
                    assert_eq!(r.number, at as u64 + 1, "{name}");
                    let key = u64::from_le_bytes(*r.payload.first_chunk().unwrap());
                    assert_eq!(r.payload, record(key, 700), "{name}: record {} was invented", r.number);
                }
                for (number, key) in &acknowledged {
                    let r = found.get(*number as usize - 1);
                    let r =
                        r.unwrap_or_else(|| panic!("{name}: {number} was acknowledged, and {} are there", found.len()));
                    assert!(r.payload.starts_with(&key.to_le_bytes()), "{name}: record {number} is another one");
                }
            }
        }
    }
    println!("{} records were acknowledged, {bare} processes died before their first", acknowledged.len());
    assert!(acknowledged.len() > 500, "{}: the children are told to append more than that", acknowledged.len());
}
