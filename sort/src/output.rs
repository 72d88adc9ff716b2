//! Where the sorted records go: a file that appears under its name when it is complete, or a
//! stream.

use std::fs::File;
use std::path::{Path, PathBuf};

use datapipes_core::locator::target_kind;
use datapipes_core::{Error, ErrorKind, Result, TargetKind};

/// Where to.
#[derive(Debug)]
pub enum Output {
    /// A file, written beside its name and renamed when complete and synced; or in place, where a
    /// rename would cost the file that is there its identity ([`datapipes_core::OutputFile`]). It
    /// may be one of the inputs.
    File(PathBuf),
    /// Anything that is written in order: the standard output, a pipe.
    Stream {
        /// Its name for messages.
        name: PathBuf,
        /// The open file.
        file: File,
    },
}

impl Output {
    /// The output of this name: a file, unless it exists and is no regular file (`/dev/null`, a
    /// named pipe).
    ///
    /// # Errors
    /// What `open(2)` says of a path that cannot be that of a file; what opening a device or a
    /// named pipe meets; `InvalidInput` for a block device.
    pub fn to(path: &Path) -> Result<Output> {
        let fail = |errno: i32| Error::os("open", errno, path.display().to_string());
        match target_kind(path)? {
            TargetKind::Nothing | TargetKind::File => Ok(Output::File(path.to_path_buf())),
            TargetKind::Folder => Err(fail(libc::EISDIR)),
            TargetKind::Socket => Err(fail(libc::ENXIO)),
            TargetKind::BlockDevice => Err(Error::new(
                ErrorKind::InvalidInput,
                "open",
                format!("{} is a block device, which a sort would overwrite", path.display()),
            )
            .advice("sort to a file and use `dpipe copy` to write it to the device")),
            TargetKind::Stream => {
                // As GNU sort opens it: one who thinks to create a file is not given another user's
                // named pipe in a folder that is anybody's (fs.protected_fifos).
                let opened = File::options().write(true).create(true).truncate(false).open(path);
                let file = opened.map_err(|e| Error::io("open", &e, path.display().to_string()))?;
                Ok(Output::Stream { name: path.to_path_buf(), file })
            }
        }
    }

    /// Its name for messages.
    pub fn name(&self) -> &Path {
        match self {
            Output::File(path) => path,
            Output::Stream { name, .. } => name,
        }
    }
}
