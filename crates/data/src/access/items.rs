//! Items of equal size, picked by popularity, and large and small reads of the same places.

use super::{Random, ReadRequest, Scatter, Zipf};

/// The layout of items in a file: item `i` begins at `i * stride_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemLayout {
    /// The number of items.
    pub items: u64,
    /// Bytes that are read of each item.
    pub item_bytes: u32,
    /// Bytes from one item to the next; larger than `item_bytes` if each item has a page of its
    /// own.
    pub stride_bytes: u64,
}

impl ItemLayout {
    /// Returns the bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.items * self.stride_bytes
    }
}

/// How often each item is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// All items equally often.
    Uniform,
    /// Zipf's law.
    Zipf {
        /// The exponent; 0.8 in Pipette (DAC'22).
        exponent: f64,
    },
    /// Zipf's law with ranks that move: after every `period` reads each rank is taken by the item
    /// `step` further on.
    Drifting {
        /// The exponent of Zipf's law.
        exponent: f64,
        /// Reads between two moves; at least 1 is used.
        period: u64,
        /// The number of items that a move skips.
        step: u64,
    },
}

/// Endless reads of items of equal size, picked by popularity.
#[derive(Clone, Debug)]
pub struct Items {
    layout: ItemLayout,
    picker: Picker,
}

impl Items {
    /// Reads the items of `layout` (at least one) by `popularity`.
    pub fn new(layout: ItemLayout, popularity: Popularity, seed: u64) -> Items {
        Items { layout, picker: Picker::new(layout.items.max(1), popularity, seed) }
    }

    /// Returns the item that has a popularity rank at the beginning; rank 0 is read most. For
    /// uniform popularity it is item `rank`.
    pub fn ranked(&self, rank: u64) -> u64 {
        self.picker.ranked(rank)
    }

    /// Returns the index of the next item.
    pub fn next_index(&mut self) -> u64 {
        self.picker.next()
    }
}

impl Iterator for Items {
    type Item = ReadRequest;

    #[inline]
    fn next(&mut self) -> Option<ReadRequest> {
        let offset = self.picker.next() * self.layout.stride_bytes;
        Some(ReadRequest { offset, len: self.layout.item_bytes })
    }
}

/// Picks indices by popularity.
#[derive(Clone, Debug)]
pub(super) struct Picker {
    items: u64,
    zipf: Option<Zipf>,
    scatter: Scatter,
    random: Random,
    drift: (u64, u64),
    reads: u64,
}

impl Picker {
    pub(super) fn new(items: u64, popularity: Popularity, seed: u64) -> Picker {
        let (zipf, drift) = match popularity {
            Popularity::Uniform => (None, (u64::MAX, 0)),
            Popularity::Zipf { exponent } => (Some(Zipf::new(items, exponent)), (u64::MAX, 0)),
            Popularity::Drifting { exponent, period, step } => {
                (Some(Zipf::new(items, exponent)), (period.max(1), step % items))
            }
        };
        Picker { items, zipf, scatter: Scatter::new(items, seed), random: Random::new(seed, 1), drift, reads: 0 }
    }

    fn ranked(&self, rank: u64) -> u64 {
        if self.zipf.is_some() { self.scatter.place(rank) } else { rank }
    }

    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        let Some(zipf) = &self.zipf else { return self.random.below(self.items) };
        let rank = zipf.draw(&mut self.random);
        let (period, step) = self.drift;
        let moved = u128::from(self.reads / period) * u128::from(step) % u128::from(self.items);
        self.reads += 1;
        // Both are below `items`, so the sum cannot overflow for any file.
        self.scatter.place((rank + moved as u64) % self.items)
    }
}

/// The workloads of Pipette (DAC'22, table 1), which differ in the share of large reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// All reads are large.
    A,
    /// 90 large, 10 small.
    B,
    /// 50 large, 50 small.
    C,
    /// 10 large, 90 small.
    D,
    /// All reads are small.
    E,
}

impl Workload {
    /// All five workloads.
    pub const ALL: [Workload; 5] = [Workload::A, Workload::B, Workload::C, Workload::D, Workload::E];

    /// Returns how many reads of a hundred are large.
    pub fn large_percent(self) -> u64 {
        match self {
            Workload::A => 100,
            Workload::B => 90,
            Workload::C => 50,
            Workload::D => 10,
            Workload::E => 0,
        }
    }
}

/// Endless large and small reads, at offsets picked by the same popularity.
///
/// The proportion is exact: of each hundred reads as many are large as the workload says, in random
/// order.
#[derive(Clone, Debug)]
pub struct Mixed {
    items: Items,
    large_percent: u64,
    large_bytes: u32,
    /// The reads left, and the large ones left, of the hundred that is being drawn.
    left: (u64, u64),
    random: Random,
}

impl Mixed {
    /// Small reads are `layout.item_bytes` long, large ones `large_bytes`.
    pub fn new(layout: ItemLayout, large_bytes: u32, workload: Workload, popularity: Popularity, seed: u64) -> Mixed {
        let large_percent = workload.large_percent();
        let (items, random) = (Items::new(layout, popularity, seed), Random::new(seed, 2));
        Mixed { items, large_percent, large_bytes, left: (0, 0), random }
    }

    /// The same as [`Items::ranked`].
    pub fn ranked(&self, rank: u64) -> u64 {
        self.items.ranked(rank)
    }
}

impl Iterator for Mixed {
    type Item = ReadRequest;

    #[inline]
    fn next(&mut self) -> Option<ReadRequest> {
        let mut read = self.items.next()?;
        if self.left.0 == 0 {
            self.left = (100, self.large_percent);
        }
        if self.random.below(self.left.0) < self.left.1 {
            self.left.1 -= 1;
            read.len = self.large_bytes;
        }
        self.left.0 -= 1;
        Some(read)
    }
}
