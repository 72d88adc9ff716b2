//! Memory of GPUs: places of this package, and tensors of others.
//!
//! | module | what it holds |
//! |---|---|
//! | `dlpack` | the structures of DLPack, taken from others and given to them |
//! | `hbm` | memory of a GPU as a Python object |
//! | `lease` | its leases, with an address |
//! | `tensor` | tensors and arrays of others on a GPU, as places |
//! | `read` | long reads of files into it |
//!
//! Unsafe code is in `dlpack`, `hbm`, `lease` and `tensor`, which begin with what they guarantee.

pub(crate) mod dlpack;
pub(crate) mod hbm;
pub(crate) mod lease;
pub(crate) mod read;
pub(crate) mod tensor;

use pyo3::prelude::*;

use crate::errors::{detached, invalid, json};

/// The GPUs as JSON.
#[pyfunction]
pub(crate) fn gpu_facts(py: Python<'_>) -> PyResult<String> {
    let found = detached(py, datapipes::gpu::gpu_devices)?;
    json(py, &found)
}

/// The number of a device: a number, or a text such as "cuda:0".
pub(crate) fn number_of(device: &Bound<'_, PyAny>) -> PyResult<u32> {
    let py = device.py();
    let wrong = || invalid(py, "allocate", format!("device={device:?}: give a number, or \"cuda:0\""));
    if let Ok(number) = device.extract::<u32>() {
        return Ok(number);
    }
    // A device of torch says its name as text.
    let text = device.str()?.to_string();
    match text.strip_prefix("cuda") {
        Some("") => Ok(0),
        Some(rest) => rest.strip_prefix(':').and_then(|number| number.parse().ok()).ok_or_else(wrong),
        None => Err(wrong()),
    }
}
