//! The read dispatcher (Pipette, section 3.1.2): by which way bytes come that are not cached.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::{Missing, PAGE};

/// How much is read and kept for bytes that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// The byte path: the smallest pieces that have the bytes are read, and the bytes are kept as
    /// they were asked for.
    Bytes,
    /// As the byte path, but whole sectors are kept: they are wanted piece by piece.
    Sectors,
    /// The block path: whole pages are read and kept.
    Blocks,
}

/// Items that begin in one sector, from which on the sector as a whole is cheaper.
const CROWDED: u32 = 12;
/// Sectors of a page that must be in demand before its block is read for a small read, where both
/// cost the same.
const IN_DEMAND: f64 = 4.0;

/// Decides, and learns what the two ways cost.
pub(crate) struct Dispatcher {
    large: usize,
    /// Nanoseconds of a read by itself, averaged: of up to a sector, and of a page.
    small_ns: AtomicU64,
    page_ns: AtomicU64,
}

impl Dispatcher {
    /// Reads of more than `large` bytes of a page go by the block path.
    pub(crate) fn new(large: usize) -> Dispatcher {
        Dispatcher { large, small_ns: AtomicU64::new(0), page_ns: AtomicU64::new(0) }
    }

    /// The way for `len` bytes of a page of which `demanded` sectors are in demand.
    pub(crate) fn path(&self, len: usize, missing: Missing, demanded: u32) -> Path {
        if len > self.large || f64::from(demanded) >= IN_DEMAND * self.page_cost() {
            Path::Blocks
        } else if missing.neighbours >= CROWDED {
            Path::Sectors
        } else {
            Path::Bytes
        }
    }

    /// A page's cost in small reads; 1.05 until both were measured.
    pub(crate) fn page_cost(&self) -> f64 {
        let (small, page) = (self.small_ns.load(Ordering::Relaxed), self.page_ns.load(Ordering::Relaxed));
        if small == 0 || page == 0 { 1.05 } else { (page as f64 / small as f64).clamp(1.0, 2.0) }
    }

    /// Notes what a read by itself took.
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
