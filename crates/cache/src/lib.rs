//! Fine-grained reads: a few bytes from storage without paying for pages.
//!
//! This crate implements *Pipette: Efficient Fine-Grained Reads for SSDs* (Bai et al., DAC 2022) in
//! user space on stock hardware. It is for embedding tables, graph stores, search engines and
//! key-value stores that read 8 bytes to 4 KiB at random from files larger than memory.
//!
//! | Part in the paper | Here |
//! |---|---|
//! | fine-grained access detector | `miss/detector`: recently read sectors of a page |
//! | read dispatcher | `miss/dispatcher`: bytes, sectors or blocks, by size and measured cost |
//! | constructor | `miss/constructor`: aligned requests, merged where they touch |
//! | requester | `miss/requester`: claims, reads and copies extents, offers them to the cache |
//! | read engine | [`engine`], `device/lanes`: deep queues, past the page cache |
//! | info area | `miss/info`: the reads in flight and their waiters |
//! | lookup table, data area, slabs, classes | `store` |
//! | LRU, threshold, TempBuf | `policy/pipette`; `policy` has others |
//! | reassignment, dynamic allocation | [`Reassignment`], `pool/maintenance` |
//! | consistency | `coherence/writes`, `coherence/outside`, `coherence/doubt` |
//!
//! Folders: `calls` has all calls but the plain read (`fine.rs`), `miss` the handling of misses,
//! `device` the reads from the device, `coherence` the record of changes, `store` the memory,
//! `policy` admission and eviction, and `pool` the state of files and what they share.
//!
//! Many files share one budget, policy and thread in a [`BufferPool`].
//!
//! Limits: it is not a write cache, and not a protocol between processes. It finds writes of other
//! processes by kernel events and by the file's times (see [`ExternalChanges`]). It may miss writes
//! through a memory mapping of the file. On a block device the smallest read is a logical block, as
//! the kernel states it for direct reads. That is 512 bytes on most devices, also on those with
//! larger physical blocks (512e). Where it is 4096, each small miss moves 4 KiB: reads of 128 bytes
//! under zipf 0.8, with an eighth of the file as memory, moved 14.9 bytes for each byte asked,
//! against 1.9 where it is 512. Formatting the device with 512-byte blocks (`nvme format`) removes
//! the difference. A device that moves single bytes needs an [`engine::ReadEngine`] that reports
//! this granularity. A place in persistent memory needs no cache at all.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod buffer_pool;
mod bytes;
mod calls;
mod coherence;
mod config;
mod device;
mod fine;
#[cfg(all(test, not(shuttle)))]
mod interleavings;
mod latencies;
mod metrics;
mod miss;
mod policy;
mod pool;
#[cfg(all(test, shuttle))]
mod schedules;
mod store;
mod sync;

pub use buffer_pool::BufferPool;
pub use bytes::Bytes;
pub use calls::asynchronous::{AsyncReader, AsyncReaderOptions, ReadFuture};
pub use calls::gather_future::GatherFuture;
pub use calls::snapshot::LoadSummary;
pub use calls::write::Writer;
pub use config::{CacheOptions, CachePolicy, ExternalChanges, FileOptions, Verify};
pub use datapipes_metrics::Histogram;
pub use device::engine;
pub use fine::FineGrained;
pub use latencies::Latencies;
pub use metrics::{ClassMetrics, Metrics, SLAB_BYTES};
pub use miss::gather::Gathered;
pub use store::reassign::Reassignment;
