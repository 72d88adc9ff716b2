//! Run formation: the input is read into slots, and each slot is sorted.

pub(crate) mod bucket;
pub(crate) mod gather;
mod partition;
pub(crate) mod phase;
pub(crate) mod sample_sort;
mod shared_start;
pub(crate) mod slot;
pub(crate) mod slot_sorter;
mod tied_keys;
mod tied_lines;
mod touch;
