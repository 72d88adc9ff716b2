//! What this process inherited and was not given.
//!
//! This module is unsafe code. It promises that it closes descriptors only where nobody in this
//! process can have them yet.
#![allow(unsafe_code)]

/// Gives the calling thread a table of descriptors of its own, with standard input, output and
/// error and no other.
///
/// A process's descriptors are closed when the last of its threads that share them has ended: one
/// that ends late would keep sockets open whose closing tells others of this process's end.
pub(crate) fn only_standard() {
    const UNSHARE: u32 = 1 << 1;
    // SAFETY: the table is taken apart before anything is closed in it, so every other thread keeps
    // what it has; the calling thread uses no other descriptor from here on, as its caller promises
    // by calling this. A kernel before 5.9 refuses.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, UNSHARE) };
}

/// How many descriptors this process has open; 0 where that cannot be seen.
pub(super) fn count() -> usize {
    // The one that the table is read by is among them.
    std::fs::read_dir("/proc/self/fd").map_or(0, |table| table.count().saturating_sub(1))
}

/// Closes every descriptor but standard input, output and error. An application may have others
/// without close-on-exec, and they would be a way past all that the controller gives and takes.
pub(super) fn close() {
    // SAFETY: this is the first that `main` does: no value of this process owns a descriptor yet.
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) } == 0 {
        return;
    }
    // A kernel before 5.9, or a filter that does not know the call: one by one. The table's own
    // descriptor is among them, so it is read to its end first.
    let Ok(table) = std::fs::read_dir("/proc/self/fd") else { return };
    let number = |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<i32>().ok();
    let open: Vec<i32> = table.filter_map(number).filter(|fd| *fd > 2).collect();
    for fd in open {
        // SAFETY: as above; the one that the table was read by is closed already, and closing it
        // again is refused.
        unsafe { libc::close(fd) };
    }
}
