//! Models, in virtual time, of hardware that is not available here. Their figures are called models
//! wherever they are shown.
//!
//! - [`time`]: the kernel: a clock that only events advance, and a queue of future events.
//! - [`placements`]: data channels between devices under three protocol placements (Asmussen and
//!   Roitzsch, *Towards Disaggregation-Native Data Streaming between Devices*, section 4).
//! - [`platform_dma`]: messages between memory and a device over PCI Express, by descriptors or by
//!   an engine beside the cores (Larsen and Lee, *Platform IO DMA Transaction Acceleration*).
//! - [`io_cache`]: the last-level cache between devices, cores and persistent memory (Vogel et al.,
//!   *Data Pipes*, CIDR 2023, section 4).
//! - [`cloudsort`]: a sort of many terabytes on a cluster (Luan et al., *Exoshuffle-CloudSort*,
//!   2022).
//! - [`pipette`]: SSDs that are read by pages or by bytes, with and without the fine-grained cache
//!   of this project (Bai et al., *Pipette*, DAC 2022).
//!
//! Nothing here reads a clock, and all random numbers come from a seed: the same parameters give
//! the same figures on every machine. Beside the figures it is said what a model takes from its
//! paper, what was calibrated to meet the paper's figures, and what the text does not say.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![forbid(unsafe_code)]

pub mod cloudsort;
pub mod io_cache;
pub mod pipette;
pub mod placements;
pub mod platform_dma;
pub mod time;
