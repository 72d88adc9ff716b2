//! Pipes for other processes: a service that is a machine's one coordinator, and its client
//! (CIDR'23, section 5.2; *Platform IO DMA Transaction Acceleration*: one integrated data mover).
//!
//! ```text
//! client                                      dpiped
//! memfd, files  --descriptors, one packet-->  checks them, connects them in its runtime
//! pipe          <--descriptor---------------  one end of a socket pair
//! submit, epoll, complete on that descriptor  scheduler: all clients together, by class and rate
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`protocol`] | what is said over the socket: JSON packets, descriptors beside them |
//! | [`Client`], [`ClientPipe`], [`SharedMemory`] | the client's side |
//! | [`server`] | the service's side |
//!
//! A client can do without this crate: the protocol is plain packets, and so are the messages of a
//! pipe ([`datapipes_core::descriptor::wire`]).
//!
//! # What the service can and cannot do with what it is given
//!
//! * It opens nothing by name: of the client it has only the descriptors that were passed. A file
//!   is used with the rights of its descriptor, which must fit its role; the service's own rights
//!   add none.
//! * It maps passed memory as long as a pipe over it exists, and reads or writes what transfers
//!   name. While a pipe exists, an attacker who took over the service could read and write all of
//!   that memory and those files, but no more.
//! * It cannot see other memory of the client, signal it, or keep its pipes against its will: when
//!   the connection to the service ends, its pipes end after the parts in flight, and the memory is
//!   unmapped.
//! * What a client has ends with its connection: its pipes, its memory, and all parts of its
//!   transfers that no device or thread has begun, however long the transfers are. (A connection
//!   ends when its last descriptor is closed, so a child made by `fork` keeps it open.)
//! * Memory, descriptors, pipes, transfers and connections are limited for each client, memory and
//!   connections also for each user ([`ServiceLimits`](server::ServiceLimits)). Each client has one
//!   thread for its requests, and a number of requests per second. Transfers are scheduled by class
//!   and pipe. Space on disks is not limited here: the kernel charges it to a file's owner.
//! * A client cannot name another's pipes, and bytes of one never pass through memory of another.
//!   Clients share the devices and the memory bandwidth, by class and within the limits.
//! * Passed descriptors are received by a helper process, and the service gets them only if no
//!   client serves their file system. If closing a file blocks for ever, its client is cut off, and
//!   its slot stays taken as long. That helper process outlives the service until the file's server
//!   answers or ends; nothing can end it before.
//! * Memory must be populated (written, or allocated) when it is passed, because pages are charged
//!   to the process that touches them first. The service adds no pages; a client that removes pages
//!   is cut off when they are missed. (This needs `userfaultfd`. If the kernel has none, the
//!   service says so when it starts, and pages that clients remove can add to the memory that it
//!   uses.)
//! * If a client writes into memory that is being read, the target gets any mixture of old and new
//!   bytes; other clients are not affected.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod client;
pub mod protocol;
pub mod server;
mod shared;
mod status;

pub use client::{Client, ClientPipe, ClientPlace, default_paths};
pub use shared::SharedMemory;
pub use status::{ClientStatus, ClientTransfers, ExportTotals, ServiceStatus};
