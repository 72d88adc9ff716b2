//! Memory, and the leases through which alone its bytes are reached.
//!
//! With `process` this module is the core's only unsafe code. It promises:
//! * A [`Region`] stays mapped while anything refers to it: every range, lease and transfer holds
//!   an `Arc`.
//! * Bytes are seen only through a [`Lease`] or [`LeaseMut`]. The region's table refuses a lease
//!   that overlaps an incompatible one ([`ErrorKind::Busy`](crate::ErrorKind::Busy)), so `&[u8]`
//!   and `&mut [u8]` never alias.
//! * Bytes that others can change without a lease (a mapped file, memory that another process has)
//!   are never seen by reference, unless the caller vouches for the others (`unsafe`). They are
//!   copied, or moved by pipes.
//! * A transfer in flight holds a [`RawLease`], which outlives any handle that the caller may drop.
//! * Memory of a pool is not handed out again while a place, a pipe or a lease refers to it.
//! * A region that maps a file knows the file. The file's observers are told before and after each
//!   write here. A page that the file or its medium no longer has causes an error ([`guarded`]),
//!   not the end of the process.
#![allow(unsafe_code)]

pub mod guarded;
mod headroom;
mod lease;
mod lines;
mod map;
mod page_nodes;
mod pool;
mod prefault;
mod range;
mod region;
mod resident;
mod table;

pub use guarded::sigbus;
pub use headroom::allocate_all;
pub use lease::{Lease, LeaseMut, Plain, RawLease, as_bytes};
pub(crate) use map::mapped_file::{MappedFile, Sharing};
pub use pool::Pool;
pub use range::{MemoryRange, copy_pair, lease_pair};
pub use region::{MapOptions, Pages, Region};
pub use resident::ResidentBytes;
pub use table::access::Access;

#[cfg(test)]
mod tests;
