//! Memory of the library as a Python object.
//!
//! Unsafe code: the buffer protocol, and memory that is taken out of an object that is dropped. The
//! address that is given out is that of leased bytes, and the lease ends when the last view is
//! released.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ops::Deref;

use datapipes::locks::Mutex;
use datapipes::{Dram, Lease, LeaseMut, MapOptions};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::{attached, detached, invalid, to_py};

/// Memory of more bytes than this is returned without the interpreter's lock.
const MUCH: usize = 1 << 20;

/// The right that views have.
#[allow(dead_code)] // A lease is held, not looked at.
enum ViewLease {
    Read(Lease),
    Write(LeaseMut),
}

#[derive(Default)]
struct Views {
    count: usize,
    lease: Option<ViewLease>,
}

/// Memory for transfers: page-aligned, on huge pages where the kernel has them, zeroed.
///
/// It supports the buffer protocol and DLPack without a copy. While views of it exist (a
/// `memoryview`, an array of NumPy), they hold its lease: transfers that name the Buffer fail as
/// `Busy`. Views of a read-only Buffer (`toreadonly`) hold a shared lease, beside which transfers
/// may read.
#[pyclass(frozen, weakref, module = "datapipes", name = "Buffer")]
pub(crate) struct Buffer {
    place: Held,
    readonly: bool,
    /// Locked only by holders of the interpreter's lock.
    views: Mutex<Views>,
}

/// Memory that is returned without the interpreter's lock: much of it takes the kernel a while.
struct Held(ManuallyDrop<Dram>);

impl Deref for Held {
    type Target = Dram;

    fn deref(&self) -> &Dram {
        &self.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: it is taken once, here, and nobody refers to this object after its `drop`.
        let place = unsafe { ManuallyDrop::take(&mut self.0) };
        if place.len() > MUCH {
            // An object is dropped with the interpreter's lock held.
            let _ = Python::try_attach(|py| py.detach(move || drop(place)));
        }
    }
}

impl Buffer {
    pub(crate) fn over(place: Dram) -> Buffer {
        Buffer::with(place, false)
    }

    fn with(place: Dram, readonly: bool) -> Buffer {
        Buffer { place: Held(ManuallyDrop::new(place)), readonly, views: Mutex::new(Views::default()) }
    }

    pub(crate) fn place(&self) -> &Dram {
        &self.place
    }

    pub(crate) fn is_readonly(&self) -> bool {
        self.readonly
    }

    /// Counts a view. The first one takes the lease.
    fn begin_view(&self) -> datapipes::Result<()> {
        let mut views = self.views.lock();
        if views.count == 0 {
            views.lease = Some(match self.readonly {
                true => ViewLease::Read(self.place.lease()?),
                false => ViewLease::Write(self.place.lease_mut()?),
            });
        }
        views.count += 1;
        Ok(())
    }

    fn end_view(&self) {
        let mut views = self.views.lock();
        views.count = views.count.saturating_sub(1);
        if views.count == 0 {
            views.lease = None;
        }
    }
}

/// Allocates memory; an empty range of a byte for a length of 0.
pub(crate) fn allocate(len: usize, prefault: bool) -> datapipes::Result<Dram> {
    let place = Dram::allocate_with(len.max(1), MapOptions::default().prefault(prefault))?;
    if len == 0 { place.range(0, 0) } else { Ok(place) }
}

#[pymethods]
impl Buffer {
    #[new]
    #[pyo3(signature = (len, *, prefault = true))]
    fn new(py: Python<'_>, len: usize, prefault: bool) -> PyResult<Buffer> {
        Ok(Buffer::over(detached(py, || allocate(len, prefault))?))
    }

    fn __len__(&self) -> usize {
        self.place.len()
    }

    /// The length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.place.len()
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.place.memory().address().addr()
    }

    /// Whether views of it are read-only.
    #[getter]
    fn readonly(&self) -> bool {
        self.readonly
    }

    /// The number of views that hold the lease now.
    #[getter]
    fn exports(&self) -> usize {
        self.views.lock().count
    }

    /// The same memory, of which only read-only views are given.
    fn toreadonly(&self) -> Buffer {
        Buffer::with(self.place.clone(), true)
    }

    /// `len` bytes at `offset`, which are the same bytes.
    fn part(&self, py: Python<'_>, offset: usize, len: usize) -> PyResult<Buffer> {
        let place = attached(py, || self.place.range(offset, len))?;
        Ok(Buffer::with(place, self.readonly))
    }

    /// Fails as an array would, where NumPy does not get a view.
    #[pyo3(signature = (dtype = None, *, copy = None))]
    fn __array__<'py>(
        slf: Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let numpy = py.import("numpy")?;
        let array = numpy.getattr("frombuffer")?.call1((&slf, numpy.getattr("uint8")?))?;
        let known = pyo3::types::PyDict::new(py);
        known.set_item("copy", copy)?;
        numpy.getattr("array")?.call((array, dtype), Some(&known))
    }

    /// A DLPack capsule of the bytes (`uint8`), made by NumPy.
    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(
        slf: Bound<'py, Self>,
        options: Option<Bound<'py, pyo3::types::PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = slf.py().import("numpy")?;
        let array = numpy.getattr("frombuffer")?.call1((&slf, numpy.getattr("uint8")?))?;
        array.call_method("__dlpack__", (), options.as_ref())
    }

    /// The processor's memory: (1, 0).
    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }

    fn __repr__(&self) -> String {
        let readonly = if self.readonly { ", read-only" } else { "" };
        format!("<datapipes.Buffer of {} bytes{readonly}>", self.place.len())
    }

    /// Gives a view.
    ///
    /// # Safety
    /// CPython calls it with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = slf.py();
        if view.is_null() {
            return Err(invalid(py, "view", "no view to fill"));
        }
        // SAFETY: CPython gives a view that may be written; a view that is not filled has no owner.
        unsafe { (*view).obj = std::ptr::null_mut() };
        let this = slf.get();
        // Making an exception, or filling the view, may collect garbage, among it views of this
        // Buffer, which take this lock. So it is not held then.
        this.begin_view().map_err(|error| to_py(py, &error))?;
        let start = this.place.memory().address();
        let len = this.place.len() as ffi::Py_ssize_t;
        // SAFETY: the address and the length are those of the leased bytes. They stay valid while
        // the view lives, because it refers to this object, which refers to the memory.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), len, c_int::from(this.readonly), flags) };
        if filled != 0 {
            this.end_view();
            return Err(PyErr::fetch(py));
        }
        Ok(())
    }

    /// Takes a view back.
    ///
    /// # Safety
    /// CPython calls it, once for each view.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.end_view();
    }
}
