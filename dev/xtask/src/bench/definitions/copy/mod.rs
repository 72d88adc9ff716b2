//! Copies between files and memory, and between memories.

pub(in crate::bench) mod file;
pub(in crate::bench) mod memory;
