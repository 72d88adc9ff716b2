//! DLPack: the structures by which libraries of arrays hand memory to each other, and the capsules
//! of Python that carry them.
//!
//! Unsafe code: structures of other libraries, which have the layout that DLPack declares. One that
//! was taken out of its capsule is released once, by its own deleter, with the interpreter's lock.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::invalid;

/// `kDLCUDA`: memory of a GPU.
pub(crate) const CUDA: i32 = 2;
/// `kDLCUDAManaged`: memory that the driver moves between a GPU and the processor.
pub(crate) const CUDA_MANAGED: i32 = 13;
/// `kDLUInt`.
const UNSIGNED: u8 = 1;
/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;
/// The number by which this interface, and that of arrays, names the default stream.
pub(crate) const DEFAULT_STREAM_NAME: u64 = 1;
/// The default stream for the driver.
pub(crate) const DEFAULT_STREAM: u64 = 0;

const NAME: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device: i32,
    dimensions: i32,
    kind: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// A structure that was taken out of its capsule. It keeps the bytes until it is dropped.
pub(crate) struct Held(Structure);

enum Structure {
    Plain(NonNull<Managed>),
    Versioned(NonNull<Versioned>),
}

/// What another library handed over: bytes on a device, which stay valid until `held` is dropped.
pub(crate) struct Imported {
    pub(crate) held: Held,
    pub(crate) device: u32,
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) readonly: bool,
}

// SAFETY: nothing is done with it but to drop it, which takes the interpreter's lock.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        // Where the interpreter ends, its owner is not told any more.
        let _ = Python::try_attach(|_| match &self.0 {
            // SAFETY: it was taken out of its capsule, and is released once, here.
            Structure::Plain(of) => unsafe {
                if let Some(deleter) = of.as_ref().deleter {
                    deleter(of.as_ptr());
                }
            },
            // SAFETY: as above.
            Structure::Versioned(of) => unsafe {
                if let Some(deleter) = of.as_ref().deleter {
                    deleter(of.as_ptr());
                }
            },
        });
    }
}

impl Held {
    /// Takes the structure out of a capsule.
    fn take(capsule: &Bound<'_, PyAny>, operation: &'static str) -> PyResult<Held> {
        let (py, of) = (capsule.py(), capsule.as_ptr());
        // SAFETY: the interpreter's lock is held. Whatever object it is, its name is looked at first.
        let has = |name: &CStr| unsafe { ffi::PyCapsule_IsValid(of, name.as_ptr()) } != 0;
        let (name, used) = if has(VERSIONED_NAME) {
            (VERSIONED_NAME, VERSIONED_USED)
        } else if has(NAME) {
            (NAME, USED)
        } else {
            return Err(invalid(py, operation, "`__dlpack__` gives no capsule of a tensor"));
        };
        // SAFETY: it is a valid capsule of this name. The new name tells its destructor that the
        // structure has another owner now.
        let start = unsafe {
            let start = ffi::PyCapsule_GetPointer(of, name.as_ptr());
            if start.is_null() || ffi::PyCapsule_SetName(of, used.as_ptr()) != 0 {
                return Err(PyErr::fetch(py));
            }
            start
        };
        let Some(start) = NonNull::new(start) else { return Err(PyErr::fetch(py)) };
        Ok(Held(if name == NAME { Structure::Plain(start.cast()) } else { Structure::Versioned(start.cast()) }))
    }

    fn tensor(&self) -> &Tensor {
        match &self.0 {
            // SAFETY: the structure is valid until it is released.
            Structure::Plain(of) => unsafe { &of.as_ref().tensor },
            // SAFETY: as above.
            Structure::Versioned(of) => unsafe { &of.as_ref().tensor },
        }
    }

    /// The versions whose layout is known, and whether the bytes may not be written.
    fn quality(&self) -> (bool, bool) {
        match &self.0 {
            Structure::Plain(_) => (true, false),
            // SAFETY: the first fields are those of all versions.
            Structure::Versioned(of) => unsafe { (of.as_ref().major == 1, of.as_ref().flags & READ_ONLY != 0) },
        }
    }
}

/// Asks an object for its bytes on a device. What its library has under way with them comes before
/// work of the default stream, which has to be waited for.
pub(crate) fn import(object: &Bound<'_, PyAny>, operation: &'static str) -> PyResult<Imported> {
    let py = object.py();
    let known = PyDict::new(py);
    known.set_item("stream", DEFAULT_STREAM_NAME)?;
    known.set_item("max_version", (1, 0))?;
    let current = with_its_device_current(object)?;
    let capsule = match object.call_method("__dlpack__", (), Some(&known)) {
        // It is of a library that knows no versions.
        Err(refused) if refused.is_instance_of::<PyTypeError>(py) => {
            known.del_item("max_version")?;
            object.call_method("__dlpack__", (), Some(&known))
        }
        other => other,
    };
    if let Some(guard) = current {
        guard.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
    }
    let capsule = capsule?;
    let held = Held::take(&capsule, operation)?;
    let (is_known, readonly) = held.quality();
    if !is_known {
        return Err(invalid(py, operation, "the object gives a version of DLPack that is not known"));
    }
    let tensor = held.tensor();
    if tensor.device_type != CUDA {
        return Err(invalid(py, operation, format!("memory of DLPack's device type {}", tensor.device_type)));
    }
    let len = bytes_of(tensor)
        .ok_or_else(|| invalid(py, operation, "the bytes of the tensor do not lie side by side (C order)"))?;
    let device = u32::try_from(tensor.device);
    let device = device.map_err(|_| invalid(py, operation, format!("a tensor of device {}", tensor.device)))?;
    let address = (tensor.data.addr() as u64).wrapping_add(tensor.byte_offset);
    Ok(Imported { held, device, address, len, readonly })
}

/// Makes the device of a PyTorch tensor current, until `__exit__` of the result: PyTorch gives memory
/// of that device alone.
fn with_its_device_current<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let modules = object.py().import("sys")?.getattr("modules")?;
    let torch = modules.call_method1("get", ("torch",))?;
    if torch.is_none() || !object.is_instance(&torch.getattr("Tensor")?)? {
        return Ok(None);
    }
    let device = object.getattr("device")?;
    if device.getattr("type")?.extract::<String>()? != "cuda" {
        return Ok(None);
    }
    let guard = torch.getattr("cuda")?.getattr("device")?.call1((device,))?;
    guard.call_method0("__enter__")?;
    Ok(Some(guard))
}

/// The bytes of a tensor whose elements lie side by side; `None` for another one.
fn bytes_of(tensor: &Tensor) -> Option<u64> {
    let count = usize::try_from(tensor.dimensions).ok()?;
    let of = |start: *mut i64| match (count, start.is_null()) {
        (0, _) => Some(&[][..]),
        (_, true) => None,
        // SAFETY: the structure has so many sizes there, and is not released meanwhile.
        (_, false) => Some(unsafe { std::slice::from_raw_parts(start, count) }),
    };
    let bits = u64::from(tensor.bits).checked_mul(u64::from(tensor.lanes))?;
    contiguous_bytes(of(tensor.shape)?, of(tensor.strides), bits)
}

/// The bytes of elements of so many bits in C order; `None` where they lie otherwise.
fn contiguous_bytes(shape: &[i64], strides: Option<&[i64]>, bits: u64) -> Option<u64> {
    let mut count = 1_u64;
    for (at, size) in shape.iter().enumerate().rev() {
        let stride = strides.map(|strides| strides[at]);
        // A dimension of one element has no stride that matters.
        if *size > 1 && stride.is_some_and(|stride| u64::try_from(stride) != Ok(count)) && !shape.contains(&0) {
            return None;
        }
        count = count.checked_mul(u64::try_from(*size).ok()?)?;
    }
    let bits = count.checked_mul(bits)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// A tensor of bytes that is handed to another library.
struct Exported {
    shape: i64,
    stride: i64,
    /// Keeps them; dropped by the other library's call of the deleter.
    _keeps: Box<dyn Send>,
}

/// Bytes on a device, in a capsule. `keeps` is dropped when nobody uses them any more.
pub(crate) fn export<'py>(
    py: Python<'py>,
    (device, address, len): (u32, u64, u64),
    versioned: bool,
    keeps: Box<dyn Send>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut exported = Box::new(Exported { shape: len.cast_signed(), stride: 1, _keeps: keeps });
    let tensor = Tensor {
        data: std::ptr::with_exposed_provenance_mut(address as usize),
        device_type: CUDA,
        device: device.cast_signed(),
        dimensions: 1,
        kind: UNSIGNED,
        bits: 8,
        lanes: 1,
        shape: &raw mut exported.shape,
        strides: &raw mut exported.stride,
        byte_offset: 0,
    };
    let context = Box::into_raw(exported).cast::<c_void>();
    if versioned {
        let of = Versioned { major: 1, minor: 0, context, deleter: Some(delete_versioned), flags: 0, tensor };
        let of = Box::into_raw(Box::new(of));
        // SAFETY: the structure is freed by its deleter, which the destructor calls where nobody
        // took it.
        let made = unsafe { ffi::PyCapsule_New(of.cast(), VERSIONED_NAME.as_ptr(), Some(drop_unused)) };
        // SAFETY: a new reference, or an exception.
        return unsafe { Bound::from_owned_ptr_or_err(py, made) }.inspect_err(|_| {
            // SAFETY: no capsule has it.
            unsafe { delete_versioned(of) }
        });
    }
    let of = Box::into_raw(Box::new(Managed { tensor, context, deleter: Some(delete) }));
    // SAFETY: as above.
    let made = unsafe { ffi::PyCapsule_New(of.cast(), NAME.as_ptr(), Some(drop_unused)) };
    // SAFETY: as above.
    unsafe { Bound::from_owned_ptr_or_err(py, made) }.inspect_err(|_| {
        // SAFETY: no capsule has it.
        unsafe { delete(of) }
    })
}

/// # Safety
/// A structure of `export`, which is not used any more.
unsafe extern "C" fn delete(of: *mut Managed) {
    // SAFETY: as the caller says; both were boxed.
    unsafe {
        let of = Box::from_raw(of);
        drop_quietly(Box::from_raw(of.context.cast::<Exported>()));
    }
}

/// # Safety
/// As [`delete`].
unsafe extern "C" fn delete_versioned(of: *mut Versioned) {
    // SAFETY: as the caller says; both were boxed.
    unsafe {
        let of = Box::from_raw(of);
        drop_quietly(Box::from_raw(of.context.cast::<Exported>()));
    }
}

/// A panic does not cross into the other library.
fn drop_quietly(exported: Box<Exported>) {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(exported)));
}

/// Frees what nobody took out of the capsule.
///
/// # Safety
/// CPython calls it with a capsule of `export`.
unsafe extern "C" fn drop_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: it is a capsule. One that was taken has another name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED_NAME.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED_NAME.as_ptr()).cast());
        }
    }
}
