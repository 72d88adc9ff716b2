//! Data that must survive a crash, over data pipes: the two other well-behaved workloads of the
//! CIDR'23 paper (section 2).
//!
//! * [`log`]: small sequential records to low-latency persistent storage, acknowledged when they
//!   are durable;
//! * [`checkpoint`]: several large regions of memory in parallel to stable storage, published as a
//!   whole or not at all.
//!
//! Both take the machine and the place as values, move bytes only by pipes, and check what they
//! read.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod checkpoint;
mod dir_lock;
pub mod log;
mod movements;
