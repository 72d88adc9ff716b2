//! Reads of what the page cache has, by one system call: no place is made, and nothing is leased of
//! memory that is not the library's own.
//!
//! Unsafe code: the system call writes into the bytes of a Python object. Its view, or the lease of
//! a Buffer, keeps them until the call is over.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use datapipes::memory::Access;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::buffer::Buffer;
use crate::device::tensor::is_on_device;
use crate::errors::attached;
use crate::foreign::{Bytes, Use, raw};
use crate::opened::Opened;
use crate::short::{AT_ONCE, read_cached_to};

/// Up to so many bytes are copied with the interpreter's lock held. Another thread that took it
/// meanwhile would keep it for longer (5 ms, unless it waits) than the copy takes.
const HELD: usize = 32 << 10;

/// Fills an object from `offset` of a file, and returns the number of bytes, where the page cache
/// has them and they are at most [`AT_ONCE`].
pub(crate) fn read(py: Python<'_>, opened: &Opened, offset: u64, object: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    // The commonest target needs no view: nobody resizes it while the lock is held.
    if let Ok(array) = object.cast_exact::<PyByteArray>()
        && array.len() <= HELD
    {
        let Some(start) = NonNull::new(array.data()).filter(|_| array.len() > 0) else { return Ok(None) };
        // SAFETY: only holders of the interpreter's lock resize the array or drop its bytes, and
        // `copy` keeps the lock for so few bytes, without running code of Python.
        return Ok(unsafe { copy(py, opened, offset, Target(start, array.len())) });
    }
    if object.cast::<Buffer>().is_ok() {
        let bytes = Bytes::of(object, Use::Write, "read")?;
        let Some(place) = bytes.host().filter(|place| place.len() as u64 <= AT_ONCE) else { return Ok(None) };
        let lease = attached(py, || place.memory().raw_lease(Access::Write))?;
        let Some(start) = NonNull::new(lease.address()) else { return Ok(None) };
        // SAFETY: the lease gives the right to write its bytes, and ends after the call.
        return Ok(unsafe { copy(py, opened, offset, Target(start, lease.len())) });
    }
    let view = match raw(object, Use::Write, "read") {
        Err(_) if is_on_device(object)? => return Ok(None),
        view => view?,
    };
    let Some(start) = view.start().filter(|_| view.len() as u64 <= AT_ONCE) else { return Ok(None) };
    // SAFETY: the view was checked to be writable, and keeps its bytes until after the call.
    Ok(unsafe { copy(py, opened, offset, Target(start, view.len())) })
}

/// Bytes that may be written.
struct Target(NonNull<u8>, usize);

// SAFETY: the address is used by one thread at a time: the one that calls `copy`.
unsafe impl Send for Target {}

/// # Safety
/// The bytes of the target may be written, and stay valid until this returns.
unsafe fn copy(py: Python<'_>, opened: &Opened, offset: u64, target: Target) -> Option<usize> {
    let len = target.1;
    let work = move |target: Target| {
        if !opened.may_be_cached(offset, len as u64) {
            return None;
        }
        // SAFETY: as the caller says.
        let done = unsafe { read_cached_to(&opened.ssd, offset, target.0.as_ptr(), target.1) };
        opened.note_cached(done.is_some());
        done
    };
    if len <= HELD { work(target) } else { py.detach(move || work(target)) }
}
