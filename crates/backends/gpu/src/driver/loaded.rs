//! The driver, loaded and initialized once a process.
//!
//! Unsafe code: calls of the driver that take numbers, or write into variables of the caller.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result};

use super::abi::{self, Status};
use super::library::Functions;

/// The driver, initialized.
pub(crate) struct Driver {
    pub(crate) functions: Functions,
    pub(crate) version: String,
    owner: OwningProcess,
}

/// A call of the driver that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    /// The function.
    pub(crate) call: &'static str,
    pub(crate) status: Status,
}

impl Driver {
    /// The driver, which is loaded by the first call.
    ///
    /// # Errors
    /// `Unavailable` with what is not there; `Forked` in a child of the process that loaded it.
    pub(crate) fn get(operation: &'static str) -> Result<&'static Driver> {
        static LOADED: OnceLock<Result<Driver, String>> = OnceLock::new();
        let driver = LOADED.get_or_init(Driver::load).as_ref().map_err(|why| {
            Error::new(ErrorKind::Unavailable, operation, why.clone())
                .with_advice("`nvidia-smi` shows whether the driver and its devices work")
        })?;
        driver.owner.check(operation)?;
        Ok(driver)
    }

    fn load() -> Result<Driver, String> {
        let functions = Functions::load()?;
        let version = initialize(&functions)?;
        Ok(Driver { functions, version, owner: OwningProcess::here() })
    }

    /// A failed call as an error.
    pub(crate) fn error(&self, operation: &'static str, failure: Failure, what: &str) -> Error {
        let words = self.functions.words_of(failure.status);
        let (kind, advice) = match failure.status {
            abi::INVALID_VALUE => (ErrorKind::InvalidInput, None),
            abi::OUT_OF_MEMORY => (ErrorKind::OutOfMemory, Some("free memory of the device (see `nvidia-smi`)")),
            abi::NO_DEVICE | abi::INVALID_DEVICE => (ErrorKind::NotFound, None),
            abi::NOT_PERMITTED => (ErrorKind::PermissionDenied, None),
            abi::NOT_SUPPORTED => (ErrorKind::Unavailable, None),
            _ => (
                ErrorKind::Device,
                Some(
                    "the driver may refuse all work of this process from now on: `dmesg` has the device's reason (Xid)",
                ),
            ),
        };
        let error = Error::new(kind, operation, format!("{what}: {} says {words}", failure.call));
        match advice {
            Some(advice) => error.with_advice(advice),
            None => error,
        }
    }
}

/// The result of a call.
pub(crate) fn checked(call: &'static str, status: Status) -> Result<(), Failure> {
    if status == abi::SUCCESS { Ok(()) } else { Err(Failure { call, status }) }
}

/// Initializes the driver; returns its version.
///
/// # Errors
/// What the driver says.
fn initialize(functions: &Functions) -> Result<String, String> {
    let failed = |failure: Failure| format!("{} says {}", failure.call, functions.words_of(failure.status));
    // SAFETY: it takes a number that must be 0.
    checked("cuInit", unsafe { (functions.init)(0) }).map_err(failed)?;
    let mut version = 0;
    // SAFETY: it writes a number.
    checked("cuDriverGetVersion", unsafe { (functions.driver_version)(&raw mut version) }).map_err(failed)?;
    Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
}
