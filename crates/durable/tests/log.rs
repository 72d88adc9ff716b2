//! The log as its users see it, on real files, and on files that were cut and damaged everywhere.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes_core::{ErrorKind, Machine, Result};
use datapipes_durable::log::{Log, LogFolder, LogOptions, LogReader, LogRecord, SegmentStorage, examine};
use scene::{Scratch, machine, record};

fn small() -> LogOptions {
    LogOptions::default().segment_bytes(32 << 10).batch_bytes(8 << 10)
}

fn open(machine: &Machine, dir: &Path, options: LogOptions) -> Result<Log> {
    Log::open(machine, LogFolder::at(machine, dir), options)
}

fn storage(machine: &Machine, dir: &Path) -> Arc<dyn SegmentStorage> {
    Arc::new(LogFolder::at(machine, dir))
}

fn read(machine: &Machine, dir: &Path) -> Result<Vec<LogRecord>> {
    LogReader::open(machine, &*storage(machine, dir), 0)?.collect()
}

fn segment(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.log"))
}

/// The first `n` records of a test, from number 1.
fn expected(n: u64, most: usize) -> Vec<LogRecord> {
    (1..=n).map(|number| LogRecord { number, payload: record(number, most) }).collect()
}

#[test]
fn what_was_appended_is_read() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("made/below");
    let log = open(&machine, &dir, small()).unwrap();
    let mut tickets = Vec::new();
    for number in 1..=100 {
        tickets.push(log.append(&record(number, 300)).unwrap());
    }
    assert_eq!(tickets[41].number(), 42);
    assert!(!tickets.last().unwrap().is_done(), "nobody waited yet");
    assert_eq!(tickets.pop().unwrap().wait().unwrap(), 100);
    assert!(tickets.iter().all(|t| t.is_done()), "what came before is durable too");
    drop(tickets);
    assert_eq!(log.append_durable(&[]).unwrap(), 101, "an empty record is one");
    let now: Vec<LogRecord> = log.read_from(0).unwrap().collect::<Result<_>>().unwrap();
    assert_eq!(now[..100], expected(100, 300));
    assert!(now[100].payload.is_empty());
    let stats = log.stats();
    assert!(stats.records == 101 && stats.durable_before == 102 && stats.batches >= 2, "{stats:?}");
    assert!(stats.largest_batch > 10 && stats.waits_for_room > 0 && stats.acknowledged.count == 2, "{stats:?}");
    assert!(stats.sync.p50_ns > 0 && stats.failed.is_none());
    println!("{}", log.route().unwrap());
    let moved: u64 = log.movements().iter().map(|hop| hop.counters.bytes).sum();
    assert!(moved >= stats.written_bytes, "{moved} of {stats:?}");
    log.close().unwrap();
    assert_eq!(read(&machine, &dir).unwrap(), now);
    let from: Vec<LogRecord> =
        LogReader::open(&machine, &*storage(&machine, &dir), 42).unwrap().collect::<Result<_>>().unwrap();
    assert_eq!(from, now[41..]);
}

#[test]
fn a_log_continues_after_it_was_closed_dropped_or_leaked() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    let mut number = 0;
    for turn in 0..9 {
        let log = open(&machine, &dir, small()).unwrap();
        for _ in 0..20 {
            number += 1;
            drop(log.append(&record(number, 500)).unwrap());
        }
        match turn % 3 {
            0 => log.close().unwrap(),
            1 => drop(log),
            // The log is leaked, as if the process were killed: there is no mark, and records that
            // were not waited for are lost.
            _ => {
                log.sync().unwrap();
                std::mem::forget(log);
                // The lock goes with the process, which lives on. Another folder with the same
                // files stands for a restart.
                let next = scratch.path(&format!("log-{turn}"));
                fs::create_dir(&next).unwrap();
                for name in scratch.names("log").iter().filter(|n| n.ends_with(".log")) {
                    fs::copy(dir.join(name), next.join(name)).unwrap();
                }
                fs::rename(&dir, scratch.path(&format!("old-{turn}"))).unwrap();
                fs::rename(&next, &dir).unwrap();
            }
        }
        assert_eq!(read(&machine, &dir).unwrap(), expected(number, 500), "turn {turn}");
    }
    let summary = examine(&machine, &*storage(&machine, &dir)).unwrap();
    assert_eq!((summary.first, summary.next, summary.epoch), (1, number + 1, 9));
    assert!(summary.segments >= 2, "{summary:?}");
}

#[test]
fn many_threads_share_batches() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    let log = open(&machine, &dir, LogOptions::default().segment_bytes(256 << 10).batch_bytes(16 << 10)).unwrap();
    let (threads, each) = (8, 100);
    let numbers: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let run = |thread: u64| {
            let log = &log;
            scope.spawn(move || {
                let mut numbers = Vec::new();
                for i in 0..each {
                    let payload = [thread.to_le_bytes(), u64::to_le_bytes(i)].concat();
                    let number = log.append_durable(&payload).unwrap();
                    assert!(log.stats().durable_before > number, "acknowledged before it was durable");
                    numbers.push(number);
                }
                numbers
            })
        };
        let handles: Vec<_> = (0..threads).map(run).collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    });
    let stats = log.stats();
    assert!(stats.batches < threads * each && stats.largest_batch > 1, "nothing was shared: {stats:?}");
    assert_eq!(stats.acknowledged.count, threads * each);
    drop(log);
    let records = read(&machine, &dir).unwrap();
    assert_eq!(records.len() as u64, threads * each);
    for (thread, numbers) in numbers.iter().enumerate() {
        assert!(numbers.is_sorted(), "a thread's records are in its order");
        for (i, number) in numbers.iter().enumerate() {
            let payload = [(thread as u64).to_le_bytes(), (i as u64).to_le_bytes()].concat();
            assert_eq!(records[*number as usize - 1], LogRecord { number: *number, payload });
        }
    }
}

#[test]
fn a_log_that_is_opened_for_longer_batches_keeps_longer_records() {
    let (scratch, machine) = (Scratch::new(), machine());
    for (closed, first) in [(true, 4096), (false, 4096), (false, 8192)] {
        let dir = scratch.path(&format!("log-{closed}-{first}"));
        let options = |batch_bytes| LogOptions::default().segment_bytes(1 << 20).batch_bytes(batch_bytes);
        let log = open(&machine, &dir, options(first)).unwrap();
        (1..=5).for_each(|number| assert_eq!(log.append_durable(&[7; 100]).unwrap(), number));
        log.close().unwrap();
        let log = open(&machine, &dir, options(128 << 10)).unwrap();
        assert_eq!(log.append_durable(&vec![7; 100_000]).unwrap(), 6);
        assert_eq!(log.append_durable(&[7; 100]).unwrap(), 7);
        // Without `close` it is as after a crash.
        if closed {
            log.close().unwrap();
        } else {
            drop(log);
            std::fs::remove_file(dir.join("closed")).unwrap();
        }
        let log = open(&machine, &dir, options(first)).unwrap();
        let lens: Vec<usize> = log.read_from(0).unwrap().map(|record| record.unwrap().payload.len()).collect();
        assert_eq!(lens, [100, 100, 100, 100, 100, 100_000, 100]);
        assert_eq!(log.append_durable(b"x").unwrap(), 8);
    }
}

#[test]
fn segments_come_and_go() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    let log = open(&machine, &dir, small()).unwrap();
    for number in 1..=400 {
        log.append_durable(&record(number, 500)).unwrap();
    }
    assert!(log.stats().segments_begun >= 3, "{:?}", log.stats());
    let before = scratch.names("log");
    assert_eq!(log.release_before(0).unwrap(), 0);
    let gone = log.release_before(250).unwrap();
    assert!(gone >= 1 && scratch.names("log").len() <= before.len() + 1 - gone);
    let rest: Vec<LogRecord> = log.read_from(0).unwrap().collect::<Result<_>>().unwrap();
    assert!(rest[0].number <= 250 && rest[0].number > 1, "{}", rest[0].number);
    assert_eq!(rest[..], expected(400, 500)[rest[0].number as usize - 1..]);
    let early = log.read_from(2).err().unwrap();
    assert_eq!(early.kind(), ErrorKind::OutOfRange, "{early}");
    log.close().unwrap();
    let log = open(&machine, &dir, small()).unwrap();
    assert_eq!(log.append_durable(b"x").unwrap(), 401);
    // The segment in use is never released.
    log.release_before(u64::MAX).unwrap();
    assert_eq!(log.read_from(0).unwrap().last().unwrap().unwrap().number, 401);
    drop(log);
    let files: Vec<String> = scratch.names("log");
    assert!(files.len() == 2 && files[0].ends_with(".log") && files[1] == "closed", "{files:?}");

    // A segment that is missing in the middle is noticed, and so is one of another log.
    let other = scratch.path("other");
    let log = open(&machine, &other, small()).unwrap();
    for number in 1..=400 {
        drop(log.append(&record(number, 500)).unwrap());
    }
    log.close().unwrap();
    let (gone, kept) = (segment(&other, 2), scratch.path("kept"));
    fs::rename(&gone, &kept).unwrap();
    for error in [open(&machine, &other, small()).err().unwrap(), read(&machine, &other).unwrap_err()] {
        assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("missing"), "{error}");
    }
    fs::rename(&kept, &gone).unwrap();
    assert_eq!(read(&machine, &other).unwrap().len(), 400);
    fs::copy(scratch.path("log").join(&files[0]), segment(&other, 2)).unwrap();
    assert_eq!(read(&machine, &other).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    assert_eq!(read(&machine, &dir).unwrap_err().kind(), ErrorKind::NotFound);
    for (segment_bytes, batch_bytes) in [(1 << 20, 0), (1 << 20, 5000), (4096, 4096), (8193, 4096), (1 << 20, 1 << 20)]
    {
        let error = open(&machine, &dir, LogOptions::default().segment_bytes(segment_bytes).batch_bytes(batch_bytes))
            .err()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    let log = open(&machine, &dir, small()).unwrap();
    assert_eq!(open(&machine, &dir, small()).err().unwrap().kind(), ErrorKind::Busy);
    let limit = log.record_limit();
    assert_eq!(log.append(&vec![0; limit + 1]).err().unwrap().kind(), ErrorKind::InvalidInput);
    assert_eq!(log.append_durable(&vec![7; limit]).unwrap(), 1);
    // A full half that no waiter writes is written by the appender that needs room. `try_append`
    // returns `Busy` instead.
    drop(log.try_append(&vec![8; limit]).unwrap());
    let busy = log.try_append(b"x").err().unwrap();
    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
    assert_eq!(log.append_durable(b"x").unwrap(), 3);
    drop(log);
    // With smaller batches later, existing frames are read by their segments' own limits.
    let log = open(&machine, &dir, small().batch_bytes(4096)).unwrap();
    let records: Vec<LogRecord> = log.read_from(0).unwrap().collect::<Result<_>>().unwrap();
    assert_eq!(records.iter().map(|r| r.payload.len()).collect::<Vec<_>>(), [limit, limit, 1]);
    // A folder with something else in it is not a log.
    fs::write(segment(&scratch.0, 1), b"something else").unwrap();
    assert_eq!(open(&machine, &scratch.0, small()).err().unwrap().kind(), ErrorKind::Corrupt);
}

/// Makes a log of some batches with some records, with or without a mark at its end. Returns the
/// bytes of its file, and how many of them are used.
fn small_log(machine: &Machine, dir: &Path, close: bool) -> (Vec<u8>, usize, u64) {
    let options = LogOptions::default().segment_bytes(12 << 10).batch_bytes(4096);
    let log = open(machine, dir, options).unwrap();
    let mut number = 0;
    for batch in 0..4 {
        for _ in 0..=batch {
            number += 1;
            drop(log.append(&record(number, 30)).unwrap());
        }
        log.sync().unwrap();
    }
    if close {
        log.close().unwrap()
    } else {
        std::mem::forget(log)
    }
    let bytes = fs::read(segment(dir, 1)).unwrap();
    let used = bytes.len() - bytes.iter().rev().take_while(|b| **b == 0).count();
    (bytes, used, number)
}

/// Puts a file into a log folder, for each case anew.
struct Case {
    machine: Machine,
    dir: PathBuf,
}

impl Case {
    fn put(&self, bytes: &[u8]) {
        let _ = fs::remove_file(segment(&self.dir, 2));
        fs::write(segment(&self.dir, 1), bytes).unwrap();
    }

    /// Checks that the records read are the first ones written, or that the log is reported as
    /// damaged. Returns their number.
    fn read(&self, all: &[LogRecord], name: &str) -> Result<usize> {
        let records = read(&self.machine, &self.dir)?;
        assert!(records.len() <= all.len() && records[..] == all[..records.len()], "{name}: {records:?}");
        Ok(records.len())
    }
}

#[test]
fn a_file_that_was_cut_is_damaged_wherever_it_was_cut() {
    let (scratch, machine) = (Scratch::new(), machine());
    let options = LogOptions::default().segment_bytes(12 << 10).batch_bytes(4096);
    for close in [false, true] {
        let (bytes, used, n) = small_log(&machine, &scratch.path(&format!("log-{close}")), close);
        let all = expected(n, 30);
        let case = Case { machine: machine.clone(), dir: scratch.path(&format!("case-{close}")) };
        fs::create_dir(&case.dir).unwrap();
        case.put(&bytes);
        assert_eq!(case.read(&all, "whole").unwrap(), all.len());
        let path = segment(&case.dir, 1);
        let file = fs::File::options().write(true).open(&path).unwrap();
        // The file is cut from its end, so that one file serves for all cases: at some offsets in
        // the header and in the zeros behind the frames, and at all offsets in the frames.
        let zeros = (used + 8..bytes.len()).rev().step_by(211);
        for cut in zeros.chain((4096..=used + 8).rev()).chain((0..4096).rev().step_by(89)) {
            let name = format!("cut at {cut} of {used}, closed {close}");
            file.set_len(cut as u64).unwrap();
            let place = storage(&case.machine, &case.dir);
            let mut said = vec![open(&case.machine, &case.dir, options).map(drop).unwrap_err()];
            if cut % 8 == 0 || cut < 4096 {
                said.push(case.read(&all, &name).map(drop).unwrap_err());
                said.push(examine(&case.machine, &*place).map(drop).unwrap_err());
            }
            for error in said {
                let wanted = if cut < 4096 { 0 } else { cut as u64 };
                assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(wanted)), "{name}: {error}");
            }
            assert!(fs::read(&path).unwrap() == bytes[..cut], "{name}: it was changed");
            assert!(!segment(&case.dir, 2).exists(), "{name}: it went on");
            // The rest can still be read, up to the cut.
            if cut >= 4096 && cut % 8 == 0 {
                let left: Vec<LogRecord> =
                    LogReader::open(&case.machine, &*place, 0).unwrap().map_while(Result::ok).collect();
                assert!(left[..] == all[..left.len()] && (cut < used || left == all), "{name}");
            }
        }
    }
}

#[test]
fn an_older_segment_that_was_cut_is_noticed_when_the_log_is_opened() {
    let (scratch, machine) = (Scratch::new(), machine());
    let options = LogOptions::default().segment_bytes(12 << 10).batch_bytes(4096);
    let log = open(&machine, &scratch.0, options).unwrap();
    for number in 1..=12 {
        log.append_durable(&record(number, 2000)).unwrap();
    }
    log.close().unwrap();
    let path = segment(&scratch.0, 1);
    assert!(segment(&scratch.0, 2).exists());
    // Cut the zeros behind its last frame.
    fs::File::options().write(true).open(&path).unwrap().set_len((12 << 10) - 1).unwrap();
    let error = open(&machine, &scratch.0, options).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("it was cut"), "{error}");
}

#[test]
fn one_writer_at_a_time_whoever_tidies_up() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    let log = open(&machine, &dir, LogOptions::default()).unwrap();
    log.append_durable(b"one").unwrap();
    // Hidden files of the folder are removed, as a user might do who tidies up.
    for name in scratch.names("log").into_iter().filter(|name| name.starts_with('.')) {
        fs::remove_file(dir.join(name)).unwrap();
    }
    let error = open(&machine, &dir, LogOptions::default()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    // By another name it is the same folder.
    std::os::unix::fs::symlink(&dir, scratch.path("other")).unwrap();
    assert_eq!(
        open(&machine, &scratch.path("other"), LogOptions::default()).map(drop).unwrap_err().kind(),
        ErrorKind::Busy
    );
    drop(log);
    assert_eq!(open(&machine, &dir, LogOptions::default()).unwrap().append_durable(b"two").unwrap(), 2);
}

#[test]
fn a_folder_that_is_replaced_is_not_written_to_nor_tidied() {
    let (scratch, machine) = (Scratch::new(), machine());
    let (dir, away) = (scratch.path("log"), scratch.path("away"));
    let options = LogOptions::default().segment_bytes(12 << 10).batch_bytes(4096);
    let fill = |log: &Log| (1..=12).map(|n| log.append_durable(&record(n, 2000))).collect::<Result<Vec<u64>>>();
    let first = open(&machine, &dir, options).unwrap();
    fill(&first).unwrap();
    // The folder is renamed, as for rotating logs, and another log begins under its name.
    fs::rename(&dir, &away).unwrap();
    let second = open(&machine, &dir, options).unwrap();
    fill(&second).unwrap();
    let files = || -> Vec<(PathBuf, Vec<u8>)> {
        let mut all: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all.into_iter().map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
    };
    let before = files();
    let released = first.release_before(8).unwrap_err();
    let ended = fill(&first).unwrap_err();
    for error in [released, ended] {
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("was replaced"), "{error}");
    }
    assert!(files() == before, "the other log was changed");
    // The acknowledged records are where the folder is now.
    drop(first);
    let again = open(&machine, &away, options).unwrap();
    assert!(again.append_durable(b"on").unwrap() > 12);
    // There is no folder of that name at all.
    fs::rename(&away, scratch.path("further")).unwrap();
    let error = fill(&again).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("was moved"), "{error}");
    assert!(!away.exists());
}

#[test]
fn damage_to_a_file_is_an_error_and_changes_nothing() {
    let (scratch, machine) = (Scratch::new(), machine());
    let (bytes, used, n) = small_log(&machine, &scratch.path("log"), true);
    let all = expected(n, 30);
    let case = Case { machine, dir: scratch.path("case") };
    fs::create_dir(&case.dir).unwrap();
    // In log_crash.rs every bit of a log is flipped; here some bytes of real files are changed.
    for byte in (0..used).step_by(97) {
        let mut bad = bytes.clone();
        bad[byte] ^= 0x10;
        case.put(&bad);
        for error in [
            case.read(&all, &format!("byte {byte}")).unwrap_err(),
            open(&case.machine, &case.dir, LogOptions::default().segment_bytes(12 << 10).batch_bytes(4096))
                .err()
                .unwrap(),
        ] {
            assert!(error.kind() == ErrorKind::Corrupt && error.offset().unwrap() <= byte as u64, "{byte}: {error}");
        }
        assert!(fs::read(segment(&case.dir, 1)).unwrap() == bad, "byte {byte}: the file was changed");
    }
}

/// A segment is filled before it is used, which takes seconds on a slow disk.
#[test]
fn whoever_asks_to_stop_does_not_wait_for_a_segment() {
    let (scratch, machine) = (Scratch::new(), machine());
    let dir = scratch.path("log");
    let folder = LogFolder::at(&machine, &dir);
    let options = LogOptions::default().segment_bytes(8 << 20);
    let log = Log::open(&machine, folder.clone(), options).unwrap();
    assert_eq!(folder.zero_filled_bytes(), 8 << 20);
    // The first record of the second segment.
    folder.stop_making_segments();
    let appended = (1..).map_while(|number| log.append_durable(&[7; 500_000]).ok().filter(|n| *n == number)).count();
    let error = log.append_durable(b"more").unwrap_err();
    assert!((10..17).contains(&appended) && error.to_string().contains("make a segment"), "{appended}: {error}");
    drop(log);
    assert!(folder.zero_filled_bytes() < 16 << 20);
    // What was acknowledged is there, and nothing half-made; nor is anything where no log was.
    assert_eq!(read(&machine, &dir).unwrap().len(), appended);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    let other = LogFolder::at(&machine, scratch.path("other"));
    other.stop_making_segments();
    let error = Log::open(&machine, other, options).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    assert!(!scratch.path("other").exists());
    open(&machine, &dir, options).unwrap();
}
