//! Reads from the cache alone, many views at once, prefetching, limits for waiting reads, and
//! latencies.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::fixture::array::Array;
use crate::fixture::{File, Random, machine, mix, noise, seed, small, steps};
use datapipes_cache::engine::{EngineFacts, Extent, OnExtent, ReadEngine};
use datapipes_cache::{AsyncReaderOptions, BufferPool, Bytes, CacheOptions, CachePolicy, ExternalChanges, FineGrained};
use datapipes_core::{ErrorKind, Runtime, Ssd};

const LEN: usize = 256 << 10;

#[track_caller]
fn within(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}: it never is");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_read_from_the_cache_alone_never_asks_the_device() {
    let bytes = noise(LEN, 7);
    let array = Arc::new(Array::new(512, bytes.clone()));
    let fine = FineGrained::with_engine(array.clone(), small(CachePolicy::default()), "array").unwrap();
    let mut out = [0; 100];
    assert!(fine.try_read(1000, &mut out).is_none() && fine.try_get(1000, 100).is_none());
    assert_eq!(array.count(), 0);
    fine.read(1000, &mut [0; 100]).unwrap();
    fine.read(4000, &mut [0; 200]).unwrap();
    let asked = array.count();
    fine.try_read(1010, &mut out[..80]).unwrap();
    assert!(out[..80] == bytes[1010..1090]);
    let view = fine.try_get(1010, 80).unwrap();
    assert!(view.is_cached() && *view == bytes[1010..1090]);
    // The read across pages is of one moment. One byte more is not cached.
    let mut across = [0; 200];
    fine.try_read(4000, &mut across).unwrap();
    assert!(across == bytes[4000..4200]);
    assert!(fine.try_read(4000, &mut [0; 201]).is_none() && fine.try_get(4000, 200).is_none());
    // Ranges beyond the end, empty ranges, and numbers that no file has.
    assert!(fine.try_read(LEN as u64 - 1, &mut [0; 2]).is_none());
    assert!(fine.try_read(LEN as u64, &mut []).is_some() && fine.try_read(LEN as u64 + 1, &mut []).is_none());
    assert!(fine.try_read(u64::MAX, &mut [0; 2]).is_none() && fine.try_get(u64::MAX - 4095, 4095).is_none());
    assert_eq!(array.count(), asked);
}

#[test]
fn while_the_device_stands_still_the_cache_answers() {
    let array = Arc::new(Array::new(512, noise(LEN, 7)));
    let fine = FineGrained::with_engine(array.clone(), small(CachePolicy::default()), "array").unwrap();
    fine.read(640, &mut [0; 64]).unwrap();
    let (reached, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let theirs = (reached.clone(), go_on.clone());
    array.hook(Some(Arc::new(move |_, _| {
        theirs.0.wait();
        theirs.1.wait();
    })));
    std::thread::scope(|threads| {
        threads.spawn(|| fine.read(50_000, &mut [0; 64]).unwrap());
        reached.wait();
        assert!(fine.try_read(50_000, &mut [0; 64]).is_none());
        assert!(fine.try_read(640, &mut [0; 64]).is_some());
        go_on.wait();
    });
    array.hook(None);
    assert!(fine.try_read(50_000, &mut [0; 64]).is_some());
}

/// The size of a granule, whose bytes show their version.
const GRANULE: usize = 64;

#[test]
fn what_the_cache_answers_is_of_one_moment() {
    let (seed, steps) = (seed(), steps(20_000));
    // All bytes show a version, by words.
    let file = File::with(&1u64.to_ne_bytes().repeat(LEN / 8));
    let ssd = Ssd::open_rw(file.path()).unwrap();
    let fine = FineGrained::over(&ssd, small(CachePolicy::default())).unwrap();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(1));
    // Two granules on both sides of a page border always change together.
    let at = 8192 - GRANULE as u64;
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let writer = fine.writer().unwrap();
            let mut version = 1u64;
            while !stop.load(SeqCst) {
                version += 1;
                writer.write(at, &version.to_ne_bytes().repeat(2 * GRANULE / 8)).unwrap();
                done.store(version, SeqCst);
            }
        });
        let mut answers = 0;
        for step in 0..steps {
            let mut out = [0; 2 * GRANULE];
            let before = done.load(SeqCst);
            if fine.try_read(at, &mut out).is_some() {
                answers += 1;
                let (words, _) = out.as_chunks::<8>();
                assert!(words.iter().all(|w| *w == words[0]), "DATAPIPES_SEED={seed}, step {step}: torn: {out:?}");
                let version = u64::from_ne_bytes(words[0]);
                assert!(version >= before, "DATAPIPES_SEED={seed}, step {step}: {version} after {before}");
            } else {
                fine.read(at, &mut out).unwrap();
            }
        }
        stop.store(true, SeqCst);
        println!("{answers} of {steps} were answered by the cache");
        assert!(answers > 0);
    });
}

#[test]
fn many_views_are_pinned_where_they_are_cached_and_read_together_where_not() {
    let seed = seed();
    let mut r = Random(seed);
    let bytes = noise(LEN, 7);
    let array = Arc::new(Array::new(512, bytes.clone()));
    let fine = FineGrained::with_engine(array.clone(), small(CachePolicy::default()), "array").unwrap();
    (0..20).for_each(|i| fine.read(i * 1000, &mut [0; 100]).unwrap());
    let before = array.count();
    for _ in 0..50 {
        let mut extents: Vec<(u64, usize)> = (0..20).map(|i| (i * 1000, 100)).collect();
        extents.extend((0..30).map(|_| (r.below(LEN as u64 - 9000), r.below(9000) as usize)));
        extents.extend([(LEN as u64, 1), (u64::MAX, usize::MAX), (0, usize::MAX), (77, 0), (LEN as u64 - 1, 1)]);
        let views = fine.get_many(&extents).unwrap();
        assert_eq!(views.len(), extents.len());
        for (view, &(at, len)) in views.iter().zip(&extents) {
            match (view, bytes.get(at as usize..).and_then(|b| b.get(..len))) {
                (Ok(view), Some(expected)) => assert!(**view == *expected, "DATAPIPES_SEED={seed}: {len} at {at}"),
                (Err(e), None) => assert_eq!((e.kind(), e.offset()), (ErrorKind::EndOfFile, Some(at))),
                (view, _) => panic!("DATAPIPES_SEED={seed}: {len} at {at}: {view:?}"),
            }
        }
        // They stay valid whatever happens to the cache.
        fine.clear();
        let (view, &(at, len)) = (views[25].as_ref().unwrap(), &extents[25]);
        assert!(**view == bytes[at as usize..][..len]);
    }
    assert!(array.count() > before);
    let pinned = |views: &[datapipes_core::Result<Bytes>]| views.iter().flatten().filter(|v| v.is_cached()).count();
    fine.read(0, &mut [0; 100]).unwrap();
    let before = array.count();
    assert_eq!(pinned(&fine.get_many(&[(0, 100), (10, 50)]).unwrap()), 2);
    assert_eq!(array.count(), before);
    assert!(fine.get_many(&[]).unwrap().is_empty());
}

#[test]
fn an_error_in_a_batch_of_views_is_that_of_its_extent() {
    let array = Arc::new(Array::new(512, noise(LEN, 7)));
    let fine = FineGrained::with_engine(array.clone(), small(CachePolicy::default()), "array").unwrap();
    array.fail(5000..5001, crate::fixture::array::Fault::Device);
    let views = fine.get_many(&[(1000, 100), (4990, 100), (9000, 100)]).unwrap();
    let kinds: Vec<_> = views.iter().map(|v| v.as_ref().err().map(|e| (e.kind(), e.offset()))).collect();
    assert_eq!(kinds, [None, Some((ErrorKind::Device, Some(4990))), None]);
}

#[test]
fn what_is_announced_is_cached_before_it_is_read() {
    for maintenance in [false, true] {
        let bytes = noise(LEN, 7);
        let files = [File::with(&bytes), File::with(&bytes)];
        let mut config = small(CachePolicy::default());
        // Files as young as these would be in doubt, and be read once more.
        (config.maintenance, config.outside) = (maintenance, ExternalChanges::Never);
        let pool = BufferPool::new(config).unwrap();
        let open = files.each_ref().map(|f| pool.open(&Ssd::open(f.path()).unwrap()).unwrap());
        let extents: Vec<(u64, usize)> = (0..60).map(|i| (i * 4000, 128)).collect();
        // Some extents are outside of any file.
        let wrong = [(LEN as u64, 1), (u64::MAX, usize::MAX), (0, usize::MAX), (5, 0)];
        for fine in &open {
            assert_eq!(fine.prefetch(&extents).unwrap(), 60);
            assert_eq!(fine.prefetch(&wrong).unwrap(), 4);
        }
        if !maintenance {
            assert_eq!(pool.metrics().items, 0, "nobody reads before maintain is called");
            pool.maintain();
        }
        for fine in &open {
            let cached = |&(at, len): &(u64, usize)| fine.try_read(at, &mut vec![0; len]).is_some();
            within("what was announced is cached", || extents.iter().all(cached));
            let before = fine.metrics().device_reads;
            for &(at, len) in &extents {
                let mut out = vec![0; len];
                fine.read(at, &mut out).unwrap();
                assert!(out == bytes[at as usize..][..len]);
            }
            assert_eq!((fine.metrics().device_reads, fine.metrics().failed), (before, 0));
        }
        // Advice beyond the limit is not accepted, and a closed file is not read.
        let many: Vec<(u64, usize)> = (0..10_000u64).map(|i| (mix(i) % (LEN as u64 - 8), 8)).collect();
        assert!(open[0].prefetch(&many).unwrap() <= 4096);
        drop(open);
        pool.maintain();
        within("nothing of a closed file is cached", || pool.metrics().items == 0);
    }
}

/// A file of any length without memory: each byte is 7. It counts the bytes that are read.
#[derive(Default)]
struct Sevens {
    len: u64,
    asked: AtomicU64,
    /// The most bytes of one call.
    together: AtomicU64,
}

impl ReadEngine for Sevens {
    fn facts(&self) -> EngineFacts {
        EngineFacts { granularity: 512, depth: 8, longest: 4096 }
    }

    fn len_bytes(&self) -> datapipes_core::Result<u64> {
        Ok(self.len)
    }

    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>) {
        let sum = extents.iter().map(|e| u64::from(e.len)).sum();
        self.asked.fetch_add(sum, SeqCst);
        self.together.fetch_max(sum, SeqCst);
        (0..extents.len()).for_each(|i| done(i, Ok(&[7; 4096][..extents[i].len as usize])));
    }

    fn now_ns(&self) -> u64 {
        1
    }
}

#[test]
fn advice_of_any_length_takes_no_more_than_the_budget_has() {
    const BUDGET: usize = 4 << 20;
    let long = 256 << 20;
    let engine = Arc::new(Sevens { len: long as u64, ..Sevens::default() });
    let mut config = CacheOptions::new(machine()).budget(BUDGET);
    config.maintenance = false;
    let fine = FineGrained::with_engine(engine.clone(), config, "sevens").unwrap();
    // One extent is longer than the budget. Before it come a shorter one and two outside of the
    // file.
    let extents = [(8192, 100), (16_000, 100_000), (0, usize::MAX), (u64::MAX, 1), (300_000, long - 300_000)];
    assert_eq!(fine.prefetch(&extents).unwrap(), extents.len());
    fine.maintain();
    let (asked, together) = (engine.asked.load(SeqCst), engine.together.load(SeqCst));
    assert!(together <= BUDGET as u64 / 64, "{together} bytes were read at once");
    assert!(asked <= 2 * BUDGET as u64, "{asked} bytes were read for a cache of {BUDGET}");
    assert!(fine.try_read(300_000, &mut [0; 64]).is_some() || fine.metrics().items > 100, "{}", fine.metrics());
    assert!(fine.metrics().memory_bytes <= BUDGET, "{}", fine.metrics());
    // Any number of extents may be advised.
    let many: Vec<(u64, usize)> = (0..100_000).map(|i| (i * 8, long / 2)).collect();
    let taken = fine.prefetch(&many).unwrap();
    assert!(taken > 0 && taken <= 4096, "{taken}");
    assert!(fine.metrics().memory_bytes <= BUDGET, "{}", fine.metrics());
    // A check needs whole reads. A read that is too long for that is left to the reader.
    let mut config = CacheOptions::new(machine()).budget(BUDGET);
    config.maintenance = false;
    config.verify = Some(Arc::new(|offset, bytes: &[u8]| match (offset, bytes.len()) {
        (5000, 9000) | (40_000, 64) => Ok(()),
        other => panic!("nobody asked for {other:?}"),
    }));
    let fine = FineGrained::with_engine(engine, config, "sevens").unwrap();
    assert_eq!(fine.prefetch(&[(5000, 9000), (0, BUDGET / 2), (40_000, 64)]).unwrap(), 3);
    fine.maintain();
    assert!([(5000, 9000), (40_000, 64)].iter().all(|&(at, len)| fine.try_read(at, &mut vec![0; len]).is_some()));
}

#[test]
fn a_check_that_panics_ends_no_reading_ahead() {
    let files = [File::with(&noise(LEN, 7)), File::with(&noise(LEN, 8))];
    for maintenance in [false, true] {
        let mut config = small(CachePolicy::default());
        // These files are young, so prefetched items would be in doubt.
        (config.maintenance, config.outside) = (maintenance, ExternalChanges::Never);
        let pool = BufferPool::new(config).unwrap();
        let mut options = pool.file_options();
        options.verify = Some(Arc::new(|_, _| panic!("a check of the test's")));
        let bad = pool.open_with(&Ssd::open(files[0].path()).unwrap(), options).unwrap();
        let good = pool.open(&Ssd::open(files[1].path()).unwrap()).unwrap();
        bad.prefetch(&[(0, 64), (4096, 64)]).unwrap();
        good.prefetch(&[(0, 64)]).unwrap();
        pool.maintain();
        within("the other file is read", || good.try_read(0, &mut [0; 64]).is_some());
        assert!(bad.try_read(0, &mut [0; 64]).is_none());
    }
}

#[test]
fn futures_that_wait_beyond_the_limit_are_refused() {
    let file = File::with(&noise(LEN, 7));
    let ssd = Ssd::open(file.path()).unwrap();
    let fine = FineGrained::over(&ssd, small(CachePolicy::default())).unwrap();
    let runtime = Runtime::start(machine()).unwrap();
    let reads = fine.on_with(&runtime, AsyncReaderOptions::default().reads(1).waiting(2)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    // The first future has the only buffer from its first look until it is polled after the end. A
    // quick device may be done at the first look, and then the test tries again.
    let attempt = |_: u32| {
        fine.clear();
        let mut futures: Vec<_> = (0..5).map(|i| reads.read(i * 8192, 100)).collect();
        let first: Vec<_> = futures.iter_mut().map(|f| Pin::new(f).poll(&mut context)).collect();
        let is_early = first.iter().any(|polled| matches!(polled, Poll::Ready(Ok(_))));
        if is_early {
            futures.truncate(3);
            futures.into_iter().zip(&first).filter(|(_, polled)| polled.is_pending()).for_each(|(future, _)| {
                runtime.block_on(future).unwrap();
            });
            return None;
        }
        Some((futures, first))
    };
    let (futures, first) = (0..10_000).find_map(attempt).unwrap();
    for (n, polled) in first.iter().enumerate() {
        match polled {
            Poll::Pending => assert!(n < 3, "{n} waits"),
            Poll::Ready(Err(e)) => assert_eq!((n >= 3, e.kind()), (true, ErrorKind::Busy), "{n}: {e}"),
            Poll::Ready(Ok(_)) => panic!("{n} was not cached"),
        }
    }
    for future in futures.into_iter().take(3) {
        assert_eq!(runtime.block_on(future).unwrap().len(), 100);
    }
    runtime.block_on(reads.read(40_000, 100)).unwrap();
}

#[test]
fn reads_are_timed_where_somebody_asks_for_it() {
    let file = File::with(&noise(LEN, 7));
    let pool = BufferPool::new(small(CachePolicy::default())).unwrap();
    let fine = pool.open(&Ssd::open(file.path()).unwrap()).unwrap();
    fine.read(0, &mut [0; 64]).unwrap();
    assert_eq!((fine.metrics().latencies, pool.metrics().latencies), (None, None));
    fine.measure_latencies(true);
    (0..10).for_each(|i| fine.read(i * 4096, &mut [0; 64]).unwrap());
    assert!(fine.read(LEN as u64, &mut [0; 64]).is_err());
    fine.measure_latencies(false);
    fine.read(0, &mut [0; 64]).unwrap();
    let of = pool.metrics().latencies.unwrap();
    assert_eq!((of.hits.count(), of.misses.count()), (1, 10), "one was cached, and one failed");
    assert!(of.misses.max_ns() >= of.misses.percentile_ns(50.0) && of.misses.mean_ns() > 0);
    assert!(fine.metrics().to_string().contains("misses: 10 timed"));
    // A call counts once: as a hit only if all of its reads were cached.
    fine.measure_latencies(true);
    let ranges = [(0, 64), (4096, 64), (LEN as u64 / 2, 64)];
    let calls = |hits: u64, misses: u64| {
        let now = fine.metrics().latencies.unwrap();
        assert_eq!((now.hits.count(), now.misses.count()), (of.hits.count() + hits, of.misses.count() + misses));
    };
    assert_eq!(fine.gather_ranges(&ranges, &mut [0; 192]).unwrap().misses, 1);
    calls(0, 1);
    fine.gather_ranges(&ranges, &mut [0; 192]).unwrap();
    calls(1, 1);
}
