//! The access detector (Pipette, section 3.1.2): which parts of each page were demanded recently.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::store::index::mix;
use crate::store::{PAGE, SECTOR};

/// A table with one entry for each page demanded from the device: 24 bits of the page's hash, and a
/// bit for each of its sectors.
///
/// It forgets: a page that maps to the entry of another one replaces it. So an entry was demanded
/// within about as many misses as there are entries. Races lose a bit now and then, which only
/// affects a later decision.
pub(crate) struct Detector {
    entries: Box<[AtomicU32]>,
}

impl Detector {
    /// Makes a detector of about this many bytes.
    pub(crate) fn new(bytes: usize) -> Detector {
        let entries = (bytes / 4).max(256);
        Detector { entries: (0..entries).map(|_| AtomicU32::new(0)).collect() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.len() * 4
    }

    /// Notes a demand for bytes of one page. Returns how many of its sectors are known to be
    /// demanded, this one included.
    pub(crate) fn demand(&self, offset: u64, len: usize) -> u32 {
        let hash = mix(offset / PAGE);
        let entry = &self.entries[(((hash >> 32) * self.entries.len() as u64) >> 32) as usize];
        let first = offset % PAGE / SECTOR;
        let last = (offset % PAGE + len.max(1) as u64 - 1).min(PAGE - 1) / SECTOR;
        let wanted = (first..=last).fold(0u32, |bits, sector| bits | 1 << sector);
        let tag = (hash as u32) << 8;
        let old = entry.load(Ordering::Relaxed);
        let known = if old & !0xff == tag { old & 0xff } else { 0 } | wanted;
        if tag | known != old {
            entry.store(tag | known, Ordering::Relaxed);
        }
        known.count_ones()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_the_sectors_of_a_page_and_forgets_others() {
        let detector = Detector::new(0);
        assert_eq!(detector.demand(4096, 128), 1);
        assert_eq!(detector.demand(4096 + 128, 128), 1);
        assert_eq!(detector.demand(4096 + 4000, 96), 2);
        assert_eq!(detector.demand(4096 + 500, 24), 3);
        assert_eq!(detector.demand(4096, 4096), 8);
        let others = (0..100_000u64).map(|p| detector.demand(p * 4096, 1)).filter(|&n| n > 1).count();
        assert!(others < 20, "{others} of 100,000 pages were taken for another");
    }
}
