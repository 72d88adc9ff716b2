//! The read dispatcher (Pipette, section 3.1.2): it chooses the path for bytes that are not cached.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::{Missing, PAGE};

/// How much is read and cached for missing bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// The byte path: reads the smallest pieces that have the bytes, and caches the requested bytes
    /// only.
    Bytes,
    /// As the byte path, but caches whole sectors, because many pieces of the sector are read.
    Sectors,
    /// The block path: reads and caches whole pages.
    Blocks,
}

/// The number of items in one sector from which caching the whole sector is cheaper.
const CROWDED: u32 = 12;
/// The number of a page's sectors that must be in demand before a small read reads the whole block,
/// if both cost the same.
const IN_DEMAND: f64 = 4.0;

/// Chooses paths, and measures what small reads and page reads cost.
pub(crate) struct Dispatcher {
    large: usize,
    /// The average duration of a single read in nanoseconds: of up to a sector, and of a page.
    small_ns: AtomicU64,
    page_ns: AtomicU64,
}

impl Dispatcher {
    /// Makes a dispatcher. Reads of more than `large` bytes of a page use the block path.
    pub(crate) fn new(large: usize) -> Dispatcher {
        Dispatcher { large, small_ns: AtomicU64::new(0), page_ns: AtomicU64::new(0) }
    }

    /// Returns the path for `len` bytes of a page of which `demanded` sectors are in demand.
    pub(crate) fn path(&self, len: usize, missing: Missing, demanded: u32) -> Path {
        if len > self.large || f64::from(demanded) >= IN_DEMAND * self.page_cost() {
            Path::Blocks
        } else if missing.neighbours >= CROWDED {
            Path::Sectors
        } else {
            Path::Bytes
        }
    }

    /// Returns a page's cost in small reads. It is 1.05 until both were measured.
    pub(crate) fn page_cost(&self) -> f64 {
        let (small, page) = (self.small_ns.load(Ordering::Relaxed), self.page_ns.load(Ordering::Relaxed));
        if small == 0 || page == 0 { 1.05 } else { (page as f64 / small as f64).clamp(1.0, 2.0) }
    }

    /// Notes the duration of a single read.
    pub(crate) fn took(&self, bytes: u64, ns: u64) {
        let of = match bytes {
            0..=512 => &self.small_ns,
            PAGE => &self.page_ns,
            _ => return,
        };
        let old = of.load(Ordering::Relaxed);
        let new = if old == 0 { ns } else { old - old / 16 + ns / 16 };
        of.store(new.max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_demand_and_neighbours_decide() {
        let d = Dispatcher::new(2048);
        let alone = Missing { neighbours: 0 };
        assert_eq!(d.path(128, alone, 1), Path::Bytes);
        assert_eq!(d.path(2049, alone, 5), Path::Blocks);
        assert_eq!(d.path(128, alone, 5), Path::Blocks);
        assert_eq!(d.path(8, Missing { neighbours: 20 }, 1), Path::Sectors);
        // A page that costs twice as much is read only when all of it is wanted.
        (0..1000).for_each(|_| d.took(512, 100));
        (0..1000).for_each(|_| d.took(4096, 200));
        assert_eq!(d.path(128, alone, 5), Path::Bytes);
        assert_eq!(d.path(128, alone, 8), Path::Blocks);
    }
}
