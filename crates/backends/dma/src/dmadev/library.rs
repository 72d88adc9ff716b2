//! DPDK's libraries, loaded at run time: the functions and structures of DPDK 22.11 (ABI 23).
//!
//! Operations are inline functions in DPDK's headers, over a table of function pointers that
//! `librte_dmadev` exports (`rte_dma_fp_objs`). The table belongs to an interface that may change
//! from one release to the next, so another release is refused by name. The layouts are those of
//! `rte_dmadev.h` and `rte_dmadev_core.h`.
//!
//! This module's unsafe code promises: a function pointer has the type that the headers of 22.11
//! declare for its symbol, and `rte_version` said that this is 22.11. The libraries stay loaded.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute_copy;
use std::path::Path;

/// The version of DPDK whose layouts are below.
const VERSION: &str = "DPDK 22.11";
/// Its number in names of libraries.
const ABI: u32 = 23;

/// `struct rte_dma_info`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct DmaInfo {
    pub(super) name: *const c_char,
    pub(super) capabilities: u64,
    pub(super) max_vchans: u16,
    pub(super) max_desc: u16,
    pub(super) min_desc: u16,
    pub(super) max_sges: u16,
    pub(super) numa_node: i16,
    pub(super) nb_vchans: u16,
}

/// `struct rte_dma_conf`.
#[repr(C)]
pub(super) struct DmaConf {
    pub(super) nb_vchans: u16,
    pub(super) enable_silent: bool,
}

/// `struct rte_dma_vchan_conf`; ports are for memory of other machines.
#[repr(C)]
pub(super) struct ChannelConf {
    pub(super) direction: c_int,
    pub(super) nb_desc: u16,
    pub(super) ports: [[u64; 5]; 2],
}

/// `struct rte_dma_fp_object`: the functions of a device.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
pub(super) struct FastPath {
    pub(super) device: *mut c_void,
    pub(super) copy: Option<unsafe extern "C" fn(*mut c_void, u16, u64, u64, u32, u64) -> c_int>,
    pub(super) copy_sg: *const c_void,
    pub(super) fill: *const c_void,
    pub(super) submit: *const c_void,
    pub(super) completed: *const c_void,
    pub(super) completed_status: Option<unsafe extern "C" fn(*mut c_void, u16, u16, *mut u16, *mut c_int) -> u16>,
    pub(super) burst_capacity: *const c_void,
}

const _: () = {
    assert!(size_of::<DmaInfo>() == 32 && size_of::<DmaConf>() == 4);
    assert!(size_of::<ChannelConf>() == 88 && size_of::<FastPath>() == 128);
    assert!(std::mem::offset_of!(DmaInfo, numa_node) == 24 && std::mem::offset_of!(ChannelConf, ports) == 8);
    assert!(std::mem::offset_of!(FastPath, completed_status) == 48);
};

/// The functions of DPDK that are used.
pub(super) struct Dpdk {
    pub(super) eal_init: unsafe extern "C" fn(c_int, *mut *mut c_char) -> c_int,
    pub(super) iova_mode: unsafe extern "C" fn() -> c_int,
    pub(super) strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    pub(super) vfio_is_enabled: unsafe extern "C" fn(*const c_char) -> c_int,
    pub(super) vfio_map: unsafe extern "C" fn(c_int, u64, u64, u64) -> c_int,
    pub(super) vfio_unmap: unsafe extern "C" fn(c_int, u64, u64, u64) -> c_int,
    pub(super) next_dev: unsafe extern "C" fn(i16) -> i16,
    pub(super) info_get: unsafe extern "C" fn(i16, *mut DmaInfo) -> c_int,
    pub(super) configure: unsafe extern "C" fn(i16, *const DmaConf) -> c_int,
    pub(super) vchan_setup: unsafe extern "C" fn(i16, u16, *const ChannelConf) -> c_int,
    pub(super) start: unsafe extern "C" fn(i16) -> c_int,
    pub(super) stop: unsafe extern "C" fn(i16) -> c_int,
    pub(super) vchan_status: unsafe extern "C" fn(i16, u16, *mut c_int) -> c_int,
    /// The variable that holds the address of the table.
    fast_paths: *const *const FastPath,
    eal: Library,
    /// What DPDK says of itself.
    pub(super) version: String,
}

// SAFETY: functions, and the address of a variable that only DPDK writes, before it has a device.
unsafe impl Send for Dpdk {}
// SAFETY: as above.
unsafe impl Sync for Dpdk {}

impl Dpdk {
    /// Loads the libraries.
    ///
    /// # Errors
    /// What is not installed, or which other version is.
    pub(super) fn load() -> Result<Dpdk, String> {
        let eal = Library::open("librte_eal")?;
        let dma = Library::open("librte_dmadev")?;
        // SAFETY: this is the type of `rte_version` in every version.
        let version: unsafe extern "C" fn() -> *const c_char = unsafe { eal.function("rte_version") }?;
        // SAFETY: it takes nothing and returns a string that is never freed.
        let version = unsafe { CStr::from_ptr(version()) }.to_string_lossy().into_owned();
        if !version.starts_with(VERSION) {
            return Err(format!("this is {version}; the layouts of {VERSION} alone are known"));
        }
        // SAFETY: the types are those of the headers of this version.
        unsafe {
            Ok(Dpdk {
                eal_init: eal.function("rte_eal_init")?,
                iova_mode: eal.function("rte_eal_iova_mode")?,
                strerror: eal.function("rte_strerror")?,
                vfio_is_enabled: eal.function("rte_vfio_is_enabled")?,
                vfio_map: eal.function("rte_vfio_container_dma_map")?,
                vfio_unmap: eal.function("rte_vfio_container_dma_unmap")?,
                next_dev: dma.function("rte_dma_next_dev")?,
                info_get: dma.function("rte_dma_info_get")?,
                configure: dma.function("rte_dma_configure")?,
                vchan_setup: dma.function("rte_dma_vchan_setup")?,
                start: dma.function("rte_dma_start")?,
                stop: dma.function("rte_dma_stop")?,
                vchan_status: dma.function("rte_dma_vchan_status")?,
                fast_paths: dma.symbol("rte_dma_fp_objs")?.cast(),
                eal,
                version,
            })
        }
    }

    /// The functions of a device that was started. They stay the same until it is stopped.
    pub(super) fn fast_path(&self, device: u16) -> Option<FastPath> {
        // SAFETY: the variable is part of a library that stays loaded. The table has an entry for
        // each device that DPDK has numbered, and DPDK sets the variable before the first one.
        unsafe {
            let table = self.fast_paths.read();
            if table.is_null() { None } else { Some(table.add(usize::from(device)).read()) }
        }
    }

    /// The number of the last error of DPDK in this thread.
    pub(super) fn last_error(&self) -> c_int {
        // The variable belongs to a thread: its address is looked up by the thread that reads it.
        let Ok(variable) = self.eal.symbol("per_lcore__rte_errno") else { return 0 };
        // SAFETY: this is an `int` of this thread.
        unsafe { variable.cast::<c_int>().read() }
    }

    /// An error of DPDK in words. It may be negative.
    pub(super) fn words_of(&self, error: c_int) -> String {
        // SAFETY: it returns a string of this thread, which the next call replaces.
        unsafe {
            let words = (self.strerror)(error.saturating_abs());
            if words.is_null() {
                format!("error {error}")
            } else {
                CStr::from_ptr(words).to_string_lossy().into_owned()
            }
        }
    }
}

/// A library that stays loaded.
struct Library(*mut c_void);

impl Library {
    fn open(stem: &str) -> Result<Library, String> {
        let file = format!("{stem}.so.{ABI}");
        let Ok(name) = CString::new(file.clone()) else { return Err(format!("{file}: no name of a file")) };
        // SAFETY: the name ends with a zero. The libraries' constructors register drivers and
        // start nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Library(handle));
        }
        let others = others_of(stem);
        let others = if others.is_empty() { String::new() } else { format!("; there is {}", others.join(", ")) };
        Err(format!("{file} of {VERSION} is not installed{others}"))
    }

    fn symbol(&self, name: &str) -> Result<*mut c_void, String> {
        let Ok(text) = CString::new(name) else { return Err(format!("{name}: no name of a symbol")) };
        // SAFETY: the library is loaded, and the name ends with a zero.
        let found = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        if found.is_null() { Err(format!("this build of {VERSION} has no {name}")) } else { Ok(found) }
    }

    /// # Safety
    /// `F` is the type of a pointer to this function.
    unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, String> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let found = self.symbol(name)?;
        // SAFETY: the caller knows the type, and it has the size of a pointer.
        Ok(unsafe { transmute_copy(&found) })
    }
}

/// The versions of a library that are installed where distributions put it, by name.
fn others_of(stem: &str) -> Vec<String> {
    let folders =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    let abis = (ABI - 3..ABI).chain(ABI + 1..ABI + 8);
    abis.map(|abi| format!("{stem}.so.{abi}"))
        .filter(|file| folders.iter().any(|folder| Path::new(folder).join(file).exists()))
        .collect()
}
