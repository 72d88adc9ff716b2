//! Packets of a Unix socket, with descriptors beside their bytes (`SCM_RIGHTS`).
//!
//! A call that a signal interrupts is repeated. All descriptors that arrive are closed on `exec`.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// The most descriptors that these functions send or receive with a packet.
pub const MAX_PACKET_DESCRIPTORS: usize = 8;

/// Sends a packet, without a signal where the other end has gone. A packet without descriptors is
/// sent by `send`, the only call that a sandbox may permit.
///
/// # Errors
/// The kernel's; `INVAL` for more than [`MAX_PACKET_DESCRIPTORS`] descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> Result<(), Errno> {
    let (socket, flags) = (socket.as_fd(), flags | SendFlags::NOSIGNAL);
    if fds.len() > MAX_PACKET_DESCRIPTORS {
        return Err(Errno::INVAL);
    }
    if fds.is_empty() {
        return retry_on_intr(|| rustix::net::send(socket, bytes, flags)).map(drop);
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_PACKET_DESCRIPTORS))];
    retry_on_intr(|| {
        let mut control = SendAncillaryBuffer::new(&mut space);
        // There is room for as many as were let in above.
        control.push(SendAncillaryMessage::ScmRights(fds));
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
    })
}

/// A packet that was received, without its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFacts {
    /// The bytes that were received; 0 at the end of the connection too.
    pub bytes: usize,
    /// The descriptors that were received.
    pub fds: usize,
    /// Whether it was longer than the buffer.
    pub cut: bool,
    /// Whether it had more descriptors than there was room for, or than this process can have. The
    /// others are closed.
    pub fds_cut: bool,
}

/// Receives a packet and as many descriptors as there are places for them, at most
/// [`MAX_PACKET_DESCRIPTORS`]. Without places none ever becomes this process's. It does not
/// allocate.
///
/// # Errors
/// The kernel's.
pub fn receive_into(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut [Option<OwnedFd>],
    flags: RecvFlags,
) -> Result<PacketFacts, Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_PACKET_DESCRIPTORS))];
    let room = if fds.is_empty() { 0 } else { cmsg_space!(ScmRights(fds.len().min(MAX_PACKET_DESCRIPTORS))) };
    let mut control = RecvAncillaryBuffer::new(space.get_mut(..room).unwrap_or_default());
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let got = retry_on_intr(|| recvmsg(socket.as_fd(), &mut [IoSliceMut::new(buffer)], &mut control, flags))?;
    let (mut places, mut count, mut fds_cut) = (fds.iter_mut(), 0, got.flags.contains(ReturnFlags::CTRUNC));
    for message in control.drain() {
        let RecvAncillaryMessage::ScmRights(passed) = message else { continue };
        for fd in passed {
            match places.next() {
                Some(place) => (*place, count) = (Some(fd), count + 1),
                // The kernel may find room for one more, because it rounds up. It is closed here.
                None => fds_cut = true,
            }
        }
    }
    Ok(PacketFacts { bytes: got.bytes, fds: count, cut: got.flags.contains(ReturnFlags::TRUNC), fds_cut })
}

/// As [`receive_into`], with at most so many descriptors.
///
/// # Errors
/// The kernel's.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    max_fds: usize,
    flags: RecvFlags,
) -> Result<(PacketFacts, Vec<OwnedFd>), Errno> {
    let mut fds = [const { None }; MAX_PACKET_DESCRIPTORS];
    let places = fds.get_mut(..max_fds).unwrap_or_default();
    let facts = receive_into(socket, buffer, places, flags)?;
    Ok((facts, fds.into_iter().flatten().collect()))
}

/// The facts of a packet that was not received yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketPeek {
    /// Its length; 0 for the end of the connection, or a packet without bytes.
    pub bytes: usize,
    /// Whether descriptors come with it.
    pub has_fds: bool,
}

/// Looks at the next packet without waiting, and without receiving it or its descriptors.
///
/// # Errors
/// The kernel's; `AGAIN` where there is none.
pub fn peek(socket: impl AsFd) -> Result<PacketPeek, Errno> {
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
    // Without room for descriptors none is installed, and the kernel says that there were some.
    let mut none = RecvAncillaryBuffer::default();
    let got = retry_on_intr(|| recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut [0])], &mut none, flags))?;
    Ok(PacketPeek { bytes: got.bytes, has_fds: got.flags.contains(ReturnFlags::CTRUNC) })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn descriptors_arrive_where_there_is_room_for_them() {
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        assert_eq!(peek(&there), Err(Errno::AGAIN));
        for (sent, room, arrives) in
            [(0, 0, 0), (0, 4, 0), (3, 0, 0), (3, 4, 3), (4, 4, 4), (8, 8, 8), (8, 2, 2), (3, 1, 1)]
        {
            let fds = vec![here.as_fd(); sent];
            send(&here, b"packet", &fds, SendFlags::empty()).unwrap();
            assert_eq!(peek(&there), Ok(PacketPeek { bytes: 6, has_fds: sent > 0 }));
            let mut buffer = [0; 5];
            let (facts, got) = receive(&there, &mut buffer, room, RecvFlags::DONTWAIT).unwrap();
            assert_eq!((facts.bytes, facts.cut, &buffer), (5, true, b"packe"));
            assert_eq!((facts.fds, got.len()), (arrives, arrives), "{sent} into {room}");
            assert_eq!(facts.fds_cut, sent > room, "{sent} into {room}");
        }
        assert_eq!(send(&here, b"", &[here.as_fd(); 9], SendFlags::empty()), Err(Errno::INVAL));
        drop(here);
        assert_eq!(receive(&there, &mut [0], 8, RecvFlags::DONTWAIT).unwrap().0.bytes, 0);
        assert_eq!(send(&there, b"x", &[], SendFlags::empty()), Err(Errno::PIPE));
    }
}
