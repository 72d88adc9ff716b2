//! The lookup table: from sectors to slots (Pipette, section 3.1.2, "hash lookup table").
//!
//! ```text
//! bucket, one line: [ slot x10 ][ tag x10 ][ which are used ][ how many went past ]
//! ```
//! An item is found by the 512-byte sector it begins in. A full bucket passes an entry on to the next one and counts that, so
//! a search that finds a count of zero ends (F14's overflow counts: facebook/folly, F14.md). The table knows nothing of
//! items but slot and tag; whether a candidate is the right one is asked by its header.

use super::memory::{Table, Zero, prefetch};

/// Entries of a bucket.
pub(crate) const ENTRIES: usize = 10;

/// One line of the table.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Bucket {
    slots: [u32; ENTRIES],
    tags: [u16; ENTRIES],
    used: u16,
    passed: u16,
}

impl Zero for Bucket {}

impl Bucket {
    /// The entries with this tag, a bit each.
    #[inline]
    fn matching(&self, tag: u16) -> u16 {
        let mut bits = 0u16;
        for (i, &t) in self.tags.iter().enumerate() {
            bits |= u16::from(t == tag) << i;
        }
        bits & self.used
    }
}

/// Spreads a number over 64 bits (the finalizer of splitmix64).
#[inline]
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The first bucket of a hash: the upper half, scaled. No division, any number of buckets.
#[inline]
fn home(hash: u64, buckets: usize) -> usize {
    (((hash >> 32) * buckets as u64) >> 32) as usize
}

/// Brings the first bucket of a hash nearer, in a table of so many buckets at an address, which may be out of date.
#[inline]
pub(crate) fn prefetch_bucket((address, buckets): (usize, usize), hash: u64) {
    prefetch(std::ptr::without_provenance::<Bucket>(address.wrapping_add(home(hash, buckets) * size_of::<Bucket>())));
}

/// The table of a shard.
pub(crate) struct Index {
    buckets: Table<Bucket>,
    entries: usize,
}

impl Index {
    pub(crate) fn over(buckets: Table<Bucket>) -> Index {
        Index { buckets, entries: 0 }
    }

    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Entries from which on the table should grow: at 85% few searches go past the second bucket.
    pub(crate) fn comfortable(&self) -> usize {
        self.buckets.len() * ENTRIES * 85 / 100
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        home(hash, self.buckets.len())
    }

    #[inline]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    /// Brings the first bucket of a hash nearer.
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_bucket(self.place(), hash);
    }

    /// Address and number of the buckets, for [`prefetch_bucket`].
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.buckets.as_ptr().addr(), self.buckets.len())
    }

    /// The first slot under a hash that `is_it`.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            let mut bits = bucket.matching(hash as u16);
            while bits != 0 {
                let slot = bucket.slots[bits.trailing_zeros() as usize];
                if is_it(slot) {
                    return Some(slot);
                }
                bits &= bits - 1;
            }
            if bucket.passed == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds an entry; false where the table is full.
    pub(crate) fn insert(&mut self, hash: u64, slot: u32) -> bool {
        let all = (1u16 << ENTRIES) - 1;
        if self.entries + 1 >= self.buckets.len() * ENTRIES {
            return false;
        }
        let mut at = self.home(hash);
        loop {
            let bucket = &mut self.buckets[at];
            if bucket.used != all {
                let free = (!bucket.used).trailing_zeros() as usize;
                bucket.slots[free] = slot;
                bucket.tags[free] = hash as u16;
                bucket.used |= 1 << free;
                self.entries += 1;
                return true;
            }
            // Beyond what it can count it stays: searches are then longer than they need to be, not wrong.
            bucket.passed = bucket.passed.saturating_add(1);
            at = self.after(at);
        }
    }

    /// Names another slot in the entry of one.
    pub(crate) fn replace(&mut self, hash: u64, slot: u32, new: u32) -> bool {
        self.entry(hash, slot).map(|(at, i)| self.buckets[at].slots[i] = new).is_some()
    }

    /// Removes the entry of a slot; false where there is none.
    pub(crate) fn remove(&mut self, hash: u64, slot: u32) -> bool {
        let Some((found, i)) = self.entry(hash, slot) else { return false };
        self.buckets[found].used &= !(1 << i);
        self.entries -= 1;
        let mut at = self.home(hash);
        while at != found {
            let passed = &mut self.buckets[at].passed;
            if *passed != u16::MAX {
                *passed -= 1;
            }
            at = self.after(at);
        }
        true
    }

    fn entry(&self, hash: u64, slot: u32) -> Option<(usize, usize)> {
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            let mut bits = bucket.matching(hash as u16);
            while bits != 0 {
                let i = bits.trailing_zeros() as usize;
                if bucket.slots[i] == slot {
                    return Some((at, i));
                }
                bits &= bits - 1;
            }
            if bucket.passed == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }
}

const _: () = assert!(size_of::<Bucket>() == 64);
