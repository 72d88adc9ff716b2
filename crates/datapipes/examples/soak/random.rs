//! Random numbers from a seed.

/// splitmix64: the same numbers for a seed, on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of several values.
    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Returns a length from 1 on. Short ones are as frequent as long ones, and many are aligned.
    pub(crate) fn length(&mut self, most: u64) -> u64 {
        let bits = self.below(u64::from(most.ilog2()) + 1);
        let n = 1 + self.below((1 << bits).min(most));
        let n = match self.below(3) {
            0 => n.next_multiple_of(4096),
            1 => n.next_multiple_of(512),
            _ => n,
        };
        n.min(most)
    }

    /// Returns an offset that leaves room for `len` bytes.
    pub(crate) fn offset(&mut self, len: u64, most: u64) -> u64 {
        let at = self.below(most - len + 1);
        match self.below(3) {
            0 => at / 4096 * 4096,
            1 => at / 512 * 512,
            _ => at,
        }
    }
}

pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
