//! What lies there, and what makes a stale or damaged byte recognizable.

pub(super) mod close_note;
pub(super) mod frame;
pub(super) mod sealed;
pub(super) mod segment;
