//! Keeps the page cache of a block device and commands that go past it coherent.
//!
//! The kernel does so itself for requests past the page cache (`O_DIRECT`): it writes back what the
//! cache has before one, and drops the pages of a write before and after it. It knows nothing of
//! commands, so this does the same by system calls. A page that another process maps, or reads
//! through the cache at the same moment, may stay there with its old bytes.
//!
//! Unsafe code: `sync_file_range`, without memory.
#![deny(clippy::arithmetic_side_effects)]
#![allow(unsafe_code)]

use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Writes what the page cache has of a range to the device, and waits for that.
///
/// # Errors
/// The kernel's error: bytes may be lost.
pub(super) fn write_back(file: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let (Ok(at), Ok(len)) = (i64::try_from(at), i64::try_from(len)) else { return Err(Errno::INVAL) };
    loop {
        // SAFETY: the call refers to no memory, and the descriptor is borrowed.
        if unsafe { libc::sync_file_range(file.as_raw_fd(), at, len, wait) } == 0 {
            return Ok(());
        }
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if errno != libc::EINTR {
            return Err(Errno::from_raw_os_error(errno));
        }
    }
}

/// Drops the clean pages that a range touches from the page cache.
pub(super) fn drop_pages(file: BorrowedFd<'_>, at: u64, len: u64) {
    let inside = (datapipes_core::process::page_size() as u64).wrapping_sub(1);
    // The kernel keeps pages that the range has only in part, so it gets whole ones.
    let start = at & !inside;
    let end = at.saturating_add(len).saturating_add(inside) & !inside;
    // Pages that cannot be dropped stay, as the kernel's own dropping leaves them.
    let _ = rustix::fs::fadvise(file, start, NonZeroU64::new(end.saturating_sub(start)), rustix::fs::Advice::DontNeed);
}
