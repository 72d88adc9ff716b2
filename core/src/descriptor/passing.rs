//! Whether descriptors may come with packets.
//!
//! A packet that nobody takes a descriptor out of closes it in the thread that reads the packet. What somebody else made may make that
//! last as long as they please: a TCP socket that lingers, a file of a file system that they serve. So where no descriptor is
//! expected, none may come (`SO_PASSRIGHTS`, Linux 6.16): whoever sends one is told `EPERM`. Older kernels do not know the option,
//! and there a reader can be held up.
//!
//! Unsafe code: one call of `setsockopt`, for rustix does not have the option yet.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

/// From `asm-generic/socket.h`.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Says whether packets that arrive at a Unix socket may carry descriptors. False where the kernel does not know how.
pub fn let_pass(socket: impl AsFd, may: bool) -> bool {
    let value = libc::c_int::from(may);
    let len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or_default();
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the value is live for the call and as long as is said; the descriptor is borrowed.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const value).cast(), len) == 0 }
}
