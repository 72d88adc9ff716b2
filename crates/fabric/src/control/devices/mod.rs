//! What the controller does about a device that is not believed: limits, its words, what it kept.

pub(super) mod audit;
pub(in crate::control) mod groups;
pub(super) mod quota;
pub(super) mod stderr;
pub(super) mod unread;
