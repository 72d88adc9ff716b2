//! Vocabulary and decisions of Data Pipes: where data is, what is there, which way, go.
//!
//! | module | question |
//! |---|---|
//! | [`sync`](crate) | what threads share; a model of it for tests of schedules |
//! | [`error`](Error) | what went wrong, and what can be done about it |
//! | [`process`] | which process a value belongs to, across a fork |
//! | [`guard`] | calls of code that is not ours |
//! | [`threads`] | threads, which the kernel may refuse |
//! | [`span`](Span) | how much, from which offset to which |
//! | [`topology`] | what is there |
//! | [`watch`](WriteObservers) | who must know when a file's bytes change |
//! | [`memory`] | who may reach which bytes |
//! | [`locator`] | where is it |
//! | [`backend`] | who could move it, by which primitive, at what cost |
//! | [`plan`] | which way, and why not another |
//! | [`pipe`] | go, and what really happened |
//! | [`machine`](Machine) | all of it as a value |
//! | [`runtime`] | go, many side by side, each as it deserves |
//! | [`graph`] | go, together with computation, each after what it depends on |
//! | [`descriptor`] | go, from any event loop |
//!
//! Each imports only those before it. The crate names no backend; `datapipes` puts core and
//! backends together.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod backend;
pub mod descriptor;
mod error;
pub mod graph;
pub mod guard;
pub mod locator;
mod machine;
pub mod memory;
pub mod pipe;
pub mod plan;
pub mod process;
pub mod runtime;
mod span;
mod sync;
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
pub use pipe::{Batch, Finished, Pipe, PipeReport, PlaceReport, Transfer};
pub use plan::{Constraints, Route, STAGED_BYTES};
pub use runtime::{ConnectOptions, Handle, Handles, PriorityClass, Runtime, RuntimePipe, ServiceLevel};
pub use span::Span;
pub use watch::{WriteObserver, WriteObservers};
