//! The file that a region maps.

use std::path::PathBuf;
use std::sync::Arc;

use crate::watch::{Change, WriteObservers};

/// How stores to the mapped pages reach the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// `MAP_SHARED`: stores reach the file when the kernel writes them back, or on `msync`.
    Written,
    /// `MAP_SHARED_VALIDATE | MAP_SYNC`: stores are on the medium once they have left the
    /// processor's caches, and the file's blocks are on disk before a page can be written. The
    /// kernel refuses the flags where it cannot promise that.
    Synchronous,
    /// `MAP_PRIVATE`: they never do. A page is copied for the mapping when it is first written.
    Private,
}

/// The file that a region maps.
#[derive(Debug)]
pub(crate) struct MappedFile {
    /// The offset in the file of the region's first byte.
    pub(crate) begins_at: u64,
    /// The path, for messages.
    pub(crate) path: PathBuf,
    /// The observers that are told of changes.
    pub(crate) watchers: Arc<WriteObservers>,
    pub(crate) sharing: Sharing,
}

/// An announced change of a mapped file, which ends when this is dropped.
pub(in crate::memory) type FileChange = Change<Arc<WriteObservers>>;
