//! Where a log lies: three traits, and files.

pub(super) mod folder;
pub(super) mod storage;
