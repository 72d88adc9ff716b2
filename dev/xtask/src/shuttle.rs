//! `cargo xtask shuttle [SCHEDULES] [NAME]`: the queue and the runtime of the core, and the ring of
//! a data channel, and the cache of fine-grained reads, under schedules chosen at random.
//!
//! The crates are built with `--cfg shuttle`, which puts a model in the place of locks, atomics,
//! threads and the kernel's events (`src/sync.rs` of each), in a target folder of its own. A
//! failure prints its seed; with it in `SHUTTLE_RANDOM_SEED` the same schedule is run again.

use crate::TaskResult;
use crate::steps::{cargo, root};
use crate::test::stream;

/// Random schedules of each test, and half as many of the other kind, if not said: seconds in all.
const SCHEDULES: &str = "2000";

pub(crate) fn run(args: &[String]) -> TaskResult<()> {
    let (schedules, name) = match args {
        [] => (SCHEDULES, "schedules::"),
        [schedules] => (schedules.as_str(), "schedules::"),
        [schedules, name] => (schedules.as_str(), name.as_str()),
        _ => return Err("usage: cargo xtask shuttle [SCHEDULES] [NAME]".into()),
    };
    schedules.parse::<u64>().map_err(|_| format!("`{schedules}` is not a number of schedules"))?;
    // One command: with one for each package, what they share would be compiled with several
    // choices of features.
    let packages = ["-p", "datapipes-core", "-p", "datapipes-fabric", "-p", "datapipes-cache"];
    let mut command = cargo(&["test"]);
    command.args(packages).args(["--lib", name]).env("RUSTFLAGS", "--cfg shuttle");
    command.env("DATAPIPES_SCHEDULES", schedules).env("CARGO_TARGET_DIR", root().join("target/shuttle"));
    stream(&mut command)
}
