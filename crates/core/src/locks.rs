//! Locks that ignore poison: [`Mutex`], [`RwLock`] and [`Condvar`] of the standard library without
//! the `Result`s.
//!
//! The standard library poisons a lock whose holder panicked, and each later caller has to decide
//! what that means. Here the decision is always the same. Code that is not ours runs outside of
//! locks, or where the data behind them is consistent ([`guard`](crate::guard)), so the data behind
//! a poisoned lock is as good as any.
//!
//! The crate `parking_lot` ignores poison too. But its waiters meet in a table of the process with
//! locks of its own, and a child that was forked while another thread held one of those can wait
//! for ever. Each of these locks is a word of its own.
//!
//! With `--cfg shuttle`, `locks::model` has the same types over those of the model checker. They
//! work only inside a run of the model, so each module chooses.

macro_rules! locks {
    ($root:ident) => {
        use std::fmt;
        use std::sync::{PoisonError, TryLockError};
        use std::time::Duration;

        pub use $root::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};

        /// A mutex that ignores poison.
        #[derive(Default)]
        pub struct Mutex<T: ?Sized>($root::sync::Mutex<T>);

        impl<T> Mutex<T> {
            /// Wraps a value.
            pub const fn new(value: T) -> Mutex<T> {
                Mutex($root::sync::Mutex::new(value))
            }

            /// The value.
            #[inline]
            pub fn into_inner(self) -> T {
                self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
            }
        }

        impl<T: ?Sized> Mutex<T> {
            /// Locks it; waits while another thread holds it.
            #[inline]
            pub fn lock(&self) -> MutexGuard<'_, T> {
                self.0.lock().unwrap_or_else(PoisonError::into_inner)
            }

            /// Locks it, unless it is locked.
            #[inline]
            pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
                match self.0.try_lock() {
                    Ok(guard) => Some(guard),
                    Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
                    Err(TryLockError::WouldBlock) => None,
                }
            }

            /// The value, which nobody else can hold.
            #[inline]
            pub fn get_mut(&mut self) -> &mut T {
                self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
            }
        }

        impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        /// A lock for many readers or one writer that ignores poison.
        #[derive(Default)]
        pub struct RwLock<T: ?Sized>($root::sync::RwLock<T>);

        impl<T> RwLock<T> {
            /// Wraps a value.
            pub const fn new(value: T) -> RwLock<T> {
                RwLock($root::sync::RwLock::new(value))
            }
        }

        impl<T: ?Sized> RwLock<T> {
            /// Locks it for reading; waits while a writer holds it.
            #[inline]
            pub fn read(&self) -> RwLockReadGuard<'_, T> {
                self.0.read().unwrap_or_else(PoisonError::into_inner)
            }

            /// Locks it for writing; waits while another thread holds it.
            #[inline]
            pub fn write(&self) -> RwLockWriteGuard<'_, T> {
                self.0.write().unwrap_or_else(PoisonError::into_inner)
            }
        }

        impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        /// A condition variable of a [`Mutex`].
        #[derive(Default, Debug)]
        pub struct Condvar($root::sync::Condvar);

        impl Condvar {
            /// One that nobody waits for.
            pub const fn new() -> Condvar {
                Condvar($root::sync::Condvar::new())
            }

            /// Unlocks, waits for a notification and locks again. It may return without one.
            #[inline]
            pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
                self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
            }

            /// As [`wait`](Self::wait), while the condition holds.
            pub fn wait_while<'a, T>(
                &self,
                guard: MutexGuard<'a, T>,
                condition: impl FnMut(&mut T) -> bool,
            ) -> MutexGuard<'a, T> {
                self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
            }

            /// As [`wait`](Self::wait), at most for this time.
            #[inline]
            pub fn wait_timeout<'a, T>(
                &self,
                guard: MutexGuard<'a, T>,
                time: Duration,
            ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
                self.0.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner)
            }

            /// As [`wait_while`](Self::wait_while), at most for this time.
            pub fn wait_timeout_while<'a, T>(
                &self,
                guard: MutexGuard<'a, T>,
                time: Duration,
                condition: impl FnMut(&mut T) -> bool,
            ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
                self.0.wait_timeout_while(guard, time, condition).unwrap_or_else(PoisonError::into_inner)
            }

            /// Wakes one thread that waits.
            #[inline]
            pub fn notify_one(&self) {
                self.0.notify_one();
            }

            /// Wakes all threads that wait.
            #[inline]
            pub fn notify_all(&self) {
                self.0.notify_all();
            }
        }
    };
}

#[allow(clippy::disallowed_types)] // These are the types that others are to use.
mod plain {
    locks!(std);
}
pub use plain::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};

/// The same locks in a model where every interleaving can be chosen (`cargo xtask shuttle`).
#[cfg(shuttle)]
pub mod model {
    locks!(shuttle);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_panic_of_the_holder_keeps_nobody_out() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let hold = std::panic::AssertUnwindSafe(|| {
            let _held = (mutex.lock(), lock.write());
            panic!("the holder panics");
        });
        std::panic::catch_unwind(hold).unwrap_err();
        *mutex.lock() += 1;
        *lock.write() += 1;
        assert_eq!((*mutex.lock(), *lock.read()), (2, 2));
        assert_eq!(mutex.try_lock().map(|value| *value), Some(2));
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        let (held, ended) = Condvar::new().wait_timeout_while(held, Duration::from_millis(1), |value| *value == 2);
        assert!(ended.timed_out() && *held == 2);
        drop(held);
        assert_eq!(mutex.into_inner(), 2);
    }
}
