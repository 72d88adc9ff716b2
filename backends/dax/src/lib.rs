//! Persistent memory: bytes that are loaded and stored, and must be flushed to survive.
//!
//! | primitive | what it does |
//! |---|---|
//! | `pmem-store` | picks one of the two below by length and constraints |
//! | `pmem-store-nt` | whole blocks of 256 bytes by stores past the caches, the ends by ordinary ones written back; fenced |
//! | `pmem-store-writeback` | ordinary stores, each line written back (CLWB, CLFLUSHOPT or CLFLUSH); fenced |
//! | `pmem-load` | ordinary loads and stores, for short reads and for bytes that are wanted in the caches |
//! | `pmem-load-nt` | prefetched past the caches, stored past the caches |
//! | `pmem-flush` | writes back what another primitive left in the caches, in place |
//!
//! Which place is persistent memory is told by its facts: memory that is not volatile. Into a place
//! that persists on completion only these primitives store, since they alone flush. A page that is
//! gone, because the file was truncated or the medium has a bad block there, is an error of kind
//! `Device` with the offset, not the end of the process.
//!
//! | module | what |
//! |---|---|
//! | `backend`, `offers` | what is offered for a pair of places, and why not the rest |
//! | `mover` | a span under leases, and what is said when a page was gone |
//! | `store` | which bytes by which stores: blocks of the medium are written once |
//! | `guard` | the core's loops that a bad page ends with an answer, for this processor |
//! | `instructions` | what the processor has |
//!
//! It does not map files (the locator does) and does not make stores through a lease durable
//! (`Pmem::persist` does). That a flush was forgotten cannot be seen on an emulated device; the
//! order of stores and flushes is tested by what is issued.
#![deny(unsafe_code)]

mod backend;
mod guard;
mod instructions;
mod mover;
mod offers;
mod store;

pub use backend::DaxBackend;
pub use instructions::FlushInstructions;
