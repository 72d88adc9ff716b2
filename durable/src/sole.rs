//! One writer at a time for a folder.

use std::fs::{File, TryLockError};
use std::path::Path;

use datapipes_core::process::Owner;
use datapipes_core::{Error, ErrorKind, Result};

/// The name of the file that is locked.
const NAME: &str = ".lock";

/// The sole right to write to a folder. The kernel takes it back with the process, whatever happens to that.
#[derive(Debug)]
pub(crate) struct Sole {
    file: File,
    owner: Owner,
}

impl Sole {
    /// Takes the right, or says that somebody has it.
    pub(crate) fn of(folder: &Path) -> Result<Sole> {
        let path = folder.join(NAME);
        let fail = |e: &std::io::Error| Error::io("lock", e, path.display().to_string());
        let file = File::options().create(true).append(true).open(&path).map_err(|e| fail(&e))?;
        match file.try_lock() {
            Ok(()) => Ok(Sole { file, owner: Owner::here() }),
            Err(TryLockError::WouldBlock) => {
                let why = format!("{}: another writer has it", folder.display());
                Err(Error::new(ErrorKind::Busy, "lock", why).advice("close the other one, or use another folder"))
            }
            Err(TryLockError::Error(e)) => Err(fail(&e)),
        }
    }
}

impl Drop for Sole {
    fn drop(&mut self) {
        // Children share the open file, and with it the lock: it ends here, though they live on; and not with one of them.
        if self.owner.is_here() {
            let _ = self.file.unlock();
        }
    }
}

/// Makes a folder with those above it, durably: each new name is synced in its parent.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let fail = |e: &std::io::Error| Error::io("create", e, folder.display().to_string());
    let parent = datapipes_core::locator::folder_of(folder);
    make_folder(&parent)?;
    match std::fs::create_dir(folder) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        Err(e) => return Err(fail(&e)),
    }
    sync_folder(&parent)
}

/// Returns when names made and removed in a folder would survive a power failure.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|dir| dir.sync_all());
    synced.map_err(|e| Error::io("sync", &e, folder.display().to_string()))
}
