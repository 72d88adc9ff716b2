//! Movers of the file backend: jobs are cut into requests, which two engines carry out.
//!
//! ```text
//! job -> JobTable::next_request -> IoRequest -> ring or pread/pwrite
//!           ^ cut                                        |
//!           +--- what is left of a short request --- JobTable::finish_request -> JobCompletion
//! ```
//!
//! [`MoverContext`] is what all requests of a mover share. [`request_plan`] has the rules of
//! alignment, and [`jobs::JobTable`] the jobs and their requests. [`Ring`] and [`Blocking`] are the
//! engines. [`FileExtentReader`] is separate: short reads for one caller, without jobs.

mod blocking;
mod bounce;
mod entries;
mod extents;
mod iowq_keepalive;
mod jobs;
mod page_cache;
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
