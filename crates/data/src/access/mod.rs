//! Access patterns: endless iterators of [`ReadRequest`] (offset and length in a file). The same
//! seed gives the same reads on every machine.
//!
//! | pattern | reads |
//! |---|---|
//! | [`Items`] | equal items, picked uniformly, by zipf, or by a zipf whose hot set drifts |
//! | [`Mixed`] | large and small reads at the same places: workloads A to E of Pipette (DAC'22) |
//! | [`Recommender`] | rows of embedding tables |
//! | [`SocialGraph`] | nodes, counts and link lists, in the proportions of LinkBench |
//!
//! Popular items are scattered over the file by a bijection ([`Scatter`]), so that popular items do
//! not lie close to each other.
//!
//! ```
//! use datapipes_data::access::{Items, ItemLayout, Popularity};
//!
//! let layout = ItemLayout { items: 1 << 20, item_bytes: 128, stride_bytes: 128 };
//! let mut reads = Items::new(layout, Popularity::Zipf { exponent: 0.8 }, 42);
//! let first = reads.next().unwrap();
//! assert!(first.len == 128 && first.offset % 128 == 0 && first.offset < 128 << 20);
//! ```
#![forbid(unsafe_code)]

mod items;
mod recommender;
mod scatter;
mod social;
#[cfg(test)]
mod tests;
mod zipf;

pub use items::{ItemLayout, Items, Mixed, Popularity, Workload};
pub use recommender::{CRITEO_ROWS, Recommender, Skew};
pub use scatter::Scatter;
pub use social::{SocialGraph, SocialRequest};
pub use zipf::Zipf;

/// One read of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadRequest {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// The random numbers of an access pattern.
#[derive(Clone, Debug)]
pub(super) struct Random(crate::generate::random::Stream);

impl Random {
    /// Returns the stream for one purpose; streams of one seed are independent of each other.
    pub(super) fn new(seed: u64, purpose: u64) -> Random {
        Random(crate::generate::random::Stream::of_block(seed, purpose))
    }

    /// Returns a number in `0..bound`; 0 for a bound of 0.
    #[inline]
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Returns a number in `0.0..1.0`, with 53 random bits.
    #[inline]
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
