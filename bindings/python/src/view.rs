//! The buffer of a Python object, held until it is released.
//!
//! Unsafe code: the calls of the buffer protocol, with a `Py_buffer` that stays where it is.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyOSError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::device::tensor::is_on_device;
use crate::errors::invalid;

/// What is done with the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

/// A buffer that an object gave. The object keeps its bytes where they are until it is dropped.
pub(crate) struct View(Box<ffi::Py_buffer>);

// SAFETY: a view is plain data and a reference to its object. It is released only with the
// interpreter's lock held, by whichever thread.
unsafe impl Send for View {}
// SAFETY: a shared reference gives only the address and the length, which do not change.
unsafe impl Sync for View {}

impl View {
    /// Asks an object for its buffer, of the qualities that `flags` name.
    fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<View> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the interpreter's lock is held, and the view may be written. It is boxed, because
        // an exporter may refer to its fields until it is released.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } {
            0 => Ok(View(view)),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    /// The address of the first byte; `None` for no bytes.
    pub(crate) fn start(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.0.buf.cast::<u8>()).filter(|_| self.len() > 0)
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }

    fn is_readonly(&self) -> bool {
        self.0.readonly != 0
    }

    fn is_c_contiguous(&self) -> bool {
        // SAFETY: the view was filled by its object, and is not released.
        unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.0, b'C' as std::ffi::c_char) != 0 }
    }

    /// Whether its elements have references to objects, by the letter `O` of their format. Names of
    /// fields, which stand between colons, may have the letter, too.
    fn holds_objects(&self) -> bool {
        if self.0.format.is_null() {
            return false;
        }
        // SAFETY: a format is a text that ends with a zero byte, and lives as long as the view.
        let format = unsafe { CStr::from_ptr(self.0.format) };
        format.to_bytes().split(|byte| *byte == b':').step_by(2).any(|types| types.contains(&b'O'))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Where the interpreter ends, the object is not told any more.
        let _ = Python::try_attach(|_| {
            // SAFETY: the interpreter's lock is held, and the view was filled by its object. It is
            // released once, here.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.0) }
        });
    }
}

/// Whether an object has the buffer protocol.
pub(crate) fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the interpreter's lock is held, and the object is alive.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}

/// The bytes of an object with the buffer protocol or DLPack: whole, in C order, writable where
/// they are to be written, and no references to objects.
pub(crate) fn bytes_of(object: &Bound<'_, PyAny>, purpose: Use, operation: &'static str) -> PyResult<View> {
    let on_device = || {
        let why = "the bytes are on a GPU, and this call takes those of the processor's memory";
        Err(invalid(object.py(), operation, why))
    };
    if has_buffer(object) {
        return match buffer_of(object, purpose, operation) {
            Err(_) if is_on_device(object)? => on_device(),
            other => other,
        };
    }
    if is_on_device(object)? {
        return on_device();
    }
    if object.hasattr("__dlpack__")? {
        let array = object.py().import("numpy")?.getattr("from_dlpack")?.call1((object,))?;
        return buffer_of(&array, purpose, operation);
    }
    buffer_of(object, purpose, operation)
}

fn buffer_of(object: &Bound<'_, PyAny>, purpose: Use, operation: &'static str) -> PyResult<View> {
    let py = object.py();
    let writable = if purpose == Use::Write { ffi::PyBUF_WRITABLE } else { 0 };
    let objects = || invalid(py, operation, "the buffer has references to objects of Python, not only bytes");
    if let Ok(view) = View::get(object, ffi::PyBUF_FULL_RO | writable) {
        if view.holds_objects() {
            return Err(objects());
        }
        if !view.is_c_contiguous() {
            return Err(invalid(py, operation, "the bytes of the buffer do not lie side by side (C order)"));
        }
        return Ok(view);
    }
    // Arrays of numbers that formats have no letter for (dates, bfloat16) give plain bytes.
    let refused = match View::get(object, ffi::PyBUF_SIMPLE | writable) {
        Ok(_) if array_holds_objects(object) => return Err(objects()),
        Ok(view) => return Ok(view),
        Err(refused) => refused,
    };
    if purpose == Use::Write {
        let reads = [ffi::PyBUF_FULL_RO, ffi::PyBUF_SIMPLE].map(|flags| View::get(object, flags));
        if reads.iter().flatten().any(View::is_readonly) {
            return Err(invalid(py, operation, "the buffer is read-only"));
        }
    }
    // An error of this package (a Buffer is `Busy`) and the lack of a buffer are told as they are.
    let of_exporter = refused.is_instance_of::<PyBufferError>(py) || refused.is_instance_of::<PyValueError>(py);
    if !of_exporter || refused.is_instance_of::<PyOSError>(py) || refused.is_instance_of::<PyTypeError>(py) {
        return Err(refused);
    }
    let error = invalid(py, operation, format!("the object gives no buffer: {}", refused.value(py)));
    error.set_cause(py, Some(refused));
    Err(error)
}

/// Whether an array, which was not asked for a format, has references to objects.
fn array_holds_objects(object: &Bound<'_, PyAny>) -> bool {
    let known = object.getattr("dtype").and_then(|dtype| dtype.getattr("hasobject"));
    known.and_then(|known| known.is_truthy()).unwrap_or(false)
}
