//! Descriptors that this process inherited and was not given.
//!
//! This module has unsafe code. It closes descriptors only where no value of this process can own
//! them yet.
#![allow(unsafe_code)]

/// Gives the calling thread its own table of descriptors, with standard input, output and error
/// only.
///
/// A process's descriptors are closed when the last thread that shares them has ended. A thread
/// that ends late would keep sockets open, and their closing tells others of this process's end.
pub(crate) fn only_standard() {
    const UNSHARE: u32 = 1 << 1;
    // SAFETY: the table is unshared before anything is closed in it, so every other thread keeps
    // its descriptors. By calling this, the caller promises that the calling thread uses no other
    // descriptor from here on. A kernel before 5.9 refuses.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, UNSHARE) };
}

/// Returns the number of open descriptors of this process, or 0 where it is not available.
pub(super) fn count() -> usize {
    // The descriptor that reads the table is among them.
    std::fs::read_dir("/proc/self/fd").map_or(0, |table| table.count().saturating_sub(1))
}

/// Closes every descriptor but standard input, output and error. An application may have others
/// without close-on-exec, which would bypass the controller.
pub(super) fn close() {
    // SAFETY: this is the first action of `main`: no value of this process owns a descriptor yet.
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) } == 0 {
        return;
    }
    // On a kernel before 5.9, or with a filter that does not know the call, they are closed one by
    // one. The table's own descriptor is among them, so the table is read to its end first.
    let Ok(table) = std::fs::read_dir("/proc/self/fd") else { return };
    let number = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<i32>().ok();
    let open: Vec<i32> = table.filter_map(number).filter(|fd| *fd > 2).collect();
    for fd in open {
        // SAFETY: as above. The descriptor that read the table is closed already, and closing it
        // again is refused.
        unsafe { libc::close(fd) };
    }
}
