//! Jobs into requests, and two engines that carry them out.
//!
//! ```text
//! job -> Jobs::next -> Piece -> engine (ring or pread/pwrite) -> Jobs::settle -> Done
//!           ^ cut                                                     |
//!           +------------- what a short request left over ------------+
//! ```
//!
//! [`Site`] is what the requests of one mover have in common, [`cut`] the rules of alignment, [`Jobs`] who waits for
//! what, [`Ring`] and [`Blocking`] the engines. [`Extents`] goes its own way: short reads for one caller, without jobs.

mod blocking;
mod bounce;
mod cut;
mod extents;
mod iowq_keepalive;
mod jobs;
mod ring;
mod site;
mod slices;
mod watchdog;

pub(crate) use blocking::Blocking;
pub(crate) use cut::{Direction, Lane, Rules};
pub(crate) use extents::Extents;
pub(crate) use ring::Ring;
pub(crate) use site::{Queue, Site};
