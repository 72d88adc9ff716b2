//! Jobs into requests, and two engines that carry them out.
//!
//! ```text
//! job -> JobTable::next -> Piece -> engine (ring or pread/pwrite) -> JobTable::settle -> JobCompletion
//!           ^ cut                                                     |
//!           +------------- what a short request left over ------------+
//! ```
//!
//! [`MoverContext`] is what the requests of one mover have in common, [`request_plan`] the rules of alignment, [`jobs::JobTable`] who waits for
//! what, [`Ring`] and [`Blocking`] the engines. [`FileExtentReader`] goes its own way: short reads
//! for one caller, without jobs.

mod blocking;
mod bounce;
mod extents;
mod iowq_keepalive;
mod jobs;
mod request_plan;
mod ring;
mod site;
mod slices;
mod watchdog;

pub(crate) use blocking::Blocking;
pub(crate) use extents::FileExtentReader;
pub(crate) use request_plan::{CacheMode, Direction, Rules};
pub(crate) use ring::Ring;
pub(crate) use site::{MoverContext, QueueSettings};
