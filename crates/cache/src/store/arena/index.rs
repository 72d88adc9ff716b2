//! The lookup table: from sectors to slots (Pipette, section 3.1.2, "hash lookup table").
//!
//! ```text
//! bucket, one line: [ slot x10 ][ tag x10 ][ used entries ][ overflow count ]
//! ```
//! An item is found by the 512-byte sector in which it begins. Its tag says where in the sector
//! that is. So an item that begins where a read does is tried first, and items that begin behind it
//! are skipped (each access to a header waits for memory). A full bucket passes an entry on to the
//! next one and counts that, so a search ends at a bucket with a count of zero (F14's overflow
//! counts: facebook/folly, F14.md). The table knows only slot and tag. The header of a candidate
//! decides whether it is the right one.
//!
//! The table is also searched without the shard's lock, while another thread changes it. Then it
//! may return any slot, but it never reads beyond its end. `optimistic.rs` discards what was read
//! during a change.

use super::bucket::{ALL, Bucket, ENTRIES, Matching, START};
use super::header::SECTOR;
use super::{Arena, prefetch};
use crate::sync::Arc;

/// The key by which an item or a range is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    home: u32,
    tag: u16,
}

impl Key {
    /// The key of an item or range that begins at `offset`. It also finds items that begin before
    /// it in the same sector.
    #[inline]
    pub(crate) fn of(offset: u64) -> Key {
        let hash = mix(offset / SECTOR);
        Key { home: (hash >> 32) as u32, tag: hash as u16 & !START | (offset % SECTOR / 8) as u16 }
    }

    /// The key of all items in the sector of an offset.
    #[inline]
    pub(crate) fn of_sector(offset: u64) -> Key {
        let key = Key::of(offset);
        Key { tag: key.tag | START, ..key }
    }

    /// Bytes from the sector's begin, in steps of eight.
    #[inline]
    pub(crate) fn begin(self) -> u64 {
        u64::from(self.tag & START) * 8
    }

    /// The first bucket: the hash is scaled to the number of buckets without a division.
    #[inline]
    fn home(self, buckets: usize) -> usize {
        ((u64::from(self.home) * buckets as u64) >> 32) as usize
    }
}

/// Spreads a number over 64 bits (the finalizer of splitmix64).
#[inline]
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Prefetches the first bucket of a key.
#[inline]
pub(crate) fn bucket_soon(buckets: &[Bucket], key: Key) {
    if let Some(bucket) = buckets.get(key.home(buckets.len())) {
        prefetch(bucket);
    }
}

/// Prefetches the first bucket of a key, and the next one, to which a full bucket passes entries.
#[inline]
pub(crate) fn buckets_soon(buckets: &[Bucket], key: Key) {
    let from_home = buckets.get(key.home(buckets.len())..).unwrap_or_default();
    from_home.iter().take(2).for_each(|bucket| prefetch(bucket));
}

/// The positions of the bits that are set.
#[inline]
fn entries(mut bits: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let entry = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(entry)
    })
}

/// The result of a search.
#[derive(Clone, Copy)]
pub(crate) struct Search {
    /// The first slot that matched.
    pub(crate) slot: Option<u32>,
    /// The approximate number of items of the sector that came before it.
    pub(crate) met: u32,
    /// Whether the search ended before it had seen all entries.
    pub(crate) is_cut: bool,
}

/// Returns the first slot under a key for which `is_it` is true, searching at most `most` buckets.
/// `is_it` also gets the position in the sector where the item begins, in steps of eight bytes.
#[inline]
pub(crate) fn find(buckets: &[Bucket], key: Key, most: usize, mut is_it: impl FnMut(u32, u64) -> bool) -> Search {
    let mut at = key.home(buckets.len());
    let mut met = 0;
    for _ in 0..most {
        let bucket = &buckets[at];
        let Matching { exact, sector, passed } = bucket.matching(key.tag);
        met += sector.count_ones();
        for entry in entries(exact) {
            let slot = bucket.slot(entry);
            if is_it(slot, key.begin()) {
                return Search { slot: Some(slot), met, is_cut: false };
            }
        }
        for entry in entries(sector & !exact) {
            let (slot, of) = (bucket.slot(entry), Key { tag: bucket.tag(entry), ..key });
            if of.begin() <= key.begin() && is_it(slot, of.begin()) {
                return Search { slot: Some(slot), met, is_cut: false };
            }
        }
        if passed == 0 {
            return Search { slot: None, met, is_cut: false };
        }
        at = after(at, buckets.len());
    }
    Search { slot: None, met, is_cut: true }
}

#[inline]
fn after(bucket: usize, buckets: usize) -> usize {
    if bucket + 1 == buckets { 0 } else { bucket + 1 }
}

/// The table of a shard, for the holder of its lock.
pub(crate) struct Index {
    arena: Arc<Arena>,
    entries: usize,
}

impl Index {
    /// Makes an empty table of `buckets` buckets at the end of the arena's words.
    pub(crate) fn over(arena: &Arc<Arena>, buckets: usize) -> Index {
        arena.set_index(buckets);
        Index { arena: arena.clone(), entries: 0 }
    }

    #[inline]
    fn all(&self) -> &[Bucket] {
        self.arena.index()
    }

    pub(crate) fn buckets(&self) -> usize {
        self.all().len()
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// The number of entries at which the table should grow. At 85% few searches go past the second
    /// bucket.
    pub(crate) fn comfortable(&self) -> usize {
        self.buckets() * ENTRIES * 85 / 100
    }

    /// Prefetches the first bucket of a key.
    pub(crate) fn prefetch(&self, key: Key) {
        bucket_soon(self.all(), key);
    }

    /// Returns the first slot under a key for which `is_it` is true.
    #[inline]
    pub(crate) fn find(&self, key: Key, is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        self.find_among(key, is_it).0
    }

    /// As [`find`](Self::find), with the number of items of the sector before it. If none is found,
    /// the number is never too small.
    #[inline]
    pub(crate) fn find_among(&self, key: Key, mut is_it: impl FnMut(u32) -> bool) -> (Option<u32>, u32) {
        let buckets = self.all();
        let Search { slot, met, .. } = find(buckets, key, buckets.len(), |slot, _| is_it(slot));
        (slot, met)
    }

    /// Adds an entry. Returns false where the table is full.
    pub(crate) fn insert(&mut self, key: Key, slot: u32) -> bool {
        let buckets = self.arena.index();
        if self.entries + 1 >= buckets.len() * ENTRIES {
            return false;
        }
        let mut at = key.home(buckets.len());
        loop {
            let bucket = &buckets[at];
            let used = bucket.used();
            if used != ALL {
                let free = (!used).trailing_zeros() as usize;
                bucket.set_slot(free, slot);
                bucket.set_tag(free, key.tag);
                bucket.set_used(used | 1 << free);
                self.entries += 1;
                return true;
            }
            // A saturated count stays as it is. Searches are then longer than needed, but not
            // wrong.
            bucket.set_passed(bucket.passed().saturating_add(1));
            at = after(at, buckets.len());
        }
    }

    /// Replaces the slot of an entry.
    pub(crate) fn replace(&mut self, key: Key, slot: u32, new: u32) -> bool {
        self.entry(key, slot).map(|(at, i)| self.all()[at].set_slot(i, new)).is_some()
    }

    /// Removes the entry of a slot. Returns false where there is none.
    pub(crate) fn remove(&mut self, key: Key, slot: u32) -> bool {
        let Some((found, i)) = self.entry(key, slot) else { return false };
        self.entries -= 1;
        let buckets = self.all();
        buckets[found].set_used(buckets[found].used() & !(1 << i));
        let mut at = key.home(buckets.len());
        while at != found {
            let passed = buckets[at].passed();
            if passed != u16::MAX {
                buckets[at].set_passed(passed - 1);
            }
            at = after(at, buckets.len());
        }
        true
    }

    fn entry(&self, key: Key, slot: u32) -> Option<(usize, usize)> {
        let buckets = self.all();
        let mut at = key.home(buckets.len());
        for _ in 0..buckets.len() {
            let Matching { exact, passed, .. } = buckets[at].matching(key.tag);
            if let Some(entry) = entries(exact).find(|&e| buckets[at].slot(e) == slot) {
                return Some((at, entry));
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
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::store::arena::bucket::zeros;

    #[test]
    fn tags_are_found_whatever_is_beside_them() {
        let edges = [0u16, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234];
        for &tag in &edges {
            for lanes in 0..edges.len().pow(4) {
                let lane = |i: u32| edges[lanes / edges.len().pow(i) % edges.len()];
                let word = (0..4).fold(0, |w, i| w | u64::from(lane(i)) << (16 * i));
                let expected = (0..4).fold(0, |bits, i| bits | u16::from(lane(i) == tag) << i);
                let tags = u64::from(tag) * 0x0001_0001_0001_0001;
                assert_eq!(zeros(word ^ tags), expected, "{tag:x} in {word:x}");
            }
        }
    }

    #[test]
    fn items_at_the_start_of_a_read_are_tried_first_and_later_ones_not_at_all() {
        let memory = crate::store::arena::Memory::map(1 << 20, false).unwrap();
        let arena = Arc::new(Arena::over(&memory, 0, 1 << 20, 0).unwrap());
        let mut index = Index::over(&arena, 64);
        // The slot number is the position where the item begins.
        let starts = [0u32, 8, 128, 256, 264, 500];
        starts.iter().for_each(|&start| assert!(index.insert(Key::of(4096 + u64::from(start)), start)));
        let tried = |key: Key| {
            let mut tried = Vec::new();
            let (found, met) = index.find_among(key, |slot| {
                tried.push(slot);
                false
            });
            assert_eq!((found, met), (None, 6));
            tried
        };
        assert_eq!(tried(Key::of(4096 + 256)), [256, 0, 8, 128]);
        assert_eq!(tried(Key::of(4096 + 300)), [0, 8, 128, 256, 264]);
        assert_eq!(tried(Key::of_sector(4096)).len(), 6);
        assert_eq!(index.find(Key::of(8192), |_| true), None);
        assert!(!index.remove(Key::of(4096), 8) && index.remove(Key::of(4096 + 8), 8));
        assert_eq!(index.find(Key::of(4096 + 8), |_| true), Some(0));
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
        // An unused entry is not found.
        let all = bucket.matching(0xffff);
        assert_eq!((all.exact, all.sector, all.passed), (0b01, ALL & !2, u16::MAX));
        let fifth = bucket.matching(0xffff - 4);
        assert_eq!((fifth.exact, fifth.sector), (0b11 << 8, ALL & !2));
        assert_eq!((bucket.matching(0xff7f).exact, bucket.matching(0xff7f).sector), (0, 0), "another sector");
        assert!((0..ENTRIES).all(|i| bucket.tag(i) == 0xffff - (i / 2) as u16));
        assert_eq!((bucket.used(), bucket.passed()), (ALL & !2, u16::MAX));
        bucket.set_passed(0);
        assert_eq!((bucket.used(), bucket.passed(), bucket.slot(9)), (ALL & !2, 0, u32::MAX - 9));
    }
}
