//! What the page cache has of a file, and its way to the device.
//!
//! Unsafe code: `sync_file_range`, without memory.
#![deny(clippy::arithmetic_side_effects)]
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Writes what the page cache has of a range to the device, and waits for that. Nothing is durable
/// with it: what describes the file, and the device's own cache, are not written.
///
/// # Errors
/// The kernel's error: bytes may be lost. It is told once, and a later sync does not tell it again.
pub fn write_back(file: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_range(file, at, len, wait)
}

/// Begins to do so, and waits only where the device's queue is full.
///
/// # Errors
/// As [`write_back`].
pub fn begin_write_back(file: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    sync_range(file, at, len, libc::SYNC_FILE_RANGE_WRITE)
}

fn sync_range(file: BorrowedFd<'_>, at: u64, len: u64, how: u32) -> Result<(), Errno> {
    let (Ok(at), Ok(len)) = (i64::try_from(at), i64::try_from(len)) else { return Err(Errno::INVAL) };
    loop {
        // SAFETY: the call refers to no memory, and the descriptor is borrowed.
        if unsafe { libc::sync_file_range(file.as_raw_fd(), at, len, how) } == 0 {
            return Ok(());
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if errno != libc::EINTR {
            return Err(Errno::from_raw_os_error(errno));
        }
    }
}
