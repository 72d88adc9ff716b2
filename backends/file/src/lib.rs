//! Files and block devices: io_uring, `pread`/`pwrite`, copies inside the kernel.
//!
//! | module | what |
//! |---|---|
//! | `backend` | what is offered for a pair of places, and opening it |
//! | `choice` | past the page cache or through it, and how good each would be |
//! | `mover` | jobs into requests, two engines that carry them out, and the one place that reads a kernel's result |
//! | `kernel_copy` | file to file: reflink, else `copy_file_range` |
//! | `uring_facts`, `residency` | what the kernel has, what the page cache holds |
//! | `short_requests` | which files io_uring may be used on |
//! | `faults` | short transfers and errors on request, for tests |
//!
//! It does not decide between primitives (the planner does), open files (the locator does) or
//! preallocate: direct writes that extend a file are slow on most file systems, so callers
//! preallocate.
#![deny(unsafe_code)]

mod backend;
mod choice;
mod faults;
mod kernel_copy;
mod mover;
mod priority;
mod residency;
mod short_requests;
mod uring_facts;

pub use backend::{FileBackend, FileConfig};
pub use faults::{FaultInjector, FaultVerdict, Operation};
pub use uring_facts::UringFacts;
