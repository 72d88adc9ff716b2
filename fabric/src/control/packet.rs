//! Packets of JSON over a Unix socket, with descriptors beside them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of the longest packet.
pub(crate) const PACKET_BYTES: usize = 32 << 10;
/// Descriptors of one packet, at most.
pub(crate) const MAX_DESCRIPTORS: usize = 8;

/// Sends a value; never waits.
///
/// # Errors
/// `Busy` where the other side does not read; `Device` where it has gone; `OutOfRange` for a value
/// that is too long.
pub(crate) fn send(socket: BorrowedFd<'_>, value: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let wrong = |e: serde_json::Error| Error::new(ErrorKind::System, "send", format!("a packet: {e}"));
    let bytes = serde_json::to_vec(value).map_err(wrong)?;
    if bytes.len() > PACKET_BYTES || fds.len() > MAX_DESCRIPTORS {
        let context = format!("a packet of {} bytes with {} descriptors", bytes.len(), fds.len());
        return Err(Error::new(ErrorKind::OutOfRange, "send", context));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    loop {
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sent = if fds.is_empty() {
            // All that a device may do.
            rustix::net::send(socket, &bytes, flags)
        } else {
            control.push(SendAncillaryMessage::ScmRights(fds));
            sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)
        };
        match sent {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => {
                return Err(Error::new(ErrorKind::Device, "send", "a packet: the other side has gone"));
            }
            Err(e) => return Err(Error::os("send", e.raw_os_error(), "a packet")),
        }
    }
}

/// What arrived.
pub(crate) enum Arrived<T> {
    Packet(T, Vec<OwnedFd>),
    /// Nothing is there.
    Nothing,
    /// The other side has gone.
    End,
}

/// Receives a value, without waiting. Descriptors are taken only where `fds` says so; else the
/// kernel drops them before this process has them, so nobody can fill its table.
///
/// # Errors
/// `Corrupt` for what is no such value, is too long or brings too many descriptors; `NoSpace` where
/// this process has no room for them.
pub(crate) fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>, buffer: &mut [u8], fds: bool) -> Result<Arrived<T>> {
    let wrong = |what: String| Err(Error::new(ErrorKind::Corrupt, "receive", what));
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = if fds { RecvAncillaryBuffer::new(&mut space) } else { RecvAncillaryBuffer::default() };
    let got = loop {
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(got) => break got,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Arrived::Nothing),
            Err(Errno::CONNRESET) => return Ok(Arrived::End),
            Err(e) => return Err(Error::os("receive", e.raw_os_error(), "a packet")),
        }
    };
    let mut passed = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            passed.extend(fds);
        }
    }
    if got.bytes == 0 {
        return Ok(Arrived::End);
    }
    if fds && got.flags.contains(ReturnFlags::CTRUNC) && passed.len() < MAX_DESCRIPTORS {
        let what = "descriptors: this process has as many open as it may have";
        return Err(Error::new(ErrorKind::NoSpace, "receive", what).advice("a higher limit: ulimit -n"));
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return wrong("a packet that is too long, or brings descriptors that nobody takes".into());
    }
    match serde_json::from_slice(&buffer[..got.bytes]) {
        Ok(value) => Ok(Arrived::Packet(value, passed)),
        Err(e) => wrong(format!("a packet: {e}")),
    }
}
