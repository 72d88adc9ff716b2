//! How much of what was sent over a Unix socket its other end has not taken.
//!
//! This module is unsafe code. It promises that it passes the kernel an integer to write and
//! nothing else.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of packets, with what the kernel needs for them, that the other end has not received; None
/// where that cannot be told.
pub(super) fn unread_bytes(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut unread: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (the same number as TIOCOUTQ) writes one integer, which is what it is given;
    // the descriptor is borrowed.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, std::ptr::from_mut(&mut unread)) };
    if rc == 0 { u64::try_from(unread).ok() } else { None }
}
