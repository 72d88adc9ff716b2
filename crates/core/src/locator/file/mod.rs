//! Files and block devices.

pub(super) mod extend;
pub(super) mod file_place;
pub(super) mod kind;
pub(super) mod space;
pub(super) mod ssd;
