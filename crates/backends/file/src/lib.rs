//! The backend for files and block devices: io_uring, `pread`/`pwrite`, and copies in the kernel.
//!
//! | module | what it does |
//! |---|---|
//! | `backend` | offers for a pair of places, and opening movers |
//! | `choice` | bypassing the page cache or using it, and the quality of each |
//! | `mover` | cuts jobs into requests, carries them out by two engines, and reads the kernel's results in one place |
//! | `nvme` | NVMe namespaces, and the commands that io_uring passes through to them |
//! | `kernel_copy` | file to file: reflink, else `copy_file_range` |
//! | `uring_facts`, `residency` | what the kernel supports, and what the page cache holds |
//! | `short_requests` | the files on which io_uring may be used |
//! | `faults` | injected short transfers and errors, for tests |
//!
//! It does not decide between primitives (the planner does) and does not open files (the locator
//! does). Nor does it preallocate: direct writes that extend a file are slow on most file systems,
//! so callers should preallocate.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![deny(unsafe_code)]

mod backend;
mod choice;
mod faults;
mod kernel_copy;
mod mover;
mod nvme;
mod priority;
mod residency;
mod short_requests;
mod uring_facts;

pub use backend::{FileBackend, FileBackendOptions};
pub use faults::{FaultInjector, FaultVerdict, Operation};
pub use residency::{cached_share, is_cached};
pub use uring_facts::UringFacts;
