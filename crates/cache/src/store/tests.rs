//! The store against a plain map, under random operations.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::index::mix;
use super::policy::Policy;
use super::*;
use crate::policy::{Pipette, S3Fifo, Sieve, TinyLfu};

/// A generator of random numbers. A failing test prints its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % n
    }
}

/// The byte of the file at an offset, in a version of the file.
fn byte(offset: u64, version: u64) -> u8 {
    mix(offset ^ version << 48) as u8
}

fn fill(offset: u64, len: usize, version: impl Fn(u64) -> u64) -> Vec<u8> {
    (offset..offset + len as u64).map(|o| byte(o, version(o))).collect()
}

fn random_range(r: &mut Random, file: u64) -> (u64, usize) {
    let page = r.below(file / PAGE) * PAGE;
    let most = [8, 16, 100, 128, 600, 4096][r.below(6) as usize];
    // Under Miri it uses two classes: there are more classes than slabs, and a slab that changes
    // its class takes many steps.
    let len = if cfg!(miri) { [600, 4096][r.below(2) as usize] } else { 1 + r.below(most) };
    // Many ranges begin at the same positions, so that there are hits.
    let at = if r.below(4) == 0 { r.below(PAGE - len + 1) } else { (r.below(PAGE - len + 1) / 128) * 128 };
    (page + at, len as usize)
}

fn against_a_plain_file<P: Policy>(seed: u64, steps: usize) {
    const FILE: u64 = 16 << 20;
    // It is so small that one read in thirty is a hit from the first thousands of steps on. The few
    // steps under Miri need an even smaller one.
    const HOT: u64 = if cfg!(miri) { 1 << 14 } else { 1 << 16 };
    let store = Sharded::<P>::new(1 << 20, false, false).unwrap();
    let mut r = Random(seed);
    let mut versions = vec![0u64; (FILE / 64) as usize];
    let mut pins: Vec<(Pinned, Vec<u8>)> = Vec::new();
    let (mut hits, mut kept) = (0, 0);
    for step in 0..steps {
        // Most reads go to a hot part, the others to the whole file.
        let span = if r.below(3) == 0 { FILE } else { HOT };
        let (offset, len) = random_range(&mut r, span);
        let expected = fill(offset, len, |o| versions[(o / 64) as usize]);
        match r.below(100) {
            0..=79 => {
                let mut out = vec![0; len];
                if store.read(offset, &mut out).is_ok() {
                    hits += 1;
                    assert_eq!(out, expected, "seed {seed}, step {step}: {len} bytes at {offset}");
                } else {
                    kept += u64::from(store.insert(offset, &expected, offset, &|| true));
                }
            }
            80..=87 => {
                // A write covers whole granules of the model.
                let from = offset / 64 * 64;
                let to = (offset + len as u64).next_multiple_of(64);
                let to = if r.below(30) == 0 { (to + r.below(64) * PAGE).min(FILE) / 64 * 64 } else { to };
                store.invalidate(from..to);
                versions[(from / 64) as usize..(to / 64) as usize].iter_mut().for_each(|v| *v += 1);
            }
            88..=92 => {
                if let Ok(pinned) = store.pin(offset, len) {
                    assert_eq!(*pinned, *expected, "seed {seed}, step {step}: pinned");
                    pins.push((pinned, expected));
                }
            }
            93..=96 => {
                if !pins.is_empty() {
                    let (pinned, then) = pins.swap_remove(r.below(pins.len() as u64) as usize);
                    assert_eq!(*pinned, *then, "seed {seed}, step {step}: bytes changed while they were pinned");
                }
            }
            97 => store.rebalance(
                [Reassignment::Marginal, Reassignment::EvictionCounts, Reassignment::HitRatios][r.below(3) as usize],
            ),
            98 => store.prefer_recency(r.below(2) == 0),
            _ => assert!(!store.insert(offset, &expected, offset, &|| false) || store.holds(offset, len)),
        }
        if pins.len() > 8 {
            pins.remove(0);
        }
        if step % 5000 == 0 {
            store.check();
        }
    }
    pins.clear();
    store.check();
    // Miri looks for undefined behaviour in the few steps that it has time for. Hits are not
    // checked there.
    assert!(
        cfg!(miri) || hits > steps / 50 && kept > steps as u64 / 50,
        "seed {seed}: {hits} hits, {kept} kept: nothing was tested"
    );
    store.invalidate(0..u64::MAX);
    store.check();
    assert_eq!(store.state().items, 0);
}

#[test]
fn no_number_of_pins_gives_a_slab_away() {
    let store = Sharded::<S3Fifo>::new(MIN_BUDGET, false, false).unwrap();
    let wanted = [5; 64];
    assert!(store.insert(0, &wanted, 0, &|| true));
    let pinned = store.pin(0, 64).unwrap();
    // Many pins were forgotten. One more is tried for each count.
    for count in [memory::MAX_PINS, u32::MAX] {
        pinned.pretend(count);
        assert!(matches!(store.pin(0, 64), Err(None)), "one of {count}: it is there, and is not pinned");
        assert!(store.try_pin(0, 64).is_none());
        assert!(store.read(0, &mut [0; 64]).is_ok(), "it can be copied");
        // Later items find no room in that slab.
        let others = if cfg!(miri) { 4 } else { 40_000 };
        for page in 1..others {
            let offset = page * PAGE;
            if store.read(offset, &mut [0; 64]).is_err() {
                store.insert(offset, &[9; 64], offset, &|| true);
            }
        }
        assert_eq!(*pinned, wanted, "bytes changed while they were pinned {count} times");
    }
    // Just below the limit it can be pinned as usual.
    pinned.pretend(1);
    store.insert(0, &wanted, 0, &|| true);
    let again = store.pin(0, 64).unwrap();
    again.pretend(memory::MAX_PINS - 1);
    assert!(store.pin(0, 64).is_ok() && store.pin(0, 64).is_ok(), "as each was let go");
    let last = store.pin(0, 64).unwrap();
    assert!(store.pin(0, 64).is_err());
    drop(last);
    store.check();
}

fn seed() -> u64 {
    datapipes_testkit::seed(11)
}

#[test]
fn every_policy_gives_out_what_the_file_holds() {
    let steps = std::env::var("DATAPIPES_STEPS").ok().and_then(|s| s.parse().ok()).unwrap_or(if cfg!(miri) {
        40
    } else {
        150_000
    });
    against_a_plain_file::<S3Fifo>(seed(), steps);
    against_a_plain_file::<Sieve>(seed(), steps);
    against_a_plain_file::<TinyLfu>(seed(), steps);
    against_a_plain_file::<Pipette>(seed(), steps);
}

// Miri checks the unsafe code, which the random operations cover. This test takes too many steps
// for it.
#[cfg_attr(miri, ignore)]
#[test]
fn an_item_of_128_bytes_costs_at_most_150() {
    let budget = 16 << 20;
    let store = Sharded::<S3Fifo>::new(budget, false, false).unwrap();
    let mut r = Random(1);
    for _ in 0..400_000 {
        let offset = r.below(1 << 23) * 128;
        if store.read(offset, &mut [0; 128]).is_err() {
            store.insert(offset, &[1; 128], offset, &|| true);
        }
    }
    let state = store.state();
    let cost = budget as f64 / state.items as f64;
    println!("{} items of 128 bytes in {budget}: {cost:.1} bytes each; tables {}", state.items, state.table_bytes);
    assert!(cost <= 149.0, "{cost:.1}");
}

#[cfg_attr(miri, ignore)]
#[test]
fn items_of_all_sizes_share_the_memory() {
    let store = Sharded::<S3Fifo>::new(4 << 20, false, false).unwrap();
    let mut r = Random(3);
    for len in [8, 128, 4096] {
        for step in 0..200_000 {
            if step % 1000 == 0 {
                store.rebalance(Reassignment::Marginal);
            }
            // There are four times as many as the largest that fit.
            let offset = r.below(1 << 12) * 4096;
            if store.read(offset, &mut vec![0; len]).is_err() {
                store.insert(offset, &vec![7; len], offset, &|| true);
            }
        }
        store.check();
        let state = store.state();
        let of = &state.classes[usize::from(class::class_of(len))];
        assert!(of.items > 100, "items of {len}: {of:?}");
    }
}

#[test]
fn time_ends_items() {
    let store = Sharded::<S3Fifo>::new(1 << 20, false, true).unwrap();
    store.insert(4096, &[5; 64], 4096, &|| true);
    for _ in 0..3 {
        store.next_period();
        assert!(store.read(4096, &mut [0; 64]).is_ok());
    }
    store.next_period();
    assert!(store.read(4096, &mut [0; 64]).is_err());
    assert_eq!(store.state().items, 0);
}

/// The bytes of an item in a version: the same eight bytes repeated, so that torn reads show.
fn stamped(offset: u64, version: u64) -> [u8; 8] {
    (mix(offset) & !0xffff_ffff | version).to_le_bytes()
}

/// Runs readers without the lock beside a writer that replaces, evicts, and moves slabs.
fn readers_beside_a_writer<P: Policy>(seed: u64, steps: u64) {
    // There are few under Miri, where a step takes long, so that some reads are hits.
    const ITEMS: u64 = if cfg!(miri) { 48 } else { 3000 };
    let store = Sharded::<P>::new(MIN_BUDGET, false, false).unwrap();
    let versions: Vec<AtomicU64> = (0..ITEMS).map(|_| AtomicU64::new(1)).collect();
    let (done, hits) = (AtomicU64::new(0), AtomicU64::new(0));
    // Lengths of several classes come in waves, so that slabs change their class.
    let place = |item: u64| (item * 1536, [64, 128, 512, 1024][(item % 4) as usize]);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (store, versions, done, hits) = (&store, &versions, &done, &hits);
            scope.spawn(move || {
                let mut r = Random(seed ^ reader);
                let mut out = [0; 1024];
                while done.load(Ordering::Relaxed) == 0 {
                    let item = r.below(ITEMS);
                    let (offset, len) = place(item);
                    let out = &mut out[..len - r.below(16) as usize];
                    let least = versions[item as usize].load(Ordering::SeqCst);
                    if store.read(offset, out).is_err() {
                        continue;
                    }
                    hits.fetch_add(1, Ordering::Relaxed);
                    let word = u64::from_le_bytes(out[..8].try_into().unwrap());
                    let version = word & 0xffff_ffff;
                    assert!(version >= least, "seed {seed}: item {item}: version {version} after {least}");
                    let expected = stamped(offset, version);
                    assert!(out.chunks(8).all(|w| w == &expected[..w.len()]), "seed {seed}: item {item} is torn");
                }
            });
        }
        let mut r = Random(seed);
        for step in 0..steps {
            let wave = step * 8 / steps % 4;
            let item = if r.below(3) == 0 { r.below(ITEMS) } else { r.below(ITEMS / 4) * 4 + wave };
            let (offset, len) = place(item);
            if r.below(4) == 0 {
                store.invalidate(offset..offset + len as u64);
                versions[item as usize].fetch_add(1, Ordering::SeqCst);
            }
            let version = versions[item as usize].load(Ordering::SeqCst);
            let bytes: Vec<u8> = stamped(offset, version).into_iter().cycle().take(len).collect();
            store.insert(offset, &bytes, offset, &|| true);
            match r.below(2000) {
                0 => store.rebalance(Reassignment::EvictionCounts),
                1 => store.prefer_recency(r.below(2) == 0),
                _ => {}
            }
        }
        done.store(1, Ordering::Relaxed);
    });
    store.check();
    let (found, state) = (hits.load(Ordering::Relaxed), store.state());
    assert_eq!(state.classes.iter().map(|c| c.counts.hits).sum::<u64>(), found, "every hit is counted once");
    assert!(found > steps / 100, "{found} hits in {steps} steps: nothing was tested");
}

#[test]
fn optimistic_reads_see_whole_and_current_items() {
    if cfg!(miri) {
        return readers_beside_a_writer::<S3Fifo>(seed(), 20);
    }
    readers_beside_a_writer::<S3Fifo>(seed(), 200_000);
    readers_beside_a_writer::<Sieve>(seed(), 200_000);
}
