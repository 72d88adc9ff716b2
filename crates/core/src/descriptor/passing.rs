//! Whether descriptors may come with packets.
//!
//! A packet that nobody takes a descriptor out of closes it in the thread that reads the packet.
//! What somebody else made may make that last as long as they please: a TCP socket that lingers, a
//! file of a file system that they serve. So where no descriptor is expected, none may come
//! (`SO_PASSRIGHTS`, Linux 6.16): whoever sends one is told `EPERM`. Older kernels do not know the
//! option. There who reads looks first, at the cost of one call a packet, and has a connection with
//! such packets emptied by a thread of its own.
//!
//! Unsafe code: a call of `setsockopt` and one of `ioctl`, for rustix does not have them.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

use crate::packet;
use crate::threads;

/// The option of a socket by this name in `asm-generic/socket.h`.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Says whether packets that arrive at a Unix socket may carry descriptors. False where the kernel
/// does not know how.
pub fn let_pass(socket: impl AsFd, may: bool) -> bool {
    let value = libc::c_int::from(may);
    let len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or_default();
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the value is live for the call and as long as is said; the descriptor is borrowed.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const value).cast(), len) == 0 }
}

/// Whether something that was sent over a Unix socket was not taken by the other end, which is
/// still there. Until it is taken the kernel charges it, with the descriptors in it, to who sent
/// it.
pub fn has_unread(socket: impl AsFd) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the number is live for the call; the descriptor is borrowed.
    unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) == 0 && bytes > 0 }
}

/// Whether descriptors come with the next packet, which stays where it is.
pub(super) fn comes_with_descriptors(socket: impl AsFd) -> bool {
    packet::peek(socket).is_ok_and(|peek| peek.has_fds)
}

/// Packets without bytes that may lie in a socket at most; each takes hundreds of bytes of its
/// buffer.
const EMPTY_PACKETS: usize = 4096;

/// Ends a connection whose unread packets may carry descriptors: a thread of its own closes them,
/// however long that takes, and is the last to have the connection. Where there is none to be had,
/// the caller is.
pub(super) fn abandon(socket: &OwnedFd) {
    let _ = shutdown(socket, Shutdown::Both);
    let Ok(socket) = rustix::io::fcntl_dupfd_cloexec(socket, 0) else { return };
    // It fails where there are no threads: then what is unread is closed with the socket, here.
    let _ = threads::spawn("empties-socket", move || {
        let mut left = EMPTY_PACKETS;
        // The end reads as a packet without bytes does.
        while left > 0 && recv(&socket, &mut [0], RecvFlags::DONTWAIT).is_ok() {
            if !rustix::io::ioctl_fionread(&socket).is_ok_and(|bytes| bytes > 0) {
                left -= 1;
            }
        }
    });
}
