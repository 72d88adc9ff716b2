//! What this process inherited and was not given.
//!
//! This module is unsafe code. It promises that it closes descriptors only where nobody in this process can have them yet.
#![allow(unsafe_code)]

/// Closes every descriptor but standard input, output and error. An application may have others without close-on-exec, and
/// they would be a way past all that the controller gives and takes.
pub(super) fn close() {
    // SAFETY: this is the first that `main` does: no value of this process owns a descriptor yet. A kernel before 5.9 does not
    // know the call; then what the application leaves to its children stays open.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
}
