//! Device models of Pipette (Bai et al., *Pipette: Efficient Fine-Grained Reads for SSDs*, DAC
//! 2022), in virtual time.
//!
//! - [`Device`](device::SimulatedDevice) is the SSD: flash channels, a read buffer, a link.
//! - [`System`](system::System) is a way to read it: block I/O with a page cache, 2B-SSD by MMIO
//!   and by DMA, and Pipette without and with its cache, each in a few lines. It is the twin of the
//!   next.
//! - [`Library`](library::Library) is the fine-grained cache of this project, the same code that
//!   reads real files, over an engine in virtual time. Every byte that it returns is checked.
//! - [`report`](figures::report) runs the paper's experiments (sections 4.2, 4.3) and compares the
//!   figures with the paper's, each with its [`Agreement`](report::Agreement): exact, calibrated,
//!   out of reach.
//!
//! # What a real device would need
//!
//! The byte interface of the paper is firmware: the host gives addresses in a host memory buffer,
//! and the device puts byte ranges of flash pages there. Stock hardware offers parts of it:
//!
//! - *NVMe SGL with bit buckets*: a read of a block whose scatter list discards all but some bytes.
//!   The link then carries only these; flash and command cost as much as for a block. It needs a
//!   controller that states bit buckets (Identify, SGLS bit 16) and a way past the kernel's block
//!   layer, because `io_uring` passthrough builds no such lists today.
//! - *Host memory buffer*: widely available, but for the device's own tables. Firmware that puts
//!   user data into it and reports so had to be written by the paper's authors.
//! - *CXL memory or persistent memory*: loads of single lines. A locator over such memory needs
//!   neither a block nor this cache.
//! - *Controller memory buffer*: if it is mapped into the processor's address space, loads have 8
//!   bytes each and are not posted. This is 2B-SSD by MMIO, whose line rises in figure 8.
//!
//! An engine for such a device states `granularity: 1` in its
//! [`EngineFacts`](datapipes_cache::engine::EngineFacts), as the model's does; nothing else
//! changes.
//!
//! Not modelled: writes, garbage collection, queues deeper than one request of the reader, and
//! devices limited by their cores.

pub mod device;
pub mod experiment;
pub mod figures;
pub mod fit;
pub mod library;
pub mod lru;
pub mod page_cache;
mod published;
pub mod report;
pub mod system;
#[cfg(test)]
mod tests;
pub mod timing;

pub use datapipes_cache::CachePolicy;
