//! External sort over data pipes: the flagship use of the CIDR'23 paper (section 3), on all cores,
//! within a budget.
//!
//! ```text
//! input --pipe--> slot     chunks arrive; each record gets an entry (key prefix, place)
//!                 sort     entries, on all cores, bucket by bucket in cache
//!                 gather   records in order, into blocks
//! blocks --pipe--> spill   a run; meanwhile the other slot is filled
//! runs --pipe--> buffers   two a run and core
//!                 merge    each core a range of keys, by a loser tree
//! blocks --pipe--> output  beside its name; synced, then renamed
//! ```
//! Where the input fits the memory, gather writes the output, and there is no merge.
#![deny(unsafe_code)]

mod control;
mod form;
mod input;
mod job;
mod memory;
mod merging;
mod numbers;
mod output;
mod records;
mod report;
mod runs;
mod sink;
mod space;
pub mod text;

pub use control::{Control, SortProgress};
pub use input::Input;
pub use job::{RecordFormat, SortJob, default_memory, merge, sort};
pub use memory::budget::MIN_MEMORY;
pub use numbers::NumberKind;
pub use output::Output;
pub use report::{Movement, MovementRole, Phase, SortReport, SpacePlan, SpillUse};
