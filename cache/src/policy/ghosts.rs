//! Who was evicted not long ago: fingerprints with a time, four bytes each, in sets of one half line.

use crate::store::ground::Table;
use crate::store::index::mix;

/// Entries of a set.
const WAYS: usize = 8;
/// Ages are told apart in this many steps.
const STEPS: u32 = 1024;
/// Bits of the time in an entry.
const TIME_BITS: u32 = 12;
const TIME_MASK: u32 = (1 << TIME_BITS) - 1;

/// A queue of ghosts, first in first out, to the precision of a step.
pub(crate) struct Ghosts {
    sets: Table<u32>,
    /// Evictions so far.
    count: u64,
}

impl Ghosts {
    /// In a table of a multiple of eight entries.
    pub(crate) fn over(sets: Table<u32>) -> Ghosts {
        Ghosts { sets, count: 0 }
    }

    /// Entries for a share of memory: more than half as many as it holds items of 128 bytes.
    pub(crate) fn entries_for(share: usize) -> usize {
        (share / 64 / 4).next_multiple_of(WAYS * 2)
    }

    fn now(&self) -> u32 {
        // Slightly less than the table holds, so that sets seldom overflow before their entries are too old.
        let quantum = (self.sets.len() as u64 * 9 / 10 / u64::from(STEPS)).max(1);
        (self.count / quantum) as u32 & TIME_MASK
    }

    fn place(&self, key: u64) -> (usize, u32) {
        let h = mix(key ^ 0x9e37_79b9_7f4a_7c15);
        let sets = (self.sets.len() / WAYS) as u64;
        let set = (((h >> 32) * sets) >> 32) as usize * WAYS;
        // Never zero: that is an empty entry.
        (set, (h as u32 & !TIME_MASK) | 1 << 31)
    }

    /// Notes an eviction.
    pub(crate) fn insert(&mut self, key: u64) {
        let (set, print) = self.place(key);
        let now = self.now();
        self.count += 1;
        let Some(entries) = self.sets.get_mut(set..set + WAYS) else { return };
        let age = |e: u32| if e == 0 { u32::MAX } else { now.wrapping_sub(e) & TIME_MASK };
        let oldest = entries.iter_mut().max_by_key(|e| if **e & !TIME_MASK == print { u32::MAX } else { age(**e) });
        if let Some(entry) = oldest {
            *entry = print | now;
        }
    }

    /// Whether it was evicted not long ago; asked once, then forgotten.
    pub(crate) fn take(&mut self, key: u64) -> bool {
        let (set, print) = self.place(key);
        let now = self.now();
        let Some(entries) = self.sets.get_mut(set..set + WAYS) else { return false };
        for entry in entries {
            if *entry & !TIME_MASK == print {
                let young = now.wrapping_sub(*entry) & TIME_MASK <= STEPS;
                *entry = 0;
                return young;
            }
        }
        false
    }
}
