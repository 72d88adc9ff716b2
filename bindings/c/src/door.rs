//! The one door into the library: panics and errors become handles of errors.

use datapipes::Result;
use datapipes::guard::{self, ForeignCode};

use crate::error::dp_error;

/// Runs a function of the library for a caller in C.
#[inline]
pub(crate) fn enter(work: impl FnOnce() -> Result<()>) -> dp_error {
    match guard::call(ForeignCode::Thread, work) {
        Ok(Ok(())) => dp_error::NONE,
        Ok(Err(error)) => dp_error::of(error),
        Err(panicked) => dp_error::of(panicked.error("call")),
    }
}
