//! Tensors and arrays of other libraries on a GPU, as places.
//!
//! They give their bytes by DLPack, or by `__cuda_array_interface__`. Transfers come after what their
//! library has under way with them, and are done when they return.
//!
//! Unsafe code: memory of a device that an object keeps until it is dropped, and streams of its
//! library, which live while the object does.
#![allow(unsafe_code)]

use std::any::Any;
use std::sync::Arc;

use datapipes::ErrorKind;
use datapipes::gpu::Hbm;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::dlpack::{self, CUDA, CUDA_MANAGED, DEFAULT_STREAM, DEFAULT_STREAM_NAME, Held};
use crate::errors::{detached, invalid};
use crate::view::Use;

/// What keeps the bytes. It is held, not looked at.
#[allow(dead_code)]
enum Keeps {
    Capsule(Held),
    /// Without the interpreter's lock, it is let go of by the next holder of that.
    Object(Py<PyAny>),
}

/// The bytes of a tensor on a GPU.
pub(crate) struct Tensor {
    /// Its device, if the object said it.
    named: Option<u32>,
    pub(crate) device: u32,
    address: u64,
    pub(crate) len: u64,
    /// A stream whose work has to be waited for.
    stream: Option<u64>,
    keeps: Arc<Keeps>,
}

/// Whether an object's bytes are on a GPU, as far as it says. Objects with the buffer protocol are
/// asked only where they give no buffer (those of cupy have it, and refuse).
pub(crate) fn is_on_device(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if let Some(device) = object.getattr_opt("__dlpack_device__")? {
        let (kind, _) = device.call0()?.extract::<(i32, i32)>()?;
        return Ok(kind == CUDA || kind == CUDA_MANAGED);
    }
    object.hasattr("__cuda_array_interface__")
}

impl Tensor {
    /// The bytes of an object, whole, in C order, and writable where they are to be written.
    pub(crate) fn of(object: &Bound<'_, PyAny>, purpose: Use, operation: &'static str) -> PyResult<Tensor> {
        let py = object.py();
        let (tensor, readonly) = if object.hasattr("__dlpack__")? {
            let of = dlpack::import(object, operation)?;
            let (device, address, len) = (of.device, of.address, of.len);
            let keeps = Arc::new(Keeps::Capsule(of.held));
            let stream = Some(DEFAULT_STREAM);
            (Tensor { named: Some(device), device, address, len, stream, keeps }, of.readonly)
        } else {
            Tensor::by_interface(object, operation)?
        };
        if purpose == Use::Write && readonly {
            return Err(invalid(py, operation, "the tensor is read-only"));
        }
        Ok(tensor)
    }

    /// By `__cuda_array_interface__`, which does not name the device.
    fn by_interface(object: &Bound<'_, PyAny>, operation: &'static str) -> PyResult<(Tensor, bool)> {
        let py = object.py();
        let of = object.getattr("__cuda_array_interface__")?.cast_into::<PyDict>()?;
        let get = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
            Ok(of.get_item(name)?.filter(|found| !found.is_none()))
        };
        let wrong = |what: &str| invalid(py, operation, format!("`__cuda_array_interface__` has no valid {what}"));
        let shape: Vec<u64> = get("shape")?.ok_or_else(|| wrong("shape"))?.extract()?;
        let (address, readonly): (u64, bool) = get("data")?.ok_or_else(|| wrong("data"))?.extract()?;
        let kind: String = get("typestr")?.ok_or_else(|| wrong("typestr"))?.extract()?;
        let size: u64 = kind.get(2..).and_then(|size| size.parse().ok()).ok_or_else(|| wrong("typestr"))?;
        let len = shape.iter().try_fold(size, |product, of| product.checked_mul(*of)).ok_or_else(|| wrong("shape"))?;
        if let Some(strides) = get("strides")? {
            let strides: Vec<i64> = strides.cast_into::<PyTuple>()?.extract()?;
            let mut expected = size;
            for (stride, of) in strides.iter().zip(&shape).rev() {
                if *of > 1 && len > 0 && u64::try_from(*stride) != Ok(expected) {
                    return Err(invalid(py, operation, "the bytes of the array do not lie side by side (C order)"));
                }
                expected = expected.saturating_mul(*of);
            }
        }
        if get("mask")?.is_some() {
            return Err(invalid(py, operation, "an array with a mask is not only bytes"));
        }
        // Without a stream, nothing of it is under way, or its library does not say (version 2).
        let stream = match get("stream")? {
            Some(stream) => {
                Some(stream.extract()?).map(|name| if name == DEFAULT_STREAM_NAME { DEFAULT_STREAM } else { name })
            }
            None => Some(DEFAULT_STREAM),
        };
        let keeps = Arc::new(Keeps::Object(object.clone().unbind()));
        Ok((Tensor { named: None, device: 0, address, len, stream, keeps }, readonly))
    }

    /// What a place can keep in place of the tensor.
    pub(crate) fn keeper(&self) -> Box<dyn Any + Send + Sync> {
        Box::new(self.keeps.clone())
    }

    /// The place. Its transfers come after what the tensor's library has under way.
    ///
    /// # Safety
    /// The tensor, or its `keeper`, lives until `owner` is dropped.
    pub(crate) unsafe fn place(&self, py: Python<'_>, owner: Box<dyn Any + Send + Sync>) -> PyResult<Hbm> {
        // Only one of the tries below gets the owner.
        let owner = Arc::new(owner);
        detached(py, || {
            let on = |device| {
                // SAFETY: as the caller says. That nobody else uses the bytes during a transfer is asked
                // of the caller (docs/python.md), as of every function that fills an array.
                unsafe { Hbm::foreign(device, self.address, self.len, Box::new(owner.clone())) }
            };
            let hbm = match self.named {
                Some(device) => on(device)?,
                // The driver says which device has it.
                None => {
                    let mut found = on(0);
                    for device in 1..MAX_DEVICES {
                        if !matches!(&found, Err(e) if e.kind() == ErrorKind::InvalidInput) {
                            break;
                        }
                        found = match on(device) {
                            Err(e) if e.kind() == ErrorKind::NotFound => break,
                            other => other,
                        };
                    }
                    found?
                }
            };
            if let Some(stream) = self.stream {
                // SAFETY: the default stream lives always, and that of an array while the array does.
                unsafe { hbm.lease()?.order_after(stream) }?;
            }
            Ok(hbm)
        })
    }
}

/// Devices that are asked for memory whose device is not named.
const MAX_DEVICES: u32 = 16;
