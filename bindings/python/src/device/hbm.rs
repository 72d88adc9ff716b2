//! Memory of a GPU as a Python object.
//!
//! Views of it by DLPack hold its lease, all together one, until the last is released. A view by
//! `__cuda_array_interface__` cannot: nobody is told of its end.
//!
//! Unsafe code: after the last view, later transfers are ordered after the default stream's work,
//! which is a stream that always lives.
#![allow(unsafe_code)]

use std::sync::Arc;

use datapipes::Result;
use datapipes::gpu::{Hbm, HbmLeaseMut};
use datapipes::locks::Mutex;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice};

use super::dlpack::{self, CUDA, DEFAULT_STREAM};
use super::lease::Lease;
use super::number_of;
use super::tensor::Tensor;
use crate::errors::{attached, detached, invalid};
use crate::foreign::Use;

/// The views of one object.
#[derive(Default)]
struct Views {
    count: usize,
    lease: Option<HbmLeaseMut>,
}

/// What an object shares with its views.
struct Viewed {
    hbm: Hbm,
    views: Mutex<Views>,
}

/// Memory of a GPU, whose content is undefined at first.
///
/// Pass it where a Buffer can be passed: to `File.readinto`, `File.write`, `connect`. Libraries of
/// arrays see it without a copy (`torch.from_dlpack`, `cupy.asarray`). Views by DLPack hold its lease:
/// transfers that name it fail as `Busy` meanwhile.
#[pyclass(frozen, weakref, module = "datapipes", name = "Hbm")]
pub(crate) struct DeviceMemory {
    /// `None` for no bytes.
    viewed: Option<Arc<Viewed>>,
    device: u32,
}

impl DeviceMemory {
    fn over(hbm: Hbm) -> DeviceMemory {
        let device = hbm.device();
        let viewed = (hbm.len() > 0).then(|| Arc::new(Viewed { hbm, views: Mutex::default() }));
        DeviceMemory { viewed, device }
    }

    /// The memory as a place.
    pub(crate) fn place(&self, py: Python<'_>) -> PyResult<Hbm> {
        match &self.viewed {
            Some(viewed) => Ok(viewed.hbm.clone()),
            None => Err(invalid(py, "use", "an Hbm of no bytes is no place")),
        }
    }

    fn len(&self) -> u64 {
        self.viewed.as_ref().map_or(0, |viewed| viewed.hbm.len())
    }

    fn address(&self) -> u64 {
        self.viewed.as_ref().map_or(0, |viewed| viewed.hbm.address())
    }
}

/// A view that another library has.
struct View(Arc<Viewed>);

impl View {
    fn begin(viewed: &Arc<Viewed>) -> Result<View> {
        let mut views = viewed.views.lock();
        if views.lease.is_none() {
            views.lease = Some(viewed.hbm.lease_mut()?);
        }
        views.count += 1;
        Ok(View(viewed.clone()))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let mut views = self.0.views.lock();
        views.count -= 1;
        if views.count == 0
            && let Some(lease) = views.lease.take()
        {
            // What the view's owner gave to the device may still be under way. Where the driver
            // cannot say when it is over, it does nothing any more.
            // SAFETY: the default stream of the device always lives.
            let _ = unsafe { lease.order_after(DEFAULT_STREAM) };
        }
    }
}

#[pymethods]
impl DeviceMemory {
    #[new]
    fn new(py: Python<'_>, device: &Bound<'_, PyAny>, length: u64) -> PyResult<DeviceMemory> {
        let device = number_of(device)?;
        if length == 0 {
            return Ok(DeviceMemory { viewed: None, device });
        }
        Ok(DeviceMemory::over(detached(py, || Hbm::allocate(device, length))?))
    }

    /// The bytes of a tensor or an array of another library, which stays their owner and is kept.
    #[staticmethod]
    fn of(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<DeviceMemory> {
        if !super::tensor::is_on_device(tensor)? {
            return Err(invalid(py, "take", "the object is no tensor or array on a GPU"));
        }
        let tensor = Tensor::of(tensor, Use::Write, "take")?;
        if tensor.len == 0 {
            return Ok(DeviceMemory { viewed: None, device: tensor.device });
        }
        let keeper = tensor.keeper();
        // SAFETY: the place drops the keeper when nothing refers to its bytes any more.
        Ok(DeviceMemory::over(unsafe { tensor.place(py, keeper) }?))
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.len()).unwrap_or(usize::MAX)
    }

    /// It is there, also where it is empty.
    fn __bool__(&self) -> bool {
        true
    }

    /// The length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.len()
    }

    /// The number of the device.
    #[getter]
    fn device(&self) -> u32 {
        self.device
    }

    /// The number of views by DLPack that hold the lease now.
    #[getter]
    fn exports(&self) -> usize {
        self.viewed.as_ref().map_or(0, |viewed| viewed.views.lock().count)
    }

    /// `len` bytes at `offset`, which are the same bytes.
    fn part(&self, py: Python<'_>, offset: u64, len: u64) -> PyResult<DeviceMemory> {
        let end = offset.checked_add(len).filter(|end| *end <= self.len());
        let Some(end) = end else {
            let context = format!("{len} bytes at {offset} of {}", self.len());
            let error = datapipes::Error::new(datapipes::ErrorKind::OutOfRange, "slice", context);
            return Err(crate::errors::to_py(py, &error));
        };
        match &self.viewed {
            Some(viewed) if len > 0 => Ok(DeviceMemory::over(attached(py, || viewed.hbm.slice(offset..end))?)),
            _ => Ok(DeviceMemory { viewed: None, device: self.device }),
        }
    }

    /// The same bytes by a slice.
    fn __getitem__(&self, py: Python<'_>, which: &Bound<'_, PySlice>) -> PyResult<DeviceMemory> {
        let of = which.indices(isize::try_from(self.len()).unwrap_or(isize::MAX))?;
        if of.step != 1 {
            return Err(invalid(py, "slice", format!("a step of {}: the bytes of an Hbm lie side by side", of.step)));
        }
        self.part(py, of.start.cast_unsigned() as u64, of.slicelength as u64)
    }

    /// Leases the bytes, which gives their address.
    fn lease(&self, py: Python<'_>) -> PyResult<Lease> {
        let hbm = self.place(py)?;
        Ok(Lease::over(attached(py, || hbm.lease_mut())?))
    }

    /// A capsule of the bytes (`uint8`). All that was moved is there, whichever stream uses it.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        if copy == Some(true) {
            return Err(PyBufferError::new_err("an Hbm makes no copies of itself"));
        }
        let here = self.__dlpack_device__();
        if dl_device.is_some_and(|asked| asked != here) {
            return Err(PyBufferError::new_err(format!("the bytes are on device {here:?} of DLPack, and stay there")));
        }
        let keeps: Box<dyn Send> = match &self.viewed {
            Some(viewed) => Box::new(attached(py, || View::begin(viewed))?),
            None => Box::new(()),
        };
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        dlpack::export(py, (self.device, self.address(), self.len()), versioned, keeps)
    }

    /// The memory of a GPU of CUDA, and its number.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (CUDA, self.device.cast_signed())
    }

    /// The address for libraries of CUDA. It holds no lease: move nothing while they use the bytes.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let of = PyDict::new(py);
        of.set_item("shape", (self.len(),))?;
        of.set_item("typestr", "|u1")?;
        of.set_item("data", (self.address(), false))?;
        of.set_item("strides", py.None())?;
        of.set_item("stream", py.None())?;
        of.set_item("version", 3)?;
        Ok(of)
    }

    fn __repr__(&self) -> String {
        format!("<datapipes.Hbm of {} bytes on cuda:{}>", self.len(), self.device)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Some(viewed) = self.viewed.take() else { return };
        // An object is dropped with the interpreter's lock held. Freeing may wait for the device.
        let _ = Python::try_attach(|py| py.detach(move || drop(viewed)));
    }
}
