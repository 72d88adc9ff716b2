//! What Data Pipes is tested with, and what its command generates and checks data with.
//!
//! - [`generate`]: records, numbers and lines as pure functions from a byte range to its content.
//! - [`access`]: which bytes of a file are read, in which order: uniform, zipf, embeddings, a
//!   social graph.
//! - [`validate`]: order and multiset checksum of data fed in pieces.
//! - [`conformance`]: one suite for every backend and every locator.
//! - [`TempFolder`]: where a test works; with `--cfg shuttle`, `schedules` runs one under schedules
//!   chosen at random.
//! - [`UnresponsiveFs`]: a file system whose server never answers.
//! - [`Mounted`], [`without_calls`], [`ControlGroup`]: file systems and kernels that lack
//!   something, or have little.
//!
//! - [`child`]: pieces of a test in another process: a fork, another user, limits.
//!
//! The first three do no I/O; the caller moves the bytes, through pipes.
#![deny(unsafe_code)]

pub mod access;
pub mod child;
pub mod conformance;
mod control_group;
mod folder;
pub mod generate;
mod mounted;
#[cfg(shuttle)]
mod schedules;
mod unresponsive_fs;
pub mod validate;
mod without;

pub use control_group::ControlGroup;
pub use folder::TempFolder;
pub use mounted::{LoopDevice, MountServer, Mounted};
#[cfg(shuttle)]
pub use schedules::schedules;
pub use unresponsive_fs::{PendingRequests, UnresponsiveFs};
pub use without::{RefusedCall, RefusedUse, without_calls};
