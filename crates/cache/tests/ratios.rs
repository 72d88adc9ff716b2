//! The hits of the default policy compared with those of better informed ones, under a constant
//! load and under one that drifts.
#![allow(clippy::unwrap_used)]

mod fixture;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use datapipes_cache::engine::{EngineFacts, Extent, OnExtent, ReadEngine};
use datapipes_cache::{CacheOptions, CachePolicy, FineGrained};
use datapipes_core::Result;
use datapipes_data::access::{ItemLayout, Items, Popularity};
use fixture::machine;

const BUDGET: usize = 4 << 20;
/// The file has nine times the budget.
const ITEMS: u64 = 9 * BUDGET as u64 / 128;
const LAYOUT: ItemLayout = ItemLayout { items: ITEMS, item_bytes: 128, stride_bytes: 128 };
const WARM_UP: usize = ITEMS as usize / 2;
const READS: usize = ITEMS as usize / 4;
const SEED: u64 = 7;

/// A file of zeros.
struct Zeros;

impl ReadEngine for Zeros {
    fn facts(&self) -> EngineFacts {
        EngineFacts { granularity: 512, depth: 32, longest: 4096 }
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(LAYOUT.file_bytes())
    }

    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>) {
        for (i, e) in extents.iter().enumerate() {
            done(i, Ok(&[0; 4096][..e.len as usize]));
        }
    }

    fn now_ns(&self) -> u64 {
        0
    }
}

/// The hits of a hundred reads after the warm-up, and the number of items held then.
fn hits(policy: CachePolicy, popularity: Popularity, warm_up: usize, reads: usize) -> (f64, usize) {
    let mut config = CacheOptions::new(machine()).budget(BUDGET).policy(policy);
    config.maintenance = false;
    let fine = FineGrained::with_engine(Arc::new(Zeros), config, "zeros").unwrap();
    let mut at_warm_up = fine.metrics();
    for (i, read) in Items::new(LAYOUT, popularity, SEED).take(warm_up + reads).enumerate() {
        if i == warm_up {
            at_warm_up = fine.metrics();
        }
        if i % 10_000 == 0 {
            fine.maintain();
        }
        fine.read(read.offset, &mut [0; 128]).unwrap();
    }
    let now = fine.metrics();
    let hits = (now.hits - at_warm_up.hits) as f64 * 100.0 / (now.reads - at_warm_up.reads) as f64;
    println!("{}: {hits:.2} of a hundred, {} items", policy.name(), now.items);
    (hits, now.items)
}

/// The hits of an ideal cache that counts every read of every item for ever, and holds those with
/// the largest counts. With constant popularities, no policy that learns from the reads alone does
/// better.
fn hits_of_who_counts(capacity: usize, popularity: Popularity) -> f64 {
    let mut counts: HashMap<u64, u32> = HashMap::new();
    let mut held: BTreeSet<(u32, u64)> = BTreeSet::new();
    let mut hits = 0;
    for (i, read) in Items::new(LAYOUT, popularity, SEED).take(WARM_UP + READS).enumerate() {
        let count = counts.entry(read.offset).or_default();
        let hit = held.remove(&(*count, read.offset));
        *count += 1;
        hits += u32::from(hit && i >= WARM_UP);
        held.insert((*count, read.offset));
        if held.len() > capacity {
            held.pop_first();
        }
    }
    f64::from(hits) * 100.0 / READS as f64
}

#[test]
fn hits_are_within_a_point_of_an_ideal_counting_cache() {
    let popularity = Popularity::Zipf { exponent: 0.8 };
    for policy in [CachePolicy::Adaptive, CachePolicy::S3Fifo] {
        let (hits, items) = hits(policy, popularity, WARM_UP, READS);
        let most = hits_of_who_counts(items, popularity);
        println!("who counts everything: {most:.2}");
        assert!(hits > most - 1.0, "{policy:?}: {hits:.2} of {most:.2}");
        assert!(hits < most + 1.0, "{policy:?}: {hits:.2}: more than can be");
    }
}

#[test]
fn a_hot_set_that_drifts_is_followed() {
    let reads = 3 * ITEMS as usize;
    let popularity = Popularity::Drifting { exponent: 0.9, period: ITEMS / 56, step: ITEMS / 100 };
    let (adaptive, _) = hits(CachePolicy::Adaptive, popularity, reads / 2, reads / 2);
    let (fixed, _) = hits(CachePolicy::S3Fifo, popularity, reads / 2, reads / 2);
    assert!(adaptive > fixed + 2.0, "{adaptive:.2} instead of {fixed:.2}");
}
