//! The number of bytes sent over a Unix socket that the other end has not received.
//!
//! This module has unsafe code. It only passes the kernel an integer to write.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

/// The bytes of packets that the other end has not received, with the kernel's overhead. None where
/// that is not available.
pub(crate) fn unread_bytes(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut unread: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (the same number as TIOCOUTQ) writes one integer, and it gets one. The
    // descriptor is borrowed.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, std::ptr::from_mut(&mut unread)) };
    if rc == 0 { u64::try_from(unread).ok() } else { None }
}
