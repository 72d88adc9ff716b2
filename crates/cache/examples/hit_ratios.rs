//! Hit ratios of the policies under several loads, with the same budget and without a device.
//!
//!     cargo run --release -p datapipes-cache --example hit_ratios -- [--requests N]
//!         [--file-mib N] [--budget-part N] [--policy NAME]
//!
//! Items have 128 bytes, and the file is N times the budget. Hits are those of the second half of
//! the requests. The bytes that a device would return are computed from the offset.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use datapipes_cache::engine::{EngineFacts, Extent, OnExtent, ReadEngine};
use datapipes_cache::{CacheOptions, CachePolicy, FineGrained};
use datapipes_core::Result;
use datapipes_data::access::{ItemLayout, Items, Popularity, ReadRequest};

/// A file whose bytes are computed from their offset.
struct Made {
    len: u64,
}

impl ReadEngine for Made {
    fn facts(&self) -> EngineFacts {
        EngineFacts { granularity: 512, depth: 32, longest: 4096 }
    }

    fn len_bytes(&self) -> Result<u64> {
        Ok(self.len)
    }

    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>) {
        let mut bytes = [0u8; 4096];
        for (i, e) in extents.iter().enumerate() {
            bytes[..e.len as usize].iter_mut().zip(e.offset..).for_each(|(b, at)| *b = ((at * 31) >> 7) as u8);
            done(i, Ok(&bytes[..e.len as usize]));
        }
    }

    fn now_ns(&self) -> u64 {
        0
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |name: &str, default: u64| {
        let at = args.iter().position(|a| a == name);
        at.and_then(|at| args.get(at + 1)).map_or(default, |v| v.parse().unwrap())
    };
    let only = args.iter().position(|a| a == "--policy").and_then(|at| args.get(at + 1));
    let (requests, file, part) = (arg("--requests", 4_000_000), arg("--file-mib", 256) << 20, arg("--budget-part", 8));
    let machine = datapipes::discover();
    let layout = ItemLayout { items: file / 128, item_bytes: 128, stride_bytes: 128 };
    let loads = [
        ("uniform", Popularity::Uniform),
        ("zipf 0.8", Popularity::Zipf { exponent: 0.8 }),
        ("zipf 0.99", Popularity::Zipf { exponent: 0.99 }),
        ("drifting zipf 0.9", Popularity::Drifting { exponent: 0.9, period: requests / 40, step: layout.items / 100 }),
    ];
    println!(
        "{:20} {:>12} {:>7} {:>9} {:>9} {:>11} {:>9}",
        "load", "policy", "hits %", "ns/read", "items", "B/item", "recency"
    );
    for (name, popularity) in loads {
        for policy in CachePolicy::ALL.into_iter().filter(|p| only.is_none_or(|name| name == p.name())) {
            let budget = (file / part) as usize;
            let mut config = CacheOptions::new(&machine).budget(budget).policy(policy);
            config.maintenance = false;
            let fine = FineGrained::with_engine(Arc::new(Made { len: file }), config, "made").unwrap();
            let mut reads = Items::new(layout, popularity, 7);
            let mut out = [0; 128];
            let mut half = fine.metrics();
            let started = Instant::now();
            for i in 0..requests {
                if i == requests / 2 {
                    half = fine.metrics();
                }
                if i % 50_000 == 0 {
                    fine.maintain();
                }
                let ReadRequest { offset, .. } = reads.next().unwrap();
                fine.read(offset, &mut out).unwrap();
                assert_eq!(out[127], (((offset + 127) * 31) >> 7) as u8);
            }
            let took = started.elapsed().as_nanos() as u64 / requests;
            let m = fine.metrics();
            println!(
                "{name:20} {:>12} {:>7.1} {took:>9} {:>9} {:>11.1} {:>9}",
                policy.name(),
                (m.hits - half.hits) as f64 * 100.0 / (m.reads - half.reads) as f64,
                m.items,
                m.bytes_per_item(),
                m.recency
            );
        }
    }
}
