//! Declare where data is, connect two places, transfer: the library picks the way and says why.
//!
//! This crate is what programs depend on: the vocabulary of [`datapipes_core`] and a [`Machine`]
//! that has every backend. The shape of a program is figure 6a of the Data Pipes paper (CIDR'23),
//! here over a real file. Each core moves a run from the SSD into its L2, sorts it there, and hands
//! it back to memory:
//!
//! ```
//! use datapipes::{CoreCache, Dram, Span, Ssd};
//!
//! # let path = std::env::temp_dir().join(format!("datapipes-doc-{}", std::process::id()));
//! # let numbers: Vec<u8> = (0..64 << 10).rev().flat_map(|n: u64| n.to_le_bytes()).collect();
//! # std::fs::write(&path, &numbers).map_err(|e| datapipes::Error::io("write", e, "a file"))?;
//! let machine = datapipes::discover();
//! let ssd = Ssd::open(&path)?;
//! let run = machine.l2_size().min(64 << 10) as usize; // small, so that this example is quick
//! let cores = machine.topology().usable_cores().count();
//! let dram = Dram::allocate(cores * run)?;
//!
//! machine.each_core(|core| {
//!     let at = machine.position(core) * run;
//!     let cache = CoreCache::over(core, &dram.range(at, run)?)?;
//!     let up = machine.connect(&ssd, &cache)?; // the route is chosen, or refused, here
//!     let down = machine.connect(&cache, &dram)?;
//!     up.transfer(Span { source: at as u64 % (256 << 10), target: 0, len: run as u64 })?;
//!     cache.lease_mut()?.as_slice_of::<u64>()?.sort_unstable();
//!     // The same bytes: they are handed back in place.
//!     down.transfer(Span { source: 0, target: at as u64, len: run as u64 })
//! })?;
//!
//! let bytes = dram.range(0, run)?.lease()?;
//! assert!(bytes.as_slice_of::<u64>()?.is_sorted());
//! # std::fs::remove_file(&path).map_err(|e| datapipes::Error::io("remove", e, "a file"))?;
//! # Ok::<(), datapipes::Error>(())
//! ```
//!
//! `examples/fig6a.rs` follows the figure line by line. The features `sort`, `cache`, `fabric`,
//! `service`, `gpu`, `net` and `object` add the modules of those names, the feature `log` adds
//! `durable`. The command line is the program `dpipe`.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_code)]

pub use datapipes_bundle::{TriedOn, cached_share, discover, is_cached, tried_on};
#[cfg(not(shuttle))]
pub use datapipes_core::offer;
pub use datapipes_core::{
    AtomicFile, Batch, ConnectFdOptions, ConnectOptions, Constraints, CoreCache, Counters, Dram, Endpoint, Error,
    ErrorKind, FileAccess, FileMode, Finished, Handle, Handles, HopReport, InPlaceFile, InPlaceReason, Lease, LeaseMut,
    Locator, Machine, MapOptions, NumaMemory, OutputFile, Pages, Persistence, Pipe, PipeFd, PipeReport, PlaceReport,
    PlaceUse, Pmem, PmemOptions, Pool, PriorityClass, PublishOutcome, Reach, Reader, Result, Route, Runtime,
    RuntimePipe, STAGED_BYTES, ServiceLevel, Span, Ssd, StageOrder, StagePlace, Staging, StagingExtent, TargetKind,
    Transfer, Uri, WriteObserver, WriteObservers, parse_size,
};
pub use datapipes_core::{
    backend, descriptor, graph, guard, locator, locks, memory, pipe, plan, process, runtime, threads, topology,
};

#[doc(hidden)] // For the command line.
pub use datapipes_core::control_group;
#[doc(hidden)] // For the command line.
pub use datapipes_core::in_flight_limit;

/// Names, units and samples of what is measured.
pub use datapipes_metrics as metrics;

/// Memory of GPUs as a place, reached by NVIDIA's driver.
#[cfg(feature = "gpu")]
pub use datapipes_bundle::gpu;
/// Memory of other processes and machines as a place, read and written by UCX.
#[cfg(feature = "net")]
pub use datapipes_bundle::net;
/// Objects in buckets as places.
#[cfg(feature = "object")]
pub use datapipes_bundle::object;
/// Reads of a few bytes from files larger than memory, through a cache of bytes (*Pipette*,
/// DAC'22).
#[cfg(feature = "cache")]
pub use datapipes_cache as cache;
/// Logs and checkpoints that survive a crash.
#[cfg(feature = "log")]
pub use datapipes_durable as durable;
/// Channels between isolated devices.
#[cfg(feature = "fabric")]
pub use datapipes_fabric as fabric;
/// Pipes that another process carries out: `dpiped` and its client.
#[cfg(feature = "service")]
pub use datapipes_service as service;
/// The external sort.
#[cfg(feature = "sort")]
pub use datapipes_sort as sort;
