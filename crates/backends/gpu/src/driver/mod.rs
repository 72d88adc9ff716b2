//! The driver of the GPUs: loaded and initialized once a process, with its devices.
//!
//! Contexts are the devices' primary ones, which other libraries of the process (PyTorch, CuPy) use
//! too, so their addresses are valid here. A context is made current on a thread for the time of a
//! few calls, and what was current before is so again afterwards. Where nothing was, that of device
//! 0 stays: it is what CUDA's own runtime would choose, and a short copy would pay for the change.
//!
pub(crate) mod abi;
pub(crate) mod device;
pub(crate) mod library;
mod loaded;
pub(crate) mod stream;

use std::sync::OnceLock;

use datapipes_core::{Error, ErrorKind, Result};

use self::device::Device;
pub(crate) use self::loaded::{Driver, Failure, checked};

/// The devices of the driver, which is loaded by the first call.
///
/// # Errors
/// As [`Driver::get`]; `Unavailable` where there is none.
pub(crate) fn devices(operation: &'static str) -> Result<&'static [Device]> {
    static FOUND: OnceLock<Result<Vec<Device>, String>> = OnceLock::new();
    let driver = Driver::get(operation)?;
    let found = FOUND.get_or_init(|| device::discover(&driver.functions));
    found.as_deref().map_err(|why| Error::new(ErrorKind::Unavailable, operation, why.clone()))
}

/// The device with a number.
///
/// # Errors
/// As [`devices`]; `NotFound`.
pub(crate) fn device(number: u32, operation: &'static str) -> Result<&'static Device> {
    let devices = devices(operation)?;
    devices.get(number as usize).ok_or_else(|| {
        let context = format!("GPU {number}: the driver has {} devices, counted from 0", devices.len());
        Error::new(ErrorKind::NotFound, operation, context)
    })
}
