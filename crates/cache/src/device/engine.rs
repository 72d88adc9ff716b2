//! The fine-grained read engine: it reads bytes from the device (Pipette, section 3.1.2).
//!
//! The cache, its dispatcher and its constructor know the device only as a [`ReadEngine`]. So they
//! run unchanged on a model in virtual time, or on an engine that fails on purpose.

use datapipes_core::Result;
/// A callback for each extent, with its number, and its bytes or the error.
pub use datapipes_core::backend::OnExtent;
/// A piece of a file that is to be read from the device. It begins at a multiple of the engine's
/// granularity, and so does its length, except at the end of the file.
pub use datapipes_core::backend::ReadExtent as Extent;

/// The properties of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineFacts {
    /// The smallest piece that it reads, and the alignment of pieces, in bytes: a power of two of
    /// at most 4096. It is 1 for an engine that moves single bytes.
    pub granularity: u32,
    /// The number of pieces that it reads concurrently.
    pub depth: u32,
    /// The longest piece, in bytes.
    pub longest: u32,
}

/// A way in which bytes are not read from the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedWay {
    /// The way, in words.
    pub way: String,
    /// Why bytes are not read in this way.
    pub why: String,
}

/// Reads extents of one file.
pub trait ReadEngine: Send + Sync {
    /// Returns the engine's properties.
    fn facts(&self) -> EngineFacts;

    /// Returns the present length of the file, in bytes.
    ///
    /// # Errors
    /// Errors of looking up the length.
    fn len_bytes(&self) -> Result<u64>;

    /// Reads the extents in any order, several concurrently, and calls `done` once for each on this
    /// thread. Many threads may read at once. An error concerns only its own extent.
    fn read(&self, extents: &[Extent], done: &mut OnExtent<'_>);

    /// Bytes of the file changed: what the engine kept of them, if anything, is old.
    fn changed(&self) {}

    /// Describes how bytes are read, where the engine knows more than its facts.
    fn explain(&self) -> Option<String> {
        None
    }

    /// Ways in which bytes are not read, where the engine knows some.
    fn rejected(&self) -> Vec<RejectedWay> {
        Vec::new()
    }

    /// Nanoseconds since some fixed moment: the clock for measured costs and the time to live.
    fn now_ns(&self) -> u64;
}
