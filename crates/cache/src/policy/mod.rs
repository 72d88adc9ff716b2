//! Policies for admission and eviction, each in a file of its own, with its source.
//!
//! A policy works on one shard, under its lock. It keeps its order in the slots' headers, in links
//! beside them if it asks for those, and in its own memory. The shard moves bytes and keeps the
//! index.

mod clock;
mod ghosts;
mod lru;
mod pipette;
mod s3fifo;
pub(crate) mod shadow;
mod sieve;
mod sketch;
mod tinylfu;

pub(crate) use pipette::Pipette;
pub(crate) use s3fifo::S3Fifo;
pub(crate) use sieve::Sieve;
pub(crate) use tinylfu::TinyLfu;
