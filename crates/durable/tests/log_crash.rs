//! The log on a device that loses what was not synced, whose syncs fail, and whose bits flip. Every
//! failure prints the seed; `DATAPIPES_SEED` replays it.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod scene;

use std::sync::Arc;

use datapipes_core::{ErrorKind, Machine, Result};
use datapipes_durable::log::{Log, LogOptions, LogReader, LogRecord, SegmentStorage};
use scene::model::Model;
use scene::{Random, machine, record, seed};

fn options() -> LogOptions {
    LogOptions::default().segment_bytes(16 << 10).batch_bytes(4096)
}

fn read(machine: &Machine, model: &Model) -> Result<Vec<LogRecord>> {
    let storage: Arc<dyn SegmentStorage> = Arc::new(model.clone());
    LogReader::open(machine, &*storage, 0)?.collect()
}

/// Makes a payload that no other record of the test has. Lengths often differ by a mark's 40 bytes,
/// so that the rest of a torn batch starts exactly where a newer frame ends.
fn payload(random: &mut Random, generation: u64) -> Vec<u8> {
    let len = [24, 24, 24, 64, 64, 104, 0, 900][random.below(8)];
    let mut bytes = [generation.to_le_bytes(), random.next().to_le_bytes()].concat();
    bytes.extend(random.bytes(len));
    bytes
}

#[test]
fn power_fails_at_random_syncs() {
    let seed = seed(1);
    let machine = machine();
    let (mut survivors, mut torn, mut crashes) = (0, 0, 0);
    for case in 0..60 {
        let random = &mut Random(seed + case);
        let mut model = Model::default();
        // The log must hold all records that were acknowledged or recovered, and then the first of
        // those that were appended.
        let (mut sure, mut maybe): (Vec<Vec<u8>>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
        for generation in 0..12 {
            let name = format!("seed {seed}, case {case}, generation {generation}");
            if !model.list().unwrap().is_empty() {
                let found: Vec<Vec<u8>> = match read(&machine, &model) {
                    Ok(records) => records.into_iter().map(|r| r.payload).collect(),
                    Err(e) => panic!("{name}: {e}"),
                };
                assert!(found.len() >= sure.len(), "{name}: {} of {} acknowledged", found.len(), sure.len());
                assert!(found[..sure.len()] == sure[..], "{name}: an acknowledged record is another one");
                let more = &found[sure.len()..];
                assert!(maybe.starts_with(more), "{name}: {} records were invented", more.len());
                survivors += more.len();
                torn += usize::from(more.len() < maybe.len());
                sure = found;
            }
            maybe.clear();
            // Opening may fail too.
            model.fail_at(random.below(12) as u64, random.next());
            // Some logs are read in full only later, so that several torn tails follow each other.
            let log = match Log::open(&machine, model.clone(), options()) {
                Ok(log) => log,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Device, "{name}: {e}");
                    crashes += 1;
                    model = Model::holding(model.left().expect("the fault was met"));
                    continue;
                }
            };
            let broken = loop {
                let appended: Result<()> = (0..1 + random.below(6)).try_for_each(|_| {
                    let bytes = payload(random, generation);
                    maybe.push(bytes.clone());
                    log.append(&bytes).map(drop)
                });
                match appended.and_then(|()| log.sync()) {
                    Ok(()) => sure.append(&mut maybe),
                    Err(e) => break e,
                }
            };
            assert_eq!((broken.kind(), broken.errno()), (ErrorKind::Device, Some(libc::EIO)), "{name}: {broken}");
            crashes += 1;
            drop(log);
            model = Model::holding(model.left().expect("the fault was met"));
        }
    }
    println!("{crashes} power failures; {survivors} records survived unacknowledged, {torn} tails were torn");
    assert!(survivors > 20 && torn > 20, "{survivors} {torn}: the cases say little");
}

#[test]
fn what_a_torn_batch_left_behind_is_never_taken_for_a_record() {
    // All records have one length. [A] is acknowledged, then comes a batch [B C] of which only C
    // reaches the device. After that, [D] is written where B should be, so that C follows it
    // without a gap and with the right number.
    let machine = machine();
    // Seeds with which the model keeps nothing, or all, of what was not synced.
    let keeps = |share: usize| (0..).find(|seed| Random(*seed).below(5) == share).unwrap();
    for (reopened, seed, marks) in [(0, 0, 0), (1, keeps(0), 0), (3, keeps(0), 0), (1, keeps(4), 1), (2, keeps(4), 2)] {
        let model = Model::default();
        let log = Log::open(&machine, model.clone(), options()).unwrap();
        log.append_durable(&[b'A'; 984]).unwrap();
        let before = model.now();
        drop(log.append(&[b'B'; 984]).unwrap());
        drop(log.append(&[b'C'; 984]).unwrap());
        log.sync().unwrap();
        let mut after = model.now();
        drop(log);
        // B's sectors are lost. Frames are 1024 bytes, from 4096.
        after[0].1[4096 + 1024..4096 + 2048].copy_from_slice(&before[0].1[4096 + 1024..4096 + 2048]);
        let mut model = Model::holding(after);
        for _ in 0..reopened {
            // The log is opened and crashes at once: its mark is lost, or not.
            assert_eq!(read(&machine, &model).unwrap().len(), 1, "C must not be there without B");
            model.fail_at(0, seed);
            assert!(Log::open(&machine, model.clone(), options()).is_err());
            model = Model::holding(model.left().unwrap());
        }
        let log = Log::open(&machine, model.clone(), options()).unwrap();
        // A mark takes 40 bytes, so that D ends where C starts.
        let len = 984 - 40 * (marks + 1);
        assert_eq!(log.append_durable(&vec![b'D'; len]).unwrap(), 2);
        std::mem::forget(log);
        let bytes = model.now().remove(0).1;
        assert_eq!(&bytes[4096 + 2048..4096 + 2052], b"DPr1", "C's frame is not where D ends: this case shows nothing");
        let records = read(&machine, &model).unwrap();
        assert_eq!(records.len(), 2, "reopened {reopened}, {marks} marks: C came back from the dead");
        assert_eq!(records[1].payload, vec![b'D'; len]);
    }
}

#[test]
fn a_failed_sync_is_the_end_and_everybody_is_told() {
    let machine = machine();
    let model = Model::default();
    let log = Log::open(&machine, model.clone(), options()).unwrap();
    log.append_durable(b"safe").unwrap();
    model.fail_at(0, 3);
    let errors: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..6).map(|_| scope.spawn(|| log.append_durable(b"lost").unwrap_err())).collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    });
    let syncs = model.syncs();
    for error in errors {
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Device, Some(libc::EIO)), "{error}");
    }
    // By now the device would sync successfully. It must not be asked, because it would not write
    // again what it dropped.
    assert_eq!(log.append(b"x").err().unwrap().kind(), ErrorKind::Device);
    assert_eq!(log.sync().unwrap_err().kind(), ErrorKind::Device);
    assert!(log.stats().failed.unwrap().contains("open it again"));
    assert_eq!(log.stats().durable_before, 2);
    assert_eq!(log.read_from(0).unwrap().map(|r| r.unwrap().payload).collect::<Vec<_>>(), [b"safe"]);
    assert_eq!(log.close().unwrap_err().kind(), ErrorKind::Device);
    assert_eq!(model.syncs(), syncs, "it was synced again after an error");
    let log = Log::open(&machine, Model::holding(model.left().unwrap()), options()).unwrap();
    assert!(log.append_durable(b"again").unwrap() >= 2);
}

#[test]
fn damaged_at_every_bit() {
    let machine = machine();
    for close in [false, true] {
        let model = Model::default();
        let log = Log::open(&machine, model.clone(), options()).unwrap();
        let mut n = 0;
        for batch in 0..4 {
            for _ in 0..=batch {
                n += 1;
                drop(log.append(&record(n, 30)).unwrap());
            }
            log.sync().unwrap();
        }
        let all: Vec<LogRecord> = (1..=n).map(|number| LogRecord { number, payload: record(number, 30) }).collect();
        if close {
            log.close().unwrap();
        } else {
            std::mem::forget(log);
        }
        let bytes = model.now().remove(0).1;
        let used = bytes.len() - bytes.iter().rev().take_while(|b| **b == 0).count();
        let (mut corrupt, mut shorter) = (0, 0);
        // All bits of the frames and of the header's fields, and some of the header's unused part.
        let bits = (0..96 * 8).chain((96 * 8..4096 * 8).step_by(67)).chain(4096 * 8..(used + 16) * 8);
        for bit in bits {
            let name = format!("bit {bit} (byte {}) of {used} bytes, closed {close}", bit / 8);
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            match read(&machine, &Model::holding(vec![(1, bad)])) {
                Err(e) => {
                    assert!(e.kind() == ErrorKind::Corrupt && e.offset().is_some(), "{name}: {e}");
                    assert!(e.offset().unwrap() <= (bit / 8) as u64, "{name}: {e}");
                    corrupt += 1;
                }
                Ok(found) => {
                    assert!(all.starts_with(&found), "{name}: a wrong record");
                    let lost = all.len() - found.len();
                    // The last batch has four records. Without a mark, damage to it cannot be told
                    // from a torn tail.
                    assert!(lost <= if close { 0 } else { 4 }, "{name}: {lost} records are missing in silence");
                    shorter += usize::from(lost > 0);
                }
            }
        }
        assert!(corrupt > 1000 && (shorter == 0) == close, "{corrupt} {shorter} closed {close}");
    }
}
