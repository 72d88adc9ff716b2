//! The cache under randomly chosen schedules: a file that is an array, readers, and a writer.
//!
//! The model (`shuttle`) has the locks, condition variables and atomics of `sync`. Counts of pins,
//! periods and metrics are the standard library's, because no schedule depends on them. Memory
//! orders are not modelled: every atomic is sequentially consistent.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use datapipes_core::topology::Topology;
use datapipes_core::{Error, ErrorKind, Machine, Result};
use shuttle::thread;

use crate::coherence::writes::Writes;
use crate::config::{CacheOptions, CachePolicy};
use crate::device::engine::{EngineFacts, Extent, OnExtent, ReadEngine};
use crate::fine::FineGrained;
use crate::miss::info::{Claim, InfoArea};
use crate::store::guarded::Guarded;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};
use datapipes_core::WriteObserver;
use datapipes_testkit::schedules;

const GRANULE: u64 = 64;
const LEN: u64 = 2 << 16;

/// The file: each granule of 64 bytes has one number in all of its bytes. The device reads and
/// writes it granule by granule, so that races show.
struct File {
    granules: Vec<AtomicU64>,
    len: AtomicU64,
}

impl File {
    fn new() -> Arc<File> {
        let granules = (0..LEN / GRANULE).map(|_| AtomicU64::new(0)).collect();
        Arc::new(File { granules, len: AtomicU64::new(LEN) })
    }

    fn set(&self, from: u64, to: u64, number: u64) {
        for granule in from / GRANULE..to / GRANULE {
            self.granules[granule as usize].store(number, Ordering::SeqCst);
        }
    }
}

struct Device(Arc<File>);

impl ReadEngine for Device {
    fn facts(&self) -> EngineFacts {
        EngineFacts { granularity: 512, depth: 4, longest: 4096 }
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(self.0.len.load(Ordering::SeqCst))
    }

    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>) {
        for (number, extent) in extents.iter().enumerate() {
            let granules = extent.offset / GRANULE..extent.end().div_ceil(GRANULE);
            let bytes: Vec<u8> = granules
                .flat_map(|g| [self.0.granules[g as usize].load(Ordering::SeqCst) as u8; GRANULE as usize])
                .take(extent.len as usize)
                .collect();
            if extent.end() > self.0.len.load(Ordering::SeqCst) {
                done(number, Err(Error::new(ErrorKind::EndOfFile, "read", "a model of a file")));
            } else {
                done(number, Ok(&bytes));
            }
        }
    }

    fn now_ns(&self) -> u64 {
        1
    }
}

/// Makes a small cache for each schedule, without threads of its own.
fn cache(file: &Arc<File>) -> FineGrained {
    let machine = Machine::new(Topology::discover_under(std::path::Path::new("/nonexistent")), Vec::new());
    let mut config = CacheOptions::new(&machine).budget(2 << 20).policy(CachePolicy::S3Fifo);
    (config.prefault, config.maintenance) = (false, false);
    FineGrained::with_engine(Arc::new(Device(file.clone())), config, "model").unwrap()
}

/// What readers may see: numbers at least as high as those of writes that returned before the read
/// began, and one number in all granules that are always written together.
struct Sight {
    returned: AtomicU64,
}

/// Makes a write as a pipe does: announces it, writes, and ends it.
fn write(fine: &FineGrained, file: &File, from: u64, to: u64, number: u64, sight: &Sight) {
    fine.0.changing(from..to);
    file.set(from, to, number);
    fine.0.changed(from..to);
    sight.returned.store(number, Ordering::SeqCst);
}

fn check(bytes: &[u8], least: u64, seen: &mut u64) {
    assert!(bytes.iter().all(|b| *b == bytes[0]), "torn: {bytes:?}");
    let number = u64::from(bytes[0]);
    assert!(number >= least, "{number} was given out after {least} was written");
    assert!(number >= *seen, "went back from {seen} to {number}");
    *seen = number;
}

fn read(fine: &FineGrained, offset: u64, len: usize, how: u64, least: u64, seen: &mut u64) {
    match how {
        0 => {
            let mut out = vec![0; len];
            fine.read(offset, &mut out).unwrap();
            check(&out, least, seen);
        }
        1 => check(&fine.get(offset, len).unwrap(), least, seen),
        _ => {
            let mut out = vec![0; 2 * len];
            fine.gather(&[offset, offset], len, &mut out).unwrap().all().unwrap();
            // The reads of a batch are concurrent: none is before another.
            let before = *seen;
            for bytes in out.chunks(len) {
                let mut one = before;
                check(bytes, least, &mut one);
                *seen = one.max(*seen);
            }
        }
    }
}

/// Runs readers of a range and one writer, which writes all of it at once.
fn readers_and_a_writer(offset: u64, len: usize) {
    schedules(move || {
        let file = File::new();
        let fine = cache(&file);
        let sight = Arc::new(Sight { returned: AtomicU64::new(0) });
        let readers: Vec<_> = (0..2)
            .map(|n| {
                let (fine, sight) = (fine.clone(), sight.clone());
                thread::spawn(move || {
                    let mut seen = 0;
                    for i in 0..3 {
                        let least = sight.returned.load(Ordering::SeqCst);
                        // They read parts and all of the range, so that they find what others
                        // cached.
                        let at = if (n + i) % 2 == 0 { 0 } else { 64 };
                        read(&fine, offset + at, len - 2 * at as usize, (n + i) % 3, least, &mut seen);
                    }
                })
            })
            .collect();
        for number in 1..3 {
            write(&fine, &file, offset, offset + len as u64, number, &sight);
        }
        readers.into_iter().for_each(|r| r.join().unwrap());
        read(&fine, offset, len, 0, 2, &mut 0);
        read(&fine, offset, len, 0, 2, &mut 0);
        assert!(!fine.0.writes.any());
        assert_eq!(fine.metrics().under_way, 0);
    });
}

#[test]
fn reads_of_one_page_are_of_one_moment() {
    readers_and_a_writer(8192, 256);
}

#[test]
fn reads_across_pages_and_stripes_are_of_one_moment() {
    readers_and_a_writer(65_536 - 128, 256);
}

#[test]
fn a_read_of_a_part_joins_no_pending_read_of_more_that_is_older() {
    // One thread reads across two stripes, another the part in the first stripe, which alone is
    // written. The second stripe, or the first, changed before, so that the sums over one and over
    // two stripes can be equal.
    schedules(|| {
        use shuttle::rand::Rng;
        let file = File::new();
        let fine = cache(&file);
        let (at, border) = (65_536 - 64, 65_536);
        for stripe in [at, border] {
            let before = shuttle::rand::thread_rng().gen_range(0..3u32);
            (0..before).for_each(|_| fine.invalidate(stripe..stripe + 1));
        }
        let sight = Arc::new(Sight { returned: AtomicU64::new(0) });
        let other = fine.clone();
        let across = thread::spawn(move || {
            // Its bytes are not checked, because its parts are written separately.
            other.read(at, &mut [0; 128]).unwrap();
        });
        let (third, its) = (fine.clone(), sight.clone());
        let reader = thread::spawn(move || {
            let mut seen = 0;
            for _ in 0..2 {
                let least = its.returned.load(Ordering::SeqCst);
                read(&third, at, 64, 0, least, &mut seen);
            }
        });
        write(&fine, &file, at, border, 1, &sight);
        across.join().unwrap();
        reader.join().unwrap();
        read(&fine, at, 64, 0, 1, &mut 0);
    });
}

#[test]
fn a_write_beside_a_block_does_not_bring_old_bytes_back() {
    // One thread reads whole pages, the other the written part of one.
    schedules(|| {
        let file = File::new();
        let fine = cache(&file);
        let sight = Arc::new(Sight { returned: AtomicU64::new(0) });
        let other = fine.clone();
        let blocks = thread::spawn(move || {
            for _ in 0..2 {
                // The read is longer than the byte path allows. Its bytes are not checked, because
                // granules are written separately.
                other.read(4096, &mut [0; 3000]).unwrap();
            }
        });
        let (third, its) = (fine.clone(), sight.clone());
        let reader = thread::spawn(move || {
            let mut seen = 0;
            for _ in 0..3 {
                let least = its.returned.load(Ordering::SeqCst);
                read(&third, 4096 + 3200, 64, 0, least, &mut seen);
            }
        });
        for number in 1..3 {
            write(&fine, &file, 4096 + 3200, 4096 + 3264, number, &sight);
        }
        blocks.join().unwrap();
        reader.join().unwrap();
        read(&fine, 4096 + 3200, 64, 0, 2, &mut 0);
    });
}

#[test]
fn a_sector_that_another_reads_for_its_other_half_is_not_old() {
    schedules(|| {
        let file = File::new();
        let fine = cache(&file);
        let sight = Arc::new(Sight { returned: AtomicU64::new(0) });
        let beside = fine.clone();
        // It may begin while the other half changes, which it does not read.
        let neighbour = thread::spawn(move || {
            for at in [4096, 4160] {
                beside.read(at, &mut [0; 64]).unwrap();
            }
        });
        let (third, its) = (fine.clone(), sight.clone());
        let reader = thread::spawn(move || {
            let mut seen = 0;
            for _ in 0..2 {
                let least = its.returned.load(Ordering::SeqCst);
                read(&third, 4096 + 256, 64, 0, least, &mut seen);
            }
        });
        for number in 1..3 {
            write(&fine, &file, 4096 + 256, 4096 + 320, number, &sight);
        }
        neighbour.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn concurrent_writers_leave_the_contents_of_the_file() {
    schedules(|| {
        let file = File::new();
        let fine = cache(&file);
        let writers: Vec<_> = (1..3)
            .map(|number| {
                let (fine, file) = (fine.clone(), file.clone());
                thread::spawn(move || {
                    let nobody = Sight { returned: AtomicU64::new(0) };
                    write(&fine, &file, 128 * number, 128 * number + 256, number, &nobody);
                })
            })
            .collect();
        let mut out = [0; 512];
        fine.read(128, &mut out).unwrap();
        writers.into_iter().for_each(|w| w.join().unwrap());
        fine.read(0, &mut out).unwrap();
        for (granule, bytes) in out.chunks(64).enumerate() {
            assert_eq!(u64::from(bytes[0]), file.granules[granule].load(Ordering::SeqCst), "granule {granule}");
        }
    });
}

#[test]
fn a_file_that_is_cut_and_grows_again_has_zeros() {
    schedules(|| {
        let file = File::new();
        let fine = cache(&file);
        file.set(0, LEN, 7);
        let other = fine.clone();
        let reader = thread::spawn(move || {
            for i in 0..3 {
                let mut out = [0; 64];
                let (offset, len) = ([LEN - 64, LEN - 128, LEN - 4096][i], [64, 64, 64][i]);
                match other.read(offset, &mut out[..len]) {
                    Ok(()) => assert!(out[0] == out[len - 1] && (out[0] == 7 || out[0] == 0)),
                    Err(e) => assert_eq!(e.kind(), ErrorKind::EndOfFile, "{e}"),
                }
            }
        });
        let cut = LEN - 100;
        fine.0.changing(cut..u64::MAX);
        file.len.store(cut, Ordering::SeqCst);
        file.set(LEN - 128, LEN, 0);
        fine.0.changed(cut..u64::MAX);
        assert_eq!(fine.read(LEN - 64, &mut [0; 64]).unwrap_err().kind(), ErrorKind::EndOfFile);
        fine.0.changing(cut..u64::MAX);
        file.len.store(LEN, Ordering::SeqCst);
        fine.0.changed(cut..u64::MAX);
        let mut out = [1; 64];
        fine.read(LEN - 64, &mut out).unwrap();
        assert_eq!(out, [0; 64]);
        reader.join().unwrap();
        fine.read(LEN - 64, &mut out).unwrap();
        assert_eq!(out, [0; 64]);
    });
}

#[test]
fn all_waiters_of_a_pending_read_are_notified_once() {
    schedules(|| {
        let area = Arc::new(InfoArea::default());
        let writes = Arc::new(Writes::default());
        let flown = Arc::new(AtomicU64::new(0));
        let wanted = Extent { offset: 512, len: 512 };
        let threads: Vec<_> = (0..3u64)
            .map(|n| {
                let (area, writes, flown) = (area.clone(), writes.clone(), flown.clone());
                thread::spawn(move || match area.claim(wanted, &writes) {
                    Claim::Mine(pending) if n == 1 => {
                        pending.finish(Err(&Error::new(ErrorKind::Device, "read", "a model")));
                    }
                    Claim::Mine(pending) => {
                        let number = flown.fetch_add(1, Ordering::SeqCst) as u8;
                        pending.finish(Ok(&[number; 512]));
                    }
                    Claim::Others(pending) => match pending.wait() {
                        Ok(bytes) => {
                            assert!(bytes.len() == 512 && u64::from(bytes[0]) < flown.load(Ordering::SeqCst))
                        }
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Device),
                    },
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(area.under_way(), 0);
    });
}

#[test]
fn a_wait_for_a_change_ends_after_it() {
    schedules(|| {
        let writes = Arc::new(Writes::default());
        let during = Arc::new(Mutex::new(0));
        let writers: Vec<_> = [0..100, 50..150]
            .into_iter()
            .map(|range| {
                let (writes, during) = (writes.clone(), during.clone());
                thread::spawn(move || {
                    writes.begin(&range);
                    *during.lock() += 1;
                    *during.lock() -= 1;
                    writes.end(&range);
                })
            })
            .collect();
        let stamp = writes.stamp(&(60..70));
        writes.wait_quiet(&(60..70), std::time::Duration::ZERO).unwrap();
        if writes.unchanged(&(60..70), stamp) {
            // No change had begun when it waited, so there was none at all.
            assert!(!writes.is_changing(&(60..70)) || !writes.unchanged(&(60..70), stamp));
        }
        writers.into_iter().for_each(|w| w.join().unwrap());
        assert!(!writes.any());
    });
}

#[test]
fn a_read_with_a_named_range_is_of_one_moment_and_waiting_writers_continue() {
    schedules(|| {
        let writes = Arc::new(Writes::default());
        let both = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let writers: Vec<_> = [true, false]
            .into_iter()
            .map(|waits| {
                let (writes, both) = (writes.clone(), both.clone());
                thread::spawn(move || {
                    let number = 1 + u64::from(waits);
                    if waits {
                        writes.let_readers_go(&(0..10), std::time::Duration::MAX);
                    }
                    writes.begin(&(0..10));
                    both.iter().for_each(|n| n.store(number, Ordering::SeqCst));
                    writes.end(&(0..10));
                    // A change beside the range does not concern its readers.
                    writes.begin(&(20..30));
                    writes.end(&(20..30));
                })
            })
            .collect();
        for _ in 0..2 {
            let named = writes.insist(&(5..6), true, std::time::Duration::MAX).unwrap();
            let seen = [0, 1].map(|i| both[i].load(Ordering::SeqCst));
            // Two concurrent writers leave the number of either in each. An undisturbed reader sees
            // the final one.
            let now = || [0, 1].map(|i| both[i].load(Ordering::SeqCst));
            if writes.is_same(&(5..6), crate::coherence::writes::Since::Named(named)) {
                assert!(
                    seen == now() || !writes.is_same(&(5..6), crate::coherence::writes::Since::Named(named)),
                    "{seen:?}"
                );
            }
            writes.leave(named);
        }
        writers.into_iter().for_each(|w| w.join().unwrap());
        assert!(!writes.any());
    });
}

#[test]
fn reads_without_the_lock_see_changes_whole_or_not_at_all() {
    schedules(|| {
        let both = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let guarded = Arc::new(Guarded::new(0));
        let changers: Vec<_> = (0..2)
            .map(|_| {
                let (both, guarded) = (both.clone(), guarded.clone());
                thread::spawn(move || {
                    let mut changing = guarded.change();
                    *changing += 1;
                    both.iter().for_each(|n| n.store(*changing, Ordering::Relaxed));
                })
            })
            .collect();
        let mut last = 0;
        for _ in 0..3 {
            let Some(version) = guarded.version() else { continue };
            let seen = [0, 1].map(|i| both[i].load(Ordering::Relaxed));
            if guarded.unchanged(version) {
                assert!(seen[0] == seen[1] && seen[0] >= last, "{seen:?} after {last}");
                last = seen[0];
                // A thread that marks the version it saw has the value it saw.
                if let Some(marked) = guarded.mark(version) {
                    assert_eq!(*marked, last);
                }
            }
        }
        changers.into_iter().for_each(|c| c.join().unwrap());
        assert_eq!(*guarded.look(), 2);
        assert!(guarded.version().is_some_and(|v| guarded.unchanged(v)));
    });
}
