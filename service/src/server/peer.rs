//! Who is at the other end of a socket.
//!
//! Unsafe code: one `getsockopt` into a structure of the kernel's layout. (rustix has it, with a
//! type that cannot be 0 for the process, which the kernel says of one in another namespace.)
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use datapipes_core::{Error, Result};

/// A process, as it was when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// 0 where it cannot be seen from here.
    pub(super) pid: i32,
    pub(super) uid: u32,
}

impl Peer {
    /// Asks the kernel (`SO_PEERCRED`).
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn of(socket: BorrowedFd<'_>) -> Result<Peer> {
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the structure and its length outlive the call, and the length is the structure's.
        let rc = unsafe {
            let into = (&raw mut found).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut len)
        };
        if rc != 0 {
            return Err(Error::io("accept", &std::io::Error::last_os_error(), "who the client is"));
        }
        Ok(Peer { pid: found.pid, uid: found.uid })
    }
}
