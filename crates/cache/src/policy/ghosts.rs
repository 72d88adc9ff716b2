//! Recently evicted keys: two generations of a Bloom filter, with each key in one line (a blocked
//! Bloom filter: Putze, Sanders, Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", WEA
//! 2007).
//!
//! ```text
//! line:  [ 256 bits of one generation ][ 256 bits of the other ]
//! a key sets 4 bits of the young half
//! has the young generation as many keys as there are items?
//!        the old one is cleared, and becomes the young one
//! ```
//! An evicted key is remembered for one to two times as many evictions as there are items. About 4
//! in 100 keys that were never there are wrongly taken for evicted, and use a slot in main.
//! Fingerprints with a time need four bytes a key: the same memory then remembers half as many keys
//! as there are items (of 128 bytes), without such errors, and with fewer hits.

use crate::store::arena::Table;
use crate::store::index::mix;
use crate::store::policy::{GhostLines, ghost_line_of};

/// Words of a line, and of the half line of a generation.
const LINE: usize = 16;
const HALF: usize = LINE / 2;
/// The number of bits that a key sets.
const BITS: u32 = 4;
/// The most keys of a generation for each line. Half of the bits are set then.
const MAX_PER_LINE: usize = 44;

/// Evicted keys, in two generations.
pub(crate) struct Ghosts {
    words: Table<u32>,
    /// The half of each line that belongs to the young generation.
    young: usize,
    /// The number of keys in the young generation.
    noted: usize,
}

impl Ghosts {
    /// Uses a table of [`entries_for`](Self::entries_for) words.
    pub(crate) fn over(words: Table<u32>) -> Ghosts {
        Ghosts { words, young: 0, noted: 0 }
    }

    /// The number of words for a share of memory: about 17 bits for each item of 128 bytes that it
    /// holds.
    pub(crate) fn entries_for(share: usize) -> usize {
        (share / 64 / size_of::<u32>()).next_multiple_of(LINE)
    }

    fn lines(&self) -> usize {
        self.words.len() / LINE
    }

    /// The line of a key, and a number whose bytes are the positions of its bits.
    fn place(&self, key: u64) -> (usize, u64) {
        let (line, h) = ghost_line_of(key, self.lines());
        (line * LINE, mix(h))
    }

    /// The address of its lines, for prefetching.
    pub(crate) fn ghost_lines(&self) -> GhostLines {
        GhostLines::new(self.words.as_ptr().addr(), self.lines(), LINE * size_of::<u32>())
    }

    /// The words and bits of a key in one half of its line.
    fn bits(places: u64) -> impl Iterator<Item = (usize, u32)> {
        (0..BITS).map(move |i| {
            let at = places >> (8 * i) & 0xff;
            (at as usize / 32, 1 << (at % 32))
        })
    }

    /// Notes an eviction from a cache that holds `items` items.
    pub(crate) fn insert(&mut self, key: u64, items: usize) {
        // A generation has at least one key for each line, because forgetting writes to each line.
        let generation = items.clamp(self.lines(), self.lines() * MAX_PER_LINE);
        if self.noted >= generation {
            self.turn();
        }
        let (line, places) = self.place(key);
        let at = line + self.young * HALF;
        let Some(half) = self.words.get_mut(at..at + HALF) else { return };
        let mut new = false;
        for (word, bit) in Self::bits(places) {
            new |= half[word] & bit == 0;
            half[word] |= bit;
        }
        self.noted += usize::from(new);
    }

    /// Forgets the old generation.
    fn turn(&mut self) {
        (self.young, self.noted) = (1 - self.young, 0);
        for line in self.words.chunks_exact_mut(LINE) {
            line[self.young * HALF..][..HALF].fill(0);
        }
    }

    /// Whether the key was evicted recently.
    pub(crate) fn remember(&self, key: u64) -> bool {
        let (line, places) = self.place(key);
        let Some(line) = self.words.get(line..line + LINE) else { return false };
        line.chunks_exact(HALF).any(|half| Self::bits(places).all(|(word, bit)| half[word] & bit != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::arena::{Arena, Memory};
    use crate::sync::Arc;

    const SHARE: usize = 4 << 20;
    /// About as many items of 128 bytes as fit.
    const ITEMS: usize = SHARE / 138;

    fn ghosts() -> Ghosts {
        let memory = Memory::map(SHARE, false).unwrap();
        let arena = Arc::new(Arena::over(&memory, 0, SHARE, 0).unwrap());
        Ghosts::over(arena.table(Ghosts::entries_for(SHARE)))
    }

    fn key(i: usize) -> u64 {
        i as u64 * 128
    }

    #[test]
    fn as_many_evictions_as_items_are_remembered_and_twice_as_many_are_not() {
        let mut ghosts = ghosts();
        for i in 0..10 * ITEMS {
            ghosts.insert(key(i), ITEMS);
            if i % 997 == 0 {
                let since = i.saturating_sub(ITEMS - 1);
                assert!((since..=i).step_by(61).all(|i| ghosts.remember(key(i))), "forgotten too early, at {i}");
            }
        }
        let old = (0..8 * ITEMS - ITEMS / 4).filter(|&i| ghosts.remember(key(i))).count();
        assert!(old * 100 < 6 * 8 * ITEMS, "{old} that were evicted long ago are remembered");
        let never = (0..100_000).filter(|&i| ghosts.remember(key(20 * ITEMS + i))).count();
        assert!(never < 6_000, "{never} of 100,000 that were never there are remembered");
    }

    #[test]
    fn an_eviction_that_is_noted_again_counts_once() {
        let mut ghosts = ghosts();
        for _ in 0..10 {
            (0..ITEMS / 2).for_each(|i| ghosts.insert(key(i), ITEMS));
        }
        assert_eq!(ghosts.young, 0, "half as many as there are items fill no generation");
        assert!((0..ITEMS / 2).all(|i| ghosts.remember(key(i))));
    }

    #[test]
    fn few_items_do_not_make_it_forget_at_each_eviction() {
        let mut ghosts = ghosts();
        (0..ghosts.lines()).for_each(|i| ghosts.insert(key(i), 0));
        assert!((0..ghosts.lines()).all(|i| ghosts.remember(key(i))));
        // Many items do not make it remember everything: a generation ends when half of its bits
        // are set.
        let mut ghosts = self::ghosts();
        (0..50 * ITEMS).for_each(|i| ghosts.insert(key(i), usize::MAX));
        let never = (0..100_000).filter(|&i| ghosts.remember(key(60 * ITEMS + i))).count();
        assert!(never < 20_000, "{never} of 100,000");
    }
}
