//! The backend for copies by the processor: copy kernels, loads into a core's cache, write-backs
//! and demotions of cache lines.
//!
//! | primitive | what it does |
//! |---|---|
//! | `copy-by-size` | picks one of the four below by length, target and constraints, from the calibration |
//! | `memcpy` | the C library's copy |
//! | `rep-movsb` | the microcoded copy |
//! | `nt-avx2`, `nt-avx512` | vector loads, and stores that bypass the caches |
//! | `load-into-cache` | loads the lines of a range into the caches of the core that runs the transfer |
//! | `cldemote`, `clwb`, `clflushopt`, `leave` | return lines of a core's cache to memory, in place |
//!
//! [`CpuBackend`] offers them, and [`Calibration`] holds their costs on this machine. All of them
//! run on the caller's core and are done when they return; the backend has no queue and no thread.
//!
//! ```
//! use std::sync::Arc;
//! use datapipes_core::{Dram, Machine, Span, topology::Topology};
//! use datapipes_cpu::{Calibration, CpuBackend};
//!
//! let topology = Topology::discover();
//! let cpu = CpuBackend::new(&topology, Calibration::assumed(&topology));
//! let machine = Machine::new(topology, vec![Arc::new(cpu)]);
//! let (source, target) = (Dram::allocate(4096)?, Dram::allocate(4096)?);
//! source.lease_mut()?.fill(7);
//! let pipe = machine.connect(&source, &target)?;
//! pipe.transfer(Span { source: 0, target: 0, len: 4096 })?;
//! assert!(target.lease()?.iter().all(|byte| *byte == 7));
//! assert_eq!(pipe.route().primitives(), ["copy-by-size"]);
//! # Ok::<(), datapipes_core::Error>(())
//! ```
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_code)]

mod backend;
mod calibration;
mod instructions;
mod kernel;
mod mover;
mod offers;

pub use backend::CpuBackend;
pub use calibration::{Calibration, CopyCost, Layer, LineCosts, SizeClass};
pub use instructions::CopyInstructions;
pub use kernel::{Copier, Kernel, LineInstruction, LineOp};
