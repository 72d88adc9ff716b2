//! Sorted runs: where they wait, and how they are read again.

pub(crate) mod checksum;
pub(crate) mod compressed;
pub(crate) mod record_reader;
pub(crate) mod spill;
