//! Validation: whether data is in order, and whether it is still the same data.
//!
//! A [`Checker`] is fed a range of a file in pieces of any length and gives a
//! [`ValidationSummary`]: records, order, adjacent duplicates, and a checksum of the multiset of
//! records that does not depend on their order. Summaries of consecutive ranges
//! [join](ValidationSummary::join) to that of the whole, so ranges can be checked in parallel.
//! Counts and checksum are those of valsort (C. Nyberg, sortbenchmark.org).
//!
//! ```
//! use datapipes_data::validate::{Checker, DataFormat};
//!
//! let format = DataFormat::lines();
//! let mut checker = Checker::new(format.clone());
//! checker.feed(b"apple\nba");
//! checker.feed(b"nana\naardvark\n");
//! let summary = checker.finish();
//! assert_eq!((summary.records, summary.unordered), (3, 1));
//! assert_eq!(summary.first_unordered_offset, Some(13));
//! ```
#![forbid(unsafe_code)]

mod checker;
mod crc;
mod format;
mod layout;
mod order;
mod summary;
#[cfg(test)]
mod tests;

pub use checker::Checker;
pub use format::DataFormat;
pub use layout::RecordLayout;
pub use summary::ValidationSummary;
