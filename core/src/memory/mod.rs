//! Bytes in memory, and the leases that are the only way to reach them.
//!
//! With `process` this module is the core's only unsafe code. It promises:
//! * a [`Region`] stays mapped while anything refers to it (an `Arc` is held by every range, lease
//!   and transfer);
//! * bytes are seen through a [`Lease`] or [`LeaseMut`] only, and the region's table refuses a
//!   lease that overlaps one with which it cannot coexist
//!   ([`ErrorKind::Busy`](crate::ErrorKind::Busy)), so `&[u8]` and `&mut [u8]` never alias;
//! * bytes that others can change without a lease (a mapped file, memory that another process has)
//!   are never seen by reference, unless the caller vouches for the others (`unsafe`): they are
//!   copied, or moved by pipes;
//! * a transfer in flight holds a [`RawLease`], which outlives any handle that the caller may drop;
//! * memory of a pool is not taken again while a place, a pipe or a lease refers to it.
//!
//! * a region that maps a file knows which: its watches hear of what is written here, before and
//!   after, and a page that the file or its medium no longer has is an error ([`guarded`]), not the
//!   end of the process.
#![allow(unsafe_code)]

mod file_map;
pub mod guarded;
mod intervals;
mod lease;
mod lines;
mod page_nodes;
mod pool;
mod prefault;
mod region;
mod shared_map;
pub mod sigbus;
mod table;

pub(crate) use file_map::{MappedFile, Sharing};
pub use lease::{Lease, LeaseMut, Plain, RawLease, as_bytes};
pub use pool::Pool;
pub use region::{MapOptions, MemoryRange, Pages, Region, copy_pair, lease_pair};
pub use table::Access;

#[cfg(test)]
mod tests;
