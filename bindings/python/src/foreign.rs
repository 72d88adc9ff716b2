//! Memory of Python objects as places of the library.
//!
//! ```text
//! object --PyBuffer (pinned until released)--> Foreign --Region::shared--> pipe, ring, jobs
//!                                                 |            |
//!                                                 |            +-- its keeper sets `gone` on drop
//!                                                 +-- dropped: released if `gone`, else kept
//! ```
//!
//! Unsafe code: a region over the bytes of a buffer. The bytes stay valid because the buffer is
//! released only when the region's keeper was dropped. The region is a *shared* one: other code of
//! the program may access the bytes meanwhile, as Python code can, so no references to them are
//! made.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datapipes::Dram;
use datapipes::locks::Mutex;
use datapipes::memory::Region;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::errors::{attached, invalid};

/// Set when the last reference to a region is dropped.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Buffers whose regions were still referred to when they were let go. The lock is taken only by
/// holders of the interpreter's lock, so a child of `fork` finds it free.
static KEPT: Mutex<Vec<(Arc<AtomicBool>, PyUntypedBuffer)>> = Mutex::new(Vec::new());

/// Releases kept buffers that nothing refers to any more.
pub(crate) fn sweep(py: Python<'_>) {
    let free: Vec<_> = {
        let mut kept = KEPT.lock();
        kept.extract_if(.., |(gone, _)| gone.load(Ordering::Acquire)).collect()
    };
    // Outside of the lock: a release runs code of the buffer's owner.
    free.into_iter().for_each(|(_, buffer)| buffer.release(py));
}

/// The bytes of a Python object.
struct Foreign {
    dram: Option<Dram>,
    buffer: Option<PyUntypedBuffer>,
    gone: Arc<AtomicBool>,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        drop(self.dram.take());
        if let Some(buffer) = self.buffer.take()
            && !self.gone.load(Ordering::Acquire)
        {
            KEPT.lock().push((self.gone.clone(), buffer));
        }
    }
}

/// Memory that a transfer reads or writes. It is made and dropped with the interpreter's lock.
pub(crate) struct Bytes {
    /// `None` for no bytes.
    dram: Option<Dram>,
    len: usize,
    // After `dram`: fields drop in order.
    _foreign: Option<Foreign>,
}

/// What is done with the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

impl Bytes {
    /// The bytes of a [`Buffer`], of an object with the buffer protocol, or of one with DLPack.
    pub(crate) fn of(object: &Bound<'_, PyAny>, purpose: Use, operation: &'static str) -> PyResult<Bytes> {
        let py = object.py();
        sweep(py);
        if let Ok(buffer) = object.cast::<Buffer>() {
            let buffer = buffer.get();
            if purpose == Use::Write && buffer.is_readonly() {
                return Err(invalid(py, operation, "the buffer is read-only"));
            }
            let len = buffer.place().len();
            return Ok(Bytes { dram: (len > 0).then(|| buffer.place().clone()), len, _foreign: None });
        }
        let raw = raw(object, purpose, operation)?;
        let len = raw.len_bytes();
        let Some(start) = NonNull::new(raw.buf_ptr().cast::<u8>()).filter(|_| len > 0) else {
            return Ok(Bytes { dram: None, len: 0, _foreign: None });
        };
        let gone = Arc::new(AtomicBool::new(false));
        // SAFETY: an exporter keeps the bytes of a buffer where they are until it is released, and
        // `Foreign` releases it after the keeper was dropped. For writing, it was checked that the
        // buffer is not read-only; for reading, the region is only used as a source.
        let region = unsafe { Region::shared(start, len, Box::new(Gone(gone.clone()))) };
        let dram = attached(py, || Ok(Dram::over(region.range(0, len)?)));
        drop(region);
        let dram = dram?;
        let foreign = Foreign { dram: Some(dram.clone()), buffer: Some(raw), gone };
        Ok(Bytes { dram: Some(dram), len, _foreign: Some(foreign) })
    }

    /// The place; `None` for no bytes.
    pub(crate) fn place(&self) -> Option<&Dram> {
        self.dram.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// The buffer of an object: whole, in C order, writable where it is to be written.
pub(crate) fn raw(object: &Bound<'_, PyAny>, purpose: Use, operation: &'static str) -> PyResult<PyUntypedBuffer> {
    let py = object.py();
    let raw = match PyUntypedBuffer::get(object) {
        Ok(raw) => raw,
        Err(error) if error.is_instance_of::<PyTypeError>(py) && object.hasattr("__dlpack__")? => {
            let array = py.import("numpy")?.getattr("from_dlpack")?.call1((object,))?;
            PyUntypedBuffer::get(&array)?
        }
        Err(error) => return Err(error),
    };
    if purpose == Use::Write && raw.readonly() {
        return Err(invalid(py, operation, "the buffer is read-only"));
    }
    // An `O` in the format is a reference; names of fields stand between colons.
    let mut types = raw.format().to_bytes().split(|byte| *byte == b':').step_by(2);
    if types.any(|types| types.contains(&b'O')) {
        return Err(invalid(py, operation, "the buffer has references to objects of Python, not only bytes"));
    }
    if !raw.is_c_contiguous() {
        return Err(invalid(py, operation, "the bytes of the buffer do not lie side by side (C order)"));
    }
    Ok(raw)
}
