//! What the two sides of a ring share: the standard library's types, or those of a model whose
//! every interleaving can be chosen (`--cfg shuttle`, `cargo xtask shuttle`).

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};

pub(crate) use std::sync::{Arc, PoisonError};

/// The lock, also after a thread panicked with it: what it guards is kept consistent by short
/// sections without panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
