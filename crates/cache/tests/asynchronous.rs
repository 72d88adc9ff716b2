//! Reads as futures: a future that waits for a buffer gets one, whatever happens to the others.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use datapipes_cache::{CachePolicy, FineGrained, ReadFuture};
use datapipes_core::{ErrorKind, Runtime, Ssd};
use fixture::{File, Random, machine, noise, seed, small, steps};

const LEN: usize = 1 << 20;

/// A waker that records whether it was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// A future that is polled only when it was woken, as in an executor.
struct Task {
    reading: Option<ReadFuture>,
    woken: Arc<Woken>,
    offset: u64,
    len: usize,
}

impl Task {
    fn poll(&mut self, bytes: &[u8]) -> bool {
        let Some(reading) = &mut self.reading else { return true };
        if !self.woken.0.swap(false, SeqCst) {
            return false;
        }
        let waker = Waker::from(self.woken.clone());
        match Pin::new(reading).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => return false,
            Poll::Ready(result) => {
                assert!(result.unwrap() == bytes[self.offset as usize..self.offset as usize + self.len])
            }
        }
        self.reading = None;
        true
    }
}

#[test]
fn nobody_is_forgotten_when_others_leave_or_find_their_bytes_cached() {
    let (seed, rounds) = (seed(), steps(300));
    let bytes = noise(LEN, 3);
    let file = File::with(&bytes);
    let ssd = Ssd::open(file.path()).unwrap();
    let runtime = Runtime::start(machine()).unwrap();
    let mut r = Random(seed);
    for _ in 0..rounds {
        let fine = FineGrained::over(&ssd, small(CachePolicy::default())).unwrap();
        let alone = fine.on(&runtime, 1 + r.below(2) as usize).unwrap();
        let mut tasks: Vec<Task> = (0..3 + r.below(6))
            .map(|_| {
                // There are few offsets, so that many futures want the same. Some lie across pages.
                let (offset, len) = (4096 * (1 + r.below(3)) - 64 * r.below(2), 128);
                let woken = Arc::new(Woken(AtomicBool::new(true)));
                Task { reading: Some(alone.read(offset, len)), woken, offset, len }
            })
            .collect();
        let mut dropped = false;
        // A lost wake-up would be an endless loop here: all but one of the tasks are known to be
        // over.
        while !tasks.iter_mut().map(|t| t.poll(&bytes)).fold(true, |all, over| all & over) {
            if !dropped && r.one_in(3) {
                let at = r.below(tasks.len() as u64) as usize;
                tasks[at].reading = None;
                dropped = true;
            }
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_future_that_is_polled_no_more_holds_up_nobody() {
    let bytes = noise(LEN, 3);
    let file = File::with(&bytes);
    let ssd = Ssd::open(file.path()).unwrap();
    let runtime = Runtime::start(machine()).unwrap();
    let fine = FineGrained::over(&ssd, small(CachePolicy::default())).unwrap();
    let alone = fine.on(&runtime, 3).unwrap();
    let task = |offset| Task {
        reading: Some(alone.read(offset, 64)),
        woken: Arc::new(Woken(AtomicBool::new(true))),
        offset,
        len: 64,
    };
    let (mut first, mut second, mut third) = (task(4096), task(8192), task(12_288));
    // It wants its transfer, and is set aside.
    assert!(!first.poll(&bytes) && !second.poll(&bytes));
    second.reading = None;
    while !third.poll(&bytes) {
        std::thread::yield_now();
    }
    // What was dropped has given its buffer back: two at once, beside the one that is set aside.
    let (mut fourth, mut fifth) = (task(16_384), task(20_480));
    while !(fourth.poll(&bytes) & fifth.poll(&bytes)) {
        std::thread::yield_now();
    }
    while !first.poll(&bytes) {
        std::thread::yield_now();
    }
}

#[test]
fn futures_that_are_polled_after_each_other_go_to_the_device_together() {
    const COUNT: u64 = 32;
    let counters = datapipes_counters::CounterSet::open();
    let calls = || {
        let readings = counters.read();
        let calls = readings.into_iter().find(|reading| reading.name == "system_calls").unwrap();
        calls.value.ok_or(calls.absent.unwrap_or_default())
    };
    if let Err(why) = calls() {
        return println!("SKIPPED: futures_that_are_polled_after_each_other_go_to_the_device_together: {why}");
    }
    let bytes = noise(LEN, 3);
    let file = File::with(&bytes);
    let ssd = Ssd::open(file.path()).unwrap();
    let runtime = Runtime::start(machine()).unwrap();
    let fine = FineGrained::over(&ssd, small(CachePolicy::default())).unwrap();
    let alone = fine.on(&runtime, COUNT as usize).unwrap();
    let mut taken = u64::MAX;
    // Other threads of the library work now and then: the least of some rounds counts.
    for round in 0..8 {
        fine.clear();
        let mut futures: Vec<_> = (0..COUNT).map(|i| alone.read((i + round * COUNT) * 4096, 64)).collect();
        let waker = Waker::noop();
        let looked = calls().unwrap();
        let before = calls().unwrap();
        let poll = |future: &mut ReadFuture| Pin::new(future).poll(&mut Context::from_waker(waker)).is_pending();
        // Once each, and once more by the first one.
        let all_wait = futures.iter_mut().fold(true, |all, future| poll(future) & all);
        let first_is_over = !poll(&mut futures[0]);
        // A look at the counters costs some, too.
        taken = taken.min((calls().unwrap() - before).saturating_sub(before - looked));
        assert!(all_wait);
        futures.drain(..usize::from(first_is_over));
        futures.into_iter().for_each(|future| drop(runtime.block_on(future).unwrap()));
    }
    assert!(taken < COUNT / 2, "{taken} calls for {COUNT} reads");
}

#[test]
fn errors_and_ends_are_those_of_other_reads() {
    let bytes = noise(10_000, 4);
    let file = File::with(&bytes);
    let ssd = Ssd::open_rw(file.path()).unwrap();
    let fine = FineGrained::over(&ssd, small(CachePolicy::default())).unwrap();
    let runtime = Runtime::start(machine()).unwrap();
    let alone = fine.on(&runtime, 4).unwrap();
    let error = runtime.block_on(alone.read(9_990, 11)).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::EndOfFile, Some(9_990)));
    assert_eq!(runtime.block_on(alone.read(9_990, 0)).unwrap(), [0; 0]);
    assert_eq!(runtime.block_on(alone.read(5, 9_995)).unwrap(), bytes[5..]);
    // Another process truncates the file: the remaining bytes are read, the rest is an error.
    std::fs::OpenOptions::new().write(true).open(file.path()).unwrap().set_len(9_000).unwrap();
    fine.clear();
    let _ = fine.look_outside();
    std::fs::OpenOptions::new().write(true).open(file.path()).unwrap().set_len(8_500).unwrap();
    assert_eq!(runtime.block_on(alone.read(8_400, 100)).unwrap(), bytes[8_400..8_500]);
    assert_eq!(runtime.block_on(alone.read(8_400, 101)).unwrap_err().kind(), ErrorKind::EndOfFile);
    let mut reading = alone.read(0, 64);
    runtime.block_on(&mut reading).unwrap();
    assert_eq!(runtime.block_on(reading).unwrap_err().kind(), ErrorKind::InvalidInput);
    // Reads with a check, within a page and across pages.
    let mut config = small(CachePolicy::default());
    config.verify = Some(Arc::new(|offset, bytes: &[u8]| match (offset, bytes.len()) {
        (1_000, 64) => Err("of this length, from there on, nothing is right".into()),
        (4_000, 200) | (2_000, 64) => Ok(()),
        (5_000, 5_000) | (100, 4_100) => Err("nothing is right".into()),
        other => Err(format!("nobody asked for {other:?}")),
    }));
    ssd.set_len(10_000).unwrap();
    let checked = FineGrained::over(&ssd, config).unwrap();
    let alone = checked.on(&runtime, 4).unwrap();
    for (offset, len, right) in
        [(1_000, 64, false), (4_000, 200, true), (2_000, 64, true), (5_000, 5_000, false), (100, 4_100, false)]
    {
        for _ in 0..2 {
            let result = runtime.block_on(alone.read(offset, len));
            assert_eq!(
                result.as_ref().map_err(|e| e.kind()).map(|_| ()),
                if right { Ok(()) } else { Err(ErrorKind::Corrupt) }
            );
        }
    }
    assert_eq!(checked.metrics().items, 3, "what is wrong is not kept");
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics");
    }
}

/// Polls a future with a waker until it is ready. The waker need not work.
fn drive<F: Future + Unpin>(future: &mut F, waker: &Waker) -> F::Output {
    loop {
        match Pin::new(&mut *future).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

#[test]
fn a_batch_is_one_future_and_yields_what_gather_does() {
    let bytes = noise(LEN, 5);
    let file = File::with(&bytes);
    let ssd = Ssd::open(file.path()).unwrap();
    let runtime = Runtime::start(machine()).unwrap();
    let fine = FineGrained::over(&ssd, small(CachePolicy::default())).unwrap();
    let alone = fine.on(&runtime, 4).unwrap();
    let mut r = Random(seed());
    // More reads than a window of the cache, of any lengths, also empty ones and across pages.
    for count in [0, 1, 64, 5_000] {
        let ranges: Vec<(u64, usize)> =
            (0..count).map(|_| (r.below(LEN as u64 - 5_000), r.below(200) as usize * 25)).collect();
        let out = vec![0; ranges.iter().map(|(_, len)| len).sum()];
        let (out, gathered) = runtime.block_on(alone.gather_ranges(ranges.clone(), out)).unwrap();
        assert!(gathered.failed.is_empty());
        assert_eq!(gathered.hits + gathered.misses, count);
        let expected = ranges.iter().flat_map(|&(at, len)| &bytes[at as usize..at as usize + len]);
        assert!(out.iter().eq(expected));
    }
    // What is cached is there at the first poll.
    let offsets: Vec<u64> = (0..64).map(|i| i * 128).collect();
    runtime.block_on(alone.gather(offsets.clone(), 128, vec![0; 64 * 128])).unwrap();
    let mut again = alone.gather(offsets, 128, vec![0; 64 * 128]);
    let waker = Waker::from(Arc::new(Woken(AtomicBool::new(false))));
    let Poll::Ready(result) = Pin::new(&mut again).poll(&mut Context::from_waker(&waker)) else { unreachable!() };
    let (out, gathered) = result.unwrap();
    assert_eq!((gathered.hits, gathered.misses), (64, 0));
    assert!(out == bytes[..64 * 128]);
    assert_eq!(drive(&mut again, &waker).unwrap_err().kind(), ErrorKind::InvalidInput, "it has ended");
}

#[test]
fn errors_of_a_batch_name_their_reads_and_wrong_sizes_are_refused() {
    let bytes = noise(10_000, 6);
    let file = File::with(&bytes);
    let ssd = Ssd::open(file.path()).unwrap();
    let runtime = Runtime::start(machine()).unwrap();
    let fine = FineGrained::over(&ssd, small(CachePolicy::default())).unwrap();
    let alone = fine.on(&runtime, 4).unwrap();
    let offsets = vec![0, 9_990, 5_000, u64::MAX, 9_900];
    let (out, gathered) = runtime.block_on(alone.gather(offsets, 100, vec![0; 500])).unwrap();
    let failed: Vec<_> = gathered.failed.iter().map(|(number, e)| (*number, e.kind())).collect();
    assert_eq!(failed, [(1, ErrorKind::EndOfFile), (3, ErrorKind::EndOfFile)]);
    assert!(out[..100] == bytes[..100] && out[200..300] == bytes[5_000..5_100] && out[400..] == bytes[9_900..]);
    for (offsets, len, room) in [(vec![0, 1], 8, 15), (vec![0, 1], usize::MAX, 16), (vec![], 8, 1)] {
        let error = runtime.block_on(alone.gather(offsets, len, vec![0; room])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    let error = runtime.block_on(alone.gather_ranges(vec![(0, usize::MAX), (0, 2)], vec![0])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn batches_outlive_dropped_futures_and_wakers_and_checks_that_panic() {
    let bytes = noise(LEN, 7);
    let file = File::with(&bytes);
    let ssd = Ssd::open(file.path()).unwrap();
    let runtime = Runtime::start(machine()).unwrap();
    let mut config = small(CachePolicy::default());
    config.verify = Some(Arc::new(|offset, _: &[u8]| {
        assert!(offset != 77 * 128, "the check panics");
        Ok(())
    }));
    let fine = FineGrained::over(&ssd, config).unwrap();
    let alone = fine.on(&runtime, 4).unwrap();
    let batch = |first: u64| alone.gather((first..first + 16).map(|i| i * 128).collect(), 128, vec![0; 16 * 128]);
    let right = |(out, gathered): (Vec<u8>, datapipes_cache::Gathered), first: usize| {
        assert!(gathered.failed.is_empty());
        assert!(out == bytes[first * 128..(first + 16) * 128]);
    };
    let panicking = Waker::from(Arc::new(Panics));
    let mut r = Random(seed());
    for round in 0..50u64 {
        // A batch that is dropped before its first poll, and one that is dropped after it.
        drop(batch(1_000 + round * 16));
        let mut left = batch(2_000 + round * 16);
        let _ = Pin::new(&mut left).poll(&mut Context::from_waker(&panicking));
        if r.one_in(2) {
            std::thread::yield_now();
        }
        drop(left);
        right(drive(&mut batch(4_000 + round * 16), &panicking).unwrap(), 4_000 + round as usize * 16);
    }
    // The panic of a check reaches the caller, as in `gather`, and the next batch is served.
    let mut checked = batch(70);
    let check = std::panic::AssertUnwindSafe(|| drive(&mut checked, Waker::noop()).map(drop));
    assert!(std::panic::catch_unwind(check).is_err());
    right(runtime.block_on(batch(200)).unwrap(), 200);
    // A future keeps its reader.
    let mut last = batch(300);
    let _ = Pin::new(&mut last).poll(&mut Context::from_waker(Waker::noop()));
    drop(alone);
    right(runtime.block_on(last).unwrap(), 300);
}
