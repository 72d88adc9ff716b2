//! The process at the other end of a socket.
//!
//! Unsafe code: one `getsockopt` into a structure of the kernel's layout. (The type in rustix does
//! not allow a process id of 0, which the kernel returns for a process in another namespace.)
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use datapipes_core::{Error, Result};

/// A process, as it was when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct Peer {
    /// 0 if it cannot be seen from here.
    pub(in crate::server) pid: i32,
    pub(in crate::server) uid: u32,
}

impl Peer {
    /// Asks the kernel (`SO_PEERCRED`).
    ///
    /// # Errors
    /// Errors of the kernel.
    pub(in crate::server) fn of(socket: BorrowedFd<'_>) -> Result<Peer> {
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the structure and its length outlive the call, and the length is the structure's.
        let rc = unsafe {
            let into = (&raw mut found).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut len)
        };
        if rc != 0 {
            return Err(Error::io("accept", std::io::Error::last_os_error(), "the user of the client"));
        }
        Ok(Peer { pid: found.pid, uid: found.uid })
    }
}
