//! What Data Pipes is tested with.
//!
//! - [`conformance`]: one suite for every backend and every locator.
//! - [`TempFolder`]: where a test works; with `--cfg shuttle`, `schedules` runs one under schedules
//!   chosen at random.
//! - [`bounded`], [`joined`], [`poll_until`], [`ended`], [`output_of`], [`until`]: bounds on what a
//!   test waits for; [`fifo_writer`]: a named pipe that somebody reads.
//! - [`seed`], [`Random`]: what a test draws, and how a failure is replayed (`DATAPIPES_SEED`).
//! - [`run_tests`]: the tests of a program with its own `main`.
//! - [`GnuSort`]: the sort that ours is compared with.
//! - [`Prometheus`]: one that reads metrics of a test.
//! - [`UnresponsiveFs`]: a file system whose server never answers.
//! - [`Mounted`], [`ThrottledDisk`], [`without_calls`], [`ControlGroup`]: file systems, disks and
//!   kernels that lack something, or have little.
//! - [`child`]: pieces of a test in another process: a fork, another user, limits.
#![deny(unsafe_code)]

mod bounded;
pub mod child;
pub mod conformance;
mod control_group;
mod fifo;
mod folder;
mod gnu_sort;
mod harness;
mod mounted;
mod prometheus;
mod random;
#[cfg(shuttle)]
mod schedules;
mod throttled_disk;
mod unresponsive_fs;
mod without;

pub use bounded::{PATIENCE, bounded, ended, ended_within, joined, output_of, poll_until, until};
pub use control_group::ControlGroup;
pub use fifo::fifo_writer;
pub use folder::TempFolder;
pub use gnu_sort::GnuSort;
pub use harness::run_tests;
pub use mounted::{LoopDevice, MountServer, Mounted};
pub use prometheus::Prometheus;
pub use random::{Random, replayed_seed, seed};
#[cfg(shuttle)]
pub use schedules::schedules;
pub use throttled_disk::ThrottledDisk;
pub use unresponsive_fs::{PendingRequests, UnresponsiveFs};
pub use without::{RefusedCall, RefusedUse, without_calls};
