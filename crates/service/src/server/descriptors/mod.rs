//! What clients pass: descriptors, taken in by a process of their own, and the places made of them.

pub(super) mod guard;
pub(super) mod intake;
pub(super) mod places;
