//! Packets with descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::protocol::MAX_DESCRIPTORS;

/// A packet that arrived.
pub(crate) struct Packet {
    pub(crate) bytes: usize,
    pub(crate) fds: Vec<OwnedFd>,
    /// It was longer than the buffer.
    pub(crate) cut: bool,
    /// It had more descriptors than [`MAX_DESCRIPTORS`], or than this process can have; the kernel
    /// closed the others.
    pub(crate) fds_cut: bool,
}

/// Sends a packet.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    loop {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// What is known of a packet that was not received yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketPeek {
    /// 0: it is the end of the connection, or a packet without bytes.
    pub(crate) bytes: usize,
    /// Descriptors come with it.
    pub(crate) has_fds: bool,
}

/// Looks at the next packet, which stays where it is, without getting a descriptor.
pub(crate) fn peek(socket: BorrowedFd<'_>) -> Result<PacketPeek, Errno> {
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
    let mut byte = [0];
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut RecvAncillaryBuffer::default(), flags) {
            Ok(got) => return Ok(PacketPeek { bytes: got.bytes, has_fds: got.flags.contains(ReturnFlags::CTRUNC) }),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Receives the bytes of a packet. Descriptors that come with it never become this process's.
pub(crate) fn receive_bytes(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: RecvFlags) -> Result<Packet, Errno> {
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut RecvAncillaryBuffer::default(), flags) {
            Ok(got) => {
                let (cut, fds_cut) = (got.flags.contains(ReturnFlags::TRUNC), got.flags.contains(ReturnFlags::CTRUNC));
                return Ok(Packet { bytes: got.bytes, fds: Vec::new(), cut, fds_cut });
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Receives a packet. One without bytes is the end of the connection.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: RecvFlags) -> Result<Packet, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    let (cut, fds_cut) = (got.flags.contains(ReturnFlags::TRUNC), got.flags.contains(ReturnFlags::CTRUNC));
    Ok(Packet { bytes: got.bytes, fds, cut, fds_cut })
}
