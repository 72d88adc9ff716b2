//! All calls but the plain read: futures, many reads at once, views, writes, snapshots.

pub(crate) mod asynchronous;
pub(crate) mod batches;
pub(crate) mod gather;
pub(crate) mod gather_future;
pub(crate) mod snapshot;
pub(crate) mod views;
pub(crate) mod write;
