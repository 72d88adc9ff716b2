//! Reads from the device.

pub mod engine;
pub(crate) mod lanes;
