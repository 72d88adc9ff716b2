//! What survives a crash: records and whole states.

pub(in crate::bench) mod checkpoint;
pub(in crate::bench) mod log;
