//! A lease of a GPU's memory: its address, and its order with streams.
//!
//! Unsafe code: numbers of streams are passed to the driver, as the caller gives them.
#![allow(unsafe_code)]

use datapipes::gpu::HbmLeaseMut;
use datapipes::locks::Mutex;
use datapipes::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::attached;

/// The right to the bytes of an Hbm, until it is released. `Hbm.lease` gives it.
#[pyclass(frozen, weakref, module = "datapipes", name = "HbmLease")]
pub(crate) struct Lease(Mutex<Option<HbmLeaseMut>>);

impl Lease {
    pub(crate) fn over(lease: HbmLeaseMut) -> Lease {
        Lease(Mutex::new(Some(lease)))
    }

    fn with<T>(&self, py: Python<'_>, work: impl FnOnce(&HbmLeaseMut) -> Result<T>) -> PyResult<T> {
        attached(py, || match &*self.0.lock() {
            Some(lease) => work(lease),
            None => Err(Error::new(ErrorKind::InvalidInput, "use", "the lease was released")),
        })
    }
}

#[pymethods]
impl Lease {
    /// The address of the first byte, for calls of CUDA on the device's primary context.
    #[getter]
    fn pointer(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |lease| Ok(lease.address()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |lease| Ok(usize::try_from(lease.len()).unwrap_or(usize::MAX)))
    }

    /// Later transfers of the bytes come after what this stream (its `cudaStream_t` as a number) has
    /// been given by now.
    fn order_after(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        // SAFETY: the caller names a stream of the device that lives (docs/python.md).
        self.with(py, |lease| unsafe { lease.order_after(stream) })
    }

    /// What this stream is given from now on comes after what earlier leases were told of.
    fn order_before(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        // SAFETY: as above.
        self.with(py, |lease| unsafe { lease.order_before(stream) })
    }

    /// Gives the right back.
    fn release(&self) {
        drop(self.0.lock().take());
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        self.release();
    }
}
