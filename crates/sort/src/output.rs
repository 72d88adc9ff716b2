//! The target of the sorted records: a file that gets its name when it is complete, or a stream.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datapipes_core::locator::target_kind;
use datapipes_core::{Dram, Error, ErrorKind, Result, TargetKind};

use crate::place::OutputPlace;

/// The target of the sorted records.
#[derive(Debug)]
pub enum Output {
    /// A file. It is written under a temporary name and renamed when it is complete and synced, or
    /// it is written in place, if a rename would take the identity of the existing file from it
    /// ([`datapipes_core::OutputFile`]). It may be one of the inputs.
    File {
        /// Its path.
        path: PathBuf,
        /// Whether the sort waits until the file and its name are durable. Without that it is
        /// renamed when it is complete, and a power failure soon afterwards may take bytes of it.
        sync: bool,
    },
    /// Anything that is written in order: the standard output, a pipe.
    Stream {
        /// Its name for messages.
        name: PathBuf,
        /// The open file.
        file: File,
    },
    /// Memory. Its length is a multiple of 4096 bytes, with room for the records and for a
    /// terminator that the last line of each input may lack; what lies behind the records within
    /// their last 4096 bytes becomes zero. After an error it may hold anything.
    Memory {
        /// The name for messages.
        name: PathBuf,
        /// The memory.
        memory: Dram,
    },
    /// A place that appears as a whole when it is published, such as an object in a bucket.
    Place(Arc<dyn OutputPlace>),
}

impl Output {
    /// Returns the output of this name: a file, unless the path exists and is not a regular file
    /// (`/dev/null`, a named pipe).
    ///
    /// # Errors
    /// Errors of `open(2)` for a path that cannot name a file; errors of opening a device or a
    /// named pipe; `InvalidInput` for a block device.
    pub fn to(path: &Path) -> Result<Output> {
        let fail = |errno: i32| Error::os("open", errno, path.display().to_string());
        match target_kind(path)? {
            TargetKind::Nothing | TargetKind::File => Ok(Output::file(path)),
            TargetKind::Folder => Err(fail(libc::EISDIR)),
            TargetKind::Socket => Err(fail(libc::ENXIO)),
            TargetKind::BlockDevice => Err(Error::new(
                ErrorKind::InvalidInput,
                "open",
                format!("{} is a block device, which a sort would overwrite", path.display()),
            )
            .with_advice("sort to a file and use `dpipe copy` to write it to the device")),
            TargetKind::Stream => {
                // The flags are those of GNU sort. With O_CREAT the kernel (fs.protected_fifos)
                // refuses another user's named pipe in a folder that all users may write to.
                let opened = File::options().write(true).create(true).truncate(false).open(path);
                let file = opened.map_err(|e| Error::io("open", e, path.display().to_string()))?;
                Ok(Output::Stream { name: path.to_path_buf(), file })
            }
        }
    }

    /// Returns the output of a file, which is synced.
    pub fn file(path: impl Into<PathBuf>) -> Output {
        Output::File { path: path.into(), sync: true }
    }

    /// Sets whether a file is synced; other outputs are as they were.
    #[must_use]
    pub fn synced(self, sync: bool) -> Output {
        match self {
            Output::File { path, .. } => Output::File { path, sync },
            other => other,
        }
    }

    /// Returns its name for messages.
    pub fn name(&self) -> &Path {
        match self {
            Output::File { path, .. } => path,
            Output::Stream { name, .. } | Output::Memory { name, .. } => name,
            Output::Place(place) => place.name(),
        }
    }
}
