//! An exclusive lock on an open file (`flock`), for our own crates.

use std::fs::{File, TryLockError};

use crate::process::OwningProcess;

/// An exclusive lock on a file. Dropping it unlocks the file, also while other processes share the
/// open file: a child of this process does from its fork until it executes a program or ends, so
/// closing the file alone would keep the next user away for that time. In such a child dropping
/// it unlocks nothing. If the process ends without dropping it, the kernel unlocks the file when
/// no process shares it any more.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    owner: OwningProcess,
}

impl FileLock {
    /// Locks the file; it does not wait.
    ///
    /// # Errors
    /// `WouldBlock` if another open file of it is locked; errors of the kernel.
    pub fn take(file: File) -> Result<FileLock, TryLockError> {
        file.try_lock()?;
        Ok(FileLock { file, owner: OwningProcess::here() })
    }

    /// The locked file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.owner.is_here() {
            // If it fails, the kernel unlocks the file when nobody has it open any more.
            let _ = self.file.unlock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_free_for_the_next_user_though_another_has_the_open_file() {
        let path = std::env::temp_dir().join(format!("datapipes-lock-{}", std::process::id()));
        let open = || File::options().create(true).append(true).open(&path).unwrap();
        let lock = FileLock::take(open()).unwrap();
        // What a child has between its fork and its exec.
        let shared = lock.file().try_clone().unwrap();
        assert!(matches!(FileLock::take(open()), Err(TryLockError::WouldBlock)));
        drop(lock);
        assert!(FileLock::take(open()).is_ok());
        drop(shared);
        std::fs::remove_file(&path).unwrap();
    }
}
