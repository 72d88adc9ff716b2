//! One bucket of the lookup table: a line of the processor's caches.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of entries of a bucket.
pub(crate) const ENTRIES: usize = 10;
/// The bits of all entries of a bucket.
pub(super) const ALL: u16 = (1 << ENTRIES) - 1;

/// One line of the table, in words. Only the holder of the shard's lock changes them.
///
/// ```text
/// word 0..4: slots, two each;  5, 6: tags 0 to 7, four each;
/// word 7: tag 8, tag 9, bits of used entries, overflow count
/// ```
#[repr(C, align(64))]
pub(crate) struct Bucket {
    pub(super) words: [AtomicU64; 8],
}

const _: () = assert!(size_of::<Bucket>() == 64);

/// The first word of tags.
const TAGS: usize = 5;
/// The word with the last tags, the bits of used entries, and the overflow count.
const LAST: usize = 7;

/// The bits of a tag that say where in its sector an item begins, in units of eight bytes. The
/// other bits are of the sector's hash.
pub(super) const START: u16 = 63;

/// The bits of those of four 16-bit numbers that are zero.
#[inline]
pub(super) fn zeros(word: u64) -> u16 {
    const LOW: u64 = 0x7fff_7fff_7fff_7fff;
    // The highest bit of each number is set if and only if the number is not zero.
    let zero = !(((word & LOW) + LOW) | word | LOW);
    // This moves bits 15, 31, 47, 63 to 0, 1, 2, 3.
    ((zero >> 15).wrapping_mul(1 << 48 | 1 << 33 | 1 << 18 | 1 << 3) >> 48 & 0xf) as u16
}

/// The entries of a bucket that may match, one bit each, and the overflow count.
#[derive(Clone, Copy)]
pub(super) struct Matching {
    /// Entries of the same sector that begin at the same position.
    pub(super) exact: u16,
    /// Entries of the same sector, as far as the tag tells.
    pub(super) sector: u16,
    pub(super) passed: u16,
}

impl Bucket {
    #[inline]
    pub(super) fn word(&self, at: usize) -> u64 {
        self.words[at].load(Relaxed)
    }

    #[inline]
    pub(super) fn matching(&self, tag: u16) -> Matching {
        const ONES: u64 = 0x0001_0001_0001_0001;
        let tags = u64::from(tag) * ONES;
        let (first, second, last) = (self.word(TAGS), self.word(TAGS + 1), self.word(LAST));
        let used = (last >> 32) as u16 & ALL;
        let equal = |mask: u64| {
            zeros((first ^ tags) & mask) | zeros((second ^ tags) & mask) << 4 | zeros((last ^ tags) & mask) << 8
        };
        let sector = equal(u64::from(!START) * ONES) & used;
        let exact = if sector == 0 { 0 } else { equal(u64::MAX) & used };
        Matching { exact, sector, passed: (last >> 48) as u16 }
    }

    #[inline]
    pub(super) fn tag(&self, entry: usize) -> u16 {
        (self.word(TAGS + entry / 4) >> (16 * (entry % 4))) as u16
    }

    #[inline]
    pub(super) fn slot(&self, entry: usize) -> u32 {
        (self.word(entry / 2) >> (32 * (entry % 2))) as u32
    }

    pub(super) fn used(&self) -> u16 {
        (self.word(LAST) >> 32) as u16
    }

    pub(super) fn passed(&self) -> u16 {
        (self.word(LAST) >> 48) as u16
    }

    /// Sets `bits` bits at a position of a word.
    pub(super) fn set(&self, word: usize, shift: usize, bits: u32, value: u64) {
        let mask = ((1u64 << bits) - 1) << shift;
        self.words[word].store(self.word(word) & !mask | value << shift & mask, Relaxed);
    }

    pub(super) fn set_slot(&self, entry: usize, slot: u32) {
        self.set(entry / 2, 32 * (entry % 2), 32, u64::from(slot));
    }

    pub(super) fn set_tag(&self, entry: usize, tag: u16) {
        self.set(TAGS + entry / 4, 16 * (entry % 4), 16, u64::from(tag));
    }

    pub(super) fn set_used(&self, used: u16) {
        self.set(LAST, 32, 16, u64::from(used));
    }

    pub(super) fn set_passed(&self, passed: u16) {
        self.set(LAST, 48, 16, u64::from(passed));
    }
}
