//! Sorted runs: where they are kept, and how they are read.

pub(crate) mod checksum;
pub(crate) mod compressed;
pub(crate) mod packing;
pub(crate) mod record_reader;
pub(crate) mod spill;
