//! The types and numbers of the driver's interface that are used, as `cuda.h` declares them.

use std::ffi::{c_int, c_uint, c_void};

/// `CUresult`.
pub(crate) type Status = c_int;
/// `CUdevice`.
pub(crate) type DeviceHandle = c_int;
/// `CUdeviceptr`.
pub(crate) type DeviceAddress = u64;
/// `CUcontext`, `CUstream` and `CUevent`.
pub(crate) type Handle = *mut c_void;
/// `CUhostFn`.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// `CUDA_SUCCESS`.
pub(crate) const SUCCESS: Status = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: Status = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Status = 2;
/// `CUDA_ERROR_NO_DEVICE`.
pub(crate) const NO_DEVICE: Status = 100;
/// `CUDA_ERROR_INVALID_DEVICE`.
pub(crate) const INVALID_DEVICE: Status = 101;
/// `CUDA_ERROR_NOT_READY`.
pub(crate) const NOT_READY: Status = 600;
/// `CUDA_ERROR_NOT_PERMITTED`.
pub(crate) const NOT_PERMITTED: Status = 800;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub(crate) const NOT_SUPPORTED: Status = 801;

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the default stream.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_MEMHOSTREGISTER_PORTABLE`, `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts.
pub(crate) const PORTABLE: c_uint = 1;

/// `CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE`, in kHz.
pub(crate) const MEMORY_CLOCK_RATE: c_int = 36;
/// `CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH`, in bits.
pub(crate) const MEMORY_BUS_WIDTH: c_int = 37;
/// `CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT`.
pub(crate) const ASYNC_ENGINES: c_int = 40;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
pub(crate) const POINTER_MEMORY_TYPE: c_int = 2;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
pub(crate) const POINTER_IS_MANAGED: c_int = 8;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
pub(crate) const POINTER_DEVICE: c_int = 9;
/// `CU_MEMORYTYPE_DEVICE`.
pub(crate) const TYPE_DEVICE: c_uint = 2;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls of this thread are no part of a graph that another one
/// captures.
pub(crate) const CAPTURE_RELAXED: c_int = 2;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub(crate) const CAPTURE_UNSUPPORTED: Status = 900;
