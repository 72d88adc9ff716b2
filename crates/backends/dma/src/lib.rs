//! The backends for DMA engines, which copy between places in memory: `dsa` for the Intel Data
//! Streaming Accelerator, through the user interface of Linux's driver `idxd`, and `dmadev` for
//! engines that DPDK drives.
//!
//! **They have never run on hardware.** What is tested is everything above the portal of a work
//! queue, on models of devices in the tests and on DPDK's own device in software; `docs/dsa.md` and
//! `docs/dmadev.md` have the tables.
//!
//! | primitive | what it does |
//! |---|---|
//! | `dsa-move` | copies; written bytes go to memory |
//! | `dsa-move-to-cache` | copies; written bytes go to the last-level cache (CIDR'23: direct cache access) |
//! | `dsa-and-core` | copies; a core copies its share |
//! | `dmadev-move`, `dmadev-and-core` | the same by an engine of DPDK |
//!
//! | module | what it does |
//! |---|---|
//! | `descriptor`, `completion` | what an engine reads and writes, byte by byte |
//! | `discovery` | the work queues in sysfs, and what keeps each from use |
//! | `portal` | how a descriptor enters a queue: the device, or a model of one |
//! | `work_queue` | entries and answers of an open queue, batches, the end of a queue |
//! | `mover` | jobs, cut into pieces; page faults, full queues, lost engines |
//! | `operations` | fill, compare, CRC, copy to two targets, flush |
//! | `analytics` | analytics accelerators (Intel IAA): CRC-64, compression and decompression |
//! | `split` | the share of a copy that goes to the engine where a core copies the rest |
//! | `cost` | what a move costs, assumed or measured |
//! | `family`, `offers` | the primitives, offers for a pair of places, and the reasons against them |
//! | `engines`, `backend` | the engines of a family, and the backend `dsa` |
//! | `dmadev` | DPDK: loaded, started, and its devices as portals |
//!
//! It does not configure queues (`accel-config` does), and it uses no interrupts: who waits polls.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_code)]

mod analytics;
mod backend;
mod completion;
mod cost;
mod descriptor;
mod discovery;
mod dmadev;
mod engines;
mod family;
mod mover;
mod offers;
mod operations;
mod portal;
mod split;
mod work_queue;

pub use analytics::{AnalyticsQueue, AnalyticsRecord, CompressState, Crc64Convention, DeflateOutcome};
pub use backend::DsaBackend;
pub use completion::{CompletionCode, CompletionRecord, CompletionSlot};
pub use cost::{MoveCost, SplitCost};
pub use descriptor::{Descriptor, DescriptorBytes, DescriptorFlags, EngineOperation, MalformedDescriptor};
pub use discovery::{QueueDiscovery, QueueMode, WorkQueueFacts};
pub use dmadev::DmadevBackend;
pub use engines::PortalOpener;
pub use portal::{DevicePortal, Portal, Submission};
pub use work_queue::{LostQueue, WorkQueue};
