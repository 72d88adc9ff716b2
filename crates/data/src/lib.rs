//! Data for demonstrations, measurements and tests.
//!
//! - [`generate`]: records, numbers and lines as pure functions from a byte range to its content.
//! - [`access`]: which bytes of a file are read, in which order: uniform, zipf, embeddings, a
//!   social graph.
//! - [`validate`]: order and multiset checksum of data fed in pieces.
//!
//! Nothing here does I/O; the caller moves the bytes through pipes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(unsafe_code)]

pub mod access;
pub mod generate;
pub mod validate;
