//! The page cache, ideal or least recently used.

use super::lru::LruSet;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The part of the file that is cached by page.
#[derive(Debug)]
pub enum PageCache {
    /// The pages that are read most, known in advance and never exchanged. No kernel has such a
    /// cache. It meets the rows of block I/O in tables 2 and 3, and no cache that learns does
    /// (README of the fit: 861 MiB or more instead of 748).
    Ideal(Vec<u64>),
    /// The pages that were read last.
    Recent(LruSet),
}

impl PageCache {
    /// Makes a cache without pages.
    pub fn empty() -> PageCache {
        PageCache::Ideal(Vec::new())
    }

    /// Makes a cache of the given pages, which never change.
    pub fn ideal(pages: impl Iterator<Item = u64>) -> PageCache {
        let mut bits: Vec<u64> = Vec::new();
        for page in pages {
            let word = (page / 64) as usize;
            if word >= bits.len() {
                bits.resize(word + 1, 0);
            }
            bits[word] |= 1 << (page % 64);
        }
        PageCache::Ideal(bits)
    }

    /// Makes a cache of the `pages` pages read last.
    pub fn recent(pages: usize) -> PageCache {
        PageCache::Recent(LruSet::new(pages))
    }

    /// Returns whether a page is there; a cache that learns makes it the newest.
    pub fn has(&mut self, page: u64) -> bool {
        match self {
            PageCache::Ideal(bits) => bits.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 == 1),
            PageCache::Recent(recency) => recency.touch(page),
        }
    }

    /// Adds a page that was read from the device.
    pub fn insert(&mut self, page: u64) {
        if let PageCache::Recent(recency) = self {
            recency.insert(page);
        }
    }

    /// Returns the bytes that it holds.
    pub fn bytes(&self) -> u64 {
        let pages = match self {
            PageCache::Ideal(bits) => bits.iter().map(|w| u64::from(w.count_ones())).sum(),
            PageCache::Recent(recency) => recency.len() as u64,
        };
        pages * PAGE
    }
}
