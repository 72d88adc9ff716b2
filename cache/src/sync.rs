//! What threads share: the standard library's types, or with `--cfg shuttle` those of a model whose
//! every interleaving can be chosen (`cargo xtask shuttle`).

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic};

pub(crate) use std::sync::{Arc, PoisonError, TryLockError, Weak};

use std::task::Waker;

use datapipes_core::guard::{self, ForeignCode};

/// Locks. What these locks guard is whole whenever foreign code runs, so a poisoned one is taken as
/// it is.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops a waker, which is code of others: never under a lock. Its panic is no concern of whoever
/// happens to have it last.
pub(crate) fn drop_waker(waker: Waker) {
    let _ = guard::call(ForeignCode::Waker, || drop(waker));
}

/// Wakes all of them. Wakers are code of others: never under a lock, and one that panics leaves
/// nobody asleep who comes after it. Its panic is no concern of whoever happens to wake it.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        // It is counted for the whole process (`guard::panics`): there is nobody else to tell.
        let _ = guard::call(ForeignCode::Waker, || waker.wake());
    }
}
