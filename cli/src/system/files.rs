//! Files that the commands make beside their results: pictures, man pages and work folders.

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use datapipes::locator::target_kind;
use datapipes::{AtomicFile, Error, FileMode, PublishOutcome, Result, TargetKind};

use crate::outcome::print_error;
use crate::system::signals;

/// The number of random names to try before giving up.
const MAX_TRIES: usize = 100;

/// Writes a text: a file as a whole or not at all, and a stream (`/dev/stdout`, a named pipe) in
/// order.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<()> {
    let bytes = text.as_bytes();
    if target_kind(path)? == TargetKind::Stream {
        let fail = |e: std::io::Error| Error::io("write", e, path.display().to_string());
        File::options().write(true).open(path).and_then(|mut file| file.write_all(bytes)).map_err(fail)?;
    } else {
        let draft = AtomicFile::replacing(path, FileMode::USUAL)?;
        draft.write(bytes)?;
        publish(draft, bytes.len() as u64)?;
    }
    Ok(())
}

/// Publishes a file, and says so where it was not done by giving it its name. True where its bytes
/// were copied to another file than the one that was written.
pub(crate) fn publish(draft: AtomicFile, len: u64) -> Result<bool> {
    let path = draft.path().display().to_string();
    match draft.publish(len)? {
        PublishOutcome::InPlace(reason) => {
            print_error(&format!("dpipe: {path} was written in place, because {reason}\n"));
            Ok(true)
        }
        PublishOutcome::New | PublishOutcome::Replaced => Ok(false),
    }
}

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
