//! The storage of a log: a list of numbered segments. The log knows nothing else of the place.
//!
//! [`LogFolder`](crate::log::LogFolder) keeps segments as files. For another place (persistent
//! memory, a part of a device, a model that loses what was not synced) these three traits are
//! implemented; the log moves bytes there by pipes.

use std::any::Any;
use std::sync::Arc;

use datapipes_core::{Locator, Result};

/// A segment's space: a place that a pipe can connect.
pub trait SegmentSpace: Send + Sync {
    /// Returns the locator that appended bytes are written to.
    fn target(&self) -> &dyn Locator;

    /// Returns the locator that recovery reads from. It must show what is on the device, not what a
    /// cache holds: after a failed sync the two differ.
    fn source(&self) -> &dyn Locator {
        self.target()
    }

    /// Returns the bytes that exist: never fewer than the segment was prepared with, unless it was
    /// damaged.
    ///
    /// # Errors
    /// Errors of measuring.
    fn len_bytes(&self) -> Result<u64>;

    /// Returns when everything moved here would survive a crash and a power failure. If the
    /// transfers themselves promise that (persistent memory), it does nothing.
    ///
    /// # Errors
    /// Errors of the device. The log never calls it again after an error.
    fn sync(&self) -> Result<()>;
}

/// Space for a segment that is not part of the log yet. If it is dropped, nothing is left of it.
pub trait UnpublishedSegment: SegmentSpace {
    /// Makes the segment part of the log. When this returns, the segment and all that was moved
    /// into it survive a power failure.
    ///
    /// # Errors
    /// Errors of the place.
    fn publish(self: Box<Self>) -> Result<Arc<dyn SegmentSpace>>;
}

/// A place for segments. If it panics while a batch is written, the log fails for all users, as
/// after an error.
pub trait SegmentStorage: Send + Sync {
    /// Returns its name, for messages.
    fn name(&self) -> String;

    /// Takes the exclusive right to write here, until the returned value is dropped.
    ///
    /// # Errors
    /// `Busy` if another writer has it.
    fn lock(&self) -> Result<Box<dyn Any + Send + Sync>>;

    /// Returns the numbers of the existing segments, ascending.
    ///
    /// # Errors
    /// Errors of the place.
    fn list(&self) -> Result<Vec<u64>>;

    /// Prepares space of `len` bytes for segment `number`. Its contents do not matter, but a first
    /// write to it must be as quick as a second one: no allocation, no metadata. It may be called
    /// from another thread while the log works.
    ///
    /// # Errors
    /// `NoSpace`; errors of the place.
    fn prepare(&self, number: u64, len: u64) -> Result<Box<dyn UnpublishedSegment>>;

    /// Opens a segment; for reading only if not `writable`.
    ///
    /// # Errors
    /// `NotFound`; errors of the place.
    fn open(&self, number: u64, writable: bool) -> Result<Arc<dyn SegmentSpace>>;

    /// Returns what [`set_note`](Self::set_note) was given last, or `None` before the first call. A
    /// place that keeps no notes returns `None`: its logs are opened as after a crash.
    ///
    /// # Errors
    /// Errors of the place.
    fn note(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Keeps a note of less than 4096 bytes beside the segments, or removes it. At any time a
    /// reader finds the old note or the new one, whole. When this returns, the new one survives a
    /// power failure. The log calls it when it is opened and when it is closed.
    ///
    /// # Errors
    /// Errors of the place.
    fn set_note(&self, note: Option<&[u8]>) -> Result<()> {
        let _ = note;
        Ok(())
    }

    /// Removes a segment. When this returns, it is gone for good; after an error it may still
    /// exist.
    ///
    /// # Errors
    /// Errors of the place.
    fn remove(&self, number: u64) -> Result<()>;
}
