//! One file a benchmark: its contestants and what they are asked.

pub(super) mod checkpoint;
pub(super) mod copy_file;
pub(super) mod copy_memory;
pub(super) mod fabric;
pub(super) mod fine;
pub(super) mod flavors;
pub(super) mod log;
pub(super) mod qos;
pub(super) mod sort_fits;
pub(super) mod sort_lines;
pub(super) mod sort_records;
pub(super) mod sort_u64;
