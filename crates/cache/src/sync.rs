//! The types that threads share: the standard library's, or with `--cfg shuttle` those of a model
//! in which every interleaving can be chosen (`cargo xtask shuttle`).

#[cfg(not(shuttle))]
pub(crate) use {
    datapipes_core::locks::{Condvar, Mutex, MutexGuard},
    std::sync::atomic,
};

#[cfg(shuttle)]
pub(crate) use {
    datapipes_core::locks::model::{Condvar, Mutex, MutexGuard},
    shuttle::sync::atomic,
};

pub(crate) use std::sync::{Arc, Weak};

use std::task::Waker;

use datapipes_core::guard::{self, ForeignCode};

/// Drops a waker. It is foreign code, so this is never called under a lock. Its panic does not
/// reach the caller.
pub(crate) fn drop_waker(waker: Waker) {
    let _ = guard::call(ForeignCode::Waker, || drop(waker));
}

/// Wakes all of them. Wakers are foreign code, so this is never called under a lock. If one panics,
/// the others are woken all the same, and the panic does not reach the caller.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        // The panic is counted for the process (`guard::panics`), as there is nobody else to tell.
        let _ = guard::call(ForeignCode::Waker, || waker.wake());
    }
}
