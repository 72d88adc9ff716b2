//! Fine-grained reads: a few bytes from storage without paying for pages.
//!
//! The system of *Pipette: Efficient Fine-Grained Reads for SSDs* (Bai et al., DAC 2022) on stock
//! hardware, in user space. For embedding tables, graph stores, search engines and key-value stores
//! that read 8 bytes to 4 KiB at random from files larger than memory.
//!
//! | the paper's part | here |
//! |---|---|
//! | fine-grained access detector | `detector`: which sectors of a page were demanded lately |
//! | read dispatcher | `dispatcher`: by bytes, by sectors or by blocks, by size and measured cost |
//! | constructor | `constructor`: aligned requests, merged where they touch |
//! | requester | `requester`: claims, reads, gives out, offers to the cache |
//! | read engine | [`engine`], `lanes`: deep queues, past the page cache |
//! | info area | `info`: what is on its way, and for whom |
//! | lookup table, data area, slabs, classes | `store` |
//! | LRU, threshold, TempBuf | `policy/pipette`; others beside it |
//! | reassignment, dynamic allocation | [`Reassignment`], `maintenance` |
//! | consistency | `writes`, `outside`, `doubt` |
//!
//! Many files share one budget, policy and thread in a [`BufferPool`].
//!
//! What it does not do: it is no write cache, and no protocol between processes. Other processes'
//! writes are found by the kernel's events and the file's times (see [`ExternalChanges`]); writes
//! through memory that maps the file may not be found. On devices of blocks the smallest read is a
//! logical block, as the kernel states it for direct reads: 512 bytes on most devices, also on
//! those whose physical blocks are larger (512e). Where it is 4096, each small miss moves 4 KiB:
//! 128 bytes under zipf 0.8 with an eighth of the file as memory cost 14.9 bytes moved a byte asked
//! there, and 1.9 with 512; formatting the device with blocks of 512 (`nvme format`) gives the
//! difference back. A device that moves single bytes needs an
//! [`engine::ReadEngine`] that says so, and a place in persistent memory needs no cache at all.

pub mod engine;

mod ahead;
mod asynchronous;
mod config;
mod constructor;
mod detector;
mod dispatcher;
mod doubt;
mod events;
mod fine;
mod gather;
mod histogram;
mod identity;
mod info;
#[cfg(all(test, not(shuttle)))]
mod interleavings;
mod lanes;
mod lookers;
mod maintenance;
mod marks;
mod metrics;
mod outside;
mod policy;
mod pool;
mod reassign;
mod requester;
#[cfg(all(test, shuttle))]
mod schedules;
mod shadow;
mod snapshot;
mod space;
mod store;
mod sync;
mod views;
mod wakers;
mod write;
mod writes;

pub use asynchronous::{AsyncReader, InFlight, ReadFuture};
pub use config::{CacheConfig, CachePolicy, ExternalChanges, FileOptions, Verify};
pub use fine::{Bytes, FineGrained};
pub use gather::Gathered;
pub use histogram::{Histogram, Latencies};
pub use metrics::{ClassMetrics, Metrics};
pub use pool::BufferPool;
pub use reassign::Reassignment;
pub use snapshot::LoadSummary;
pub use write::Writer;
