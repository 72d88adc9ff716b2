//! Whether the locale that the environment asks for is installed: GNU sort orders by bytes where it
//! is not, as we always do.
//!
//! Unsafe: the C library is asked for a locale object, which changes nothing in the process, and
//! gives it back.
#![allow(unsafe_code)]

/// Whether every category that the environment names can be had.
pub(super) fn is_installed() -> bool {
    // SAFETY: the name is a C string that lives for ever (empty: as the environment says); a null
    // base asks for a new object. It is freed once, and only where there is one.
    unsafe {
        let locale = libc::newlocale(libc::LC_ALL_MASK, c"".as_ptr(), std::ptr::null_mut());
        let installed = !locale.is_null();
        if installed {
            libc::freelocale(locale);
        }
        installed
    }
}
