//! From errors of the library to exceptions of Python.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use datapipes::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Makes the exception of an error: the class of its kind in `datapipes`, with all that it says.
pub(crate) fn to_py(py: Python<'_>, error: &Error) -> PyErr {
    to_py_at(py, error, None)
}

/// As [`to_py`], of an error that is about a file or a folder.
pub(crate) fn to_py_at(py: Python<'_>, error: &Error, path: Option<&Path>) -> PyErr {
    let made = || -> PyResult<Bound<'_, PyAny>> {
        let known = PyDict::new(py);
        known.set_item("kind", format!("{:?}", error.kind()))?;
        known.set_item("errno", error.errno())?;
        known.set_item("filename", path.map(Path::as_os_str))?;
        known.set_item("offset", error.offset())?;
        known.set_item("bytes_done", error.bytes_done())?;
        known.set_item("operation", error.operation())?;
        known.set_item("advice", error.advice().map(in_python))?;
        py.import("datapipes._errors")?.getattr("_make")?.call((in_python(&error.to_string()),), Some(&known))
    };
    // Where even that fails (no memory, an interpreter that ends), its own error is told.
    made().map_or_else(|failed| failed, PyErr::from_value)
}

/// Words of the library, which name settings of a sort as a program in Rust knows them, with the
/// names of the arguments of Python. (The others have the same name.)
fn in_python(words: &str) -> String {
    words.replace("`memory_bytes`", "`memory`")
}

/// Runs work of the library without the interpreter's lock. A panic, which would be an error of the
/// library, becomes an exception as well.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> datapipes::Result<T> + Send) -> PyResult<T> {
    let outcome = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    outcome.unwrap_or_else(|panic| Err(panicked(&*panic))).map_err(|error| to_py(py, &error))
}

/// As [`detached`], for work with the file or folder of a path, which the exception names. That a
/// folder is no file is told by the system's number, as `open` of Python does.
pub(crate) fn detached_at<T: Send>(
    py: Python<'_>,
    path: &Path,
    work: impl FnOnce() -> datapipes::Result<T> + Send,
) -> PyResult<T> {
    let named = || {
        work().map_err(|error| match error.kind() {
            ErrorKind::InvalidInput if error.errno().is_none() && error.operation() == "open" && path.is_dir() => {
                error.with_errno(libc::EISDIR)
            }
            _ => error,
        })
    };
    let outcome = py.detach(|| catch_unwind(AssertUnwindSafe(named)));
    outcome.unwrap_or_else(|panic| Err(panicked(&*panic))).map_err(|error| to_py_at(py, &error, Some(path)))
}

/// As [`detached`], for short work that keeps the lock.
pub(crate) fn attached<T>(py: Python<'_>, work: impl FnOnce() -> datapipes::Result<T>) -> PyResult<T> {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    outcome.unwrap_or_else(|panic| Err(panicked(&*panic))).map_err(|error| to_py(py, &error))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    Error::new(ErrorKind::Panicked, "call", format!("the library panicked: {}", text.unwrap_or("without a text")))
}

/// Makes the exception for arguments that make no sense.
pub(crate) fn invalid(py: Python<'_>, operation: &'static str, why: impl Into<String>) -> PyErr {
    to_py(py, &Error::new(ErrorKind::InvalidInput, operation, why))
}

/// What `to_dict` returns is made of this text.
pub(crate) fn json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|e| to_py(py, &Error::new(ErrorKind::System, "describe", e.to_string())))
}
