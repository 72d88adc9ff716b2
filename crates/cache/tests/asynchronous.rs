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
