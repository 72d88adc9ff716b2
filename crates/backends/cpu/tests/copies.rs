//! Every copy kernel against a naive copy, for all alignments and for lengths around its steps;
//! neighbouring bytes must not change.
#![allow(clippy::unwrap_used)]

use datapipes_core::memory::{MapOptions, MemoryRange, Pages, Region};
use datapipes_core::topology::Topology;
use datapipes_core::{Dram, ErrorKind};
use datapipes_cpu::{Copier, CopyInstructions, Kernel};

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// xorshift64*. A failure prints the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

struct Case {
    source_at: usize,
    target_at: usize,
    len: usize,
}

struct Bench {
    source: MemoryRange,
    target: MemoryRange,
    source_bytes: Vec<u8>,
    /// The expected contents of the target, written only by the naive copy.
    model: Vec<u8>,
}

impl Bench {
    fn new(len: usize) -> Bench {
        let options = MapOptions::default().pages(Pages::Small);
        let range = || Region::map(len, options).unwrap().range(0, len).unwrap();
        let (source, target) = (range(), range());
        let mut random = Random(SEED);
        let source_bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
        source.lease_mut().unwrap().copy_from_slice(&source_bytes);
        target.lease_mut().unwrap().fill(0xee);
        Bench { source, target, source_bytes, model: vec![0xee; len] }
    }

    fn check(&mut self, name: &str, copier: &Copier, case: &Case) {
        let Case { source_at, target_at, len } = *case;
        copier.copy((&self.source, source_at), (&self.target, target_at), len).unwrap();
        let naive = self.model[target_at..].iter_mut().zip(&self.source_bytes[source_at..]).take(len);
        for (to, from) in naive {
            *to = *from;
        }
        // Everything near the copy is compared, including the bytes before and after it.
        let (from, to) = (target_at.saturating_sub(256), (target_at + len + 256).min(self.model.len()));
        let same = self.target.range(from, to - from).unwrap().lease().unwrap()[..] == self.model[from..to];
        assert!(same, "{name}: {len} bytes from {source_at} to {target_at} (seed {SEED:#x})");
        // The next case starts with other bytes, so that a copy of nothing cannot pass.
        self.target.range(target_at, len).unwrap().lease_mut().unwrap().fill(0x11);
        self.model[target_at..target_at + len].fill(0x11);
    }
}

/// Every kernel of this machine, with prefetching and without. Absent kernels are printed.
fn copiers() -> Vec<(String, Copier)> {
    let instructions = CopyInstructions::detect(&Topology::discover().cpu);
    let mut copiers = Vec::new();
    for kernel in Kernel::ALL {
        for prefetch in [0, 512] {
            match Copier::fixed(kernel, prefetch, &instructions) {
                Some(copier) => copiers.push((format!("{} prefetching {prefetch}", kernel.name()), copier)),
                None => eprintln!("skipped: {} ({:?})", kernel.name(), kernel.available(&instructions)),
            }
        }
    }
    copiers
}

#[test]
fn all_lengths_at_some_alignments() {
    let mut random = Random(SEED);
    let mut bench = Bench::new(1 << 14);
    for (name, copier) in copiers() {
        for len in 0..=1100 {
            for _ in 0..6 {
                let case = Case { source_at: random.below(4096), target_at: random.below(4096), len };
                bench.check(&name, &copier, &case);
            }
        }
    }
}

#[test]
fn some_lengths_at_all_alignments() {
    let mut bench = Bench::new(1 << 13);
    for (name, copier) in copiers() {
        for len in [1, 63, 64, 65, 127, 128, 129, 191, 255, 256, 257, 320, 383, 577] {
            for source_at in (0..64).map(|at| at + 1024) {
                for target_at in (0..64).step_by(3).map(|at| at + 2048) {
                    bench.check(&name, &copier, &Case { source_at, target_at, len });
                }
            }
        }
    }
}

#[test]
fn long_copies_end_at_the_last_byte_of_the_mapping() {
    let mut random = Random(SEED);
    let whole = 3 << 20;
    let mut bench = Bench::new(whole);
    for (name, copier) in copiers() {
        for _ in 0..12 {
            let len = 1 + random.below(whole - 1);
            let start = random.below(whole - len + 1);
            // Prefetching beyond the source must not fault; stores beyond the target would.
            bench.check(&name, &copier, &Case { source_at: whole - len, target_at: start, len });
            bench.check(&name, &copier, &Case { source_at: start, target_at: whole - len, len });
        }
    }
}

#[test]
fn copies_that_are_refused() {
    let instructions = CopyInstructions::detect(&Topology::discover().cpu);
    let copier = Copier::fixed(Kernel::Memcpy, 0, &instructions).unwrap();
    let (a, b) = (Dram::allocate(1 << 16).unwrap(), Dram::allocate(1 << 16).unwrap());
    let kind = |from: (&Dram, usize), to: (&Dram, usize), len| {
        copier.copy((from.0.memory(), from.1), (to.0.memory(), to.1), len).map_err(|e| e.kind())
    };
    assert_eq!(kind((&a, 0), (&b, 1), 1 << 16), Err(ErrorKind::OutOfRange));
    assert_eq!(kind((&a, usize::MAX), (&b, 0), 2), Err(ErrorKind::OutOfRange));
    assert_eq!(kind((&a, 0), (&a, 63), 64), Err(ErrorKind::InvalidInput));
    assert_eq!(kind((&a, 0), (&a, 64), 64), Ok(()));
    for len in [64, 8192] {
        let reader = b.range(0, 64).unwrap().lease().unwrap();
        assert_eq!(kind((&a, 0), (&b, 0), len), Err(ErrorKind::Busy));
        assert_eq!(kind((&b, 0), (&a, 0), len), Ok(()));
        drop(reader);
        assert_eq!(kind((&a, 0), (&b, 0), len), Ok(()), "nothing stays held");
    }
}
