//! The backend for persistent memory: bytes that are loaded and stored, and must be flushed to
//! survive.
//!
//! | primitive | what it does |
//! |---|---|
//! | `pmem-store` | picks one of the two below by length and constraints |
//! | `pmem-store-nt` | whole blocks of 256 bytes by stores that bypass the caches, the ends by ordinary ones written back; fenced |
//! | `pmem-store-writeback` | ordinary stores, each line written back (CLWB, CLFLUSHOPT or CLFLUSH); fenced |
//! | `pmem-load` | ordinary loads and stores, for short reads and for bytes that are wanted in the caches |
//! | `pmem-load-nt` | prefetched and stored past the caches |
//! | `pmem-flush` | writes back bytes that another primitive left in the caches, in place |
//!
//! A place is persistent memory if its facts say so: it is memory and not volatile. Only these
//! primitives store into a place that persists on completion, since only they flush. A missing
//! page, because the file was truncated or the medium has a bad block there, is an error of kind
//! `Device` with the offset, not the end of the process.
//!
//! | module | what it does |
//! |---|---|
//! | `backend`, `offers` | offers for a pair of places, and the reasons against the other primitives |
//! | `mover` | moves a span under leases, and reports a missing page |
//! | `store` | decides which bytes go by which stores, so that blocks of the medium are written once |
//! | `guard` | the core's guarded loops, for this processor |
//! | `instructions` | the processor's instructions |
//!
//! It does not map files (the locator does), and it does not make stores through a lease durable
//! (`Pmem::persist` does). On an emulated device a forgotten flush has no visible effect; tests
//! check the order of the stores and flushes that are issued.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_code)]

mod backend;
mod guard;
mod instructions;
mod mover;
mod offers;
mod store;

pub use backend::DaxBackend;
pub use instructions::FlushInstructions;
