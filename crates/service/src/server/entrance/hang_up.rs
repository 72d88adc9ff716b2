//! How a connection is hung up, at once.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};

/// Ends a connection: the client can send nothing more, reads what was sent, and then the end.
pub(in crate::server) fn part(socket: &OwnedFd) {
    // This fails if the client has closed the connection.
    let _ = shutdown(socket, Shutdown::Both);
    // What came before that is read; it ends, because nothing can follow. The kernel closes
    // descriptors in it.
    let mut byte = [0];
    loop {
        match recv(socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            // A packet without bytes cannot be told from the end, unless others lie behind it.
            Ok((0, _)) | Err(_) if !is_readable(socket) => return,
            Err(e) if e != Errno::INTR && e != Errno::CONNRESET => return,
            _ => {}
        }
    }
}

/// Whether a packet with bytes waits.
pub(in crate::server) fn is_readable(socket: &OwnedFd) -> bool {
    rustix::io::ioctl_fionread(socket).is_ok_and(|bytes| bytes > 0)
}
