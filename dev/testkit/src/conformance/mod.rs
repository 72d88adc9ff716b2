//! One suite that certifies every backend and every locator, chosen by what they declare.
//!
//! ```text
//! kinds of places x kinds of places -> ways (offers of the backends, one hop or two) -> certify -> an Outcome each
//! ```
//!
//! [`run`] takes the machine and the [`PlaceKind`]s of places; what could not run comes back as
//! skipped, with the reason. It asks nobody what a backend is called: reach, length and offers
//! decide which demands hold.
//!
//! It does not provoke faults (a backend's own tests do) and measures nothing.

mod certify;
mod persistent;
mod place;
mod suite;
mod ways;

pub use persistent::DAX_DIRECTORY;
pub use place::{LEN as CASE_BYTES, PlaceContent, PlaceKind, TestBlockDevice, TestPlace};
pub use suite::{CaseOutcome, CaseVerdict, run};

#[cfg(test)]
mod tests;
