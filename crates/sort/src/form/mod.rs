//! Run formation: the input is read into slots, and each slot is sorted.

pub(crate) mod gather;
pub(crate) mod phase;
pub(crate) mod sample_sort;
pub(crate) mod slot;
mod tied_keys;
mod tied_lines;
