//! Sorts of files, by the kind of their records.

pub(in crate::bench) mod curves;
pub(in crate::bench) mod fits;
pub(in crate::bench) mod lines;
pub(in crate::bench) mod records;
pub(in crate::bench) mod slow_disk;
pub(in crate::bench) mod u64;
