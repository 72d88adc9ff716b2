//! What threads share: the standard library's types, or those of a model whose every interleaving can be chosen.
//!
//! With `--cfg shuttle` (`cargo xtask shuttle`) locks, atomics and threads are those of the crate `shuttle`, whose scheduler
//! takes a random decision wherever one thread could overtake another; without it these are plain re-exports and cost
//! nothing. The queue of a pipe and the runtime use them. The model knows no memory orders: every atomic is sequentially
//! consistent in it.

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};

// Both give poisoned locks in the standard library's type, and references are counted by the same `Arc`.
pub(crate) use std::sync::{Arc, PoisonError, Weak};

/// Runs a test under many schedules: random ones, and such in which few threads are overtaken at unlucky moments (PCT).
///
/// `DATAPIPES_SCHEDULES` sets how many of each. A failure prints its seed; `SHUTTLE_RANDOM_SEED` repeats it.
#[cfg(all(test, shuttle))]
pub(crate) fn schedules(test: impl Fn() + Send + Sync + 'static) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    use shuttle::{Config, MaxSteps, Runner};

    let count = std::env::var("DATAPIPES_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let config = || {
        let mut config = Config::new();
        config.stack_size = 512 << 10;
        // Who spins for ever is found, too.
        config.max_steps = MaxSteps::FailAfter(100_000);
        config.silence_warnings = true;
        config
    };
    let test = Arc::new(test);
    let again = test.clone();
    Runner::new(RandomScheduler::new(count), config()).run(move || again());
    Runner::new(PctScheduler::new(3, count / 2), config()).run(move || test());
}
