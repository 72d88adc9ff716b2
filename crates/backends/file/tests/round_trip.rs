//! Random spans against a naive copy: both engines, both cache modes, a real disk and tmpfs.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod common;

use common::{Random, bytes, contents, dirs, file, machine, memory_of, only, seed};
use datapipes_core::{Dram, FileAccess, Span};
use datapipes_file::FileBackendOptions;

const FILE: usize = 3 << 20;
const MEMORY: usize = 2 << 20;

/// Requests and slices are small, so that a span has many of both.
fn config() -> FileBackendOptions {
    FileBackendOptions::default().request_bytes(64 << 10).slice_bytes(1 << 20)
}

fn span(random: &mut Random, file_most: u64, file_is_source: bool) -> Span {
    let most = if random.below(3) == 0 { 9000 } else { 600_000 };
    let len = random.awkward(most);
    let (file, memory) = (random.awkward(file_most - len), random.awkward(MEMORY as u64 - len));
    if file_is_source { Span { source: file, target: memory, len } } else { Span { source: memory, target: file, len } }
}

fn copy(span: Span, source: &[u8], target: &mut [u8]) {
    if span.len == 0 {
        return;
    }
    let (from, to, len) = (span.source as usize, span.target as usize, span.len as usize);
    target[to..to + len].copy_from_slice(&source[from..from + len]);
}

fn lanes() -> [(FileAccess, &'static str); 2] {
    [(FileAccess::Direct, "direct"), (FileAccess::Cached, "cached")]
}

#[test]
fn reads_are_the_naive_copy() {
    let seed = seed();
    let mut random = Random(seed);
    for dir in dirs() {
        for (access, lane) in lanes() {
            for engine in ["uring", "pread"] {
                let source = bytes(FILE, seed);
                let Some(ssd) = file(&dir, &source, access) else { continue };
                let dram = memory_of(&bytes(MEMORY, seed + 1));
                let mut twin = dram.lease().unwrap().to_vec();
                let name = format!("{engine}-{lane}");
                let pipe = machine(config()).connect_with(&ssd, &dram, &only(&name)).unwrap();
                let mut moved = 0;
                for _ in 0..120 {
                    let span = span(&mut random, FILE as u64, true);
                    pipe.transfer(span).unwrap_or_else(|e| panic!("seed {seed}, {name}, {span:?}: {e}"));
                    copy(span, &source, &mut twin);
                    moved += span.len;
                    let same = *dram.lease().unwrap() == *twin;
                    assert!(same, "seed {seed}, {name} in {}: {span:?}", dir.display());
                }
                let counters = &pipe.report().hops[0].counters;
                assert_eq!((counters.bytes, counters.transfers, counters.failed), (moved, 120, 0));
                let by_lane = if lane == "direct" { counters.direct_bytes } else { counters.cached_bytes };
                assert_eq!(by_lane, moved);
                assert_eq!(counters.bounces > 0, lane == "direct");
            }
        }
    }
}

#[test]
fn writes_are_the_naive_copy() {
    let seed = seed();
    let mut random = Random(seed);
    for dir in dirs() {
        for (access, lane) in lanes() {
            for engine in ["uring", "pwrite"] {
                let source = bytes(MEMORY, seed);
                let dram = memory_of(&source);
                let Some(ssd) = file(&dir, &bytes(FILE, seed + 1), access) else { continue };
                let mut twin = contents(&ssd);
                let name = format!("{engine}-{lane}");
                let pipe = machine(config()).connect_with(&dram, &ssd, &only(&name)).unwrap();
                for _ in 0..120 {
                    // Spans also go beyond the end: the file is exactly as long as what was
                    // written.
                    let span = span(&mut random, FILE as u64 + 300_000, false);
                    pipe.transfer(span).unwrap_or_else(|e| panic!("seed {seed}, {name}, {span:?}: {e}"));
                    if span.len > 0 {
                        twin.resize(twin.len().max((span.target + span.len) as usize), 0);
                    }
                    copy(span, &source, &mut twin);
                    let now = contents(&ssd);
                    assert_eq!(now.len(), twin.len(), "seed {seed}, {name} in {}: {span:?}", dir.display());
                    assert!(now == twin, "seed {seed}, {name} in {}: {span:?}", dir.display());
                }
                let counters = &pipe.report().hops[0].counters;
                assert_eq!(counters.direct_bytes + counters.cached_bytes, counters.bytes);
                assert_eq!(counters.direct_bytes > 0, lane == "direct");
            }
        }
    }
}

/// Neighbouring transfers whose borders lie inside pages: one must not undo what the other writes.
#[test]
fn neighbours_in_one_page_do_not_disturb_each_other() {
    let seed = seed();
    let mut random = Random(seed);
    for dir in dirs() {
        let source = bytes(MEMORY, seed);
        let dram = memory_of(&source);
        for round in 0..12 {
            let old = bytes(MEMORY, seed + round);
            let Some(ssd) = file(&dir, &old, FileAccess::Direct) else { continue };
            let pipe = machine(config()).connect_with(&dram, &ssd, &only("uring-direct")).unwrap();
            let mut borders: Vec<u64> = (0..200).map(|_| random.awkward(MEMORY as u64)).collect();
            borders.extend([0, MEMORY as u64]);
            borders.sort_unstable();
            // Many are in flight at once, in a random order.
            let mut spans: Vec<_> =
                borders.windows(2).map(|w| Span { source: w[0], target: w[0], len: w[1] - w[0] }).collect();
            for i in (1..spans.len()).rev() {
                spans.swap(i, random.below(i as u64 + 1) as usize);
            }
            let started: Vec<_> = spans.iter().map(|s| pipe.start(*s).unwrap()).collect();
            for transfer in started {
                transfer.wait().unwrap();
            }
            assert!(contents(&ssd) == source, "seed {seed} in {}", dir.display());
            // Compares the bytes on the device, not only those in the page cache.
            ssd.sync().unwrap();
            rustix::fs::fadvise(ssd.file().cached_fd(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
            assert!(contents(&ssd) == source, "after a sync: seed {seed} in {}", dir.display());
        }
    }
}

#[test]
fn threads_share_a_pipe() {
    let seed = seed();
    const EACH: u64 = 1 << 20;
    const THREADS: u64 = 6;
    for primitive in ["uring-direct", "uring-cached", "pread-direct"] {
        let access = if primitive.ends_with("direct") { FileAccess::Direct } else { FileAccess::Cached };
        let source = bytes((EACH * THREADS) as usize, seed);
        let Some(ssd) = file(&common::disk(), &source, access) else { continue };
        let dram = common::memory(source.len());
        let pipe = machine(config()).connect_with(&ssd, &dram, &only(primitive)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let pipe = &pipe;
                scope.spawn(move || {
                    let mut random = Random(seed + thread + 1);
                    for _ in 0..10 {
                        let mut started = Vec::new();
                        let mut at = thread * EACH;
                        while at < (thread + 1) * EACH {
                            let len = (1 + random.awkward(200_000)).min((thread + 1) * EACH - at);
                            started.push(pipe.start(Span { source: at, target: at, len }).unwrap());
                            at += len;
                        }
                        // Some are waited for. Others are dropped in flight; their bytes stay
                        // leased until they are done.
                        let keep = random.below(2) == 0;
                        for (i, transfer) in started.into_iter().enumerate() {
                            if keep || i % 2 == 0 { transfer.wait().unwrap() } else { drop(transfer) }
                        }
                        let span = Span { source: thread * EACH, target: thread * EACH, len: EACH };
                        while let Err(e) = pipe.transfer(span) {
                            assert_eq!(e.kind(), datapipes_core::ErrorKind::Busy, "seed {seed}: {e}");
                            // The next thread that waits finishes a dropped transfer; an empty one
                            // suffices.
                            pipe.transfer(Span { len: 0, ..span }).unwrap();
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        assert!(*dram.lease().unwrap() == *source, "seed {seed}, {primitive}");
        assert_eq!(pipe.report().hops[0].counters.failed, 0);
    }
}

#[test]
fn a_thread_may_end_before_its_transfers_do() {
    let source = bytes(8 << 20, 5);
    for primitive in ["uring-direct", "uring-cached"] {
        let access = if primitive.ends_with("direct") { FileAccess::Direct } else { FileAccess::Cached };
        let Some(ssd) = file(&common::disk(), &[], access) else { continue };
        let dram = memory_of(&source);
        let pipe = machine(config()).connect_with(&dram, &ssd, &only(primitive)).unwrap();
        let span = Span { source: 0, target: 0, len: source.len() as u64 };
        let started = std::thread::scope(|scope| scope.spawn(|| pipe.start(span).unwrap()).join().unwrap());
        started.wait().unwrap();
        assert!(contents(&ssd) == source, "{primitive}");
    }
}

#[test]
fn pages_given_back_are_registered_anew() {
    let source = bytes(1 << 20, 9);
    let Some(ssd) = file(&common::disk(), &source, FileAccess::Direct) else { return };
    let dram = Dram::allocate(1 << 20).unwrap();
    let pipe = machine(config()).connect_with(&ssd, &dram, &only("uring-direct")).unwrap();
    let whole = Span { source: 0, target: 0, len: 1 << 20 };
    for _ in 0..3 {
        pipe.transfer(whole).unwrap();
        assert!(*dram.lease().unwrap() == *source);
        dram.memory().release().unwrap();
        assert!(dram.lease().unwrap().iter().all(|b| *b == 0));
    }
    assert!(pipe.report().hops[0].counters.fixed_buffer_hits > 0);
}

#[test]
fn registered_memory_is_used_and_its_absence_shows() {
    let source = bytes(4 << 20, 3);
    for registered in [true, false] {
        let Some(ssd) = file(&common::disk(), &source, FileAccess::Direct) else { return };
        let dram = Dram::allocate(4 << 20).unwrap();
        let config = config().no_registered_memory(!registered);
        let pipe = machine(config).connect_with(&ssd, &dram, &only("uring-direct")).unwrap();
        pipe.transfer(Span { source: 0, target: 0, len: 4 << 20 }).unwrap();
        let c = pipe.report().hops[0].counters.clone();
        assert_eq!((c.fixed_buffer_hits > 0, c.fixed_buffer_misses > 0), (registered, !registered));
        assert!(c.max_outstanding > 1 && c.system_calls < c.requests, "{c:?}");
        assert!(*dram.lease().unwrap() == *source);
    }
}

#[test]
fn the_caller_sets_depth_and_request() {
    let source = bytes(4 << 20, 21);
    for (queue_depth, request_bytes) in [(1, 64 << 10), (3, 4096), (100, 1), (2, 8 << 20)] {
        let Some(ssd) = file(&common::disk(), &source, FileAccess::Direct) else { return };
        let dram = common::memory(4 << 20);
        let constraints = only("uring-direct").queue_depth(queue_depth).request_bytes(request_bytes);
        let pipe = machine(FileBackendOptions::default()).connect_with(&ssd, &dram, &constraints).unwrap();
        pipe.transfer(Span { source: 0, target: 0, len: 4 << 20 }).unwrap();
        assert!(*dram.lease().unwrap() == *source);
        let c = &pipe.report().hops[0].counters;
        let requests = (4u64 << 20).div_ceil(u64::from(request_bytes).max(4096));
        assert_eq!((c.max_outstanding, c.requests), (u64::from(queue_depth).min(requests), requests), "{c:?}");
    }
}
