//! The lookup table: from sectors to slots (Pipette, section 3.1.2, "hash lookup table").
//!
//! ```text
//! bucket, one line: [ slot x10 ][ tag x10 ][ which are used ][ how many went past ]
//! ```
//! An item is found by the 512-byte sector it begins in. A full bucket passes an entry on to the next one and counts that, so
//! a search that finds a count of zero ends (F14's overflow counts: facebook/folly, F14.md). The table knows nothing of
//! items but slot and tag; whether a candidate is the right one is asked by its header.
//!
//! It is searched without the shard's lock, too, while another thread changes it. Then it may say anything, except a place
//! beyond its end; `glance.rs` throws away what was read while something changed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::ground::{Ground, prefetch};
use crate::sync::Arc;

/// Entries of a bucket.
pub(crate) const ENTRIES: usize = 10;
/// All entries of a bucket.
const ALL: u16 = (1 << ENTRIES) - 1;

/// One line of the table, in words, of which only who holds the shard's lock changes parts:
///
/// ```text
/// word 0..4: slots, two each;  5, 6: tags 0 to 7, four each;  7: tag 8, tag 9, bits of used entries, how many went past
/// ```
#[repr(C, align(64))]
pub(crate) struct Bucket {
    words: [AtomicU64; 8],
}

const _: () = assert!(size_of::<Bucket>() == 64);

/// The first word of tags.
const TAGS: usize = 5;
/// The word of the last tags, what is used and what went past.
const LAST: usize = 7;

/// Of four numbers of 16 bits, those equal to a tag: a bit each.
#[inline]
fn equal(word: u64, tag: u16) -> u16 {
    const LOW: u64 = 0x7fff_7fff_7fff_7fff;
    let differs = word ^ (u64::from(tag) * 0x0001_0001_0001_0001);
    // The highest bit of each number is set if and only if the number is not zero.
    let zero = !(((differs & LOW) + LOW) | differs | LOW);
    // Bits 15, 31, 47, 63 to 0, 1, 2, 3.
    ((zero >> 15).wrapping_mul(1 << 48 | 1 << 33 | 1 << 18 | 1 << 3) >> 48 & 0xf) as u16
}

impl Bucket {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.words[at].load(Relaxed)
    }

    /// The used entries with this tag, a bit each, and how many entries went past.
    #[inline]
    fn matching(&self, tag: u16) -> (u16, u16) {
        let last = self.word(LAST);
        let bits = equal(self.word(TAGS), tag) | equal(self.word(TAGS + 1), tag) << 4 | equal(last, tag) << 8;
        (bits & (last >> 32) as u16 & ALL, (last >> 48) as u16)
    }

    #[inline]
    fn slot(&self, entry: usize) -> u32 {
        (self.word(entry / 2) >> (32 * (entry % 2))) as u32
    }

    fn used(&self) -> u16 {
        (self.word(LAST) >> 32) as u16
    }

    fn passed(&self) -> u16 {
        (self.word(LAST) >> 48) as u16
    }

    /// Sets `bits` bits at a place of a word.
    fn set(&self, word: usize, shift: usize, bits: u32, value: u64) {
        let mask = ((1u64 << bits) - 1) << shift;
        self.words[word].store(self.word(word) & !mask | value << shift & mask, Relaxed);
    }

    fn set_slot(&self, entry: usize, slot: u32) {
        self.set(entry / 2, 32 * (entry % 2), 32, u64::from(slot));
    }

    fn set_tag(&self, entry: usize, tag: u16) {
        self.set(TAGS + entry / 4, 16 * (entry % 4), 16, u64::from(tag));
    }

    fn set_used(&self, used: u16) {
        self.set(LAST, 32, 16, u64::from(used));
    }

    fn set_passed(&self, passed: u16) {
        self.set(LAST, 48, 16, u64::from(passed));
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

/// Brings the first bucket of a hash nearer.
#[inline]
pub(crate) fn bucket_soon(buckets: &[Bucket], hash: u64) {
    if let Some(bucket) = buckets.get(home(hash, buckets.len())) {
        prefetch(bucket);
    }
}

/// The first slot under a hash that `is_it`, in at most so many buckets.
#[inline]
pub(crate) fn find(buckets: &[Bucket], hash: u64, most: usize, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
    let mut at = home(hash, buckets.len());
    for _ in 0..most {
        let bucket = &buckets[at];
        let (mut bits, passed) = bucket.matching(hash as u16);
        while bits != 0 {
            let slot = bucket.slot(bits.trailing_zeros() as usize);
            if is_it(slot) {
                return Some(slot);
            }
            bits &= bits - 1;
        }
        if passed == 0 {
            return None;
        }
        at = after(at, buckets.len());
    }
    None
}

#[inline]
fn after(bucket: usize, buckets: usize) -> usize {
    if bucket + 1 == buckets { 0 } else { bucket + 1 }
}

/// The table of a shard, for who holds its lock.
pub(crate) struct Index {
    ground: Arc<Ground>,
    entries: usize,
}

impl Index {
    /// Makes an empty table of so many buckets at the end of the ground's words.
    pub(crate) fn over(ground: &Arc<Ground>, buckets: usize) -> Index {
        ground.set_index(buckets);
        Index { ground: ground.clone(), entries: 0 }
    }

    #[inline]
    fn all(&self) -> &[Bucket] {
        self.ground.index()
    }

    pub(crate) fn buckets(&self) -> usize {
        self.all().len()
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Entries from which on the table should grow: at 85% few searches go past the second bucket.
    pub(crate) fn comfortable(&self) -> usize {
        self.buckets() * ENTRIES * 85 / 100
    }

    /// Brings the first bucket of a hash nearer.
    pub(crate) fn prefetch(&self, hash: u64) {
        bucket_soon(self.all(), hash);
    }

    /// The first slot under a hash that `is_it`.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let buckets = self.all();
        find(buckets, hash, buckets.len(), is_it)
    }

    /// Adds an entry; false where the table is full.
    pub(crate) fn insert(&mut self, hash: u64, slot: u32) -> bool {
        let buckets = self.ground.index();
        if self.entries + 1 >= buckets.len() * ENTRIES {
            return false;
        }
        let mut at = home(hash, buckets.len());
        loop {
            let bucket = &buckets[at];
            let used = bucket.used();
            if used != ALL {
                let free = (!used).trailing_zeros() as usize;
                bucket.set_slot(free, slot);
                bucket.set_tag(free, hash as u16);
                bucket.set_used(used | 1 << free);
                self.entries += 1;
                return true;
            }
            // Beyond what it can count it stays: searches are then longer than they need to be, not wrong.
            bucket.set_passed(bucket.passed().saturating_add(1));
            at = after(at, buckets.len());
        }
    }

    /// Names another slot in the entry of one.
    pub(crate) fn replace(&mut self, hash: u64, slot: u32, new: u32) -> bool {
        self.entry(hash, slot).map(|(at, i)| self.all()[at].set_slot(i, new)).is_some()
    }

    /// Removes the entry of a slot; false where there is none.
    pub(crate) fn remove(&mut self, hash: u64, slot: u32) -> bool {
        let Some((found, i)) = self.entry(hash, slot) else { return false };
        self.entries -= 1;
        let buckets = self.all();
        buckets[found].set_used(buckets[found].used() & !(1 << i));
        let mut at = home(hash, buckets.len());
        while at != found {
            let passed = buckets[at].passed();
            if passed != u16::MAX {
                buckets[at].set_passed(passed - 1);
            }
            at = after(at, buckets.len());
        }
        true
    }

    fn entry(&self, hash: u64, slot: u32) -> Option<(usize, usize)> {
        let buckets = self.all();
        let mut at = home(hash, buckets.len());
        for _ in 0..buckets.len() {
            let (mut bits, passed) = buckets[at].matching(hash as u16);
            while bits != 0 {
                let i = bits.trailing_zeros() as usize;
                if buckets[at].slot(i) == slot {
                    return Some((at, i));
                }
                bits &= bits - 1;
            }
            if passed == 0 {
                return None;
            }
            at = after(at, buckets.len());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_whatever_is_beside_them() {
        let edges = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234];
        for &tag in &edges {
            for lanes in 0..edges.len().pow(4) {
                let lane = |i: u32| edges[lanes / edges.len().pow(i) % edges.len()];
                let word = (0..4).fold(0, |w, i| w | u64::from(lane(i)) << (16 * i));
                let expected = (0..4).fold(0, |bits, i| bits | u16::from(lane(i) == tag) << i);
                assert_eq!(equal(word, tag), expected, "{tag:x} in {word:x}");
            }
        }
    }

    #[test]
    fn parts_of_a_bucket_keep_their_neighbours() {
        let bucket = Bucket { words: Default::default() };
        for i in 0..ENTRIES {
            bucket.set_slot(i, u32::MAX - i as u32);
            bucket.set_tag(i, 0xffff - (i / 2) as u16);
        }
        bucket.set_used(ALL & !2);
        bucket.set_passed(u16::MAX);
        assert!((0..ENTRIES).all(|i| bucket.slot(i) == u32::MAX - i as u32));
        assert_eq!(bucket.matching(0xffff), (0b01, u16::MAX), "an entry that is not used is not found");
        assert_eq!(bucket.matching(0xffff - 4), (0b11 << 8, u16::MAX));
        assert_eq!((bucket.used(), bucket.passed()), (ALL & !2, u16::MAX));
        bucket.set_passed(0);
        assert_eq!((bucket.used(), bucket.passed(), bucket.slot(9)), (ALL & !2, 0, u32::MAX - 9));
    }
}
