//! External sort over data pipes: the flagship use of the CIDR'23 paper (section 3), on all cores, within a budget.
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

mod blocks;
mod budget;
mod checksum;
mod compressed;
mod control;
mod descriptors;
mod entry;
mod form;
mod gather;
mod input;
mod job;
mod layout;
mod memo;
mod merge;
mod numbers;
mod output;
mod parallel;
mod passes;
mod prefetch;
mod record_buffer;
mod record_reader;
mod report;
mod sample_sort;
mod sink;
mod slot;
mod space;
mod spill;
mod tally;
pub mod text;

pub use budget::MIN_MEMORY;
pub use control::{Control, SortProgress};
pub use input::Input;
pub use job::{RecordFormat, SortJob, default_memory, merge, sort};
pub use numbers::NumberKind;
pub use output::Output;
pub use report::{Movement, MovementRole, Phase, SortReport, SpacePlan, SpillUse};
