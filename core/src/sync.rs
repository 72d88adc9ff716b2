//! What threads share: the standard library's types, or those of a model whose every interleaving
//! can be chosen.
//!
//! With `--cfg shuttle` (`cargo xtask shuttle`) locks, atomics and threads are those of the crate
//! `shuttle`, whose scheduler takes a random decision wherever one thread could overtake another;
//! without it these are plain re-exports and cost nothing. The queue of a pipe and the runtime use
//! them. The model knows no memory orders: every atomic is sequentially consistent in it. It knows
//! no time either: a wait with a time limit never ends by it.

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};

// Both give poisoned locks in the standard library's type, and references are counted by the same
// `Arc`.
pub(crate) use std::sync::{Arc, PoisonError, Weak};
