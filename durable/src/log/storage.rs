//! Where a log lies: a list of numbered segments. The log itself knows nothing else of the place.
//!
//! [`LogFolder`](super::LogFolder) keeps segments as files. Whoever has another place (persistent memory, a part of a
//! device, a model that forgets what was not synced) implements these three traits; the log moves
//! bytes there by pipes.

use std::any::Any;
use std::sync::Arc;

use datapipes_core::{Locator, Result};

/// A segment's space: a place that a pipe can connect.
pub trait SegmentSpace: Send + Sync {
    /// Where appended bytes go.
    fn target(&self) -> &dyn Locator;

    /// Where bytes are read from at recovery. It must show what is on the device, not what a cache
    /// believes to be there: after a failed sync the two differ.
    fn source(&self) -> &dyn Locator {
        self.target()
    }

    /// Bytes that are there: never fewer than the segment was prepared with, or it was damaged.
    ///
    /// # Errors
    /// What measuring meets.
    fn len_bytes(&self) -> Result<u64>;

    /// Returns when everything moved here would survive a crash and a power failure. Where
    /// transfers themselves promise that (persistent memory), it does nothing.
    ///
    /// # Errors
    /// What the device says. The log never calls it again after an error.
    fn sync(&self) -> Result<()>;
}

/// Space for a segment that is not part of the log yet. Dropped, it leaves nothing.
pub trait UnpublishedSegment: SegmentSpace {
    /// Makes it part of the log. When this returns, the segment is there also after a power
    /// failure, with all that was moved into it.
    ///
    /// # Errors
    /// What the place says.
    fn publish(self: Box<Self>) -> Result<Arc<dyn SegmentSpace>>;
}

/// A place for segments. A panic of it while a batch is written ends the log for everybody, as an
/// error does.
pub trait SegmentStorage: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> String;

    /// The sole right to write here, until what is returned is dropped.
    ///
    /// # Errors
    /// `Busy` where another writer has it.
    fn lock(&self) -> Result<Box<dyn Any + Send + Sync>>;

    /// The numbers of the segments that are there, ascending.
    ///
    /// # Errors
    /// What the place says.
    fn list(&self) -> Result<Vec<u64>>;

    /// Space of `len` bytes for segment `number`. What it holds does not matter, but a first write
    /// to it must be as quick as a second one: no allocation, no metadata. It may be called from
    /// another thread, while the log works.
    ///
    /// # Errors
    /// `NoSpace`; what the place says.
    fn prepare(&self, number: u64, len: u64) -> Result<Box<dyn UnpublishedSegment>>;

    /// Opens a segment; for reading only where not `writable`.
    ///
    /// # Errors
    /// `NotFound`; what the place says.
    fn open(&self, number: u64, writable: bool) -> Result<Arc<dyn SegmentSpace>>;

    /// What [`set_note`](Self::set_note) was given last; None where that was None, or nothing yet.
    /// A place that keeps no notes says None: its logs are opened as after a crash.
    ///
    /// # Errors
    /// What the place says.
    fn note(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Keeps a note of less than 4096 bytes beside the segments, or removes it. Whoever looks finds
    /// the old one or the new one, whole, and when this returns the new one would survive a power
    /// failure. The log asks for it when it is opened and when it is closed.
    ///
    /// # Errors
    /// What the place says.
    fn set_note(&self, note: Option<&[u8]>) -> Result<()> {
        let _ = note;
        Ok(())
    }

    /// Removes a segment. It is gone for good when this returns, or an error says that it may not
    /// be.
    ///
    /// # Errors
    /// What the place says.
    fn remove(&self, number: u64) -> Result<()>;
}
