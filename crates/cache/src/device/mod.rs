//! Reads from the device.

pub mod engine;
pub(crate) mod lanes;
pub(crate) mod place;
mod units;
