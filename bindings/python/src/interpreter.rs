//! Which interpreter of the process imports the package.
//!
//! Unsafe code: two functions of the interpreter's stable interface, called by a thread that is
//! attached to it.
#![allow(unsafe_code)]

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Fails in a subinterpreter. At its end the package would wait for transfers without the interpreter's
/// lock; where the process ends it with the main interpreter, such a thread never gets the lock again,
/// and the process would hang.
pub(crate) fn check_is_main(_: Python<'_>) -> PyResult<()> {
    // SAFETY: the thread is attached, as its token shows, so there is a current interpreter.
    let number = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    match number {
        0 => Ok(()),
        _ => Err(PyImportError::new_err("datapipes does not support subinterpreters: import it in the main one")),
    }
}
