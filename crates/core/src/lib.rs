//! Core of Data Pipes: the places where data can be, the machine that was found, the routes between
//! places, and the pipes that move bytes.
//!
//! | module | what it holds |
//! |---|---|
//! | [`locks`] | locks that ignore poison |
//! | [`sync`](crate) | synchronization of threads; a model of it for tests of schedules |
//! | [`setters`](crate) | what is asked: setters of option structs |
//! | [`error`](Error) | what went wrong, and what the caller can do about it |
//! | [`process`] | the process to which a value belongs, across a fork |
//! | [`file_lock`] | locks on open files |
//! | [`page_cache`] | the way of a file's pages to the device |
//! | [`in_flight_limit`] | how many bytes may be under way, by the rate at which they arrive |
//! | [`guard`] | calls of foreign code |
//! | [`thread_role`](crate) | what the current thread is to a runtime, and what others do while it sleeps |
//! | [`threads`] | starting threads, which the kernel may refuse |
//! | [`thread_share`](runtime::ThreadShare) | shares of caches and memory bandwidth for threads |
//! | [`control_group`] | control groups that limit processes |
//! | [`packet`] | packets of Unix sockets, with descriptors |
//! | [`offer`] | statistics that a process offers to its user's others |
//! | [`span`](Span) | the offsets and the length of a transfer |
//! | [`topology`] | the hardware that was found |
//! | [`watch`](WriteObservers) | observers of changes to a file's bytes |
//! | [`memory`] | memory, and who may read or write which bytes |
//! | [`locator`] | the places where data can be |
//! | [`backend`] | primitives that can move bytes, and their costs |
//! | [`plan`] | the choice of a route, with reasons |
//! | [`pipe`] | transfers that block, and reports of them |
//! | [`machine`](Machine) | topology and backends as one value |
//! | [`runtime`] | many transfers at once, with service levels |
//! | [`graph`] | transfers and computations that depend on each other |
//! | [`descriptor`] | transfers for any event loop, by a file descriptor |
//!
//! Each module imports only modules above it. The crate names no backend; the crate `datapipes`
//! puts core and backends together.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

#[cfg(not(target_os = "linux"))]
compile_error!("Data Pipes runs on Linux only: it moves bytes by what that kernel offers.");

pub mod backend;
#[doc(hidden)] // For the other crates of Data Pipes.
pub mod control_group;
pub mod descriptor;
mod error;
#[doc(hidden)] // For the other crates of Data Pipes.
pub mod file_lock;
pub mod graph;
pub mod guard;
#[doc(hidden)] // For the other crates of Data Pipes.
pub mod in_flight_limit;
pub mod locator;
pub mod locks;
mod machine;
pub mod memory;
#[cfg(not(shuttle))]
pub mod offer;
#[doc(hidden)] // For the other crates of Data Pipes.
pub mod packet;
#[doc(hidden)] // For the other crates of Data Pipes.
pub mod page_cache;
pub mod pipe;
pub mod plan;
pub mod process;
pub mod runtime;
mod setters;
mod span;
mod sync;
mod thread_role;
mod thread_share;
pub mod threads;
pub mod topology;
mod watch;

pub use backend::Counters;
pub use descriptor::{ConnectFdOptions, PipeFd};
pub use error::{Error, ErrorKind, Result};
pub use locator::{
    AtomicFile, CoreCache, Dram, Endpoint, FileAccess, FileMode, InPlaceFile, InPlaceReason, Locator, NumaMemory,
    OutputFile, Persistence, PlaceUse, Pmem, PmemOptions, PublishOutcome, Reach, Reader, Ssd, StageOrder, StagePlace,
    Staging, StagingExtent, TargetKind, Uri, parse_size,
};
pub use machine::Machine;
pub use memory::{Lease, LeaseMut, MapOptions, Pages, Pool};
pub use pipe::{Batch, Finished, HopReport, Pipe, PipeReport, PlaceReport, Transfer};
pub use plan::{Constraints, Route, STAGED_BYTES};
pub use runtime::{ConnectOptions, Handle, Handles, PriorityClass, Runtime, RuntimePipe, ServiceLevel};
pub use span::Span;
pub use watch::{WriteObserver, WriteObservers};
