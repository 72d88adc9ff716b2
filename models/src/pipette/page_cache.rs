//! The page cache, as an ideal or as least recently used.

use super::lru::LruSet;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// What is kept of the file by page.
#[derive(Debug)]
pub enum PageCache {
    /// The pages that are read most, known beforehand and never exchanged. No kernel has it; table
    /// 2 and 3's rows of block I/O are met by it and by none that learns (README of the fit: 861
    /// MiB or more instead of 748).
    Ideal(Vec<u64>),
    /// The last pages that were read, so many.
    Recent(LruSet),
}

impl PageCache {
    /// None.
    pub fn empty() -> PageCache {
        PageCache::Ideal(Vec::new())
    }

    /// The given pages, for ever.
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

    /// The last so many pages.
    pub fn recent(pages: usize) -> PageCache {
        PageCache::Recent(LruSet::new(pages))
    }

    /// Whether a page is there; a cache that learns moves it to the front.
    pub fn has(&mut self, page: u64) -> bool {
        match self {
            PageCache::Ideal(bits) => bits.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 == 1),
            PageCache::Recent(recency) => recency.touch(page),
        }
    }

    /// A page was read from the device.
    pub fn insert(&mut self, page: u64) {
        if let PageCache::Recent(recency) = self {
            recency.insert(page);
        }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        let pages = match self {
            PageCache::Ideal(bits) => bits.iter().map(|w| u64::from(w.count_ones())).sum(),
            PageCache::Recent(recency) => recency.len() as u64,
        };
        pages * PAGE
    }
}
