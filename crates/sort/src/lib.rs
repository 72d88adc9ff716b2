//! External sort over data pipes: the flagship use of the CIDR'23 paper (section 3), on all cores,
//! within a budget.
//!
//! ```text
//! input --pipe--> slot     chunks arrive; each record gets an entry (key prefix, offset, length)
//!                 sort     entries, on all cores, bucket by bucket in the cache
//!                 gather   records in order, into blocks
//! blocks --pipe--> spill   a run; meanwhile the other slot is filled
//! runs --pipe--> buffers   two for each run and core
//!                 merge    each core a range of keys, by a loser tree
//! blocks --pipe--> output  synced, and only then under its name
//! ```
//! If the input fits the memory, gather writes the output, and nothing is merged.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![deny(unsafe_code)]

mod control;
mod cut;
mod distribute;
mod engine;
mod feeding;
mod form;
mod input;
mod job;
mod long;
mod long_records;
mod memory;
mod merging;
mod numbers;
mod output;
mod place;
mod processor_time;
mod records;
mod report;
mod runs;
mod shuffle;
mod sink;
mod small;
mod sort_method;
mod space;
mod stoppable;
mod telling;
pub mod text;
mod waits;

pub use control::{Control, SortProgress};
pub use input::Input;
pub use job::{RecordFormat, SortJob, default_memory, merge, sort};
pub use memory::budget::MIN_MEMORY;
pub use numbers::NumberKind;
pub use output::Output;
pub use place::{InputPlace, OutputPlace};
pub use records::tally::RecordTally;
pub use report::{
    CompressionReport, MethodReport, Movement, MovementRole, Phase, SortReport, SpacePlan, SpillUse, WaitReport,
};
pub use runs::packing::SpillCompression;
pub use runs::spill::SpillFiles;
pub use shuffle::{BlockClient, BlockKeeper, BlockTicket, PlacedRecord, RecordBorders, ShuffleOrder, UnnamedOutput};
pub use small::{SmallInput, SmallOutcome, SmallStandardInput};
pub use sort_method::SortMethod;
pub use telling::sort_telling;
pub use waits::{SortWait, SortWaits};
