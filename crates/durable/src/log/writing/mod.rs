//! Appends of many threads, gathered into batches, and onto segments.

pub(super) mod commit;
pub(super) mod failure;
pub(super) mod stats;
pub(super) mod writer;
