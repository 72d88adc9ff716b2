//! A sort of many terabytes, object store to object store, on a cluster: how long it would take,
//! and what it would cost.
//!
//! ```text
//! map     objects --network--> sort --network--> blocks of other nodes --merge--> disk
//! reduce  disk --merge--> --network--> objects
//! ```
//! Each phase lasts as long as the busiest of its resources: processor, network in, network out,
//! object store, disk. All nodes do the same. Every number is an input with a range and an origin
//! (measured here, published, assumed). The outcome is a range, too: with every input at its worst,
//! as likely, and at its best. Nothing of it was run on a cloud.
//!
//! The phases are those of Exoshuffle-CloudSort (Luan et al., arXiv 2301.03734), which merges on
//! each node before it writes to the disk. `datapipes.ray` has no such stage, and refuses so many
//! blocks: for it the model says what the rates of its tasks would be worth there.

mod estimate;
mod inputs;
#[cfg(test)]
mod tests;
mod what_if;

pub use estimate::{CloudSortEstimate, CloudSortPhase, PhaseResource, estimate};
pub use inputs::{CloudInput, CloudSortInputs, InputLevel, InputOrigin, UncertainInput};
pub use what_if::{CloudSortWhatIf, InputInfluence, influences, what_ifs};

/// The time of the record: 100 TB on 40 nodes, in seconds (Exoshuffle-CloudSort, 2022).
pub const RECORD_SECONDS: f64 = 5378.0;
/// The cost of the record, in dollars.
pub const RECORD_DOLLARS: f64 = 97.0;
/// The time that the record's authors expect for 1 TB on ten nodes ("around 400 seconds", the
/// README of their repository).
pub const SMALL_RUN_SECONDS: f64 = 400.0;
