//! Analytics accelerators (Intel IAA): CRC-64, compression and decompression of Deflate.
//!
//! They are devices of the driver `idxd` as DSA's are, with the same portals and work queues; their
//! descriptors have other operations, and their records 64 bytes. **Never run on hardware.**
//!
//! The layouts are those of Linux's `include/uapi/linux/idxd.h` and of its driver
//! `drivers/crypto/intel/iaa`, after the Intel In-Memory Analytics Accelerator Architecture
//! Specification; flags of operations are those of Intel's library QPL.

mod queue;
mod record;
mod state;

pub use queue::{AnalyticsQueue, Crc64Convention, DeflateOutcome};
pub use record::AnalyticsRecord;
pub use state::CompressState;
