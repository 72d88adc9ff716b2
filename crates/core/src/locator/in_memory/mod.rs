//! Places in memory that the library maps.

mod core_cache;
mod dram;
mod file_in_memory;
mod numa;

pub use core_cache::CoreCache;
pub use dram::Dram;
pub use numa::NumaMemory;
