//! The second phase: sorted runs are merged into one.

mod contest;
mod files;
mod loser_tree;
pub(crate) mod merge;
pub(crate) mod passes;
pub(crate) mod ranges;
