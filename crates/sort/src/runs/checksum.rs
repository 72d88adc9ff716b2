//! Checksums of spilled runs: the bytes read back must be those that were written.
//!
//! A run has a CRC-32 for each of its grains, kept in memory. Each writer sums the bytes while they
//! are in its cache. A reader checks a grain before it hands out a record of it. So a lost write, a
//! block that reads as zeros or as its former bytes, and a flipped bit are errors, whatever the
//! file system reported.

use crc32fast::Hasher;
use datapipes_core::{Error, ErrorKind, Result};

/// The smallest grain: small enough that a grain of each run fits the cache while it is consumed.
const MIN_GRAIN: usize = 16 << 10;
/// The largest grain. Buffers are multiples of it, so it bounds how many runs a merge can take.
const MAX_GRAIN: usize = 256 << 10;

/// Bytes for each checksum of `total` bytes of runs, such that all checksums take at most `memory /
/// 256` if possible. The result divides `block`, which is a power of two.
pub(crate) fn grain(total: u64, memory: usize, block: usize) -> usize {
    let most = (memory / 256 / size_of::<u32>()).max(1) as u64;
    let wanted = usize::try_from(total / most).unwrap_or(MAX_GRAIN).min(MAX_GRAIN).next_power_of_two();
    wanted.clamp(MIN_GRAIN, MAX_GRAIN).min(block)
}

/// The checksum of a grain.
#[inline]
pub(crate) fn sum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Fails unless the bytes of a grain have its checksum.
#[inline]
pub(crate) fn check(bytes: &[u8], expected: u32, offset: u64) -> Result<()> {
    if sum(bytes) == expected { Ok(()) } else { Err(differs(bytes.len(), offset)) }
}

#[cold]
fn differs(len: usize, offset: u64) -> Error {
    let context = format!("{len} bytes of a spilled run are not those that were written");
    Error::new(ErrorKind::Corrupt, "read", context)
        .with_offset(offset)
        .with_advice("the spill place lost or changed them; name another one (`spill`) and check that device")
}

/// The checksum of the part of a grain that one writer wrote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Partial {
    /// Offset of the part in the run.
    at: u64,
    len: u64,
    sum: u32,
}

/// Sums a part of a run that is written in order.
pub(crate) struct Summing {
    grain: u64,
    at: u64,
    len: u64,
    hasher: Hasher,
    done: Vec<Partial>,
}

impl Summing {
    /// Begins a part at offset `at` of the run.
    pub(crate) fn new(grain: usize, at: u64) -> Summing {
        Summing { grain: grain as u64, at, len: 0, hasher: Hasher::new(), done: Vec::new() }
    }

    /// Adds the bytes that follow.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.grain - (self.at + self.len) % self.grain;
            let (now, rest) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            self.hasher.update(now);
            self.len += now.len() as u64;
            if now.len() as u64 == room {
                self.cut();
            }
            bytes = rest;
        }
    }

    fn cut(&mut self) {
        if self.len > 0 {
            let hasher = std::mem::take(&mut self.hasher);
            self.done.push(Partial { at: self.at, len: self.len, sum: hasher.finalize() });
            (self.at, self.len) = (self.at + self.len, 0);
        }
    }

    /// Returns the checksums of everything that was fed.
    pub(crate) fn finish(mut self) -> Vec<Partial> {
        self.cut();
        self.done
    }
}

/// Combines the checksums of all parts of a run. The parts cover the run; several parts may lie in
/// one grain.
pub(crate) fn assemble(mut partials: Vec<Partial>, grain: usize) -> Vec<u32> {
    partials.sort_unstable_by_key(|p| p.at);
    let mut sums = Vec::new();
    let mut current: Option<(u64, Hasher)> = None;
    for partial in partials {
        let index = partial.at / grain as u64;
        let part = Hasher::new_with_initial_len(partial.sum, partial.len);
        match &mut current {
            Some((at, hasher)) if *at == index => hasher.combine(&part),
            _ => {
                sums.extend(current.replace((index, part)).map(|(_, hasher)| hasher.finalize()));
            }
        }
    }
    sums.extend(current.map(|(_, hasher)| hasher.finalize()));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn grains_are_powers_of_two_that_divide_the_block() {
        assert_eq!(grain(10 << 30, 2 << 30, 4 << 20), 16 << 10);
        assert_eq!(grain(1 << 40, 2 << 30, 4 << 20), 256 << 10);
        assert_eq!(grain(10 << 30, 16 << 20, 64 << 10), 64 << 10);
        assert_eq!(grain(0, 16 << 20, 64 << 10), 16 << 10);
        assert_eq!(grain(u64::MAX, 1, 64 << 10), 64 << 10);
    }

    proptest! {
        #[test]
        fn parts_and_pieces_change_nothing(
            bytes in proptest::collection::vec(any::<u8>(), 1..5000),
            cuts in proptest::collection::vec(0usize..5000, 0..6),
            piece in 1usize..700,
        ) {
            let grain = 512;
            let expected: Vec<u32> = bytes.chunks(grain).map(sum).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut partials = Vec::new();
            for part in cuts.windows(2).rev() {
                let mut summing = Summing::new(grain, part[0] as u64);
                bytes[part[0]..part[1]].chunks(piece).for_each(|p| summing.feed(p));
                partials.extend(summing.finish());
            }
            prop_assert_eq!(assemble(partials, grain), expected);
        }
    }
}
