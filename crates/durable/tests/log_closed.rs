//! A closed log knows its end: anything that goes missing of it, or changes, is `Corrupt`, and
//! never a shorter log.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod scene;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes_core::{ErrorKind, Machine, Result};
use datapipes_durable::log::{Log, LogFolder, LogOptions, LogReader, LogRecord, SegmentStorage, examine};
use scene::{Scratch, machine, record};

fn options() -> LogOptions {
    LogOptions::default().segment_bytes(12 << 10).batch_bytes(4096)
}
/// The file that says where a closed log ends.
const NOTE: &str = "closed";

fn open(machine: &Machine, dir: &Path) -> Result<Log> {
    Log::open(machine, LogFolder::at(machine, dir), options())
}

fn read(machine: &Machine, dir: &Path) -> Result<Vec<LogRecord>> {
    let storage: Arc<dyn SegmentStorage> = Arc::new(LogFolder::at(machine, dir));
    examine(machine, &*storage)?;
    LogReader::open(machine, &*storage, 0)?.collect()
}

/// Appends records until the log has this many segments.
fn fill(log: &Log, dir: &Path, segments: usize) -> u64 {
    let mut number = 0;
    while names(dir).iter().filter(|name| name.ends_with(".log")).count() < segments {
        number = log.append_durable(&record(number + 1, 700)).unwrap();
    }
    number
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// All files of a folder, to be restored.
struct Image(Vec<(String, Vec<u8>)>);

impl Image {
    fn of(dir: &Path) -> Image {
        Image(names(dir).into_iter().map(|name| (name.clone(), fs::read(dir.join(name)).unwrap())).collect())
    }

    fn put(&self, dir: &Path) {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir(dir).unwrap();
        self.0.iter().for_each(|(name, bytes)| fs::write(dir.join(name), bytes).unwrap());
    }
}

/// A closed log, and a folder for damaged copies of it.
struct Closed {
    _scratch: Scratch,
    machine: Machine,
    image: Image,
    all: Vec<LogRecord>,
    dir: PathBuf,
}

impl Closed {
    fn new() -> Closed {
        let (scratch, machine) = (Scratch::new(), machine());
        let dir = scratch.path("log");
        let log = open(&machine, &dir).unwrap();
        fill(&log, &dir, 3);
        log.close().unwrap();
        let all = read(&machine, &dir).unwrap();
        assert!(all.len() > 20 && names(&dir).contains(&NOTE.to_owned()), "{:?}", names(&dir));
        let (image, dir) = (Image::of(&dir), scratch.path("copy"));
        Closed { _scratch: scratch, machine, image, all, dir }
    }

    /// Damages a copy. All readers must find all records, or report that it is corrupt. Returns
    /// whether one reported it.
    fn check(&self, what: &str, damage: impl FnOnce(&Path)) -> bool {
        self.image.put(&self.dir);
        damage(&self.dir);
        let read_all = match read(&self.machine, &self.dir) {
            Ok(records) => {
                assert_eq!(records.len(), self.all.len(), "{what}: read fewer");
                assert!(records == self.all, "{what}: read others");
                true
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: read: {e}");
                false
            }
        };
        let outcome = open(&self.machine, &self.dir);
        let opened_all = match outcome {
            Ok(log) => match log.read_from(0).unwrap().collect::<Result<Vec<_>>>() {
                Ok(records) => {
                    assert_eq!(records.len(), self.all.len(), "{what}: opened with fewer");
                    log.append_durable(b"more").unwrap() == self.all.len() as u64 + 1
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: read from the open log: {e}");
                    false
                }
            },
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: open: {e}");
                false
            }
        };
        !(read_all && opened_all)
    }
}

#[test]
fn every_block_that_is_zeroed_is_noticed_or_was_empty() {
    let closed = Closed::new();
    let mut noticed = 0;
    for (name, bytes) in &closed.image.0 {
        for at in (0..bytes.len()).step_by(512) {
            let end = (at + 512).min(bytes.len());
            let was_empty = bytes[at..end].iter().all(|b| *b == 0);
            let said = closed.check(&format!("{name}, zeros at {at}"), |dir| {
                let mut bad = bytes.clone();
                bad[at..end].fill(0);
                fs::write(dir.join(name), bad).unwrap();
            });
            assert_eq!(said, !was_empty, "{name}, zeros at {at}");
            noticed += u32::from(said);
        }
    }
    assert!(noticed > 30, "{noticed}");
}

#[test]
fn all_that_follows_a_block_zeroed_is_noticed_too() {
    let closed = Closed::new();
    let (name, bytes) = closed.image.0.iter().rfind(|(name, _)| name.ends_with(".log")).unwrap();
    for at in (0..bytes.len()).step_by(512) {
        let was_empty = bytes[at..].iter().all(|b| *b == 0);
        let said = closed.check(&format!("{name}, zeros from {at}"), |dir| {
            let mut bad = bytes.clone();
            bad[at..].fill(0);
            fs::write(dir.join(name), bad).unwrap();
        });
        assert_eq!(said, !was_empty, "{name}, zeros from {at}");
    }
}

#[test]
fn every_removed_file_but_the_note_is_noticed() {
    let closed = Closed::new();
    for (name, _) in &closed.image.0 {
        let said = closed.check(&format!("without {name}"), |dir| fs::remove_file(dir.join(name)).unwrap());
        assert_eq!(said, name != NOTE, "without {name}");
    }
    // All segments are removed.
    assert!(closed.check("without segments", |dir| {
        names(dir).iter().filter(|name| *name != NOTE).for_each(|name| fs::remove_file(dir.join(name)).unwrap());
    }));
}

#[test]
fn every_truncation_is_noticed() {
    let closed = Closed::new();
    for (name, bytes) in &closed.image.0 {
        for len in (0..bytes.len()).step_by(512).chain([bytes.len() - 1]) {
            let said = closed.check(&format!("{name}, cut at {len}"), |dir| {
                fs::File::options().write(true).open(dir.join(name)).unwrap().set_len(len as u64).unwrap();
            });
            assert!(said, "{name}, cut at {len}");
        }
    }
}

#[test]
fn every_bit_of_the_note_counts() {
    let closed = Closed::new();
    let (_, bytes) = closed.image.0.iter().find(|(name, _)| name == NOTE).unwrap();
    let used = bytes.len() - bytes.iter().rev().take_while(|b| **b == 0).count();
    for bit in (0..used * 8).step_by(5) {
        let said = closed.check(&format!("bit {bit} of the note"), |dir| {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(dir.join(NOTE), bad).unwrap();
        });
        assert!(said, "bit {bit}");
    }
}

#[test]
fn a_note_of_another_log_is_no_note_of_this_one() {
    let closed = Closed::new();
    let other = Closed::new();
    let (_, note) = other.image.0.iter().find(|(name, _)| name == NOTE).unwrap();
    assert!(closed.check("another log's note", |dir| fs::write(dir.join(NOTE), note).unwrap()));
}

/// An open log has no note, so that a crash looks like a crash. An older program, which knows no
/// notes, may have appended behind one.
#[test]
fn the_note_is_there_while_the_log_is_closed() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    let has_note = || names(&dir).contains(&NOTE.to_owned());
    let log = open(&machine, &dir).unwrap();
    let n = fill(&log, &dir, 2);
    assert!(!has_note());
    log.close().unwrap();
    let note = fs::read(dir.join(NOTE)).unwrap();
    for _ in 0..2 {
        let log = open(&machine, &dir).unwrap();
        assert!(!has_note(), "before the first append");
        drop(log);
        assert!(has_note(), "dropping closes");
    }
    let log = open(&machine, &dir).unwrap();
    log.append_durable(b"one more").unwrap();
    // Now the process crashes.
    let crashed = scratch.path("crashed");
    Image::of(&dir).put(&crashed);
    assert_eq!(read(&machine, &crashed).unwrap().len() as u64, n + 1);
    // An older program would have left it like this: the note of the first closing, with later
    // records.
    fs::write(crashed.join(NOTE), &note).unwrap();
    assert_eq!(read(&machine, &crashed).unwrap().len() as u64, n + 1);
    let again = open(&machine, &crashed).unwrap();
    assert_eq!(again.append_durable(b"and another").unwrap(), n + 2);
    drop((again, log));
    assert_eq!(read(&machine, &crashed).unwrap().len() as u64, n + 2);
}

#[test]
fn a_reader_continues_while_a_writer_releases_segments() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    let log = open(&machine, &dir).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut opened = 0;
            while !over.load(std::sync::atomic::Ordering::SeqCst) || opened < 20 {
                let storage: Arc<dyn SegmentStorage> = Arc::new(LogFolder::at(&machine, &dir));
                let records = LogReader::open(&machine, &*storage, 0).unwrap();
                let numbers: Vec<u64> = records.map(|record| record.unwrap().number).collect();
                assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
                opened += 1;
            }
        });
        for round in 1..=400 {
            let number = log.append_durable(&record(round, 3000)).unwrap();
            log.release_before(number).unwrap();
        }
        over.store(true, std::sync::atomic::Ordering::SeqCst);
        reads.join().unwrap();
    });
}

/// A folder whose writer releases the first segments while a reader opens them.
struct Releases {
    folder: LogFolder,
    log: Arc<Log>,
    at: u64,
    keep: u64,
}

impl SegmentStorage for Releases {
    fn name(&self) -> String {
        self.folder.name()
    }

    fn lock(&self) -> Result<Box<dyn std::any::Any + Send + Sync>> {
        self.folder.lock()
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.folder.list()
    }

    fn prepare(&self, number: u64, len: u64) -> Result<Box<dyn datapipes_durable::log::UnpublishedSegment>> {
        self.folder.prepare(number, len)
    }

    fn open(&self, number: u64, writable: bool) -> Result<Arc<dyn datapipes_durable::log::SegmentSpace>> {
        if number == self.at {
            self.log.release_before(self.keep)?;
        }
        self.folder.open(number, writable)
    }

    fn note(&self) -> Result<Option<Vec<u8>>> {
        self.folder.note()
    }

    fn remove(&self, number: u64) -> Result<()> {
        self.folder.remove(number)
    }
}

#[test]
fn segments_released_while_a_reader_opens_them_are_not_missing() {
    let (scratch, machine) = (Scratch::new(), machine());
    for at in 1..=4 {
        let dir = scratch.path(&format!("log-{at}"));
        let log = Arc::new(open(&machine, &dir).unwrap());
        let n = fill(&log, &dir, 5);
        let releases = Releases { folder: LogFolder::at(&machine, &dir), log: log.clone(), at, keep: n };
        let storage: Arc<dyn SegmentStorage> = Arc::new(releases);
        let records: Vec<LogRecord> = LogReader::open(&machine, &*storage, 0).unwrap().map(Result::unwrap).collect();
        assert_eq!(records.last().unwrap().number, n, "released at {at}");
        // A segment that is missing in the middle is an error.
        let log = Arc::into_inner(log);
        drop((storage, log));
    }
}

/// A folder in which one segment cannot be removed for now.
struct Stuck(LogFolder, u64);

impl SegmentStorage for Stuck {
    fn name(&self) -> String {
        self.0.name()
    }

    fn lock(&self) -> Result<Box<dyn std::any::Any + Send + Sync>> {
        self.0.lock()
    }

    fn list(&self) -> Result<Vec<u64>> {
        self.0.list()
    }

    fn prepare(&self, number: u64, len: u64) -> Result<Box<dyn datapipes_durable::log::UnpublishedSegment>> {
        self.0.prepare(number, len)
    }

    fn open(&self, number: u64, writable: bool) -> Result<Arc<dyn datapipes_durable::log::SegmentSpace>> {
        self.0.open(number, writable)
    }

    fn note(&self) -> Result<Option<Vec<u8>>> {
        self.0.note()
    }

    fn set_note(&self, note: Option<&[u8]>) -> Result<()> {
        self.0.set_note(note)
    }

    fn remove(&self, number: u64) -> Result<()> {
        if number == self.1 {
            return Err(datapipes_core::Error::new(ErrorKind::Device, "remove", "on purpose"));
        }
        self.0.remove(number)
    }
}

#[test]
fn a_release_that_fails_in_the_middle_leaves_a_log_that_opens() {
    let (scratch, machine) = (Scratch::new(), machine());
    for retried in [false, true] {
        let dir = scratch.path(&format!("log-{retried}"));
        let log = Log::open(&machine, Stuck(LogFolder::at(&machine, &dir), 3), options()).unwrap();
        let n = fill(&log, &dir, 6);
        assert_eq!(log.release_before(n).unwrap_err().kind(), ErrorKind::Device);
        let records: Vec<LogRecord> = log.read_from(0).unwrap().collect::<Result<_>>().unwrap();
        assert_eq!(records.last().unwrap().number, n);
        if retried {
            assert_eq!(log.release_before(n).unwrap_err().kind(), ErrorKind::Device, "still stuck");
        }
        log.close().unwrap();
        let left = read(&machine, &dir).unwrap();
        assert_eq!(left, records[records.len() - left.len()..]);
        // Once it can be removed, it is, and then missing segments before it do not count.
        let log = open(&machine, &dir).unwrap();
        assert!(log.release_before(n).unwrap() >= 1);
        log.close().unwrap();
        assert_eq!(read(&machine, &dir).unwrap().last().unwrap().number, n);
        // A missing segment that the log never tried to remove is an error.
        let log = open(&machine, &dir).unwrap();
        let more = fill(&log, &dir, 4);
        assert!(more > n);
        log.close().unwrap();
        fs::remove_file(dir.join(names(&dir).iter().find(|name| name.ends_with(".log")).unwrap())).unwrap();
        assert_eq!(read(&machine, &dir).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
