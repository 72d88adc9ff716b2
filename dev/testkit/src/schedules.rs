//! Tests under schedules chosen at random (`cargo xtask shuttle`).

use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner};

/// Runs a test under many schedules: random ones, and such in which few threads are overtaken at
/// unlucky moments (PCT).
///
/// `DATAPIPES_SCHEDULES` sets how many of each. A failure prints its seed; `SHUTTLE_RANDOM_SEED`
/// repeats it.
pub fn schedules(test: impl Fn() + Send + Sync + 'static) {
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
