//! A lock that a child made by `fork` never waits for.
//!
//! `fork` copies a lock that another thread holds, but not the thread, so a child that waited for it
//! would wait for ever. Here the process is checked before the lock is touched. In a child the
//! value is not dropped either: a thread of the parent may have been in the middle of changing it.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use datapipes::Result;
use datapipes::process::{DroppedHere, OwningProcess};

/// A value that one thread at a time uses, in the process that made it.
pub(crate) struct ProcessLock<T>(DroppedHere<Mutex<T>>);

impl<T> ProcessLock<T> {
    /// Makes a value of this process.
    pub(crate) fn new(value: T) -> ProcessLock<T> {
        ProcessLock(DroppedHere::new(Mutex::new(value)))
    }

    /// The process that made the value.
    pub(crate) fn owner(&self) -> OwningProcess {
        DroppedHere::owner(&self.0)
    }

    /// Waits for the value.
    ///
    /// # Errors
    /// `Forked` in a child of the process that made it.
    pub(crate) fn lock(&self, operation: &'static str) -> Result<MutexGuard<'_, T>> {
        self.owner().check(operation)?;
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The value, or `None` while another thread has it.
    ///
    /// # Errors
    /// `Forked` in a child of the process that made it.
    pub(crate) fn try_lock(&self, operation: &'static str) -> Result<Option<MutexGuard<'_, T>>> {
        self.owner().check(operation)?;
        Ok(match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }
}
