//! The second phase: sorted runs are merged into one.

pub(crate) mod merge;
pub(crate) mod passes;
