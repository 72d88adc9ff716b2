//! Sorted parts between the tasks of a sort on several machines, without a store in between.
//!
//! A map task writes its sorted part to a file without a name on its own node, and gives it to the
//! keeper of the node, a process that lives as long as the sort. A reduce task merges its range of
//! all parts: it reads files of its own node itself, and has ranges of other nodes' sent.
//!
//! ```text
//! wire       requests and answers
//! keeper     what keeps files of a node, and sends ranges of them
//! sending    how bytes of a file go to another node
//! client     what tasks ask of it
//! unnamed    a file without a name as the output of a sort
//! ```

mod client;
mod keeper;
mod sending;
mod unnamed;
mod wire;

pub use client::BlockClient;
pub use keeper::BlockKeeper;
pub use unnamed::UnnamedOutput;
pub use wire::BlockTicket;
