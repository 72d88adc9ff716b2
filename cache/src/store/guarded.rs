//! A lock whose holders count what they change, so that others may read without it and see whether
//! they read something whole.
//!
//! ```text
//! changer: lock;  version odd;   ... change ...;   version even again, two further;  unlock
//! reader:  version, even?  ... read ...;   the version still the same?  then nothing changed meanwhile
//! ```
//! The seqlock of Lameter ("Effective synchronization on Linux/NUMA systems", 2005), with the
//! fences of Boehm ("Can seqlocks get along with programming language memory models?", MSPC 2012).
//! What is read so must be atomics.

use std::ops::{Deref, DerefMut};
use std::sync::TryLockError;

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Mutex, MutexGuard, lock};

/// A value, its lock, and the version of it.
pub(crate) struct Guarded<T> {
    version: AtomicU64,
    it: Mutex<T>,
}

/// The version of something that was whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// The value, locked, while it is looked at only.
pub(crate) struct Looking<'a, T>(MutexGuard<'a, T>);

impl<T> Deref for Looking<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The value, locked, while it changes.
pub(crate) struct Changing<'a, T> {
    version: &'a AtomicU64,
    it: MutexGuard<'a, T>,
}

impl<T> Deref for Changing<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.it
    }
}

impl<T> DerefMut for Changing<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.it
    }
}

impl<T> Drop for Changing<'_, T> {
    fn drop(&mut self) {
        // Still locked. Release: whoever sees the new version sees the change.
        self.version.store(self.version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

impl<T> Guarded<T> {
    pub(crate) fn new(it: T) -> Guarded<T> {
        Guarded { version: AtomicU64::new(0), it: Mutex::new(it) }
    }

    pub(crate) fn look(&self) -> Looking<'_, T> {
        Looking(lock(&self.it))
    }

    pub(crate) fn change(&self) -> Changing<'_, T> {
        self.changing(lock(&self.it))
    }

    /// The same, if nobody has it.
    pub(crate) fn try_change(&self) -> Option<Changing<'_, T>> {
        let it = match self.it.try_lock() {
            Ok(it) => it,
            Err(TryLockError::Poisoned(it)) => it.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.changing(it))
    }

    fn changing<'a>(&'a self, it: MutexGuard<'a, T>) -> Changing<'a, T> {
        self.version.store(self.version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // Before all that is changed: who sees something of it sees the odd version, too, or a
        // later one.
        fence(Ordering::Release);
        Changing { version: &self.version, it }
    }

    /// The version, where nobody is changing it.
    #[inline]
    pub(crate) fn version(&self) -> Option<Version> {
        // Acquire: nothing is read before it.
        Some(self.version.load(Ordering::Acquire)).filter(|v| v % 2 == 0).map(Version)
    }

    /// Whether nothing changed from then until now.
    #[inline]
    pub(crate) fn unchanged(&self, then: Version) -> bool {
        // After all that was read.
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == then.0
    }

    /// The value, if it can be had at once and nothing changed since: for marks that readers
    /// without the lock may see or not see.
    pub(crate) fn mark(&self, then: Version) -> Option<impl DerefMut<Target = T>> {
        let it = self.it.try_lock().ok()?;
        (self.version.load(Ordering::Relaxed) == then.0).then_some(it)
    }
}
