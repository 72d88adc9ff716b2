//! The C library's heap gives back what is large.
//!
//! glibc maps a large block apart and unmaps it when it is freed, but takes the size of each such
//! block as the new limit of what is large (up to 32 MiB). Records of 36 MB that come and go then
//! stay in the heap in pieces: `sort -S64M`, which states 69 MiB more for two of them, had 190 MiB
//! in use instead of 122 (-S64M, six lines of 22 to 36 MB). With a limit that is set, it stays
//! where it is.
//!
//! Unsafe: one call that sets a number of the C library, before any thread is started.
#![allow(unsafe_code)]

/// Blocks from this size on are mapped apart. Smaller ones are reused: a new mapping costs a page
/// fault for each 4 KiB.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 4 << 20;

/// Sets the limit.
pub(crate) fn give_back_what_is_large() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two numbers. It is called by the only thread.
    unsafe {
        // 0 would mean that it was refused: then all is as the C library has it.
        let _ = libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}
