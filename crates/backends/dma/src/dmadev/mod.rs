//! Engines that DPDK has a driver for (I/OAT and others), through its library dmadev.
//!
//! DPDK is loaded at run time, where the program asks for it, and is never linked. It runs in this
//! process: an engine behind an IOMMU reaches the memory of the process that maps it there, so a
//! process of DPDK's own could not move our bytes.
//!
//! | module | what it does |
//! |---|---|
//! | `library` | loads DPDK, finds its functions, refuses other versions |
//! | `environment` | starts DPDK, once a process |
//! | `device` | the devices, and one that is open |
//! | `mapped_pages` | which pages an engine behind an IOMMU can reach |
//! | `portal` | descriptors in, answers out, as for the other engines |
//! | `backend` | the backend `dmadev` |

mod backend;
mod device;
mod environment;
mod library;
mod mapped_pages;
mod portal;
#[cfg(test)]
mod tests;

pub use backend::DmadevBackend;
