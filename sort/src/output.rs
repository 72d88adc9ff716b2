//! Where the sorted records go: a file that appears under its name when it is complete, or a stream.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use datapipes_core::{Error, ErrorKind, Result, Ssd};

use crate::spill::unique;

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

/// Names of outputs that are not complete start with this.
const HIDDEN: &str = ".dpipe-output-";

/// A file under way to its name. Dropped before `publish`, it leaves nothing.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) ssd: Ssd,
    target: PathBuf,
    dir: PathBuf,
    /// The name it has meanwhile, where the file system knows no nameless files.
    hidden: Option<PathBuf>,
}

impl Draft {
    /// A file beside `path`, with the mode of the file that is there.
    pub(crate) fn beside(path: &Path) -> Result<Draft> {
        // The file behind a link is replaced, not the link.
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let dir = match target.parent() {
            Some(dir) if dir != Path::new("") => dir.to_path_buf(),
            _ => PathBuf::from("."),
        };
        remove_leftovers(&dir);
        let (ssd, hidden) = match Ssd::unlinked_in(&dir) {
            Ok(ssd) => (ssd, None),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
                let hidden = hidden_name(&dir);
                (Ssd::create_new(&hidden)?, Some(hidden))
            }
            Err(e) => return Err(e),
        };
        Ok(Draft { ssd, target, dir, hidden })
    }

    /// Cuts the file to its length, makes it durable and gives it its name.
    pub(crate) fn publish(mut self, len: u64) -> Result<()> {
        if self.ssd.len()? != len {
            self.ssd.set_len(len)?;
        }
        self.keep_identity()?;
        self.ssd.sync()?;
        let hidden = match self.hidden.take() {
            Some(hidden) => hidden,
            None => {
                let hidden = hidden_name(&self.dir);
                self.ssd.link_as(&hidden)?;
                hidden
            }
        };
        // From here on the hidden name must go, one way or the other.
        self.hidden = Some(hidden.clone());
        let shown = || format!("{} as {}", hidden.display(), self.target.display());
        std::fs::rename(&hidden, &self.target).map_err(|e| Error::io("rename", &e, shown()))?;
        self.hidden = None;
        let dir = File::open(&self.dir).and_then(|d| d.sync_all());
        dir.map_err(|e| Error::io("sync", &e, self.dir.display().to_string()))
    }

    /// Takes over mode and owner of the file that is replaced.
    fn keep_identity(&self) -> Result<()> {
        let Ok(old) = std::fs::metadata(&self.target) else { return Ok(()) };
        let fd = self.ssd.file().cached_fd();
        let mode = rustix::fs::Mode::from_raw_mode(old.permissions().mode() & 0o7777);
        let (user, group) = (rustix::fs::Uid::from_raw(old.uid()), rustix::fs::Gid::from_raw(old.gid()));
        // Only a privileged process may give files away: to fail here is no reason to lose the result.
        let _ = rustix::fs::fchown(fd, Some(user), Some(group));
        let named = || self.target.display().to_string();
        rustix::fs::fchmod(fd, mode).map_err(|e| Error::os("set mode of", e.raw_os_error(), named()))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            // It may be gone already, which is what is wanted.
            let _ = std::fs::remove_file(hidden);
        }
    }
}

fn hidden_name(dir: &Path) -> PathBuf {
    dir.join(format!("{HIDDEN}{}-{}", std::process::id(), unique()))
}

/// Removes what processes that were killed between naming and renaming left.
fn remove_leftovers(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.strip_prefix(HIDDEN)?.split('-').next()?.parse::<u32>().ok());
        if let Some(pid) = owner
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            // Somebody else may have removed it: all the same.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
