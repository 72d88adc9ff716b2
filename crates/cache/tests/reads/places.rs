//! Caches over places that are read in units: the same bytes as the place has, whatever is asked
//! for, by however many at once.

use std::sync::Arc;

use crate::fixture::{Random, machine, noise, seed};
use datapipes_cache::{CacheOptions, FineGrained};
use datapipes_core::{Dram, ErrorKind};

const LEN: usize = (1 << 20) + 777;

fn place(bytes: &[u8]) -> Dram {
    let memory = Dram::allocate(bytes.len()).unwrap();
    memory.lease_mut().unwrap().copy_from_slice(bytes);
    memory
}

fn options() -> CacheOptions {
    CacheOptions::new(machine()).budget(4 << 20)
}

#[test]
fn all_threads_read_the_bytes_of_the_place() {
    let (bytes, seed) = (Arc::new(noise(LEN, 7)), seed());
    let fine = FineGrained::over_place(&place(&bytes), options()).unwrap();
    assert!(fine.explain().contains("in units of"), "{}", fine.explain());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (fine, bytes) = (fine.clone(), bytes.clone());
            scope.spawn(move || {
                let mut random = Random(seed + thread);
                for _ in 0..400 {
                    let ranges: Vec<(u64, usize)> = (0..1 + random.below(40))
                        .map(|_| {
                            let at = random.below(LEN as u64);
                            (at, 1 + random.below(9000).min(LEN as u64 - at - 1) as usize)
                        })
                        .collect();
                    let mut out = vec![0; ranges.iter().map(|range| range.1).sum()];
                    fine.gather_ranges(&ranges, &mut out).and_then(datapipes_cache::Gathered::all).unwrap();
                    let mut at = 0;
                    for (offset, len) in ranges {
                        let wanted = &bytes[offset as usize..offset as usize + len];
                        assert!(out[at..at + len] == *wanted, "{len} bytes at {offset} (seed {seed})");
                        at += len;
                    }
                }
            });
        }
    });
    let beyond = fine.read(LEN as u64 - 1, &mut [0; 2]).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::EndOfFile);
    let mut whole = vec![0; LEN];
    fine.read(0, &mut whole).unwrap();
    assert!(whole == **bytes);
}

#[test]
fn what_is_invalidated_is_read_again() {
    let bytes = noise(LEN, 8);
    let memory = place(&bytes);
    let fine = FineGrained::over_place(&memory, options()).unwrap();
    let mut out = [0; 100];
    fine.read(5000, &mut out).unwrap();
    memory.lease_mut().unwrap()[5000..5100].fill(9);
    fine.invalidate(5000..5100);
    fine.read(5000, &mut out).unwrap();
    assert_eq!(out, [9; 100]);
}

#[test]
fn a_place_that_is_tiny_or_a_budget_that_is_too_small() {
    let fine = FineGrained::over_place(&place(b"few"), options()).unwrap();
    let mut out = [0; 3];
    fine.read(0, &mut out).unwrap();
    assert_eq!(&out, b"few");
    let error = FineGrained::over_place(&place(b"few"), options().budget(3 << 20)).err().unwrap();
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("4 MiB"), "{error}");
}
