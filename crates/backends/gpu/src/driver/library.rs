//! NVIDIA's driver (`libcuda.so.1`), loaded at run time.
//!
//! This module's unsafe code promises: a function pointer has the type that `cuda.h` declares for
//! its symbol. The library stays loaded.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::abi::{DeviceAddress, DeviceHandle, Handle, HostFunction, SUCCESS, Status};

/// The variable that names another library with the driver's functions, for tests.
pub(super) const VARIABLE: &str = "DATAPIPES_CUDA_DRIVER";
const FILE: &str = "libcuda.so.1";

/// Declares the table, and how it is filled.
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),* $(,)?);)*) => {
        /// The functions of the driver that are used.
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, String> {
                // SAFETY: the types are those of the header.
                unsafe { Ok(Functions { $($field: library.function($symbol)?,)* }) }
            }
        }
    };
}

functions! {
    init = "cuInit": fn(c_uint);
    error_name = "cuGetErrorName": fn(Status, *mut *const c_char);
    error_string = "cuGetErrorString": fn(Status, *mut *const c_char);
    driver_version = "cuDriverGetVersion": fn(*mut c_int);
    device_count = "cuDeviceGetCount": fn(*mut c_int);
    device_get = "cuDeviceGet": fn(*mut DeviceHandle, c_int);
    device_name = "cuDeviceGetName": fn(*mut c_char, c_int, DeviceHandle);
    device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, DeviceHandle);
    device_pci = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, DeviceHandle);
    context_retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, DeviceHandle);
    context_push = "cuCtxPushCurrent_v2": fn(Handle);
    context_pop = "cuCtxPopCurrent_v2": fn(*mut Handle);
    context_current = "cuCtxGetCurrent": fn(*mut Handle);
    context_set = "cuCtxSetCurrent": fn(Handle);
    memory_info = "cuMemGetInfo_v2": fn(*mut usize, *mut usize);
    allocate = "cuMemAlloc_v2": fn(*mut DeviceAddress, usize);
    free = "cuMemFree_v2": fn(DeviceAddress);
    pointer_attribute = "cuPointerGetAttribute": fn(*mut c_void, c_int, DeviceAddress);
    host_allocate = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost": fn(*mut c_void);
    host_register = "cuMemHostRegister_v2": fn(*mut c_void, usize, c_uint);
    host_unregister = "cuMemHostUnregister": fn(*mut c_void);
    upload = "cuMemcpyHtoDAsync_v2": fn(DeviceAddress, *const c_void, usize, Handle);
    download = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, DeviceAddress, usize, Handle);
    copy = "cuMemcpyDtoDAsync_v2": fn(DeviceAddress, DeviceAddress, usize, Handle);
    copy_peer = "cuMemcpyPeerAsync": fn(DeviceAddress, Handle, DeviceAddress, Handle, usize, Handle);
    stream_create = "cuStreamCreateWithPriority": fn(*mut Handle, c_uint, c_int);
    stream_priorities = "cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int);
    stream_destroy = "cuStreamDestroy_v2": fn(Handle);
    stream_synchronize = "cuStreamSynchronize": fn(Handle);
    stream_wait = "cuStreamWaitEvent": fn(Handle, Handle, c_uint);
    event_create = "cuEventCreate": fn(*mut Handle, c_uint);
    event_record = "cuEventRecord": fn(Handle, Handle);
    event_query = "cuEventQuery": fn(Handle);
    event_destroy = "cuEventDestroy_v2": fn(Handle);
    stream_capturing = "cuStreamIsCapturing": fn(Handle, *mut c_int);
    capture_mode = "cuThreadExchangeStreamCaptureMode": fn(*mut c_int);
    launch_host = "cuLaunchHostFunc": fn(Handle, HostFunction, *mut c_void);
}

impl Functions {
    /// Loads the driver.
    ///
    /// # Errors
    /// What is not installed, or which function is missing.
    pub(super) fn load() -> Result<Functions, String> {
        Functions::of(&Library::open(&file())?)
    }

    /// An error of the driver in its own words: its name and its text.
    pub(crate) fn words_of(&self, status: Status) -> String {
        let text = |function: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut words = std::ptr::null();
            // SAFETY: it writes a pointer to a string that is never freed, or a null pointer.
            let known = unsafe { function(status, &raw mut words) } == SUCCESS && !words.is_null();
            // SAFETY: as above.
            known.then(|| unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
        };
        match (text(self.error_name), text(self.error_string)) {
            (Some(name), Some(what)) => format!("{name} ({what})"),
            (Some(name), None) => name,
            _ => format!("error {status} of the driver"),
        }
    }
}

fn file() -> OsString {
    std::env::var_os(VARIABLE).unwrap_or_else(|| FILE.into())
}

/// Whether the driver is installed, without loading it.
///
/// # Errors
/// What is not there.
pub(crate) fn installed() -> Result<String, String> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Ok(format!("{}, named by {VARIABLE}", Path::new(&named).display()));
    }
    if !Path::new("/dev/nvidiactl").exists() {
        return Err("no NVIDIA device is there (/dev/nvidiactl)".into());
    }
    Ok(format!("{FILE} of NVIDIA's driver, loaded when memory of a device is first used"))
}

/// A library that stays loaded.
struct Library(*mut c_void);

impl Library {
    fn open(file: &OsString) -> Result<Library, String> {
        let shown = Path::new(file).display();
        let Ok(name) = CString::new(file.as_bytes()) else { return Err(format!("{shown}: no name of a file")) };
        // SAFETY: the name ends with a zero. The driver's constructors start nothing; `cuInit`
        // does.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
        if handle.is_null() {
            return Err(format!("{shown} is not installed (it comes with NVIDIA's driver)"));
        }
        Ok(Library(handle))
    }

    /// # Safety
    /// `F` is the type of a pointer to this function.
    unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let Ok(text) = CString::new(name) else { return Err(format!("{name}: no name of a symbol")) };
        // SAFETY: the library is loaded, and the name ends with a zero.
        let found = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        if found.is_null() {
            return Err(format!("this driver has no {name} (CUDA 10.1 or later is needed)"));
        }
        // SAFETY: the caller knows the type, and it has the size of a pointer.
        Ok(unsafe { transmute_copy(&found) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_installed_is_named() {
        let why = Library::open(&"libcuda.so.999".into()).err().unwrap_or_default();
        assert!(why.contains("libcuda.so.999") && why.contains("NVIDIA"), "{why}");
    }
}
