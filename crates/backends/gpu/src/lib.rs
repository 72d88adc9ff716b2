//! The backend for the memory of GPUs: high-bandwidth memory (HBM) that NVIDIA's driver reaches.
//!
//! ```no_run
//! use datapipes_core::{Dram, Machine, Span};
//! use datapipes_gpu::Hbm;
//! # fn machine() -> Machine { unimplemented!() }
//! # fn main() -> datapipes_core::Result<()> {
//! let (here, there) = (Dram::allocate(1 << 30)?, Hbm::allocate(0, 1 << 30)?);
//! machine().connect(&here, &there)?.transfer(Span { source: 0, target: 0, len: 1 << 30 })?;
//! # Ok(())
//! # }
//! ```
//!
//! | primitive | what it does |
//! |---|---|
//! | `gpu-upload`, `gpu-download` | memory of this process to HBM, and back, by a copy engine of the device |
//! | `gpu-copy` | HBM to HBM of one device |
//! | `gpu-peer` | HBM to HBM of another device; run on a model of the driver, never on two devices |
//!
//! A file and HBM are connected by the planner with two hops through buffers of the pipe, which
//! overlap.
//!
//! | module | what it does |
//! |---|---|
//! | `driver` | the driver's functions, contexts, streams, events |
//! | `devices` | the devices and their facts |
//! | `hbm` | the locator [`Hbm`], its leases, and their order with streams of the program |
//! | `registered` | memory of this process that the driver has pinned |
//! | `staging` | pinned buffers for memory that is not registered |
//! | `mover` | jobs, and what wakes a thread that waits for them |
//! | `cost`, `backend` | what a copy costs, and offers |
//!
//! The driver (`libcuda.so.1`) is loaded when HBM is first allocated, and never linked: nothing of
//! CUDA is needed to build. The crate `cudarc` was not used, because it panics where a library or a
//! function is missing, and the forty functions that are needed fit a table.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![deny(unsafe_code)]

mod backend;
mod cost;
mod devices;
mod driver;
mod hbm;
mod mover;
mod registered;
mod staging;

pub use backend::GpuBackend;
pub use devices::{GpuDevice, gpu_devices};
pub use hbm::{Hbm, HbmLease, HbmLeaseMut};
