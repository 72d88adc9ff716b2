//! Approximate counts of recent reads of a key: small counters shared by many keys, halved now and
//! then (a count-min sketch with aging, as in TinyLFU: Einziger, Friedman, Manes, ACM TOS 2017).

use crate::store::arena::Table;
use crate::store::index::mix;

/// Counters of four bits, two a byte. A key has four, all in one line.
pub(crate) struct Sketch {
    counters: Table<u8>,
    additions: u64,
    limit: u64,
}

impl Sketch {
    /// Uses a table with a multiple of 64 bytes. Counters are halved after each `limit` additions.
    pub(crate) fn over(counters: Table<u8>, limit: u64) -> Sketch {
        Sketch { counters, additions: 0, limit: limit.max(1) }
    }

    fn places(&self, key: u64) -> ([(usize, u32); 4], usize) {
        let h = mix(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d);
        let lines = (self.counters.len() / 64) as u64;
        let line = (((h >> 32) * lines) >> 32) as usize * 64;
        let at = |i: u32| {
            let nibble = (h >> (7 * i)) as usize & 127;
            (line + nibble / 2, (nibble as u32 & 1) * 4)
        };
        (std::array::from_fn(|i| at(i as u32)), line)
    }

    /// Counts a key.
    pub(crate) fn add(&mut self, key: u64) {
        let (places, _) = self.places(key);
        let least = self.estimate(key);
        if least < 15 {
            for (at, shift) in places {
                // Only the smallest counters are raised: the others are too large already
                // (conservative update).
                if u32::from(self.counters[at] >> shift & 15) == least {
                    self.counters[at] += 1 << shift;
                }
            }
        }
        self.additions += 1;
        if self.additions >= self.limit {
            self.additions /= 2;
            for byte in self.counters.iter_mut() {
                *byte = *byte >> 1 & 0x77;
            }
        }
    }

    /// The approximate count of a key, at most 15.
    pub(crate) fn estimate(&self, key: u64) -> u32 {
        let (places, _) = self.places(key);
        places.iter().map(|&(at, shift)| u32::from(self.counters[at] >> shift & 15)).min().unwrap_or(0)
    }
}
