//! The cost of a hit: everything is cached, and nothing is read from a device.
//!
//!     cargo run --release -p datapipes-cache --example hits -- [--mib N] [--reads N]
//!         [--policy NAME]
//!
//! It reads 128 bytes at random, singly and in batches, with one and with two threads.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use datapipes_cache::engine::{EngineFacts, Extent, OnExtent, ReadEngine};
use datapipes_cache::{CacheOptions, CachePolicy, FineGrained};
use datapipes_core::Result;
use datapipes_data::access::{ItemLayout, Items, Popularity};

const LEN: usize = 128;

/// A file whose bytes are all the same.
struct Made(u64);

impl ReadEngine for Made {
    fn facts(&self) -> EngineFacts {
        EngineFacts { granularity: 128, depth: 32, longest: 4096 }
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(self.0)
    }

    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>) {
        let bytes = [7; 4096];
        (0..extents.len()).for_each(|i| done(i, Ok(&bytes[..extents[i].len as usize])));
    }

    fn now_ns(&self) -> u64 {
        0
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |name: &str| args.iter().position(|a| a == name).and_then(|at| args.get(at + 1));
    let number = |name: &str, default: u64| arg(name).map_or(default, |v| v.parse().unwrap());
    let (mib, reads) = (number("--mib", 48), number("--reads", 4_000_000));
    let policy: CachePolicy = arg("--policy").map_or(CachePolicy::default(), |p| p.parse().unwrap());
    let machine = datapipes::discover();
    // Items lie apart from each other, so that none makes a whole page worth caching.
    let layout =
        ItemLayout { items: (mib << 20) / LEN as u64, item_bytes: LEN as u32, stride_bytes: 4096 + LEN as u64 };
    let file = layout.items * layout.stride_bytes;
    let config = CacheOptions::new(&machine).budget((mib as usize) << 21).policy(policy);
    let fine = FineGrained::with_engine(Arc::new(Made(file)), config, "made").unwrap();
    let mut out = vec![0; LEN];
    (0..layout.items).for_each(|i| fine.read(i * layout.stride_bytes, &mut out).unwrap());
    for (threads, batch) in [(1, 1), (2, 1), (1, 128), (2, 128)] {
        let part = |seed: u64| {
            let offsets: Vec<u64> =
                Items::new(layout, Popularity::Uniform, seed).take(reads as usize).map(|r| r.offset).collect();
            let mut out = vec![0; LEN * batch];
            let started = Instant::now();
            for offsets in offsets.chunks(batch) {
                let out = &mut out[..offsets.len() * LEN];
                match batch {
                    1 => fine.read(offsets[0], out).unwrap(),
                    _ => assert!(fine.gather(offsets, LEN, out).unwrap().failed.is_empty()),
                }
                assert!(out.chunks(LEN).all(|b| b[0] == 7 && b[LEN - 1] == 7));
            }
            reads as f64 / started.elapsed().as_secs_f64()
        };
        let before = fine.metrics();
        let rate: f64 = std::thread::scope(|scope| {
            let parts: Vec<_> = (0..threads)
                .map(|n| {
                    scope.spawn({
                        let part = &part;
                        move || part(n)
                    })
                })
                .collect();
            parts.into_iter().map(|p| p.join().unwrap()).sum()
        });
        let after = fine.metrics();
        println!(
            "{threads} threads, batches of {batch:3}: {:.2} M/s, {:.1} ns a read and thread, {:.2}% hits",
            rate / 1e6,
            threads as f64 * 1e9 / rate,
            (after.hits - before.hits) as f64 * 100.0 / (after.reads - before.reads) as f64
        );
    }
}
