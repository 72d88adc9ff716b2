//! Synchronization types: those of the standard library, or those of a model checker that controls
//! every interleaving.
//!
//! With `--cfg shuttle` (`cargo xtask shuttle`), locks, atomics and threads are those of the crate
//! `shuttle`. Its scheduler takes a random decision wherever one thread could overtake another.
//! Without it, these are plain re-exports and cost nothing. The queue of a pipe and the runtime use
//! them. The model has no memory orders: every atomic is sequentially consistent in it. It has no
//! time either: a wait with a time limit never ends by its limit.

#[cfg(not(shuttle))]
pub(crate) use {
    crate::locks::{Condvar, Mutex, MutexGuard},
    std::{sync::atomic, thread, thread_local},
};

#[cfg(shuttle)]
pub(crate) use {
    crate::locks::model::{Condvar, Mutex, MutexGuard},
    shuttle::{sync::atomic, thread, thread_local},
};

// Both kinds share one `Arc`.
pub(crate) use std::sync::{Arc, Weak};
