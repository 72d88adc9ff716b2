//! Files that commands make: publishing them, and folders to work in.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use datapipes::{AtomicFile, Error, PublishOutcome, Result};

use crate::outcome::{print_error, shown_path};
use crate::system::signals;

/// The number of random names to try before giving up.
const MAX_TRIES: usize = 100;

/// Publishes a file, and says so where it was not done by giving it its name. True where its bytes
/// were copied to another file than the one that was written.
pub(crate) fn publish(draft: AtomicFile, len: u64) -> Result<bool> {
    let path = shown_path(draft.path());
    match draft.publish(len)? {
        PublishOutcome::InPlace(reason) => {
            print_error(&format!("dpipe: {path} was written in place, because {reason}\n"));
            Ok(true)
        }
        PublishOutcome::New | PublishOutcome::Replaced => Ok(false),
    }
}

/// Whether the bytes of files in this folder are in memory and nowhere else, as in tmpfs.
pub(crate) fn is_in_memory(folder: &Path) -> bool {
    /// `RAMFS_MAGIC` of the kernel, which rustix does not have.
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::statfs(folder).is_ok_and(|fs| [TMPFS, RAMFS].contains(&fs.f_type))
}

/// `TMPFS_MAGIC` of the kernel.
const TMPFS: i64 = 0x0102_1994;

/// A folder to work in, which only its owner may enter. It vanishes with this value and everything
/// in it, unless it is to be kept.
#[derive(Debug)]
pub(crate) struct WorkFolder {
    path: PathBuf,
    keep: bool,
}

impl WorkFolder {
    /// A new one under another, which must be there. Its name begins with `prefix` and
    /// ends with a random number: the number of a process may be that of one that is dead, or of
    /// one in another container.
    pub(crate) fn under(parent: &Path, prefix: &str, keep: bool) -> Result<WorkFolder> {
        let fail = |path: &Path, e: std::io::Error| Error::io("create", e, path.display().to_string());
        for _ in 0..MAX_TRIES {
            let mut random = [0; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
                .map_err(|e| Error::os("create", e.raw_os_error(), format!("a name in {}", parent.display())))?;
            let path = parent.join(format!("{prefix}-{:016x}", u64::from_le_bytes(random)));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(WorkFolder { path, keep }),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(fail(&path, e)),
            }
        }
        Err(Error::os("create", libc::EEXIST, format!("a folder in {}", parent.display())))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if !self.keep || signals::arrived() {
            // An error here has nobody to go to, and hides none.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
