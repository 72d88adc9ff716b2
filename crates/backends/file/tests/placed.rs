//! Memory that is placed for a file goes direct but for its edges; many spans move in one call.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

mod common;

use common::{Random, bytes, contents, dirs, file, machine, memory_of, only, seed};
use datapipes_core::{Dram, ErrorKind, FileAccess, MapOptions, Span};
use datapipes_file::FileBackendOptions;
use datapipes_testkit::bounded;

/// An odd offset, in the middle of a block.
const AT: u64 = 10_007;
const LEN: usize = (6 << 20) + 13;

#[test]
fn only_the_edges_of_a_read_into_placed_memory_bounce() {
    let (mut direct, mut told) = (0, 0);
    for dir in dirs() {
        let source = bytes(AT as usize + LEN, seed());
        let Some(ssd) = file(&dir, &source, FileAccess::Direct) else { continue };
        let block = u64::from(ssd.file().offset_align());
        for engine in ["uring-direct", "pread-direct"] {
            for (dram, placed) in [
                (Dram::allocate_for(&ssd, AT, LEN).unwrap(), true),
                (Dram::allocate_for_with(&ssd, AT, LEN, MapOptions::default().prefault(false)).unwrap(), true),
                (Dram::allocate(LEN).unwrap(), false),
            ] {
                let pipe = machine(FileBackendOptions::default()).connect_with(&ssd, &dram, &only(engine)).unwrap();
                pipe.transfer(Span { source: AT, target: 0, len: LEN as u64 }).unwrap();
                assert!(dram.lease().unwrap()[..] == source[AT as usize..], "{engine} in {}", dir.display());
                let counters = &pipe.report().hops[0].counters;
                assert_eq!(counters.direct_bytes, LEN as u64);
                let advised = pipe.report().to_string().contains("allocate_for");
                if placed {
                    assert!(counters.bounces <= 2 && counters.bounced_bytes < 2 * block, "{counters:?}");
                    assert!(!advised);
                } else if ssd.file().memory_align() > 1 {
                    assert_eq!((counters.bounced_bytes, advised), (LEN as u64, true));
                    told += 1;
                }
                direct += 1;
            }
        }
    }
    println!("{direct} direct reads, {told} of them bounced and said so");
}

#[test]
fn only_the_edges_of_a_write_from_placed_memory_go_through_the_page_cache() {
    for dir in dirs() {
        let Some(ssd) = file(&dir, &bytes(AT as usize + LEN, 1), FileAccess::Direct) else { continue };
        let page = u64::from(ssd.file().offset_align()).max(4096);
        let dram = Dram::allocate_for(&ssd, AT, LEN).unwrap();
        let source = bytes(LEN, seed());
        dram.lease_mut().unwrap().copy_from_slice(&source);
        let pipe = machine(FileBackendOptions::default()).connect_with(&dram, &ssd, &only("uring-direct")).unwrap();
        pipe.transfer(Span { source: 0, target: AT, len: LEN as u64 }).unwrap();
        assert!(contents(&ssd)[AT as usize..] == source[..]);
        let counters = &pipe.report().hops[0].counters;
        assert_eq!(counters.bounced_bytes, 0, "{counters:?}");
        assert!(counters.cached_bytes < 2 * page, "{counters:?}");
    }
}

#[test]
fn memory_is_placed_for_any_offset() {
    let Some(ssd) = dirs().iter().find_map(|dir| file(dir, &[1], FileAccess::Auto)) else { return };
    for offset in [0, 1, 4095, 4096, 10_007, (1 << 40) + 3, u64::MAX] {
        for len in [1, 4096, 3 << 20] {
            let dram = Dram::allocate_for(&ssd, offset, len).unwrap();
            assert_eq!((dram.len(), dram.memory().address().addr() as u64 % 4096), (len, offset % 4096));
        }
    }
    for len in [0, usize::MAX, isize::MAX as usize] {
        let error = Dram::allocate_for(&ssd, 1, len).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::OutOfMemory), "{error}");
    }
}

#[test]
fn many_spans_are_the_naive_copy() {
    const FILE: u64 = 2 << 20;
    let mut random = Random(seed());
    for dir in dirs() {
        let source = bytes(FILE as usize, seed());
        let Some(ssd) = file(&dir, &source, FileAccess::Cached) else { continue };
        for primitive in ["uring-cached", "pread-cached"] {
            let target = bytes(FILE as usize, 2);
            let (dram, mut twin) = (memory_of(&target), target);
            let pipe = machine(FileBackendOptions::default()).connect_with(&ssd, &dram, &only(primitive)).unwrap();
            // Targets follow each other with gaps, in a mixed order. One in four spans continues
            // the one before at both ends.
            let (mut spans, mut at, mut sum) = (Vec::<Span>::new(), 0, 0);
            while at < FILE - 3000 {
                let len = random.below(2000);
                let (source, target) = match spans.last() {
                    Some(last) if random.below(4) == 0 && last.source + last.len + len < FILE => {
                        (last.source + last.len, last.target + last.len)
                    }
                    _ => (random.below(FILE - len), at + random.below(500)),
                };
                spans.push(Span { source, target, len });
                at = target + len;
                sum += len;
            }
            let half = spans.len() / 2;
            spans.rotate_left(half);
            for span in &spans {
                let (from, to, len) = (span.source as usize, span.target as usize, span.len as usize);
                twin[to..to + len].copy_from_slice(&source[from..from + len]);
            }
            assert_eq!(pipe.transfer_all(&spans).unwrap(), sum);
            assert!(dram.lease().unwrap()[..] == twin[..]);
            let counters = &pipe.report().hops[0].counters;
            assert!(counters.transfers < spans.len() as u64 && counters.bytes == sum, "{counters:?}");
            assert_eq!(pipe.transfer_all(&[]).unwrap(), 0);
        }
    }
}

#[test]
fn the_span_that_failed_is_named() {
    let Some(ssd) = dirs().iter().find_map(|dir| file(dir, &bytes(100_000, 3), FileAccess::Cached)) else { return };
    let dram = Dram::allocate(1 << 20).unwrap();
    let span = |source, target, len| Span { source, target, len };
    for primitive in ["uring-cached", "pread-cached"] {
        let pipe = machine(FileBackendOptions::default()).connect_with(&ssd, &dram, &only(primitive)).unwrap();
        let fail = |spans: &[Span]| pipe.transfer_all(spans).unwrap_err();

        let error = fail(&[span(0, 0, 10), span(0, (1 << 20) - 5, 10)]);
        assert_eq!((error.kind(), error.bytes_done()), (ErrorKind::OutOfRange, 0));
        assert!(error.context().starts_with("span 1: "), "{error}");

        let error = fail(&[span(0, 500, 10), span(0, 0, 10), span(50, 509, 10)]);
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.context().contains("spans 0 and 2 write the same bytes, at 509"), "{error}");
        assert_eq!(pipe.report().bytes(), 0, "nothing was moved by spans that were refused");

        let error = fail(&[span(0, 0, 10), span(99_990, 4096, 20), span(20, 10_000, 10)]);
        assert_eq!((error.kind(), error.offset()), (ErrorKind::EndOfFile, Some(100_000)));
        assert!(error.context().starts_with("span 1: "), "{error}");
        assert!(error.bytes_done() >= 20, "the first span and a part of the second: {error}");

        // One of three that are moved as one.
        let error = fail(&[span(99_970, 0, 20), span(99_990, 20, 0), span(99_990, 20, 20), span(100_010, 40, 9)]);
        assert!(error.context().starts_with("span 2 (moved as one with 0 to 3): "), "{error}");

        let lease = dram.range(4096, 10).unwrap();
        let lease = lease.lease().unwrap();
        let error = fail(&[span(0, 0, 10), span(5, 4090, 20)]);
        assert_eq!((error.kind(), error.bytes_done()), (ErrorKind::Busy, 10));
        assert!(error.context().starts_with("span 1: "), "{error}");
        drop(lease);
        let before = pipe.report().bytes();
        assert_eq!(pipe.transfer_all(&[span(0, 0, 10), span(5, 4090, 20)]).unwrap(), 30);
        assert_eq!(pipe.report().bytes(), before + 30);
    }
}

/// What a dropped handle leaves behind is collected by whoever needs its bytes.
#[test]
fn a_forgotten_transfer_does_not_keep_its_bytes() {
    let Some(ssd) = dirs().iter().find_map(|dir| file(dir, &bytes(1 << 20, 3), FileAccess::Cached)) else { return };
    let dram = Dram::allocate(1 << 20).unwrap();
    let pipe = machine(FileBackendOptions::default()).connect_with(&ssd, &dram, &only("uring-cached")).unwrap();
    let all = Span { source: 0, target: 0, len: 1 << 20 };
    drop(pipe.start(all).unwrap());
    let moved = bounded("a transfer beside a forgotten one", move || {
        loop {
            match pipe.transfer_all(&[all]) {
                Ok(moved) => return moved,
                // The device is not done with the forgotten one.
                Err(e) => assert_eq!(e.kind(), ErrorKind::Busy, "{e}"),
            }
        }
    });
    assert_eq!(moved, all.len);
}
