//! Where the sorted records go: a file that appears under its name when it is complete, or a stream.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use datapipes_core::{Error, ErrorKind, Result};

/// Where to.
#[derive(Debug)]
pub enum Output {
    /// A file, written beside its name and renamed when complete and synced. It may be one of the inputs.
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
    /// The output of this name: a file, unless it exists and is no regular file (`/dev/null`, a named pipe).
    ///
    /// # Errors
    /// What opening a device or a named pipe meets; `InvalidInput` for a directory.
    pub fn to(path: &Path) -> Result<Output> {
        let fail = |e: std::io::Error| Error::io("open", &e, path.display().to_string());
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_file() => Ok(Output::File(path.to_path_buf())),
            Ok(meta) if meta.is_dir() => Err(Error::os("open", libc::EISDIR, path.display().to_string())),
            Ok(meta) if meta.file_type().is_block_device() => Err(Error::new(
                ErrorKind::InvalidInput,
                "open",
                format!("{} is a block device, which a sort would overwrite", path.display()),
            )
            .advice("sort to a file and use `dpipe copy` to write it to the device")),
            Ok(_) => {
                let file = File::options().write(true).open(path).map_err(fail)?;
                Ok(Output::Stream { name: path.to_path_buf(), file })
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Output::File(path.to_path_buf())),
            Err(e) => Err(fail(e)),
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
