//! Checkpoints in places that are no folders, such as objects of a bucket.

use std::path::Path;
use std::sync::Arc;

use datapipes_core::{Locator, Result};

/// The places where checkpoints are, by their numbers. Whoever implements it says where that is;
/// [`Checkpoints::over`](super::Checkpoints::over) uses it.
///
/// Such a place appears as a whole when it is published, or not at all. Two writers that save under
/// the same number at once are told apart when they publish: the second one fails.
pub trait CheckpointPlaces: Send + Sync {
    /// What messages call all of them together.
    fn name(&self) -> &Path;

    /// The numbers of those that are there, ascending.
    ///
    /// # Errors
    /// Those of listing.
    fn numbers(&self) -> Result<Vec<u64>>;

    /// What messages call one of them.
    fn name_of(&self, number: u64) -> std::path::PathBuf;

    /// Opens one for reading.
    ///
    /// # Errors
    /// `NotFound` where there is none; those of opening.
    fn open(&self, number: u64) -> Result<CheckpointSource>;

    /// Begins one of about this length, which must not exist when it is published.
    ///
    /// # Errors
    /// Those of creating.
    fn create(&self, number: u64, about_len: u64) -> Result<Box<dyn CheckpointTarget>>;

    /// Removes one.
    ///
    /// # Errors
    /// Those of removing.
    fn remove(&self, number: u64) -> Result<()>;
}

/// A place that has a checkpoint, and its length.
#[derive(Clone)]
pub struct CheckpointSource {
    /// The place.
    pub place: Arc<dyn Locator + Send + Sync>,
    /// Its length in bytes.
    pub len: u64,
}

/// A place to which a checkpoint is written, each byte once.
pub trait CheckpointTarget: Locator {
    /// Makes it visible under its number. `len` is the number of bytes that were written.
    ///
    /// # Errors
    /// `InvalidInput` where there is one of this number already. Nothing is visible after an error,
    /// unless the error says so.
    fn publish(&self, len: u64) -> Result<()>;
}
