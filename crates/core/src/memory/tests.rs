//! Leases against a naive list, the pool against a naive map, ranges, and returning pages. All of
//! it runs under Miri.

use super::{Access, MapOptions, MemoryRange, Pages, Pool, RawLease, Region, copy_pair, lease_pair};
use crate::error::ErrorKind;

const PLAIN: MapOptions = MapOptions { pages: Pages::Small, prefault: false, node: None };
/// Miri is about a thousand times slower.
const ROUNDS: usize = if cfg!(miri) { 150 } else { 20_000 };

fn region(len: usize) -> MemoryRange {
    Region::map(len, PLAIN).unwrap().range(0, len).unwrap()
}

/// xorshift64*: the same numbers for a seed on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) as usize % n
    }
}

fn kind<T>(result: crate::Result<T>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    let whole = region(100);
    let part = |at, len| whole.range(at, len).unwrap();
    let reader = part(10, 20).lease().unwrap();
    let second = part(0, 100).lease().unwrap();
    assert_eq!(kind(part(29, 1).lease_mut()), Some(ErrorKind::Busy));
    assert_eq!(kind(part(99, 1).lease_mut()), Some(ErrorKind::Busy));
    drop(second);
    let mut writer = part(30, 10).lease_mut().unwrap();
    writer.fill(9);
    assert_eq!(kind(part(39, 1).lease()), Some(ErrorKind::Busy));
    assert_eq!(kind(part(30, 1).lease_mut()), Some(ErrorKind::Busy));
    assert!(part(40, 60).lease().is_ok() && part(29, 1).lease().is_ok());
    assert_eq!(reader[..], [0; 20]);
    drop(writer);
    assert_eq!(part(30, 10).lease().unwrap()[..], [9; 10]);
}

#[test]
fn a_refusal_names_both_ranges() {
    let whole = region(100);
    let _held = whole.range(10, 5).unwrap().lease_mut().unwrap();
    let said = whole.range(12, 50).unwrap().lease().unwrap_err().to_string();
    assert!(said.contains("12..62") && said.contains("10..15"), "{said}");
}

/// (bytes of the region, bytes of the longest lease, most leases): a few, as in most programs, and
/// as many as fit.
const CROWDS: [(usize, usize, usize); 2] = [(64, 12, 12), (400, 5, 200)];

#[test]
fn leases_agree_with_a_naive_list() {
    let seeds = if cfg!(miri) { 1..2 } else { 1..4 };
    for (seed, (bytes, longest, most)) in seeds.flat_map(|seed| CROWDS.map(|crowd| (seed, crowd))) {
        let whole = region(bytes);
        let mut random = Random(seed);
        let mut held: Vec<(usize, usize, Access, RawLease)> = Vec::new();
        for step in 0..ROUNDS {
            if random.below(3) == 0 && !held.is_empty() {
                held.swap_remove(random.below(held.len()));
                continue;
            }
            let at = random.below(bytes);
            // The range is not empty: see `an_empty_lease_conflicts_with_nothing`.
            let room = bytes - at;
            let end = at + 1 + random.below(room).min(longest - 1);
            let access = if random.below(3) == 0 { Access::Write } else { Access::Read };
            // The naive answer: byte by byte.
            let stands = |h: &(usize, usize, Access, RawLease)| {
                (access == Access::Write || h.2 == Access::Write) && (at..end).any(|b| (h.0..h.1).contains(&b))
            };
            let expected = held.iter().any(stands);
            let got = whole.range(at, end - at).unwrap().raw_lease(access);
            assert_eq!(got.is_err(), expected, "seed {seed} step {step}: {access:?} {at}..{end}");
            if let Ok(lease) = got {
                assert_eq!((lease.len(), lease.place().1, lease.access()), (end - at, at, access));
                held.push((at, end, access, lease));
            }
            if held.len() > most {
                held.clear();
            }
        }
        held.clear();
        assert!(whole.lease_mut().is_ok(), "seed {seed}: a lease was left over");
    }
}

#[test]
fn an_empty_lease_conflicts_with_nothing() {
    let whole = region(100);
    let empty = whole.range(50, 0).unwrap();
    let held = empty.lease_mut().unwrap();
    assert_eq!(kind(whole.lease_mut()), None, "no byte is held");
    drop(held);
    let _held = whole.lease_mut().unwrap();
    assert_eq!(kind(empty.lease_mut()), None, "no byte is wanted");
}

#[test]
fn a_lease_outlives_every_handle_of_its_region() {
    let mut lease = Region::map(5000, PLAIN).unwrap().range(1000, 4000).unwrap().lease_mut().unwrap();
    lease.fill(3);
    assert!(lease.iter().all(|b| *b == 3));
}

#[test]
fn threads_that_lease_the_same_bytes_exclude_each_other() {
    let whole = region(64);
    let turns = if cfg!(miri) { 30 } else { 5000 };
    let gained: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut gained = 0;
                    for _ in 0..turns {
                        if let Ok(mut lease) = whole.lease_mut() {
                            // A race would lose an increment here, and Miri would report it.
                            lease.as_slice_of::<u64>().unwrap()[0] += 1;
                            gained += 1;
                        }
                    }
                    gained
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(whole.lease().unwrap().as_slice_of::<u64>().unwrap()[0], gained);
    assert!(gained > 0);
}

#[test]
fn numbers_need_alignment_and_whole_lengths() {
    let whole = region(64);
    let of = |at, len| kind(whole.range(at, len).unwrap().lease().unwrap().as_slice_of::<u64>().map(|_| ()));
    assert_eq!(of(0, 64), None);
    assert_eq!(of(8, 16), None);
    assert_eq!(of(4, 16), Some(ErrorKind::Misaligned));
    assert_eq!(of(0, 12), Some(ErrorKind::Misaligned));
    let mut lease = whole.lease_mut().unwrap();
    lease.as_slice_of::<u64>().unwrap()[1] = u64::from_ne_bytes(*b"datapipe");
    assert_eq!(&lease[8..16], b"datapipe");
    assert_eq!(super::as_bytes(&[0x0102u16.to_be()]), [1, 2]);
}

#[test]
fn ranges_stay_within() {
    let whole = region(1000);
    let part = whole.range(100, 200).unwrap();
    assert_eq!((part.at(), part.len()), (100, 200));
    let inner = part.range(50, 150).unwrap();
    assert_eq!((inner.at(), inner.len(), inner.address() as usize - whole.address() as usize), (150, 150, 150));
    for (at, len) in [(0, 201), (200, 1), (201, 0), (usize::MAX, 1), (1, usize::MAX)] {
        assert_eq!(kind(part.range(at, len)), Some(ErrorKind::OutOfRange), "{at} {len}");
    }
    assert!(part.range(200, 0).is_ok());
    assert!(inner.overlaps(&part) && !inner.overlaps(&whole.range(300, 10).unwrap()));
    assert!(!part.overlaps(&whole.range(300, 10).unwrap()) && !part.overlaps(&region(1000)));
    assert!(part.same_bytes(&whole.range(100, 200).unwrap()) && !part.same_bytes(&inner));
    assert!(!part.same_bytes(&region(1000).range(100, 200).unwrap()));
}

#[test]
fn a_region_of_nothing_is_refused() {
    assert_eq!(kind(Region::map(0, PLAIN)), Some(ErrorKind::InvalidInput));
    assert_eq!(kind(Region::map(usize::MAX, PLAIN)), Some(ErrorKind::InvalidInput));
}

#[test]
fn a_long_region_is_aligned_to_huge_pages() {
    let region = Region::map(5 << 20, MapOptions { prefault: false, ..MapOptions::default() }).unwrap();
    assert_eq!(region.address() as usize % (2 << 20), 0);
    let last = region.range((5 << 20) - 1, 1).unwrap();
    last.lease_mut().unwrap()[0] = 1;
    assert_eq!(last.lease().unwrap()[0], 1);
}

#[test]
fn prefault_changes_no_byte() {
    let whole = region(20_000);
    whole.lease_mut().unwrap().fill(7);
    whole.range(1, 10_001).unwrap().prefault().unwrap();
    assert!(whole.lease().unwrap().iter().all(|b| *b == 7));
}

#[test]
fn released_pages_read_as_zero_and_the_rest_stays() {
    let page = crate::process::page_size();
    let whole = region(4 * page);
    whole.lease_mut().unwrap().fill(7);
    let part = whole.range(10, 3 * page).unwrap();
    let before = whole.region().generation();
    let held = whole.range(2 * page, 1).unwrap().lease().unwrap();
    assert_eq!(kind(part.release()), Some(ErrorKind::Busy));
    assert_eq!((held[0], whole.region().generation()), (7, before));
    drop(held);
    part.release().unwrap();
    assert_eq!(whole.region().generation(), before + 1);
    let bytes = whole.lease().unwrap();
    assert!(bytes[..page].iter().all(|b| *b == 7), "the page that is only partly in the range");
    assert!(bytes[page..3 * page].iter().all(|b| *b == 0));
    assert!(bytes[3 * page..].iter().all(|b| *b == 7));
}

#[test]
fn foreign_memory_keeps_its_keeper_and_is_not_given_back() {
    use std::ptr::NonNull;
    use std::sync::Arc;
    let flag = Arc::new(());
    let owned: &'static mut [u8] = Box::leak(vec![5u8; 8192].into_boxed_slice());
    let start = NonNull::new(owned.as_mut_ptr()).unwrap();
    // SAFETY: the leaked box is accessed only through the region until it is taken back below.
    let region = unsafe { Region::foreign(start, 8192, Box::new(flag.clone())) };
    let range = region.range(0, 8192).unwrap();
    range.release().unwrap();
    assert_eq!(range.lease().unwrap()[5000], 5);
    let lease = range.raw_lease(Access::Read).unwrap();
    drop((region, range));
    assert_eq!(Arc::strong_count(&flag), 2, "a lease keeps the keeper");
    drop(lease);
    assert_eq!(Arc::strong_count(&flag), 1);
    // SAFETY: the pointer came from a leaked box of this length, and nothing else refers to it any
    // more.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start.as_ptr(), 8192)) });
}

/// Copies by `copy_pair`, the function under test.
fn pair(source: (&MemoryRange, usize), target: (&MemoryRange, usize), len: usize) -> crate::Result<()> {
    copy_pair(source, target, len, |from, to| {
        // SAFETY: `copy_pair` calls with addresses of `len` leased bytes that do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
    })
}

/// One length below and one above the limit up to which the tables stay locked.
const LENS: [usize; 2] = [100, 5000];

#[test]
fn copy_pair_refuses_ranges_that_are_outside_overlapping_or_held() {
    for len in LENS {
        let (a, b) = (region(3 * len), region(3 * len));
        a.lease_mut().unwrap().fill(1);
        let untouched = || b.lease().unwrap().iter().all(|byte| *byte == 0);
        for (from, to) in [(2 * len + 1, 0), (0, 2 * len + 1), (usize::MAX, 0), (0, usize::MAX)] {
            assert_eq!(kind(pair((&a, from), (&b, to), len)), Some(ErrorKind::OutOfRange), "{from} {to} {len}");
        }
        assert_eq!(kind(pair((&a, 0), (&a, len - 1), len)), Some(ErrorKind::InvalidInput));
        assert_eq!(kind(pair((&a, len), (&a, len), len)), Some(ErrorKind::InvalidInput));
        let writer = a.range(len, 1).unwrap().lease_mut().unwrap();
        assert_eq!(kind(pair((&a, 1), (&b, 0), len)), Some(ErrorKind::Busy));
        assert!(untouched());
        drop(writer);
        let reader = b.range(len, 1).unwrap().lease().unwrap();
        assert_eq!(kind(pair((&a, 0), (&b, 1), len)), Some(ErrorKind::Busy));
        drop(reader);
        assert!(untouched());
        // A reader of the source and neighbours of the target do not conflict, and nothing stays
        // leased.
        let held = (a.lease().unwrap(), b.range(0, 1).unwrap().lease_mut().unwrap());
        pair((&a, 0), (&b, 1), len).unwrap();
        drop(held);
        assert_eq!(b.lease_mut().unwrap().iter().filter(|byte| **byte == 1).count(), len);
        a.lease_mut().unwrap()[0] = 2;
        pair((&a, 0), (&a, len), len).unwrap();
        assert_eq!(a.lease_mut().unwrap()[len], 2);
    }
}

/// Runs a closure that may hang, and fails if it does.
fn bounded(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    match ended.recv_timeout(std::time::Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        _ => thread.join().unwrap(),
    }
}

#[test]
fn a_closure_can_lease_free_bytes_and_is_refused_held_ones() {
    for len in LENS {
        bounded("a closure that leases", move || {
            let (a, b) = (region(3 * len), region(3 * len));
            let outcome = lease_pair((&a, 0), (&b, 0), len, |_, _| {
                assert_eq!(kind(a.range(0, 1).unwrap().lease_mut().map(drop)), Some(ErrorKind::Busy));
                assert_eq!(kind(b.range(len - 1, 2).unwrap().lease().map(drop)), Some(ErrorKind::Busy));
                // The source may be read by others, and the rest of both ranges is free.
                drop((a.range(0, len).unwrap().lease().unwrap(), b.range(len, len).unwrap().lease_mut().unwrap()));
                assert_eq!(kind(pair((&b, 0), (&a, len), len)), Some(ErrorKind::Busy), "the target is being written");
                pair((&a, 0), (&b, len), len).unwrap();
                lease_pair((&a, 0), (&b, 2 * len), len, |_, _| a.range(len, 1).unwrap().lease_mut().map(drop))
            });
            outcome.unwrap().unwrap().unwrap();
            assert!(a.lease_mut().is_ok() && b.lease_mut().is_ok());
        });
    }
}

#[test]
fn closures_that_lease_the_other_ones_regions_wait_for_nobody() {
    bounded("two closures that lease each other's regions", || {
        let (a, b) = (region(64), region(64));
        let turns = if cfg!(miri) { 20 } else { 200_000 };
        let start = std::sync::Barrier::new(2);
        let leases = |mine: &MemoryRange, other: &MemoryRange| {
            start.wait();
            for _ in 0..turns {
                lease_pair((mine, 0), (mine, 8), 8, |_, _| drop(other.range(16, 8).unwrap().lease().unwrap())).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| leases(&a, &b));
            scope.spawn(|| leases(&b, &a));
        });
    });
}

#[test]
fn a_closure_that_panics_leaves_nothing_leased() {
    for len in LENS {
        let (a, b) = (region(len), region(len));
        let panicked = crate::guard::call(crate::guard::ForeignCode::Mover, || {
            lease_pair((&a, 0), (&b, 0), len, |_, _| panic!("in the middle of a copy"))
        });
        assert!(panicked.is_err() && a.lease_mut().is_ok() && b.lease_mut().is_ok());
    }
}

#[test]
fn copy_pair_in_both_directions_at_once_does_not_deadlock() {
    let (a, b) = (region(64), region(64));
    let turns = if cfg!(miri) { 20 } else { 20_000 };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..turns).for_each(|_| pair((&a, 0), (&b, 0), 16).unwrap()));
        scope.spawn(|| (0..turns).for_each(|_| pair((&b, 32), (&a, 32), 16).unwrap()));
    });
    assert!(a.lease_mut().is_ok() && b.lease_mut().is_ok());
}

#[test]
fn the_pool_never_allocates_bytes_twice_and_joins_returned_ranges() {
    const PAGES: usize = 32;
    for seed in 1..4 {
        let pool = Pool::new(PAGES * 4096, PLAIN).unwrap();
        let mut random = Random(seed);
        let mut taken = Vec::new();
        let mut owner = [false; PAGES];
        for step in 0..ROUNDS {
            if random.below(2) == 0 && !taken.is_empty() {
                let range: MemoryRange = taken.swap_remove(random.below(taken.len()));
                owner[range.at() / 4096..(range.at() + range.len()).div_ceil(4096)].fill(false);
                drop(range);
            } else {
                let len = 1 + random.below(6 * 4096);
                let pages = len.div_ceil(4096);
                // The naive answer: the longest run of free pages.
                let longest = owner.split(|o| *o).map(<[bool]>::len).max().unwrap_or(0);
                match pool.take(len) {
                    Ok(range) => {
                        assert_eq!((range.len(), range.at() % 4096), (len, 0));
                        let pages = &mut owner[range.at() / 4096..range.at() / 4096 + pages];
                        assert!(pages.iter().all(|o| !*o), "seed {seed} step {step}: bytes were given twice");
                        pages.fill(true);
                        taken.push(range);
                    }
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::OutOfMemory);
                        assert!(pages > longest, "seed {seed} step {step}: {pages} pages refused, {longest} are free");
                    }
                }
            }
            assert_eq!(pool.available(), owner.iter().filter(|o| !**o).count() * 4096, "seed {seed} step {step}");
        }
        drop(taken);
        assert!(pool.take(PAGES * 4096).is_ok(), "seed {seed}: the holes did not join");
    }
}

#[test]
fn a_place_of_a_pool_returns_with_its_last_clone() {
    use crate::locator::Dram;
    let pool = Pool::new(8192, PLAIN).unwrap();
    let dram = Dram::from_pool(&pool, 5000).unwrap();
    let part = dram.range(10, 20).unwrap();
    drop(dram);
    assert_eq!(pool.available(), 0);
    assert!(Dram::from_pool(&pool, 1).unwrap_err().to_string().contains("largest hole is 0"));
    drop(part);
    assert_eq!(pool.available(), 8192);
}
