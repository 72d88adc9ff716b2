//! Packets of JSON over a Unix socket, with descriptors beside them.

use std::os::fd::{BorrowedFd, OwnedFd};

use datapipes_core::packet;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most bytes of a packet.
pub(crate) const PACKET_BYTES: usize = 32 << 10;
/// The most descriptors of a packet.
pub(crate) const MAX_DESCRIPTORS: usize = packet::MAX_PACKET_DESCRIPTORS;

/// Sends a value without waiting.
///
/// # Errors
/// `Busy` where the other side does not read. `Device` where it has gone. `OutOfRange` for a value
/// that is too long.
pub(crate) fn send(socket: BorrowedFd<'_>, value: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let wrong = |e: serde_json::Error| Error::new(ErrorKind::System, "send", format!("a packet: {e}")).with_source(e);
    let bytes = serde_json::to_vec(value).map_err(wrong)?;
    if bytes.len() > PACKET_BYTES || fds.len() > MAX_DESCRIPTORS {
        let context = format!("a packet of {} bytes with {} descriptors", bytes.len(), fds.len());
        return Err(Error::new(ErrorKind::OutOfRange, "send", context));
    }
    packet::send(socket, &bytes, fds, SendFlags::DONTWAIT).map_err(|e| match e {
        Errno::PIPE | Errno::CONNRESET => Error::new(ErrorKind::Device, "send", "a packet: the other side has gone"),
        e => Error::os("send", e.raw_os_error(), "a packet"),
    })
}

/// A received packet.
pub(crate) enum Arrived<T> {
    Packet(T, Vec<OwnedFd>),
    /// Nothing has arrived.
    Nothing,
    /// The other side has gone.
    End,
}

/// Receives a value without waiting. Descriptors are received only with `fds`. Otherwise the kernel
/// drops them first, so that nobody can fill this process's table.
///
/// # Errors
/// `Corrupt` for bytes that are not such a value, are too long or bring too many descriptors.
/// `NoSpace` where this process has no room for them.
pub(crate) fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>, buffer: &mut [u8], fds: bool) -> Result<Arrived<T>> {
    let wrong = |what: String| Err(Error::new(ErrorKind::Corrupt, "receive", what));
    let max_fds = if fds { MAX_DESCRIPTORS } else { 0 };
    let (got, passed) = match packet::receive(socket, buffer, max_fds, RecvFlags::DONTWAIT) {
        Ok(got) => got,
        Err(Errno::AGAIN) => return Ok(Arrived::Nothing),
        Err(Errno::CONNRESET) => return Ok(Arrived::End),
        Err(e) => return Err(Error::os("receive", e.raw_os_error(), "a packet")),
    };
    if got.bytes == 0 {
        return Ok(Arrived::End);
    }
    if fds && got.fds_cut && passed.len() < MAX_DESCRIPTORS {
        let what = "descriptors: this process has as many open as it may have";
        return Err(Error::new(ErrorKind::NoSpace, "receive", what).with_advice("a higher limit: ulimit -n"));
    }
    if got.cut || got.fds_cut {
        return wrong("a packet that is too long, or brings unexpected descriptors".into());
    }
    match serde_json::from_slice(&buffer[..got.bytes]) {
        Ok(value) => Ok(Arrived::Packet(value, passed)),
        Err(e) => wrong(format!("a packet: {e}")),
    }
}
