//! Data channels between isolated devices.
#![deny(unsafe_code)]

pub mod capability;
pub mod channel;
pub mod control;
pub mod device;
pub mod file;
pub mod memory;
pub mod placement;
pub mod process;
mod sync;
pub mod transport;

pub use datapipes_core::{Error, ErrorKind, Result};
