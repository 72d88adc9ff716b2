//! Vocabulary and decisions of Data Pipes: where data is, what is there, which way, go.
//!
//! | module | question |
//! |---|---|
//! | [`error`](Error) | what went wrong, and what can be done about it |
//! | [`span`](Span) | how much, from which offset to which |
//! | [`memory`] | who may reach which bytes |
//! | [`topology`] | what is there |
//! | [`locator`] | where is it |
//! | [`backend`] | who could move it, by which primitive, at what cost |
//! | [`plan`] | which way, and why not another |
//! | [`pipe`] | go, and what really happened |
//!
//! Each imports only those before it. The crate names no backend; `datapipes` puts core and backends together.
#![deny(unsafe_code)]

pub mod backend;
mod error;
pub mod locator;
mod machine;
pub mod memory;
pub mod pipe;
pub mod plan;
mod span;
pub mod topology;

pub use backend::Counters;
pub use error::{Error, ErrorKind, Result};
pub use locator::{
    CoreCache, Draft, Dram, Endpoint, FileAccess, Identity, Locator, Persistence, Reach, Ssd, Uri, parse_size,
};
pub use machine::Machine;
pub use memory::{Lease, LeaseMut, MapOptions, Pages, Pool};
pub use pipe::{Pipe, Report, Transfer};
pub use plan::{Constraints, Route};
pub use span::Span;
