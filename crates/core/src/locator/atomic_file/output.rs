//! A file that is written once, from beginning to end: as an atomic file, or in place.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::decide::{InPlaceReason, Way};
use super::target::{FileMode, Target};
use super::{AtomicFile, InPlaceFile, PublishOutcome, Whole, parent_dir};
use crate::error::{Error, ErrorKind, Result};
use crate::locator::Ssd;

/// An output file: an [`AtomicFile`] that takes its name when it is complete, or a file that is
/// written in place because a rename would lose its identity. It is decided when the file is
/// opened, before anything is written.
///
/// [`AtomicFile::replacing`] keeps the old bytes until all new ones are written, and needs space
/// for both. An output file that is written in place needs space for the longer of the two, and the
/// old bytes are discarded by [`begin`](Self::begin).
///
/// ```
/// use datapipes_core::{FileMode, OutputFile, PublishOutcome};
/// let dir = std::env::temp_dir().join(format!("output-{}", std::process::id()));
/// std::fs::create_dir(&dir).unwrap();
/// std::fs::write(dir.join("one"), "old").unwrap();
/// std::fs::hard_link(dir.join("one"), dir.join("two")).unwrap();
/// let output = OutputFile::open(&dir.join("one"), FileMode::USUAL)?;
/// assert_eq!(output.in_place().unwrap().to_string(), "it has 2 names (hard links)");
/// output.begin(Some(5))?;
/// assert!(matches!(output.publish(5)?, PublishOutcome::InPlace(_)));
/// assert_eq!(std::fs::read(dir.join("two")).unwrap(), [0; 5]);
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), datapipes_core::Error>(())
/// ```
#[derive(Debug)]
pub enum OutputFile {
    /// The file takes its name when it is complete.
    Draft(AtomicFile),
    /// The file is written in place.
    InPlace(InPlaceFile),
}

impl OutputFile {
    /// Decides how to write the file, and opens what that needs. Nothing is changed at `path` yet.
    ///
    /// # Errors
    /// Errors of `open(2)` where it may not be written; `InvalidInput` where it exists and is no
    /// regular file.
    pub fn open(path: &Path, mode: FileMode) -> Result<OutputFile> {
        let mut target = Target::of(path, mode)?;
        if let Way::InPlace(reason) = &target.way {
            let reason = reason.clone();
            let there = target
                .there
                .take()
                .ok_or_else(|| Error::new(ErrorKind::NotFound, "open", format!("{}: it is gone", path.display())))?;
            return InPlaceFile::new(there, path, reason).map(OutputFile::InPlace);
        }
        AtomicFile::of(target, Whole::UnlessLost).map(OutputFile::Draft)
    }

    /// As [`AtomicFile::without_sync`]: publishing does not wait until the file is durable.
    #[must_use]
    pub fn without_sync(self) -> OutputFile {
        match self {
            OutputFile::Draft(draft) => OutputFile::Draft(draft.without_sync()),
            OutputFile::InPlace(mut file) => {
                file.is_synced = false;
                OutputFile::InPlace(file)
            }
        }
    }

    /// Whether publishing waits until the file is durable.
    pub fn is_synced(&self) -> bool {
        match self {
            OutputFile::Draft(draft) => draft.is_synced,
            OutputFile::InPlace(file) => file.is_synced,
        }
    }

    /// The file, for writing after [`begin`](Self::begin).
    pub fn ssd(&self) -> &Ssd {
        match self {
            OutputFile::Draft(draft) => draft.ssd(),
            OutputFile::InPlace(file) => file.ssd(),
        }
    }

    /// The file that it will replace, open. Whoever duplicates the descriptor frees that file's
    /// bytes with the last close, and not when the new file takes the name. Where it is written in
    /// place nothing is replaced.
    pub fn replaced(&self) -> Option<BorrowedFd<'_>> {
        match self {
            OutputFile::Draft(draft) => draft.there.as_ref().map(AsFd::as_fd),
            OutputFile::InPlace(_) => None,
        }
    }

    /// Why it is written in place, if it is.
    pub fn in_place(&self) -> Option<&InPlaceReason> {
        match self {
            OutputFile::Draft(_) => None,
            OutputFile::InPlace(file) => Some(file.reason()),
        }
    }

    /// Reserves space for the bytes if their number is known. A file that is written in place loses
    /// its old bytes here.
    ///
    /// # Errors
    /// `NoSpace`; the old bytes are still there.
    pub fn begin(&self, len: Option<u64>) -> Result<()> {
        match (self, len) {
            (OutputFile::Draft(draft), Some(len)) => draft.ssd().preallocate(len).map(|_| ()),
            (OutputFile::Draft(_), None) => Ok(()),
            (OutputFile::InPlace(file), len) => file.begin(len),
        }
    }

    /// Writes bytes from its beginning, through the page cache; for small files. It is called after
    /// [`begin`](Self::begin).
    ///
    /// # Errors
    /// `NoSpace`, `Device`. `Forked` in a child of the process that opened it.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        match self {
            OutputFile::Draft(draft) => draft.write(bytes),
            OutputFile::InPlace(file) => file.write(bytes),
        }
    }

    /// Sets its length, makes it durable, and gives it its name if it has none.
    ///
    /// # Errors
    /// As [`AtomicFile::publish`] and [`InPlaceFile::publish`].
    pub fn publish(self, len: u64) -> Result<PublishOutcome> {
        match self {
            OutputFile::Draft(draft) => draft.publish(len),
            OutputFile::InPlace(file) => file.publish(len).map(PublishOutcome::InPlace),
        }
    }

    /// Returns a path on the device where it needs space, and the bytes that it has there already.
    ///
    /// # Errors
    /// Errors of looking at the file.
    pub fn room(&self) -> Result<(PathBuf, u64)> {
        match self {
            OutputFile::Draft(AtomicFile { place: Some((folder, _)), .. }) => Ok((folder.path().to_path_buf(), 0)),
            OutputFile::Draft(draft) => Ok((parent_dir(draft.ssd().path()), 0)),
            OutputFile::InPlace(file) => {
                let stat = rustix::fs::fstat(file.fd());
                let path = file.ssd().path();
                let stat = stat.map_err(|e| Error::os("look at", e.raw_os_error(), path.display().to_string()))?;
                Ok((path.to_path_buf(), u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)))
            }
        }
    }
}
