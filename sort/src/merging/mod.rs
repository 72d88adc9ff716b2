//! The second phase: sorted runs become one.

pub(crate) mod merge;
pub(crate) mod passes;
