//! Pipes for other processes: a service that is the one coordinator of a machine, and its client
//! (CIDR'23, section 5.2; *Platform IO DMA Transaction Acceleration*: one integrated data mover).
//!
//! ```text
//! client                                      dpiped
//! memfd, files  --descriptors, one packet-->  checks them, connects them in its runtime
//! pipe          <--descriptor---------------  one end of a socket pair
//! submit, epoll, complete on that descriptor  scheduler: all clients side by side, by class and rate
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`protocol`] | what is said over the socket: JSON packets, descriptors beside them |
//! | [`Client`], [`ClientPipe`], [`SharedMemory`] | the client's side |
//! | [`server`] | the service's side |
//!
//! A client needs this crate only for comfort: the protocol is plain packets, and so is what goes
//! over a pipe ([`datapipes_core::descriptor::wire`]).
//!
//! # What the service can do with what it is given, and what not
//!
//! * It opens nothing by a name: it has the descriptors that were passed and no others of the
//!   client. A file is used with the rights of the descriptor, which must fit its role; the
//!   service's own rights add none.
//! * It maps memory that was passed for as long as a pipe over it exists, and reads or writes in it
//!   what transfers name. While a pipe exists, a service that was broken into could read and write
//!   all of that memory and those files, not more.
//! * It cannot see other memory of the client, signal it, or outlive the client's wishes: when the
//!   connection to the service ends, its pipes end after what is under way, and the memory is
//!   unmapped.
//! * What a client has ends with its connection: its pipes, its memory, and all of its transfers
//!   that a device or a thread has not begun, however long they were to be. (A connection ends when
//!   its last descriptor is closed, so a process that forks hands it on.)
//! * Memory, descriptors, pipes, transfers and connections are limited by client, memory and
//!   connections by user, too ([`ServiceLimits`](server::ServiceLimits)). Requests take their time
//!   from one thread for each client, so many in a second; transfers are scheduled by class and
//!   pipe. Not limited: space on disks, which the kernel charges to a file's owner.
//! * One client cannot name another's pipes, and bytes of one never pass through memory of another.
//!   Clients share the devices and the memory bandwidth, by class, and what the limits leave them.
//! * What is passed is taken in by a process that can be done without, and comes to the service
//!   only if it is of a file system that no client serves. Where letting go of a file takes for
//!   ever, its client is cut off, and its place is taken for as long. That process outlives the
//!   service until the file's server answers or ends; nothing can end it before.
//! * Memory must be there (written, or allocated) when it is passed: pages are charged to whoever
//!   touches them first. The service adds none; a client that takes pages away is cut off when they
//!   are missed. (This needs `userfaultfd` of the kernel. Where it has none, the service says so
//!   when it starts, and pages that clients take away can add to what it uses.)
//! * What a client writes into memory that is being read ends up in the target in any mixture;
//!   nobody else is concerned.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod client;
mod packet;
pub mod protocol;
pub mod server;
mod shared;
mod status;

pub use client::{Client, ClientPipe, ClientPlace, default_paths};
pub use shared::SharedMemory;
pub use status::{ClientStatus, ServiceStatus};
