//! Memory of the library as a Python object.
//!
//! ```text
//! Buffer, its parts --> Home: the memory, and the leases that views of each of them hold
//! ```
//!
//! A child of `fork` has a copy of the memory, and no transfer of the parent touches it. So the
//! child makes a place of its own over the same addresses, with the leases of the views, too.
//!
//! Unsafe code: the buffer protocol, memory that is taken out of an object that is dropped, and the
//! child's place. The address that is given out is that of leased bytes, and the lease ends when
//! the last view is released.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes::locks::Mutex;
use datapipes::memory::{Access, RawLease, Region};
use datapipes::process::OwningProcess;
use datapipes::{Dram, MapOptions, Result};
use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice};

use crate::errors::{attached, detached, invalid};
use crate::watched;

/// Memory of more bytes than this is returned without the interpreter's lock.
const MUCH: usize = 1 << 20;

/// A part of the memory of a home, by its first byte and its length.
#[derive(Clone, Copy)]
struct Part {
    at: usize,
    len: usize,
    readonly: bool,
}

impl Part {
    fn of(self, whole: &Dram) -> Result<Dram> {
        if self.at == 0 && self.len == whole.len() { Ok(whole.clone()) } else { whole.range(self.at, self.len) }
    }

    /// The right that views have. Python has the address only, so bytes that a file shows are leased
    /// like others.
    fn lease(self, whole: &Dram) -> Result<RawLease> {
        self.of(whole)?.memory().raw_lease(if self.readonly { Access::Read } else { Access::Write })
    }
}

/// The views of one Buffer.
struct Views {
    count: usize,
    part: Part,
    #[allow(dead_code)] // It is held, not looked at.
    lease: RawLease,
}

/// The memory of a Buffer and of its parts, as a place of this process.
struct Here {
    whole: ManuallyDrop<Dram>,
    /// By the numbers of the Buffers.
    views: BTreeMap<u64, Views>,
    owner: OwningProcess,
}

impl Here {
    /// Makes a place of this process, if it has the parent's.
    fn settle(&mut self) -> Result<()> {
        if self.owner.is_here() {
            return Ok(());
        }
        let parents = (*self.whole).clone();
        let memory = parents.memory();
        let Some(start) = NonNull::new(memory.address()) else { return Ok(()) };
        let len = memory.len();
        // SAFETY: the keeper keeps the mapping. The bytes are a copy, and of the threads that held
        // leases of the parent's place none is in this process. The leases of views, which do go on
        // here, are made anew below, before anybody gets the new place.
        // Pages of a file that were not written show what others write to it, so they are shared.
        let region = unsafe {
            match memory.region().is_shared() {
                true => Region::shared(start, len, Box::new(parents.clone())),
                false => Region::foreign(start, len, Box::new(parents.clone())),
            }
        };
        let own = Dram::over(region.range(0, len)?);
        for views in self.views.values_mut() {
            views.lease = views.part.lease(&own)?;
        }
        *self.whole = own;
        self.owner = OwningProcess::here();
        Ok(())
    }
}

/// What a Buffer shares with its parts. The lock is taken only by holders of the interpreter's
/// lock, and is free again before code of Python may run.
struct Home(Mutex<Here>);

impl Home {
    fn over(place: Dram) -> Arc<Home> {
        let here = Here { whole: ManuallyDrop::new(place), views: BTreeMap::new(), owner: OwningProcess::here() };
        Arc::new(Home(Mutex::new(here)))
    }

    fn place(&self, part: Part) -> Result<Dram> {
        let mut here = self.0.lock();
        here.settle()?;
        part.of(&here.whole)
    }

    /// Counts a view of a Buffer, the first of which takes the lease.
    fn begin_view(&self, number: u64, part: Part) -> Result<*mut u8> {
        let mut here = self.0.lock();
        here.settle()?;
        let start = part.of(&here.whole)?.memory().address();
        if let Some(views) = here.views.get_mut(&number) {
            views.count += 1;
        } else {
            let lease = part.lease(&here.whole)?;
            here.views.insert(number, Views { count: 1, part, lease });
        }
        Ok(start)
    }

    fn end_view(&self, number: u64) {
        let mut here = self.0.lock();
        if let Some(views) = here.views.get_mut(&number) {
            views.count -= 1;
            if views.count == 0 {
                here.views.remove(&number);
            }
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // SAFETY: it is taken once, here, and nobody refers to this object after its `drop`.
        let place = unsafe { ManuallyDrop::take(&mut self.0.lock().whole) };
        if place.len() > MUCH {
            // An object is dropped with the interpreter's lock held. Much memory takes the kernel a
            // while.
            let _ = Python::try_attach(|py| py.detach(move || drop(place)));
        }
    }
}

/// The number of the next Buffer.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Memory for transfers: page-aligned, on huge pages where the kernel has them, zeroed.
///
/// It supports the buffer protocol and DLPack without a copy. While views of it exist (a
/// `memoryview`, an array of NumPy), they hold its lease: transfers that name the Buffer fail as
/// `Busy`. Views of a read-only Buffer (`toreadonly`) hold a shared lease, beside which transfers
/// may read.
#[pyclass(frozen, weakref, module = "datapipes", name = "Buffer")]
pub(crate) struct Buffer {
    home: Arc<Home>,
    part: Part,
    /// No other Buffer of the process has it.
    number: u64,
}

impl Buffer {
    pub(crate) fn over(place: Dram) -> Buffer {
        let part = Part { at: 0, len: place.len(), readonly: false };
        Buffer::with(Home::over(place), part)
    }

    fn with(home: Arc<Home>, part: Part) -> Buffer {
        Buffer { home, part, number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// The memory as a place of this process.
    pub(crate) fn place(&self, py: Python<'_>) -> PyResult<Dram> {
        attached(py, || self.home.place(self.part))
    }

    pub(crate) fn len(&self) -> usize {
        self.part.len
    }

    pub(crate) fn is_readonly(&self) -> bool {
        self.part.readonly
    }
}

/// Allocates memory; an empty range of a byte for a length of 0.
pub(crate) fn allocate(len: usize, prefault: bool) -> Result<Dram> {
    if len > isize::MAX as usize {
        let why = format!("{len} bytes: more than a process can address");
        return Err(datapipes::Error::new(datapipes::ErrorKind::OutOfMemory, "allocate", why));
    }
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
        self.part.len
    }

    /// The length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.part.len
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.place(py)?.memory().address().addr())
    }

    /// Whether views of it are read-only.
    #[getter]
    fn readonly(&self) -> bool {
        self.part.readonly
    }

    /// The number of views that hold the lease now.
    #[getter]
    fn exports(&self) -> usize {
        self.home.0.lock().views.get(&self.number).map_or(0, |views| views.count)
    }

    /// The same memory, of which only read-only views are given.
    fn toreadonly(&self) -> Buffer {
        Buffer::with(self.home.clone(), Part { readonly: true, ..self.part })
    }

    /// A copy of the bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let place = self.place(py)?;
        let lease = attached(py, || place.lease())?;
        Ok(PyBytes::new(py, &lease))
    }

    /// A byte as a number, or a Buffer of the same bytes.
    fn __getitem__<'py>(&self, py: Python<'py>, which: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let len = self.part.len;
        if let Ok(slice) = which.cast::<PySlice>() {
            let of = slice.indices(len.cast_signed())?;
            if of.step != 1 {
                return Err(invalid(
                    py,
                    "slice",
                    format!("a step of {}: the bytes of a Buffer lie side by side", of.step),
                ));
            }
            return Ok(Bound::new(py, self.part(py, of.start.cast_unsigned(), of.slicelength)?)?.into_any());
        }
        let at: isize = which.extract()?;
        let at = if at < 0 { at + len.cast_signed() } else { at };
        let at = usize::try_from(at).ok().filter(|at| *at < len);
        let at = at.ok_or_else(|| PyIndexError::new_err(format!("a Buffer of {len} bytes")))?;
        let place = self.place(py)?;
        let byte = attached(py, || Ok(place.range(at, 1)?.lease()?[0]))?;
        Ok(byte.into_pyobject(py)?.into_any())
    }

    /// `len` bytes at `offset`, which are the same bytes.
    fn part(&self, py: Python<'_>, offset: usize, len: usize) -> PyResult<Buffer> {
        // It says what is wrong with them.
        attached(py, || self.home.place(self.part)?.range(offset, len))?;
        let at = self.part.at + offset;
        Ok(Buffer::with(self.home.clone(), Part { at, len, ..self.part }))
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
        let readonly = if self.part.readonly { ", read-only" } else { "" };
        format!("<datapipes.Buffer of {} bytes{readonly}>", self.part.len)
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
        if this.part.readonly && flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("the buffer is read-only"));
        }
        // Making an exception, or filling the view, may collect garbage: views of this Buffer, too.
        // So no lock is held meanwhile.
        let begin = || this.home.begin_view(this.number, this.part);
        let start = attached(py, || {
            begin().or_else(|refused| {
                // By a read that is done, perhaps, of a loop that is not running.
                watched::poll_all();
                begin().map_err(|_| refused)
            })
        })?;
        let len = this.part.len as ffi::Py_ssize_t;
        let readonly = c_int::from(this.part.readonly);
        // SAFETY: the address and the length are those of the leased bytes. They stay valid while
        // the view lives, because it refers to this object, which refers to the memory.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), len, readonly, flags) };
        if filled != 0 {
            this.home.end_view(this.number);
            return Err(PyErr::fetch(py));
        }
        Ok(())
    }

    /// Takes a view back.
    ///
    /// # Safety
    /// CPython calls it, once for each view.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.home.end_view(self.number);
    }
}
