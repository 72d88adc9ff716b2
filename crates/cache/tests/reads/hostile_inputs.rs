//! Inputs from outside: numbers of any size, foreign code that panics or re-enters, a machine that
//! is short of a resource.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, OnceLock};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::fixture::array::Array;
use crate::fixture::{File, machine, noise, small};
use datapipes_cache::{BufferPool, CacheOptions, CachePolicy, ExternalChanges, FineGrained};
use datapipes_core::{ErrorKind, Runtime, Ssd};
use datapipes_testkit::{PATIENCE, RefusedCall, bounded, without_calls};

const LEN: usize = 1 << 20;

fn over(config: CacheOptions) -> (File, Ssd, FineGrained) {
    let file = File::with(&noise(LEN, 1));
    let ssd = Ssd::open_rw(file.path()).unwrap();
    let fine = FineGrained::over(&ssd, config).unwrap();
    (file, ssd, fine)
}

#[test]
fn lengths_that_no_file_or_memory_has_are_errors() {
    let (_file, ssd, fine) = over(small(CachePolicy::default()));
    let runtime = Runtime::start(machine()).unwrap();
    let alone = fine.on(&runtime, 4).unwrap();
    let huge = [64 << 30, 1 << 46, isize::MAX as usize, usize::MAX];
    for len in huge {
        for offset in [0, 5, u64::MAX - 10] {
            assert_eq!(fine.get(offset, len).unwrap_err().kind(), ErrorKind::EndOfFile, "{len} at {offset}");
            let read = runtime.block_on(alone.read(offset, len));
            assert_eq!(read.unwrap_err().kind(), ErrorKind::EndOfFile, "{len} at {offset}");
        }
        assert!(fine.gather_ranges(&[(0, len), (1, len)], &mut [0; 8]).is_err());
    }
    // The file is that long, but the memory is not.
    let long = 1 << 43;
    match ssd.set_len(long) {
        Ok(()) => {
            let len = usize::try_from(long).unwrap();
            assert_eq!(fine.get(0, len).unwrap_err().kind(), ErrorKind::OutOfMemory);
            assert_eq!(runtime.block_on(alone.read(0, len)).unwrap_err().kind(), ErrorKind::OutOfMemory);
        }
        Err(e) => println!("SKIPPED: a read of {long} bytes: {e}"),
    }
    let mut out = [0; 8];
    fine.read(77, &mut out).unwrap();
    assert_eq!(out, noise(LEN, 1)[77..85]);
}

#[test]
fn settings_of_any_size_are_taken_or_refused() {
    let (_file, ssd, fine) = over(small(CachePolicy::default()));
    let runtime = Runtime::start(machine()).unwrap();
    for in_flight in [0, usize::MAX, usize::MAX / 4096, 1 << 46] {
        let error = fine.on(&runtime, in_flight).map(|_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::OutOfMemory), "{in_flight}: {error}");
    }
    let mut refused = 0;
    for budget in [0, 1, (2 << 20) - 1, 1 << 46, isize::MAX as usize, usize::MAX] {
        let error = FineGrained::over(&ssd, small(CachePolicy::default()).budget(budget)).map(|_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::OutOfMemory), "{budget}: {error}");
        refused += 1;
    }
    assert_eq!(refused, 6);
    let odd: [fn(&mut CacheOptions); 9] = [
        |c| c.depth = 0,
        |c| c.depth = usize::MAX,
        |c| c.lanes = 0,
        |c| c.lanes = usize::MAX,
        |c| c.large = usize::MAX,
        |c| c.ttl = Some(Duration::ZERO),
        |c| c.ttl = Some(Duration::MAX),
        |c| c.outside = ExternalChanges::Every(Duration::ZERO),
        |c| c.patience = Duration::MAX,
    ];
    for set in odd {
        let mut config = small(CachePolicy::default());
        set(&mut config);
        let fine = FineGrained::over(&ssd, config).unwrap();
        let mut out = [0; 300];
        for _ in 0..2 {
            fine.read(4000, &mut out).unwrap();
            fine.maintain();
            assert_eq!(out, noise(LEN, 1)[4000..4300]);
        }
    }
}

#[test]
fn events_that_nobody_takes_are_refused() {
    let (file, ssd, _fine) = over(small(CachePolicy::default()));
    let mut config = small(CachePolicy::default());
    config.outside = ExternalChanges::Events;
    let refused = |e: datapipes_core::Error| assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    refused(FineGrained::over(&ssd, config.clone()).map(|_| ()).unwrap_err());
    // The same holds for an engine, which has no file.
    config.maintenance = true;
    let array = Arc::new(Array::new(512, noise(LEN, 1)));
    refused(FineGrained::with_engine(array, config, "array").map(|_| ()).unwrap_err());
    drop(file);
}

#[test]
fn a_block_device_is_refused_where_nothing_tells_of_its_changes() {
    let file = File::with(&noise(LEN, 1));
    let device = match datapipes_testkit::LoopDevice::over(file.path()) {
        Ok(device) => device,
        Err(e) => {
            return println!("SKIPPED: a_block_device_is_refused_where_nothing_tells_of_its_changes: {e}");
        }
    };
    let ssd = Ssd::open(device.path()).unwrap();
    let open = |outside, ttl: Option<Duration>| {
        let mut config = small(CachePolicy::default());
        (config.outside, config.ttl, config.maintenance) = (outside, ttl, true);
        FineGrained::over(&ssd, config)
    };
    let (often, lives) = (Duration::from_millis(5), Some(Duration::from_secs(1)));
    for (outside, ttl) in [
        (ExternalChanges::default(), None),
        (ExternalChanges::Times(often), None),
        (ExternalChanges::Events, None),
        (ExternalChanges::Events, lives),
    ] {
        let error = open(outside, ttl).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{outside:?}, {ttl:?}: {error}");
        assert!(error.to_string().contains("block device"), "{error}");
    }
    // Old bytes are returned for the time to live, and no longer. The write uses another name of
    // the device.
    let other = file.path().with_extension("node");
    let mut out = [0; 8];
    let fine = open(ExternalChanges::Every(often), lives).unwrap();
    assert!(fine.explain().contains("time to live"), "{}", fine.explain());
    fine.read(4096, &mut out).unwrap();
    let script = "mknod \"$1\" b $(stat -c '0x%t 0x%T' \"$0\") && \
        printf somebody | dd of=\"$1\" bs=1 seek=4096 conv=notrunc,fsync 2>/dev/null; rm -f \"$1\"";
    let written = std::process::Command::new("sh").args(["-c", script]).arg(device.path()).arg(&other).status();
    assert!(written.unwrap().success());
    let started = std::time::Instant::now();
    loop {
        fine.read(4096, &mut out).unwrap();
        if &out == b"somebody" {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "old bytes for ever: {out:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The items of a snapshot are not assumed to be current.
    let fine = open(ExternalChanges::Never, None).unwrap();
    (0..3).for_each(|_| fine.read(4096, &mut out).unwrap());
    let snapshot = file.beside(".snapshot");
    assert_eq!(fine.save(&snapshot).unwrap(), 1);
    let warmed = open(ExternalChanges::Never, None).unwrap().load(&snapshot).unwrap();
    assert!(warmed.read_again && warmed.items == 1, "{warmed:?}");
    std::fs::remove_file(&snapshot).unwrap();
    drop((fine, ssd, device));
}

/// A check that accepts everything, and panics when told to.
fn panicking(panics: &Arc<AtomicBool>) -> CacheOptions {
    let panics = panics.clone();
    let mut config = small(CachePolicy::default());
    config.verify = Some(Arc::new(move |_, _: &[u8]| {
        assert!(!panics.load(SeqCst), "a check that panics");
        Ok(())
    }));
    // There is one of each, so that a lost one is noticed.
    (config.lanes, config.depth) = (1, 8);
    config
}

#[test]
fn a_check_that_panics_harms_only_its_own_read() {
    let panics = Arc::new(AtomicBool::new(true));
    let (_file, _ssd, fine) = over(panicking(&panics));
    let runtime = Runtime::start(machine()).unwrap();
    let alone = fine.on(&runtime, 1).unwrap();
    let offsets: Vec<u64> = (0..100).map(|i| i * 5000).collect();
    bounded("checks that panic", {
        let (fine, alone, offsets) = (fine.clone(), alone.clone(), offsets.clone());
        let runtime = Runtime::start(machine()).unwrap();
        move || {
            for _ in 0..3 {
                let caught = |work: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err();
                assert!(caught(&|| fine.read(9000, &mut [0; 64]).unwrap()));
                assert!(caught(&|| _ = fine.gather(&offsets, 64, &mut vec![0; 6400])));
                assert!(caught(&|| fine.read(4000, &mut [0; 200]).unwrap()));
                assert!(caught(&|| _ = runtime.block_on(alone.read(70_000, 64))));
            }
        }
    });
    panics.store(false, SeqCst);
    bounded("reads after a check that panicked", move || {
        let mut out = vec![0; 6400];
        fine.read(9000, &mut out[..64]).unwrap();
        assert_eq!(out[..64], noise(LEN, 1)[9000..9064]);
        fine.gather(&offsets, 64, &mut out).unwrap().all().unwrap();
        assert!(out.chunks(64).zip(&offsets).all(|(b, &at)| *b == noise(LEN, 1)[at as usize..at as usize + 64]));
        let read = runtime.block_on(alone.read(70_000, 64)).unwrap();
        assert_eq!(read, noise(LEN, 1)[70_000..70_064]);
        assert_eq!(fine.metrics().under_way, 0);
    });
}

/// A way in which a check reads the four bytes of a sum.
type ReadsSum = Box<dyn Fn(u64) -> datapipes_core::Result<()> + Send + Sync>;

#[test]
fn a_check_may_read_through_the_cache_that_it_checks() {
    // The second half of the file has sums of the first half's pages.
    const SUMS: u64 = LEN as u64 / 2;
    let by: Arc<OnceLock<[ReadsSum; 2]>> = Arc::default();
    let (theirs, asked) = (by.clone(), Arc::new(AtomicU64::new(0)));
    let count = asked.clone();
    let mut config = small(CachePolicy::default());
    // There is one of each: a read that keeps one while a check runs leaves none for the check.
    (config.lanes, config.depth, config.maintenance) = (1, 8, false);
    config.verify = Some(Arc::new(move |offset, _: &[u8]| {
        if offset >= SUMS {
            return Ok(());
        }
        let (asked, way) = (count.fetch_add(1, SeqCst), theirs.get().unwrap());
        way[(asked % 2) as usize](SUMS + offset / 4096 * 4).map_err(|e| e.to_string())
    }));
    let (_file, _ssd, fine) = over(config);
    let runtime = Arc::new(Runtime::start(machine()).unwrap());
    let alone = fine.on(&runtime, 1).unwrap();
    let (reads, futures, drives) = (fine.clone(), alone.clone(), runtime.clone());
    let advises = fine.clone();
    let ways: [ReadsSum; 2] = [
        Box::new(move |at| reads.read(at, &mut [0; 4])),
        Box::new(move |at| {
            advises.prefetch(&[(at + 4, 4)])?;
            drives.block_on(futures.read(at, 4)).map(drop)
        }),
    ];
    assert!(by.set(ways).is_ok());
    bounded("reads whose check reads", move || {
        let offsets: Vec<u64> = (0..20).map(|i| i * 5000).collect();
        for _ in 0..2 {
            fine.clear();
            fine.read(9000, &mut [0; 64]).unwrap();
            fine.read(20_000, &mut [0; 9000]).unwrap();
            assert_eq!(fine.get(100_000, 64).unwrap()[..], noise(LEN, 1)[100_000..100_064]);
            fine.gather(&offsets, 64, &mut vec![0; 64 * 20]).unwrap().all().unwrap();
            assert!(fine.get_many(&[(130_000, 64), (140_000, 9000)]).unwrap().iter().all(Result::is_ok));
            fine.prefetch(&[(150_000, 64), (155_000, 64)]).unwrap();
            fine.maintain();
            assert!(fine.try_read(150_000, &mut [0; 64]).is_some(), "what was checked is kept");
            for (at, len) in [(200_000, 64), (210_000, 9000)] {
                let read = runtime.block_on(alone.read(at, len)).unwrap();
                assert_eq!(read, noise(LEN, 1)[at as usize..at as usize + len]);
            }
            std::thread::scope(|threads| {
                for thread in 0..4 {
                    let fine = &fine;
                    threads.spawn(move || {
                        (0..50).for_each(|i| {
                            fine.read(300_000 + (i * 4 + thread) * 1024, &mut [0; 64]).unwrap();
                        })
                    });
                }
            });
        }
        assert_eq!(fine.metrics().under_way, 0);
    });
    assert!(asked.load(SeqCst) > 100);
}

/// A waker that panics, re-enters the file, or records that it was woken.
struct Wakes {
    woken: AtomicU64,
    panics: bool,
    writes: Option<Ssd>,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, SeqCst);
        if let Some(ssd) = &self.writes {
            ssd.punch(500_000, 4096).unwrap();
        }
        assert!(!self.panics, "a waker that panics");
    }
}

#[test]
fn wakers_that_panic_or_come_back_leave_nobody_asleep() {
    let (_file, ssd, fine) = over(small(CachePolicy::default()));
    let runtime = Runtime::start(machine()).unwrap();
    let alone = fine.on(&runtime, 1).unwrap();
    let wakes: Vec<Arc<Wakes>> = [(true, false), (false, true), (false, false)]
        .map(|(panics, writes)| Arc::new(Wakes { woken: 0.into(), panics, writes: writes.then(|| ssd.clone()) }))
        .into();
    let poll = |reading: &mut datapipes_cache::ReadFuture, wakes: &Arc<Wakes>| {
        let waker = Waker::from(wakes.clone());
        Pin::new(reading).poll(&mut Context::from_waker(&waker)).is_ready()
    };
    // All wait for the end of a change.
    let change = ssd.write_observers().begin(64..128);
    let mut readings: Vec<_> = wakes.iter().map(|_| alone.read(64, 64)).collect();
    assert!(!readings.iter_mut().zip(&wakes).any(|(r, w)| poll(r, w)));
    let last = wakes[2].clone();
    bounded("the end of a change", move || {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ssd.write_observers().end(change)));
        drop(ended);
    });
    assert!(last.woken.load(SeqCst) > 0, "the last one sleeps for ever");
    // All want the one buffer. The first one has it, and is dropped.
    let mut out = runtime.block_on(readings.pop().unwrap()).unwrap();
    readings.clear();
    assert_eq!(out, noise(LEN, 1)[64..128]);
    let mut first = alone.read(10_000, 64);
    assert!(!poll(&mut first, &wakes[2]));
    let mut readings: Vec<_> = wakes.iter().map(|_| alone.read(20_000, 64)).collect();
    assert!(!readings.iter_mut().zip(&wakes).any(|(r, w)| poll(r, w)));
    _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(first)));
    out = bounded("a read after the others left", move || {
        let last = readings.pop().unwrap();
        _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(readings)));
        runtime.block_on(last).unwrap()
    });
    assert_eq!(out, noise(LEN, 1)[20_000..20_064]);
}

/// A waker whose last clone panics when it is dropped.
struct Clings;

impl Wake for Clings {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Clings {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a waker that panics when it is given up");
    }
}

#[test]
fn wakers_that_panic_when_they_are_given_up_keep_no_buffer_and_leave_nobody_asleep() {
    let (_file, ssd, fine) = over(small(CachePolicy::default()));
    let runtime = Runtime::start(machine()).unwrap();
    let alone = fine.on(&runtime, 1).unwrap();
    let caught = |work: &mut dyn FnMut()| _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    // The future keeps the last clone of the waker.
    let poll = |reading: &mut datapipes_cache::ReadFuture| {
        let mut waker = Some(Waker::from(Arc::new(Clings)));
        caught(&mut || _ = Pin::new(&mut *reading).poll(&mut Context::from_waker(waker.as_ref().unwrap())));
        caught(&mut || drop(waker.take()));
    };
    let give_up = |readings: Vec<datapipes_cache::ReadFuture>| {
        readings.into_iter().map(Some).for_each(|mut reading| caught(&mut || drop(reading.take())));
    };
    let right = |offset: u64, what: &str| {
        let (alone, runtime) = (alone.clone(), Runtime::start(machine()).unwrap());
        let read = bounded(what, move || runtime.block_on(alone.read(offset, 64)).unwrap());
        assert_eq!(read, noise(LEN, 1)[offset as usize..offset as usize + 64]);
    };
    for round in 0..20u64 {
        // One future has the buffer. The others wait for it, and are polled again.
        let mut readings: Vec<_> = (0..4).map(|i| alone.read(round * 40_000 + i * 8192, 64)).collect();
        (0..2).for_each(|_| readings.iter_mut().for_each(poll));
        if round % 2 == 0 {
            // The buffer is free, and reserved for another future than the one that is polled.
            caught(&mut || drop(readings.remove(0)));
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(1));
                poll(&mut readings[2]);
            }
        }
        give_up(readings);
        right(round * 40_000 + 36_000, "a read after wakers that cling to a buffer");
    }
    // The same for the end of a change.
    for round in 0..4 {
        let change = ssd.write_observers().begin(900_000..900_064);
        let mut readings: Vec<_> = (0..3).map(|_| alone.read(900_000, 64)).collect();
        (0..2).for_each(|_| readings.iter_mut().for_each(poll));
        if round % 2 == 0 {
            give_up(readings.split_off(1));
        }
        caught(&mut || ssd.write_observers().end(change));
        give_up(readings);
        fine.clear();
        right(900_000, "a read after wakers that cling to a change");
    }
}

/// A waker whose clones can be counted.
struct Counted;

impl Wake for Counted {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_future_leaves_one_waker_however_often_it_is_asked() {
    let mut config = small(CachePolicy::default());
    config.patience = Duration::from_secs(3600);
    let (_file, ssd, fine) = over(config);
    let runtime = Runtime::start(machine()).unwrap();
    let alone = fine.on(&runtime, 1).unwrap();
    let change = ssd.write_observers().begin(64..128);
    let [first, second] = [(); 2].map(|()| Arc::new(Counted));
    let mut reading = alone.read(64, 64);
    let mut poll = |counted: &Arc<Counted>| {
        let waker = Waker::from(counted.clone());
        assert!(Pin::new(&mut reading).poll(&mut Context::from_waker(&waker)).is_pending());
    };
    (0..1000).for_each(|_| poll(&first));
    assert_eq!(Arc::strong_count(&first), 2, "ours, and one that is kept");
    (0..1000).for_each(|_| poll(&second));
    assert_eq!([&first, &second].map(Arc::strong_count), [1, 2], "the last one is kept");
    drop(reading);
    assert_eq!(Arc::strong_count(&second), 1, "who is gone is not to be woken");
    ssd.write_observers().end(change);
}

#[test]
fn a_file_has_its_own_patience_whoever_asks() {
    let mut config = small(CachePolicy::default());
    (config.patience, config.maintenance) = (Duration::from_secs(3600), true);
    let pool = BufferPool::new(config).unwrap();
    let file = File::with(&noise(LEN, 1));
    let ssd = Ssd::open_rw(file.path()).unwrap();
    let mut options = pool.file_options();
    options.patience = Duration::from_millis(20);
    let fine = pool.open_with(&ssd, options).unwrap();
    let change = ssd.write_observers().begin(64..128);
    // The future is polled again only when it was woken: by the pool's thread, after the file's
    // patience.
    let kinds = bounded("a read of what changes", {
        let runtime = Runtime::start(machine()).unwrap();
        let (alone, fine) = (fine.on(&runtime, 1).unwrap(), fine.clone());
        move || {
            let future = runtime.block_on(alone.read(64, 64)).map(drop);
            [fine.read(64, &mut [0; 64]), future].map(|read| read.unwrap_err().kind())
        }
    });
    assert_eq!(kinds, [ErrorKind::Busy; 2]);
    ssd.write_observers().end(change);
}

#[test]
fn where_no_more_lanes_can_be_made_those_that_are_there_serve() {
    let mut config = small(CachePolicy::default());
    (config.lanes, config.depth) = (8, 8);
    let (_file, _ssd, fine) = over(config);
    let offsets: Vec<u64> = (0..64).map(|i| i * 7000).collect();
    // One lane exists for certain.
    fine.gather(&offsets, 64, &mut vec![0; 64 * 64]).unwrap().all().unwrap();
    let refused = [
        RefusedCall { number: libc::SYS_io_uring_setup, errno: libc::EMFILE },
        RefusedCall { number: libc::SYS_mmap, errno: libc::ENOMEM },
    ];
    for refused in refused {
        // All threads begin together, including those for which nothing is refused.
        let all = Barrier::new(6);
        let outcome = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|thread| {
                    let (fine, all) = (&fine, &all);
                    scope.spawn(move || {
                        // Each thread uses its own part of the file, which only it invalidates.
                        let part = thread * 131_072..(thread + 1) * 131_072;
                        let offsets: Vec<u64> = part.clone().step_by(2048).collect();
                        let mut out = vec![0; 64 * 64];
                        let arrived = AtomicBool::new(false);
                        let refusing = without_calls(&[refused], || {
                            arrived.store(true, SeqCst);
                            all.wait();
                            for _ in 0..100 {
                                fine.invalidate(part.clone());
                                fine.gather(&offsets, 64, &mut out)?.all()?;
                            }
                            Ok::<(), datapipes_core::Error>(())
                        });
                        if !arrived.load(SeqCst) {
                            all.wait();
                        }
                        refusing
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        for result in outcome {
            match result {
                Ok(read) => read.unwrap(),
                Err(why) => return println!("SKIPPED: where_no_more_lanes_can_be_made: {why}"),
            }
        }
    }
}

#[test]
fn a_read_that_others_change_again_and_again_ends() {
    // Bytes change each time they are read: either others that share their versions, or the same
    // bytes.
    for (at, is_over_it) in [(4096 + 64, false), (4096, true)] {
        let array = Arc::new(Array::new(512, noise(LEN, 4)));
        let mut config = small(CachePolicy::default());
        config.patience = Duration::from_millis(30);
        let fine = FineGrained::with_engine(array.clone(), config, "array").unwrap();
        let in_hook = fine.clone();
        array.hook(Some(Arc::new(move |_, _| in_hook.invalidate(at..at + 64))));
        let (one, several) = bounded("a read that is repeated", move || {
            let one = fine.read(4096, &mut [0; 64]);
            let several = fine.gather(&[4096, 70_000], 64, &mut [0; 128]).unwrap();
            array.hook(None);
            fine.read(4096, &mut [0; 64]).unwrap();
            (one, several)
        });
        let expected = if is_over_it { Err((ErrorKind::Busy, Some(4096))) } else { Ok(()) };
        assert_eq!(one.map_err(|e| (e.kind(), e.offset())), expected);
        let failed: Vec<_> = several.failed.iter().map(|(n, e)| (*n, e.kind())).collect();
        assert_eq!(failed, if is_over_it { vec![(0, ErrorKind::Busy)] } else { vec![] });
    }
}

/// Sets a flag when it is dropped, also on a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Writers at full speed, by the cache's own writer and by a pipe: reads of the same bytes end, and
/// bytes are of one moment.
#[test]
fn reads_against_writers_at_full_speed_end() {
    for by_pipe in [false, true] {
        let mut config = small(CachePolicy::default());
        // The cache's own writer waits for readers, so none fails on a busy machine.
        config.patience = if by_pipe { Duration::from_millis(200) } else { PATIENCE };
        let (_file, ssd, fine) = over(config);
        let writer = fine.writer().unwrap();
        writer.write(8192, &[1; 4096]).unwrap();
        let ended = AtomicBool::new(false);
        let reads: u64 = std::thread::scope(|scope| {
            let ends = Ends(&ended);
            scope.spawn(|| {
                let memory = datapipes_core::Dram::allocate(4096).unwrap();
                let pipe = machine().connect(&memory, &ssd).unwrap();
                for i in (0..=255u8).cycle() {
                    if ended.load(SeqCst) {
                        break;
                    }
                    if by_pipe {
                        memory.lease_mut().unwrap().fill(i);
                        pipe.transfer(datapipes_core::Span { source: 0, target: 8192, len: 4096 }).unwrap();
                    } else {
                        writer.write(8192, &[i; 4096]).unwrap();
                    }
                }
            });
            let mut done = 0;
            let started = std::time::Instant::now();
            while started.elapsed() < Duration::from_millis(700) || (!by_pipe && done == 0) {
                let mut out = [0; 512];
                match fine.read(8192 + 512, &mut out) {
                    Ok(()) => {
                        assert!(out.iter().all(|b| *b == out[0]), "of two moments: {out:?}");
                        done += 1;
                    }
                    // A pipe does not wait for readers, so they may fail.
                    Err(e) => assert!(by_pipe && e.kind() == ErrorKind::Busy, "by a pipe {by_pipe}: {e}"),
                }
            }
            drop(ends);
            done
        });
        println!("by a pipe {by_pipe}: {reads} reads");
        assert!(by_pipe || reads > 0);
    }
}
