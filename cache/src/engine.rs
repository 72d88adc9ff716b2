//! Who brings bytes from the device: the fine-grained read engine (Pipette, section 3.1.2).
//!
//! The cache, its dispatcher and its constructor know the device only as a [`ReadEngine`], so that
//! they run unchanged on a model in virtual time or on one that fails on purpose.

use datapipes_core::Result;
/// Called for each extent with its number, and its bytes or why they are not to be had.
pub use datapipes_core::backend::OnExtent;
/// A piece of a file that is to be read from the device: it begins at a multiple of the engine's
/// granularity, and its length is one as well, except at the end of the file.
pub use datapipes_core::backend::ReadExtent as Extent;

/// What an engine states about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineFacts {
    /// The smallest piece that it reads, and the alignment of pieces, in bytes: a power of two, at
    /// most 4096. An engine that moves single bytes says 1.
    pub granularity: u32,
    /// Pieces that it reads side by side.
    pub depth: u32,
    /// The longest piece, in bytes.
    pub longest: u32,
}

/// Reads extents of one file.
pub trait ReadEngine: Send + Sync {
    /// What it is.
    fn facts(&self) -> EngineFacts;

    /// The length of the file now, in bytes.
    ///
    /// # Errors
    /// What measuring meets.
    fn len_bytes(&self) -> Result<u64>;

    /// Reads the extents in any order, several side by side, and calls `done` once for each on this
    /// thread. Many threads may read at once. An error concerns only the extent it is told of.
    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>);

    /// Nanoseconds since some moment: the clock by which costs are measured and time to live
    /// passes.
    fn now_ns(&self) -> u64;
}
