//! Equal items, by popularity; and large and small reads of the same places.

use super::{Random, ReadRequest, Scatter, Zipf};

/// Where items lie: item `i` begins at `i * stride_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemLayout {
    /// How many.
    pub items: u64,
    /// Bytes that are read of one.
    pub item_bytes: u32,
    /// From one to the next; larger than `item_bytes` where each is alone in its page.
    pub stride_bytes: u64,
}

impl ItemLayout {
    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.items * self.stride_bytes
    }
}

/// How often which item is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// All alike.
    Uniform,
    /// Zipf's law.
    Zipf {
        /// 0.8 in Pipette (DAC'22).
        exponent: f64,
    },
    /// Zipf's law, whose ranks move on: after every `period` reads each rank falls to the item
    /// `step` further on.
    Drifting {
        /// As of zipf.
        exponent: f64,
        /// Reads between two moves; at least 1 is taken.
        period: u64,
        /// Items of a move.
        step: u64,
    },
}

/// Equal items, picked by popularity. Endless.
#[derive(Clone, Debug)]
pub struct Items {
    layout: ItemLayout,
    picker: Picker,
}

impl Items {
    /// Reads of `layout` (of at least one item) by `popularity`.
    pub fn new(layout: ItemLayout, popularity: Popularity, seed: u64) -> Items {
        Items { layout, picker: Picker::new(layout.items.max(1), popularity, seed) }
    }

    /// The item of a popularity rank at the beginning: rank 0 is read most. Where all are alike,
    /// the item itself.
    pub fn ranked(&self, rank: u64) -> u64 {
        self.picker.ranked(rank)
    }

    /// The index of the item that is read next.
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

/// Picks indices.
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

/// The workloads of Pipette (DAC'22, table 1): how many reads of a hundred are large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// All large.
    A,
    /// 90 large, 10 small.
    B,
    /// Half and half.
    C,
    /// 10 large, 90 small.
    D,
    /// All small.
    E,
}

impl Workload {
    /// All five.
    pub const ALL: [Workload; 5] = [Workload::A, Workload::B, Workload::C, Workload::D, Workload::E];

    /// Large reads of a hundred.
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

/// Large and small reads at offsets that are picked alike. Endless.
///
/// The proportion is exact: of each hundred reads as many are large as the workload says, in an
/// order that is drawn.
#[derive(Clone, Debug)]
pub struct Mixed {
    items: Items,
    large_percent: u64,
    large_bytes: u32,
    /// Of the hundred that is being drawn: reads left, large ones left.
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

    /// As [`Items::ranked`].
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
