//! A seqlock: holders of the lock count their changes, so that others may read without the lock and
//! check whether what they read was consistent.
//!
//! ```text
//! writer: lock; version odd; ... change ...; version even again, two higher; unlock
//! reader: version even?  ... read ...; version unchanged?  then nothing changed meanwhile
//! ```
//! This is the seqlock of Lameter ("Effective synchronization on Linux/NUMA systems", 2005), with
//! the fences of Boehm ("Can seqlocks get along with programming language memory models?", MSPC
//! 2012). Data that is read without the lock must be atomics.

use std::ops::{Deref, DerefMut};

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Mutex, MutexGuard};

/// A value with its lock and its version.
pub(crate) struct Guarded<T> {
    version: AtomicU64,
    it: Mutex<T>,
}

/// The version of a consistent value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// The locked value, for reading only.
pub(crate) struct Looking<'a, T>(MutexGuard<'a, T>);

impl<T> Deref for Looking<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The locked value, while it changes.
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
        // The lock is still held. Release: a thread that sees the new version sees the change.
        self.version.store(self.version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

impl<T> Guarded<T> {
    pub(crate) fn new(it: T) -> Guarded<T> {
        Guarded { version: AtomicU64::new(0), it: Mutex::new(it) }
    }

    pub(crate) fn look(&self) -> Looking<'_, T> {
        Looking(self.it.lock())
    }

    pub(crate) fn change(&self) -> Changing<'_, T> {
        self.changing(self.it.lock())
    }

    /// As [`change`](Self::change), if the lock is free.
    pub(crate) fn try_change(&self) -> Option<Changing<'_, T>> {
        self.it.try_lock().map(|it| self.changing(it))
    }

    fn changing<'a>(&'a self, it: MutexGuard<'a, T>) -> Changing<'a, T> {
        self.version.store(self.version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // The fence precedes all changes: a thread that sees any of them sees the odd version, too,
        // or a later one.
        fence(Ordering::Release);
        Changing { version: &self.version, it }
    }

    /// The version, unless the value is changing.
    #[inline]
    pub(crate) fn version(&self) -> Option<Version> {
        // Acquire: nothing is read before it.
        Some(self.version.load(Ordering::Acquire)).filter(|v| v % 2 == 0).map(Version)
    }

    /// Whether nothing changed from then until now.
    #[inline]
    pub(crate) fn unchanged(&self, then: Version) -> bool {
        // The fence follows everything that was read.
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == then.0
    }

    /// The value, if the lock is free and nothing changed since. It is for marks that readers
    /// without the lock may see or miss.
    pub(crate) fn mark(&self, then: Version) -> Option<impl DerefMut<Target = T>> {
        let it = self.it.try_lock()?;
        (self.version.load(Ordering::Relaxed) == then.0).then_some(it)
    }
}
