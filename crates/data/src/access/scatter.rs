//! A bijection that separates neighbours.

use super::Random;

/// A permutation of `0..count` that is computed, not stored.
///
/// It has three rounds of an odd multiplier and a shifted xor, each a bijection on the next power
/// of two. A result outside of `count` is sent through again (cycle walking), which happens less
/// than once on average.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    count: u64,
    mask: u64,
    shift: u32,
    odd: [u64; 3],
    add: [u64; 3],
}

impl Scatter {
    /// Makes a permutation of `0..count`; another seed gives another permutation.
    pub fn new(count: u64, seed: u64) -> Scatter {
        let mut random = Random::new(seed, 0x5ca7);
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let mut draw = || random.below(u64::MAX);
        let odd = [draw() | 1, draw() | 1, draw() | 1];
        let add = [draw(), draw(), draw()];
        // A shift of half the bits mixes the high half, which multiplying reaches, into the low
        // half.
        Scatter { count, mask, shift: (bits / 2).max(1), odd, add }
    }

    /// Returns the place of an index. An index outside of `0..count` is returned unchanged.
    #[inline]
    pub fn place(&self, index: u64) -> u64 {
        if index >= self.count {
            return index;
        }
        let mut at = index;
        loop {
            for round in 0..3 {
                at = at.wrapping_mul(self.odd[round]).wrapping_add(self.add[round]) & self.mask;
                at ^= at >> self.shift;
            }
            if at < self.count {
                return at;
            }
        }
    }
}
