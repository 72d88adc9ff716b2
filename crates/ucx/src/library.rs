//! UCX's libraries, loaded at run time (`libucp.so.0` and `libucs.so.0`), once a process.
//!
//! A library that is loaded in the middle of a program must not change it. UCX sets handlers of
//! fatal signals when it is loaded, and it prints warnings to the standard output: the handlers are
//! put back, and it prints only what ends the process, unless `UCX_LOG_LEVEL` says otherwise.
//!
//! This module's unsafe code promises: a function pointer has the type that `ucp/api/ucp.h`
//! declares for its symbol, and the library said that it has an interface of version 1. The
//! libraries stay loaded.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::path::Path;
use std::sync::OnceLock;

use datapipes_core::{Error, ErrorKind, Result};

use crate::abi::{
    ContextParams, EndpointParams, Handle, HandlerParams, MapParams, OK, RequestParams, Status, WorkerParams,
};

/// The package that has the libraries, in Debian's words.
const PACKAGE: &str = "libucx0";
/// The first version whose functions are known to be there: those that take `ucp_request_param_t`,
/// and keepalive between processes.
const MIN_MINOR: c_uint = 11;

/// The functions of UCX that are used, and its version.
pub struct Ucx {
    pub(crate) status_string: unsafe extern "C" fn(Status) -> *const c_char,
    pub(crate) config_read: unsafe extern "C" fn(*const c_char, *const c_char, *mut Handle) -> Status,
    pub(crate) config_modify: unsafe extern "C" fn(Handle, *const c_char, *const c_char) -> Status,
    pub(crate) config_release: unsafe extern "C" fn(Handle),
    pub(crate) init: unsafe extern "C" fn(c_uint, c_uint, *const ContextParams, Handle, *mut Handle) -> Status,
    pub(crate) cleanup: unsafe extern "C" fn(Handle),
    pub(crate) worker_create: unsafe extern "C" fn(Handle, *const WorkerParams, *mut Handle) -> Status,
    pub(crate) worker_destroy: unsafe extern "C" fn(Handle),
    pub(crate) worker_address: unsafe extern "C" fn(Handle, *mut *mut c_void, *mut usize) -> Status,
    pub(crate) release_address: unsafe extern "C" fn(Handle, *mut c_void),
    pub(crate) worker_efd: unsafe extern "C" fn(Handle, *mut c_int) -> Status,
    pub(crate) progress: unsafe extern "C" fn(Handle) -> c_uint,
    pub(crate) arm: unsafe extern "C" fn(Handle) -> Status,
    pub(crate) ep_create: unsafe extern "C" fn(Handle, *const EndpointParams, *mut Handle) -> Status,
    pub(crate) ep_close: unsafe extern "C" fn(Handle, *const RequestParams) -> *mut c_void,
    pub(crate) ep_flush: unsafe extern "C" fn(Handle, *const RequestParams) -> *mut c_void,
    pub(crate) mem_map: unsafe extern "C" fn(Handle, *const MapParams, *mut Handle) -> Status,
    pub(crate) mem_unmap: unsafe extern "C" fn(Handle, Handle) -> Status,
    pub(crate) rkey_pack: unsafe extern "C" fn(Handle, Handle, *mut *mut c_void, *mut usize) -> Status,
    pub(crate) rkey_release: unsafe extern "C" fn(*mut c_void),
    pub(crate) rkey_unpack: unsafe extern "C" fn(Handle, *const c_void, *mut Handle) -> Status,
    pub(crate) rkey_destroy: unsafe extern "C" fn(Handle),
    pub(crate) put:
        unsafe extern "C" fn(Handle, *const c_void, usize, u64, Handle, *const RequestParams) -> *mut c_void,
    pub(crate) get: unsafe extern "C" fn(Handle, *mut c_void, usize, u64, Handle, *const RequestParams) -> *mut c_void,
    pub(crate) set_handler: unsafe extern "C" fn(Handle, *const HandlerParams) -> Status,
    pub(crate) send_message: unsafe extern "C" fn(
        Handle,
        c_uint,
        *const c_void,
        usize,
        *const c_void,
        usize,
        *const RequestParams,
    ) -> *mut c_void,
    pub(crate) request_status: unsafe extern "C" fn(Handle) -> Status,
    pub(crate) request_free: unsafe extern "C" fn(Handle),
    /// The version, as the library tells it.
    pub version: String,
    pub(crate) tcp_names: TcpNames,
}

/// The settings of the bytes of a segment over TCP, and of the room for one.
pub(crate) struct TcpNames {
    pub(crate) segment: &'static str,
    pub(crate) room: &'static str,
}

impl TcpNames {
    /// 1.13.1 takes names without a prefix, and those with one without an effect. 1.23.0 refuses
    /// the former.
    fn of(minor: u32) -> TcpNames {
        match minor {
            ..=13 => TcpNames { segment: "TX_SEG_SIZE", room: "RX_SEG_SIZE" },
            _ => TcpNames { segment: "TCP_TX_SEG_SIZE", room: "TCP_RX_SEG_SIZE" },
        }
    }
}

impl Ucx {
    /// The library, which is loaded by the first call.
    ///
    /// # Errors
    /// What is not installed, or which other version is.
    pub fn get() -> Result<&'static Ucx, String> {
        static LOADED: OnceLock<Result<Ucx, String>> = OnceLock::new();
        LOADED.get_or_init(Ucx::load).as_ref().map_err(String::clone)
    }

    /// As [`get`](Self::get), for a caller that cannot go on without it.
    ///
    /// # Errors
    /// `Unavailable`, with the package's name.
    pub fn required(operation: &'static str) -> Result<&'static Ucx> {
        Ucx::get().map_err(|why| {
            Error::new(ErrorKind::Unavailable, operation, why)
                .with_advice(format!("install UCX 1.{MIN_MINOR} or later (Debian: {PACKAGE})"))
        })
    }

    /// Whether the library is installed, without loading it.
    ///
    /// # Errors
    /// What is not installed.
    pub fn installed() -> Result<String, String> {
        let folders =
            ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
        let here = folders.iter().map(|folder| Path::new(folder).join("libucp.so.0")).find(|file| file.exists());
        match here {
            Some(file) => Ok(format!("{}, loaded when it is used", file.display())),
            // It may be where only the loader looks.
            None => Ucx::get().map(|ucx| format!("UCX {}", ucx.version)),
        }
    }

    fn load() -> Result<Ucx, String> {
        let handlers = FatalHandlers::now();
        let loaded = Ucx::load_libraries();
        handlers.put_back();
        loaded
    }

    fn load_libraries() -> Result<Ucx, String> {
        let ucs = Library::open("libucs.so.0")?;
        let ucp = Library::open("libucp.so.0")?;
        // SAFETY: this is the function's type in every version of the interface.
        let numbers: unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint) =
            unsafe { ucp.function("ucp_get_version") }?;
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: it writes three numbers.
        unsafe { numbers(&raw mut major, &raw mut minor, &raw mut release) };
        let version = format!("{major}.{minor}.{release}");
        if major != 1 || minor < MIN_MINOR {
            return Err(format!("this is UCX {version}; 1.{MIN_MINOR} or a later one of version 1 is needed"));
        }
        if std::env::var_os("UCX_LOG_LEVEL").is_none() {
            // SAFETY: this is the function's type, and both strings end with a zero. Without the
            // function, UCX prints warnings.
            unsafe {
                if let Ok(set) = ucs.function::<unsafe extern "C" fn(*const c_char, *const c_char) -> Status>(
                    "ucs_global_opts_set_value",
                ) {
                    set(c"LOG_LEVEL".as_ptr(), c"fatal".as_ptr());
                }
            }
        }
        // SAFETY: the types are those of the header.
        unsafe {
            Ok(Ucx {
                status_string: ucs.function("ucs_status_string")?,
                config_read: ucp.function("ucp_config_read")?,
                config_modify: ucp.function("ucp_config_modify")?,
                config_release: ucp.function("ucp_config_release")?,
                init: ucp.function("ucp_init_version")?,
                cleanup: ucp.function("ucp_cleanup")?,
                worker_create: ucp.function("ucp_worker_create")?,
                worker_destroy: ucp.function("ucp_worker_destroy")?,
                worker_address: ucp.function("ucp_worker_get_address")?,
                release_address: ucp.function("ucp_worker_release_address")?,
                worker_efd: ucp.function("ucp_worker_get_efd")?,
                progress: ucp.function("ucp_worker_progress")?,
                arm: ucp.function("ucp_worker_arm")?,
                ep_create: ucp.function("ucp_ep_create")?,
                ep_close: ucp.function("ucp_ep_close_nbx")?,
                ep_flush: ucp.function("ucp_ep_flush_nbx")?,
                mem_map: ucp.function("ucp_mem_map")?,
                mem_unmap: ucp.function("ucp_mem_unmap")?,
                rkey_pack: ucp.function("ucp_rkey_pack")?,
                rkey_release: ucp.function("ucp_rkey_buffer_release")?,
                rkey_unpack: ucp.function("ucp_ep_rkey_unpack")?,
                rkey_destroy: ucp.function("ucp_rkey_destroy")?,
                put: ucp.function("ucp_put_nbx")?,
                get: ucp.function("ucp_get_nbx")?,
                set_handler: ucp.function("ucp_worker_set_am_recv_handler")?,
                send_message: ucp.function("ucp_am_send_nbx")?,
                request_status: ucp.function("ucp_request_check_status")?,
                request_free: ucp.function("ucp_request_free")?,
                version,
                tcp_names: TcpNames::of(minor),
            })
        }
    }

    /// A status of UCX in words.
    pub fn words_of(&self, status: Status) -> String {
        // SAFETY: it returns a string that is never freed, for any status.
        let words = unsafe { (self.status_string)(status) };
        if words.is_null() {
            return format!("status {status}");
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
    }

    /// Turns a status into an error that says what UCX was asked for.
    ///
    /// # Errors
    /// `Unavailable` for every status but `UCS_OK`.
    pub(crate) fn check(&self, status: Status, asked: &'static str) -> Result<()> {
        if status == OK {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, asked, format!("UCX {}: {}", self.version, self.words_of(status))))
    }
}

/// A library that stays loaded.
struct Library(*mut c_void);

impl Library {
    fn open(file: &str) -> Result<Library, String> {
        let Ok(name) = CString::new(file) else { return Err(format!("{file}: no name of a file")) };
        // SAFETY: the name ends with a zero. The constructors of UCX read the environment, set
        // handlers of signals, which the caller puts back, and start nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
        if handle.is_null() { Err(format!("{file} of UCX is not installed ({PACKAGE})")) } else { Ok(Library(handle)) }
    }

    /// # Safety
    /// `F` is the type of a pointer to this function.
    unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let Ok(text) = CString::new(name) else { return Err(format!("{name}: no name of a symbol")) };
        // SAFETY: the library is loaded, and the name ends with a zero.
        let found = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        if found.is_null() {
            return Err(format!("this build of UCX has no {name}"));
        }
        // SAFETY: the caller knows the type, and it has the size of a pointer.
        Ok(unsafe { transmute_copy(&found) })
    }
}

/// The handlers of all signals before UCX was loaded.
struct FatalHandlers(Vec<(c_int, libc::sigaction)>);

impl FatalHandlers {
    fn now() -> FatalHandlers {
        let of = |signal| {
            // SAFETY: zeros are a value of this structure, and the call writes it.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                (libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0).then_some((signal, action))
            }
        };
        FatalHandlers((1..32).filter_map(of).collect())
    }

    fn put_back(self) {
        let now = FatalHandlers::now();
        for ((signal, before), (_, after)) in self.0.iter().zip(&now.0) {
            if before.sa_sigaction != after.sa_sigaction {
                // SAFETY: the action was in force before, and UCX does not rely on its own.
                unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_installed_is_named_with_its_package() {
        let why = Library::open("libucp.so.999").err().unwrap_or_default();
        assert!(why.contains("libucp.so.999") && why.contains("libucx0"), "{why}");
    }
}
