//! Single cases of cached, found, changed and returned bytes, over real files.

use std::future::Future;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::time::Duration;

use crate::fixture::array::Array;
use crate::fixture::{File, machine, noise, small};
use datapipes_cache::engine::{EngineFacts, Extent, OnExtent, ReadEngine};
use datapipes_cache::{CachePolicy, ExternalChanges, FineGrained};
use datapipes_core::{Dram, ErrorKind, Pmem, PmemOptions, Runtime, Span, Ssd};

const LEN: usize = 256 << 10;

struct Over {
    file: File,
    bytes: Vec<u8>,
    ssd: Ssd,
    fine: FineGrained,
}

fn over(policy: CachePolicy) -> Over {
    let bytes = noise(LEN, 7);
    let file = File::with(&bytes);
    let ssd = Ssd::open_rw(file.path()).unwrap();
    let fine = FineGrained::over(&ssd, small(policy)).unwrap();
    Over { file, bytes, ssd, fine }
}

impl Over {
    /// Reads and compares. Returns whether the device was used.
    #[track_caller]
    fn read(&self, offset: usize, len: usize) -> bool {
        let before = self.fine.metrics().device_reads;
        let mut out = vec![0; len];
        self.fine.read(offset as u64, &mut out).unwrap();
        assert!(out == self.bytes[offset..offset + len], "{len} bytes at {offset}");
        self.fine.metrics().device_reads > before
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// Waits until the condition holds, and fails if it never does.
fn within(what: &str, mut holds: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}: it never is");
        std::thread::yield_now();
    }
}

#[test]
fn parts_of_items_are_hits_and_so_are_ranges_of_several_items() {
    for policy in CachePolicy::ALL {
        let of = over(policy);
        assert!(of.read(1000, 200), "{policy:?}");
        // These are parts of the same item at its start, middle and end, also in other sectors than
        // its first.
        for (offset, len) in [(1000, 200), (1000, 1), (1199, 1), (1020, 8), (1024, 176), (1100, 100)] {
            assert!(!of.read(offset, len), "{policy:?}: {len} bytes at {offset}");
        }
        for (offset, len) in [(999, 2), (1199, 2), (900, 100)] {
            assert!(of.read(offset, len), "{policy:?}: {len} bytes at {offset}");
        }
        // Now the items touch and overlap: all of the range is cached, in pieces.
        assert!(!of.read(900, 301), "{policy:?}");
        let pieces = of.fine.get(950, 200).unwrap();
        assert_eq!(*pieces, of.bytes[950..1150]);
    }
}

#[test]
fn reads_across_pages_are_put_together_from_pages() {
    for policy in CachePolicy::ALL {
        let of = over(policy);
        assert!(of.read(4096 - 40, 100), "{policy:?}");
        for (offset, len) in [(4096 - 40, 100), (4096 - 40, 40), (4096, 60), (4090, 12), (4096 - 1, 2)] {
            assert!(!of.read(offset, len), "{policy:?}: {len} bytes at {offset}");
        }
        // Half of it is cached.
        assert!(of.read(8192 - 64, 64));
        assert!(of.read(8192 - 64, 128));
        assert!(!of.read(8192 - 64, 128));
        // Many pages are read, with cached parts in them, and the end of the file.
        assert!(of.read(10_000, 50_000));
        assert!(!of.read(12_345, 40_000), "{policy:?}");
        assert!(of.read(LEN - 5000, 5000));
        assert!(!of.read(LEN - 100, 100));
    }
}

#[test]
fn batches_are_deduplicated_and_merged() {
    let of = over(CachePolicy::default());
    let offsets: Vec<u64> = [100u64, 100, 228, 300, 100, 9000, 60_000, 9000].into();
    let mut out = vec![0; 8 * 128];
    let gathered = of.fine.gather(&offsets, 128, &mut out).unwrap();
    assert_eq!((gathered.hits, gathered.misses, gathered.failed.len()), (0, 8, 0));
    for (row, &at) in out.chunks_exact(128).zip(&offsets) {
        assert_eq!(row, &of.bytes[at as usize..at as usize + 128]);
    }
    assert_eq!(of.fine.metrics().device_reads, 3, "one for each place");
    let gathered = of.fine.gather(&offsets, 128, &mut out).unwrap();
    assert_eq!((gathered.hits, gathered.misses), (8, 0));
    let error = of.fine.gather(&offsets, 128, &mut [0; 1000]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(of.fine.gather(&[], 128, &mut []).unwrap().failed.is_empty());
    assert!(of.fine.gather(&[0, 1], usize::MAX, &mut []).is_err());
}

#[test]
fn writes_by_every_way_are_seen_when_they_return() {
    for policy in CachePolicy::ALL {
        let mut of = over(policy);
        let runtime = Runtime::start(machine()).unwrap();
        let memory = Dram::allocate(8192).unwrap();
        let other = Ssd::open_rw(of.file.path()).unwrap();
        let pipe = machine().connect(&memory, &other).unwrap();
        let on_runtime = runtime.connect(&memory, &Ssd::open_rw(of.file.path()).unwrap()).unwrap();
        let fd = runtime.connect_fd(&memory, &other).unwrap();
        let writer = of.fine.writer().unwrap();
        // The same file as memory: by a pipe from another place, in both flavors, and by a lease
        // whose bytes are persisted.
        let mapped = PmemOptions::default().emulated(true);
        let pmem = Pmem::open_with(of.file.path(), mapped).unwrap();
        let part = pmem.range(4096, 8192).unwrap();
        let into_pmem = machine().connect(&memory, &part).unwrap();
        let pmem_on_runtime = runtime.connect(&memory, &pmem).unwrap();
        // Overlapping reads come before: of the whole range, from before it, from within it, across
        // the page.
        let reads = [(8100usize, 300usize), (8150, 20), (8192, 4096), (8000, 150), (8191, 2)];
        for way in 0..8 {
            for _ in 0..3 {
                reads.iter().for_each(|&(o, l)| _ = of.read(o, l));
            }
            let bytes = noise(120, 100 + way);
            of.write(8140, &bytes);
            memory.range(0, 120).unwrap().lease_mut().unwrap().copy_from_slice(&bytes);
            let span = Span { source: 0, target: 8140, len: 120 };
            match way {
                0 => writer.write(8140, &bytes).unwrap(),
                1 => pipe.transfer(span).unwrap(),
                2 => on_runtime.transfer(span).unwrap().wait().unwrap(),
                3 => into_pmem.transfer(Span { target: 8140 - 4096, ..span }).unwrap(),
                4 => pmem_on_runtime.transfer(span).unwrap().wait().unwrap(),
                5 => {
                    // The source is a file: a mover of files writes the bytes into memory.
                    let source = File::with(&bytes);
                    let into = machine().connect(&Ssd::open(source.path()).unwrap(), &part).unwrap();
                    into.transfer(Span { target: 8140 - 4096, ..span }).unwrap();
                }
                6 => {
                    pmem.write(8140, &bytes).unwrap();
                    part.persist(8140 - 4096..8140 - 4096 + 120).unwrap();
                }
                _ => {
                    fd.submit(span).unwrap();
                    fd.complete_wait().unwrap().result.unwrap();
                }
            }
            for _ in 0..2 {
                reads.iter().for_each(|&(o, l)| _ = of.read(o, l));
            }
        }
        // Holes, a shorter file and a longer one.
        of.ssd.punch(8140, 4096).unwrap();
        of.write(8140, &[0; 4096]);
        reads.iter().for_each(|&(o, l)| _ = of.read(o, l));
        other.set_len(8200).unwrap();
        assert!(of.read(8150, 50));
        assert_eq!(of.fine.read(8150, &mut [0; 51]).unwrap_err().kind(), ErrorKind::EndOfFile);
        assert_eq!(of.fine.len_bytes(), 8200);
        of.ssd.set_len(LEN as u64).unwrap();
        of.write(8200, &vec![0; LEN - 8200]);
        reads.iter().for_each(|&(o, l)| _ = of.read(o, l));
        // Other code in this process creates the file again.
        drop(Ssd::create(of.file.path()).unwrap());
        assert_eq!(of.fine.read(8150, &mut [0; 8]).unwrap_err().kind(), ErrorKind::EndOfFile);
    }
}

#[test]
fn what_was_cached_is_cached_with_its_new_bytes_after_a_write_through_the_cache() {
    let mut of = over(CachePolicy::default());
    let writer = of.fine.writer().unwrap();
    assert!(of.read(5000, 128));
    for salt in 0..5 {
        let bytes = noise(128, salt);
        of.write(5000, &bytes);
        writer.write(5000, &bytes).unwrap();
        assert!(!of.read(5000, 128), "it is a hit");
    }
    // Bytes that were not cached stay uncached, and an item that is partly overwritten is dropped.
    let bytes = noise(64, 9);
    of.write(5032, &bytes);
    writer.write(5032, &bytes).unwrap();
    of.read(5000, 128);
    // The write is longer than a piece, and goes beyond the end.
    let long = noise(600_000, 10);
    writer.write(LEN as u64 - 10, &long).unwrap();
    of.bytes.truncate(LEN - 10);
    of.bytes.extend_from_slice(&long);
    assert_eq!(of.fine.len_bytes(), LEN as u64 - 10 + 600_000);
    of.read(LEN - 100, 599_000);
}

#[test]
fn pinned_bytes_stay_while_the_file_and_the_cache_change() {
    for policy in CachePolicy::ALL {
        let mut of = over(policy);
        let writer = of.fine.writer().unwrap();
        let at = |i: usize| i * 700;
        (0..40).for_each(|i| _ = of.read(at(i), 128));
        let held: Vec<_> =
            (0..40).map(|i| (of.fine.get(at(i) as u64, 128).unwrap(), of.bytes[at(i)..at(i) + 128].to_vec())).collect();
        assert!(held.iter().filter(|(b, _)| b.is_cached()).count() > 20, "{policy:?}");
        for round in 0..30 {
            for i in 0..40 {
                let bytes = noise(128, 1000 + round * 40 + i as u64);
                of.write(at(i), &bytes);
                writer.write(at(i) as u64, &bytes).unwrap();
                of.read(at(i), 128);
            }
            // This is more than fits, so that slots are needed.
            (0..400).for_each(|i| _ = of.read((i * 613 + round as usize * 64) % (LEN - 600), 1 + i % 600));
            of.fine.maintain();
        }
        of.fine.clear();
        assert!(held.iter().all(|(bytes, then)| **bytes == **then), "{policy:?}: pinned bytes changed");
        // They outlive the cache.
        drop((of, writer));
        assert!(held.iter().all(|(bytes, then)| **bytes == **then), "{policy:?}: pinned bytes changed");
    }
}

#[test]
fn what_is_invalidated_comes_from_the_device_again() {
    let of = over(CachePolicy::default());
    // Four sectors are too few to read the whole page. Whether five are enough depends on the cost
    // of a page.
    for i in 0..16 {
        of.read(i * 128, 128);
    }
    of.fine.invalidate(300..301);
    let asked = [(256, 128), (0, 256), (384, 128)].map(|(offset, len)| of.read(offset, len));
    assert_eq!(asked, [true, false, false], "{:#?}", of.fine.metrics());
    of.fine.invalidate(0..0);
    assert!(!of.read(0, 128));
    #[allow(clippy::reversed_empty_ranges)]
    of.fine.invalidate(500..100);
    of.fine.clear();
    assert_eq!(of.fine.metrics().items, 0);
    assert!(of.read(0, 128));
}

#[test]
fn changes_from_outside_are_found_by_looking() {
    for own in [false, true] {
        let mut of = over(CachePolicy::default());
        let writer = of.fine.writer().unwrap();
        // Cached bytes are dropped again when the age of a change has doubled, so now and then a
        // look drops them for the change that the file began with.
        within("nothing is found", || !of.fine.look_outside().unwrap());
        of.read(0, 300);
        of.read(100_000, 300);
        // The write uses a descriptor that the library does not know. The clock of the file system
        // has ticks.
        std::thread::sleep(Duration::from_millis(20));
        let new = noise(300, 20);
        let outside = std::fs::OpenOptions::new().write(true).open(of.file.path()).unwrap();
        outside.write_all_at(&new, 0).unwrap();
        if own {
            // A later write of our own elsewhere does not hide it.
            let bytes = noise(64, 21);
            writer.write(200_000, &bytes).unwrap();
            of.write(200_000, &bytes);
            of.fine.look_outside().unwrap();
        } else {
            assert!(of.fine.look_outside().unwrap());
        }
        of.write(0, &new);
        assert!(of.read(0, 300));
        of.read(100_000, 300);
        assert_eq!(of.fine.metrics().changes_outside, 1, "with a write of our own: {own}");
        within("nothing more is found", || !of.fine.look_outside().unwrap());
        within("bytes are kept", || !of.read(0, 300));
        assert_eq!(of.fine.metrics().changes_outside, 1, "with a write of our own: {own}");
        // Another process appends, and one truncates.
        let script = |script: &str| {
            std::thread::sleep(Duration::from_millis(20));
            let done = std::process::Command::new("sh").args(["-c", script]).arg(of.file.path()).status();
            assert!(done.unwrap().success(), "{script}");
        };
        script("printf 12345678 >> \"$0\"");
        let mut out = [0; 8];
        of.fine.read(LEN as u64, &mut out).unwrap();
        assert_eq!(&out, b"12345678");
        script("head -c 150 \"$0\" > \"$0.cut\" && cat \"$0.cut\" > \"$0\" && rm \"$0.cut\"");
        assert!(of.fine.look_outside().unwrap());
        assert_eq!(of.fine.read(0, &mut [0; 300]).unwrap_err().kind(), ErrorKind::EndOfFile);
        of.read(0, 150);
    }
}

#[test]
fn the_maintenance_thread_looks_outside_by_itself() {
    let of = over(CachePolicy::default());
    let mut config = small(CachePolicy::default());
    config.maintenance = true;
    config.outside = ExternalChanges::Every(Duration::from_millis(5));
    let fine = FineGrained::over(&of.ssd, config).unwrap();
    let mut out = [0; 64];
    fine.read(640, &mut out).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    std::fs::write(of.file.path(), vec![9; LEN]).unwrap();
    within("the change is noticed", || fine.metrics().changes_outside > 0);
    // It is counted before the items are dropped. A read that begins after that sees the new bytes.
    within("the new bytes are read", || {
        fine.read(640, &mut out).unwrap();
        out == [9; 64]
    });
}

#[test]
fn a_sector_that_is_wanted_piece_by_piece_is_kept_as_a_whole() {
    let of = over(CachePolicy::default());
    // Eight bytes are read at a time: from some number of pieces on the whole sector is cheaper.
    for piece in 0..20 {
        of.read(8192 + 24 * piece, 8);
    }
    let metrics = of.fine.metrics();
    assert!(metrics.by_path[1] > 0 && metrics.misses < 20, "{metrics}");
    of.read(8192, 512);
    assert_eq!(of.fine.metrics().misses, metrics.misses, "the whole sector is there");
}

/// An engine that reports no result for some extents, and panics at others.
struct Unreliable {
    bytes: Array,
    silent: AtomicBool,
    panics: AtomicBool,
    reading: Barrier,
}

impl ReadEngine for Unreliable {
    fn facts(&self) -> EngineFacts {
        self.bytes.facts()
    }

    fn len_bytes(&self) -> datapipes_core::Result<u64> {
        self.bytes.len_bytes()
    }

    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>) {
        if self.panics.swap(false, SeqCst) {
            self.reading.wait();
            // The pause lets the other thread join this read.
            std::thread::sleep(Duration::from_millis(50));
            panic!("an engine that panics");
        }
        if !self.silent.load(SeqCst) {
            self.bytes.read(extents, done);
        }
    }

    fn now_ns(&self) -> u64 {
        0
    }
}

#[test]
fn an_engine_that_says_nothing_or_panics_harms_its_own_reads_only() {
    let bytes = Array::new(512, noise(LEN, 3));
    let [silent, panics] = [false, true].map(AtomicBool::new);
    let engine = Arc::new(Unreliable { bytes, silent, panics, reading: Barrier::new(2) });
    let fine = FineGrained::with_engine(engine.clone(), small(CachePolicy::default()), "unreliable").unwrap();
    std::thread::scope(|scope| {
        let one = scope.spawn(|| fine.read(512, &mut [0; 64]));
        engine.reading.wait();
        // It joins the read that panics, or comes after it. In both cases it ends, and its own
        // bytes are right.
        let mut out = [0; 64];
        fine.read(512, &mut out).unwrap();
        assert_eq!(out, noise(LEN, 3)[512..576]);
        assert!(one.join().is_err());
    });
    engine.silent.store(true, SeqCst);
    assert_eq!(fine.read(4096, &mut [0; 64]).unwrap_err().kind(), ErrorKind::System);
    let failed = fine.gather(&[512, 8192], 64, &mut [0; 128]).unwrap().failed;
    assert_eq!(failed.iter().map(|(n, e)| (*n, e.kind())).collect::<Vec<_>>(), [(1, ErrorKind::System)]);
    engine.silent.store(false, SeqCst);
    fine.read(4096, &mut [0; 64]).unwrap();
}

#[test]
fn the_kernel_tells_of_changes_by_other_processes() {
    let of = over(CachePolicy::default());
    let mut config = small(CachePolicy::default());
    config.maintenance = true;
    config.outside = ExternalChanges::Events;
    let fine = match FineGrained::over(&of.ssd, config) {
        Ok(fine) => fine,
        Err(e) => return println!("SKIPPED: changes by events: {e}"),
    };
    let mut out = [0; 8];
    fine.read(640, &mut out).unwrap();
    // Our own writes are announced, and not counted as changes by others.
    fine.writer().unwrap().write(640, b"ourselve").unwrap();
    fine.read(640, &mut out).unwrap();
    assert_eq!((&out, fine.metrics().changes_outside), (b"ourselve", 0));
    let script = "printf somebody | dd of=\"$0\" bs=1 seek=640 conv=notrunc 2>/dev/null";
    assert!(std::process::Command::new("sh").args(["-c", script]).arg(of.file.path()).status().unwrap().success());
    // Without the event this would never be noticed: the file's times are not looked at.
    within("the event is taken", || {
        fine.read(640, &mut out).unwrap();
        &out == b"somebody"
    });
    assert!(fine.metrics().changes_outside > 0);
}

#[test]
fn a_cut_by_others_does_not_hide_what_is_left() {
    let of = over(CachePolicy::default());
    // These reads make the cache read the whole page.
    let outside = std::fs::OpenOptions::new().write(true).open(of.file.path()).unwrap();
    outside.set_len(9000).unwrap();
    for (offset, len) in [(8900, 64), (8192, 700), (8500, 500), (8999, 1)] {
        of.read(offset, len);
    }
    let error = of.fine.read(8990, &mut [0; 11]).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::EndOfFile, Some(8990)));
    let mut out = [0; 96];
    let failed = of.fine.gather(&[8900, 8990, 8192], 32, &mut out).unwrap().failed;
    assert_eq!(failed.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1]);
}

#[test]
fn time_to_live_ends_with_the_engines_clock() {
    let array = Arc::new(Array::new(512, noise(LEN, 1)));
    let mut config = small(CachePolicy::default());
    config.ttl = Some(Duration::from_millis(400));
    let fine = FineGrained::with_engine(array.clone(), config, "array").unwrap();
    let mut out = [0; 64];
    fine.read(128, &mut out).unwrap();
    let then = out;
    // Nobody is notified of this change.
    array.change(|bytes| bytes[128..192].fill(3));
    fine.maintain();
    array.pass(Duration::from_millis(250));
    fine.maintain();
    fine.read(128, &mut out).unwrap();
    assert_eq!(out, then, "its time is not over");
    array.pass(Duration::from_millis(200));
    fine.maintain();
    fine.read(128, &mut out).unwrap();
    assert_eq!(out, [3; 64], "its time is over");
    // In this pause the counter of periods wraps several times.
    array.change(|bytes| bytes[128..192].fill(4));
    array.pass(Duration::from_secs(1000));
    fine.maintain();
    fine.read(128, &mut out).unwrap();
    assert_eq!(out, [4; 64]);
}

#[test]
fn a_read_of_what_is_being_written_waits_and_is_refused_in_the_end() {
    let of = over(CachePolicy::default());
    let mut config = small(CachePolicy::default());
    config.patience = Duration::from_millis(20);
    let fine = FineGrained::over(&of.ssd, config).unwrap();
    let runtime = Runtime::start(machine()).unwrap();
    let alone = fine.on(&runtime, 4).unwrap();
    fine.read(100, &mut [0; 64]).unwrap();
    // A change of these bytes begins, and does not end.
    let change = of.ssd.write_observers().begin(64..128);
    let busy = |e: datapipes_core::Error| assert_eq!((e.kind(), e.offset()), (ErrorKind::Busy, Some(100)), "{e}");
    busy(fine.read(100, &mut [0; 64]).unwrap_err());
    busy(fine.gather(&[100, 1000], 64, &mut [0; 128]).unwrap().all().unwrap_err());
    let mut reading = alone.read(100, 64);
    let polled = runtime.block_on(std::future::poll_fn(|c| Poll::Ready(Pin::new(&mut reading).poll(c).is_ready())));
    assert!(!polled, "a future waits until the change is over");
    // The future fails after the patience of a read, by the cache's own thread.
    let mut config = small(CachePolicy::default());
    (config.patience, config.maintenance) = (Duration::from_millis(20), true);
    let kept = FineGrained::over(&of.ssd, config).unwrap();
    busy(runtime.block_on(kept.on(&runtime, 4).unwrap().read(100, 64)).unwrap_err());
    // Other bytes of the same page are not affected.
    fine.read(128, &mut [0; 64]).unwrap();
    of.ssd.write_observers().end(change);
    fine.read(100, &mut [0; 64]).unwrap();
    runtime.block_on(reading).unwrap();
    runtime.block_on(alone.read(100, 64)).unwrap();
}

#[test]
fn a_write_that_overlaps_another_does_not_say_who_wins() {
    let of = over(CachePolicy::default());
    let writer = of.fine.writer().unwrap();
    of.read(5000, 128);
    // Another thread writes there, and its write is later than that of the cache's own writer,
    // which begins later and ends earlier.
    let change = of.ssd.write_observers().begin(4096..8192);
    writer.write(5000, &[1; 128]).unwrap();
    let outside = std::fs::OpenOptions::new().write(true).open(of.file.path()).unwrap();
    outside.write_all_at(&[2; 128], 5000).unwrap();
    of.ssd.write_observers().end(change);
    let mut out = [0; 128];
    of.fine.read(5000, &mut out).unwrap();
    assert_eq!(out, [2; 128], "what the writer wrote was kept, and the file says otherwise");
}

#[test]
fn what_a_small_miss_moves_is_what_the_device_states() {
    // The devices move single bytes, sectors of 512 bytes, and sectors of 4 KiB. All reads of 128
    // bytes are misses.
    for (granularity, amplification) in [(1, 1.0), (512, 4.0), (4096, 32.0)] {
        let array = Arc::new(Array::new(granularity, noise(LEN, 7)));
        let fine = FineGrained::with_engine(array, small(CachePolicy::default()), "array").unwrap();
        for page in 0..32 {
            fine.read(page * 8192 + 512, &mut [0; 128]).unwrap();
        }
        assert_eq!(fine.metrics().amplification(), amplification, "pieces of {granularity}");
    }
    // Where the kernel states 512 (a device with logical blocks of 512 bytes, whatever its physical
    // ones are), 512 are read.
    let of = over(CachePolicy::default());
    let mask = rustix::fs::StatxFlags::DIOALIGN;
    let stat = rustix::fs::statx(rustix::fs::CWD, of.file.path(), rustix::fs::AtFlags::empty(), mask).unwrap();
    if stat.stx_dio_offset_align == 0 || of.ssd.file().direct_fd().is_err() {
        return println!("SKIPPED: what_a_small_miss_moves_is_what_the_device_states: no direct reads here");
    }
    let pieces = u64::from(stat.stx_dio_offset_align);
    assert!(of.fine.explain().contains(&format!("pieces of {pieces} bytes")), "{}", of.fine.explain());
    of.read(8192 + 512, 128);
    assert_eq!(of.fine.metrics().device_bytes, pieces.max(512));
    println!("direct reads of {pieces} bytes");
}
