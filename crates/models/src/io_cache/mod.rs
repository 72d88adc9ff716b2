//! The last-level cache between devices, cores and persistent memory: the experiments of Vogel et
//! al., *Data Pipes: Declarative Control over Data Movement*, CIDR 2023, section 4.
//!
//! ```text
//!   SSD --DDIO--+                            +-- core that sums
//!               v                            v
//!   engine --> [ set-associative cache: ways of devices | all ways ] <-- load (STREAM)
//!    (DCA)                        | dirty lines, in the order of replacement
//!                                 v
//!                 [ combining buffer ] --> blocks of 256 bytes: persistent memory
//! ```
//!
//! - [`LastLevelCache`] is the cache: writes of a device allocate only in the ways of a mask, and
//!   update in place what is cached anywhere. It counts who missed, and what memory read and wrote.
//! - [`PmemMedia`] is persistent memory: it writes whole blocks, and a small buffer combines lines.
//! - [`ddio`] is figures 3 and 4: a device fills chunks at queue depth 32, a core sums them, and a
//!   load takes the rest of the cache.
//! - [`dca`] is figure 5b: an engine copies into persistent memory, through the cache or past it.
//! - [`offload`] is figures 5a and 5b as rates: a core's copies, and an engine's.
//! - [`AccessTrace`] is a list of accesses of real transfers, to be replayed in the same cache.
//!
//! # What is known and what is not
//!
//! The paper prints six numbers: 41 % fewer misses from 2 to 11 ways below 1 MiB, 2.57 times one
//! core's copies, three cores, 10 GiB/s of writes to the media, 3.27 of at most 4 times the bytes,
//! a third of the read rate. The heights of its curves are in the figures alone. Two parameters are
//! *calibrated*: the load that reaches the cache (41 %) and the lines that the engine has under way
//! (2.57). A third is the ways that the engine's writes may take (3.27). The shapes *follow*: why
//! the ways matter below 1 MiB only, why the engine writes at a third of its read rate, and how
//! much of it is the cache's fault. Each [`Finding`] says which.
//!
//! Not modelled: the caches of the cores (the core reads each line once, so that they cannot help),
//! the hash of addresses over slices (sets follow each other), prefetchers, throughput and latency
//! of figures 3a and 3c, bandwidth of memory under the load.

pub mod cache;
pub mod dca;
pub mod ddio;
pub mod offload;
pub mod parameters;
pub mod pmem;
mod published;
pub mod report;
#[cfg(test)]
mod tests;
pub mod trace;

pub use cache::{AccessAgent, AccessKind, AgentCounts, LastLevelCache, LineAccess, LineOutcome, LlcCounts};
pub use parameters::{LlcShape, PmemShape, Replacement, WayMask};
pub use pmem::{PmemCounts, PmemMedia};
pub use report::Finding;
pub use trace::{AccessTrace, TraceAccess};
