//! What threads share: the standard library's types, or with `--cfg shuttle` those of a model whose every interleaving can
//! be chosen (`cargo xtask shuttle`).

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic};

pub(crate) use std::sync::{Arc, PoisonError, Weak};

/// Locks. What these locks guard is whole whenever foreign code runs, so a poisoned one is taken as it is.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
