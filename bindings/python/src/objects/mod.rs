//! Objects in buckets as Python objects. Without the feature `object` they are refused by name.
//!
//! | file | what it holds |
//! |---|---|
//! | `built`, `absent` | what is done with the crate of objects, with it and without it |
//! | here | the classes |

#[cfg(not(feature = "object"))]
mod absent;
#[cfg(feature = "object")]
mod built;

use datapipes::locks::Mutex;
use datapipes::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::buffer::{Buffer, allocate};
use crate::errors::{attached, detached, invalid};
use crate::foreign::{Bytes, Use};
use crate::opened::check_memory;

#[cfg(not(feature = "object"))]
pub(crate) use absent::{BUILT, Source, Target, end_uploads, list, output, remove};
#[cfg(feature = "object")]
pub(crate) use built::{BUILT, Source, Target, end_uploads, list, output, remove};

/// Whether a name is the address of an object.
pub(crate) fn is_address(name: &str) -> bool {
    ["s3://", "gs://", "az://", "http://", "https://"].iter().any(|scheme| name.starts_with(scheme))
}

/// An object that is open for reading, at the version that it had then. `datapipes.open` makes it.
#[pyclass(frozen, weakref, module = "datapipes", name = "Object")]
pub(crate) struct PyObjectSource {
    address: String,
    source: Mutex<Option<Source>>,
}

impl PyObjectSource {
    fn source(&self, py: Python<'_>) -> PyResult<Source> {
        let open = self.source.lock().clone();
        attached(py, || open.ok_or_else(|| closed("read", &self.address)))
    }
}

fn closed(operation: &'static str, address: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, operation, format!("{address} is closed"))
}

#[pymethods]
impl PyObjectSource {
    #[new]
    fn new(py: Python<'_>, address: String) -> PyResult<PyObjectSource> {
        let source = detached(py, || Source::open(&address))?;
        Ok(PyObjectSource { address, source: Mutex::new(Some(source)) })
    }

    /// Its address.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// What names its version: the server's tag, or its length and time.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.source(py)?.version())
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.source.lock().is_none()
    }

    /// Its length in bytes.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.source(py)?.len())
    }

    /// Fills `buffer` from `offset`. Returns the number of bytes, which are fewer at the end.
    #[pyo3(signature = (buffer, offset = 0))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<u64> {
        let source = self.source(py)?;
        let bytes = Bytes::of(buffer, Use::Write, "read")?;
        let Some(target) = bytes.host() else { return Ok(0) };
        let len = source.len().saturating_sub(offset).min(bytes.len());
        detached(py, || if len == 0 { Ok(()) } else { source.read(offset, target, len) })?;
        Ok(len)
    }

    /// Reads `len` bytes at `offset` (all, if no length is given) into a new Buffer, which is
    /// shorter at the object's end.
    #[pyo3(signature = (offset = 0, len = None))]
    fn read(&self, py: Python<'_>, offset: u64, len: Option<u64>) -> PyResult<Buffer> {
        let source = self.source(py)?;
        let len = source.len().saturating_sub(offset).min(len.unwrap_or(u64::MAX));
        let place = detached(py, || {
            check_memory(len)?;
            let place = allocate(usize::try_from(len).unwrap_or(usize::MAX), false)?;
            if len > 0 {
                source.read(offset, &place, len)?;
            }
            Ok(place)
        })?;
        Ok(Buffer::over(place))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        usize::try_from(self.size(py)?).map_err(|_| invalid(py, "measure", "it is longer than Python can say"))
    }

    /// It is there, also where it is empty.
    fn __bool__(&self) -> bool {
        true
    }

    fn close(&self) {
        *self.source.lock() = None;
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        self.close();
    }
}

/// An object that is being written. It appears, as a whole, when it is published.
/// `datapipes.create` makes it.
#[pyclass(frozen, subclass, weakref, module = "datapipes", name = "NewObject")]
pub(crate) struct PyObjectTarget {
    address: String,
    target: Mutex<Option<std::sync::Arc<Target>>>,
}

impl PyObjectTarget {
    fn target(&self, py: Python<'_>, operation: &'static str) -> PyResult<std::sync::Arc<Target>> {
        let open = self.target.lock().clone();
        attached(py, || open.ok_or_else(|| closed(operation, &self.address)))
    }
}

#[pymethods]
impl PyObjectTarget {
    #[new]
    #[pyo3(signature = (address, *, expected_len = None, only_new = false))]
    fn new(py: Python<'_>, address: String, expected_len: Option<u64>, only_new: bool) -> PyResult<PyObjectTarget> {
        let target = detached(py, || Target::create(&address, expected_len, only_new))?;
        Ok(PyObjectTarget { address, target: Mutex::new(Some(std::sync::Arc::new(target))) })
    }

    /// Its address.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Whether it is published or given up.
    #[getter]
    fn closed(&self) -> bool {
        self.target.lock().is_none()
    }

    /// Writes all bytes of `buffer` at `offset`, or behind what was written so far. Returns their
    /// number.
    #[pyo3(signature = (buffer, offset = None))]
    fn write(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: Option<u64>) -> PyResult<u64> {
        let target = self.target(py, "write")?;
        let bytes = Bytes::of(buffer, Use::Read, "write")?;
        let len = bytes.len();
        let Some(source) = bytes.host() else { return Ok(0) };
        detached(py, || target.write(offset.unwrap_or_else(|| target.len()), source, len))?;
        Ok(len)
    }

    /// Makes it visible. Without a length, that is what was written.
    #[pyo3(signature = (len = None))]
    fn publish(&self, py: Python<'_>, len: Option<u64>) -> PyResult<()> {
        let target = self.target(py, "publish")?;
        detached(py, || target.publish(len.unwrap_or_else(|| target.len())))?;
        drop(self.target.lock().take());
        Ok(())
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Publishes it, or gives it up after an exception.
    #[pyo3(signature = (kind = None, _error = None, _trace = None))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _error: Option<Bound<'_, PyAny>>,
        _trace: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_none() && !self.closed() {
            self.publish(py, None)?;
        }
        self.close(py)
    }

    /// Gives it up, if it was not published: nothing is left at the server.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let target = self.target.lock().take();
        detached(py, || {
            drop(target);
            Ok(())
        })
    }
}

/// The addresses that a pattern such as `s3://bucket/prefix/*` stands for.
#[pyfunction]
pub(crate) fn list_objects(py: Python<'_>, pattern: &str) -> PyResult<Vec<String>> {
    detached(py, || list(pattern))
}

/// Removes an object.
#[pyfunction]
pub(crate) fn remove_object(py: Python<'_>, address: &str) -> PyResult<()> {
    detached(py, || remove(address))
}

/// Ends all unfinished uploads to the keys that a pattern stands for, and returns their number: for
/// keys that nobody writes any more.
#[pyfunction]
pub(crate) fn end_object_uploads(py: Python<'_>, pattern: &str) -> PyResult<usize> {
    detached(py, || end_uploads(pattern))
}
