//! Channels over sockets in the controller. It makes the connections, keeps a copy of each end on
//! its machine, and shuts them down to revoke. A shutdown applies to all copies of the socket.
//!
//! Each end comes with the state page, as over shared memory, so both tell the same reason for the
//! end of a channel.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use datapipes_core::{Error, ErrorKind, Result};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair, sockopt};

use super::objects::Endpoint;
use crate::capability::Rights;
use crate::channel::layout::{State, StatePage};
use crate::channel::memory::{Mapping, Object, View, page_bytes};
use crate::channel::{ChannelShape, bell};
use crate::control::key::secret;
use crate::control::protocol::EndpointKind;
use crate::transport::seal::Keys;
use crate::transport::{Carrier, Token};

/// A channel over a connection.
pub(crate) struct Link {
    shape: ChannelShape,
    epoch: u64,
    token: Token,
    /// The keys of the local end, if bytes are encrypted.
    keys: Option<Keys>,
    state: View<StatePage>,
    page: Object,
    sender: Copy,
    receiver: Copy,
}

/// The controller's copy of an end.
enum Copy {
    /// Another controller has it.
    Elsewhere,
    /// There is no connection yet.
    Awaited,
    Here(OwnedFd),
}

impl Link {
    /// Makes a link with both ends on this machine.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape, and for a carrier that is not one socket. Errors of making
    /// sockets.
    pub(crate) fn within(shape: ChannelShape, epoch: u64, carrier: Carrier) -> Result<Link> {
        let (sender, receiver) = match carrier {
            Carrier::UnixSocket => unix(shape)?,
            Carrier::TcpLoopback => tcp()?,
            Carrier::SharedMemory | Carrier::Ucx => {
                return Err(Error::new(ErrorKind::InvalidInput, "create", format!("a connection over {carrier:?}")));
            }
        };
        Link::active(shape, epoch, sender, receiver)
    }

    /// Makes a link with both ends on this machine, whose bytes two bridges move. Returns the
    /// bridges' ends of the sender's and of the receiver's socket.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape. Errors of making sockets.
    pub(crate) fn bridged(shape: ChannelShape, epoch: u64) -> Result<(Link, [OwnedFd; 2])> {
        shape.check()?;
        let ((sender, from), (receiver, to)) = (unix(shape)?, unix(shape)?);
        Ok((Link::active(shape, epoch, sender, receiver)?, [from, to]))
    }

    fn active(shape: ChannelShape, epoch: u64, sender: OwnedFd, receiver: OwnedFd) -> Result<Link> {
        let mut link = Link::new(shape, epoch, Copy::Here(sender), Copy::Here(receiver))?;
        link.token = secret()?;
        link.state.state.0.store(State::Active as u32, Ordering::SeqCst);
        Ok(link)
    }

    /// Makes a link with one end on this machine, to be connected.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape, or an invalid side.
    pub(crate) fn across(shape: ChannelShape, epoch: u64, side: Rights) -> Result<Link> {
        match side {
            Rights::SEND => Link::new(shape, epoch, Copy::Awaited, Copy::Elsewhere),
            Rights::RECEIVE => Link::new(shape, epoch, Copy::Elsewhere, Copy::Awaited),
            _ => Err(Error::new(ErrorKind::InvalidInput, "create", "this side of a link either sends or receives")),
        }
    }

    fn new(shape: ChannelShape, epoch: u64, sender: Copy, receiver: Copy) -> Result<Link> {
        shape.check()?;
        let page = Object::create(page_bytes::<StatePage>())?;
        let state = View::of(Mapping::new(page.as_fd(), page.len(), true)?)?;
        page.seal_for_good()?;
        Ok(Link { shape, epoch, token: [0; 16], keys: None, state, page, sender, receiver })
    }

    /// Notes that the other controller was found, and has proved its identity.
    pub(crate) fn connected(&mut self, socket: OwnedFd, token: Token, keys: Option<Keys>) {
        prepare(&socket);
        (self.token, self.keys) = (token, keys);
        match (&self.sender, &self.receiver) {
            (Copy::Awaited, _) => self.sender = Copy::Here(socket),
            (_, Copy::Awaited) => self.receiver = Copy::Here(socket),
            _ => return,
        }
        if self.state.get() == State::Configured {
            self.state.state.0.store(State::Active as u32, Ordering::SeqCst);
        }
    }

    pub(crate) fn shape(&self) -> ChannelShape {
        self.shape
    }

    /// The rights to the local ends.
    pub(crate) fn rights(&self) -> Rights {
        match (&self.sender, &self.receiver) {
            (Copy::Elsewhere, _) => Rights::RECEIVE,
            (_, Copy::Elsewhere) => Rights::SEND,
            _ => Rights::SEND.and(Rights::RECEIVE),
        }
    }

    pub(crate) fn page(&self) -> &Object {
        &self.page
    }

    /// The data for a party that gets an end. None where there is no connection yet.
    ///
    /// # Errors
    /// `PermissionDenied` for an end of another controller. Errors of duplicating a descriptor.
    pub(crate) fn half(&self, endpoint: &Endpoint) -> Result<Option<(EndpointKind, Vec<OwnedFd>)>> {
        let (shape, epoch, token, keys) = (self.shape, self.epoch, self.token, self.keys.clone());
        let (copy, kind) = if endpoint.rights == Rights::SEND {
            (&self.sender, EndpointKind::SendLink { shape, epoch, token, keys })
        } else {
            (&self.receiver, EndpointKind::ReceiveLink { shape, epoch, token, keys })
        };
        match copy {
            Copy::Awaited => Ok(None),
            Copy::Here(socket) => {
                let socket = socket.try_clone().map_err(|e| Error::io("duplicate", e, "a socket"))?;
                Ok(Some((kind, vec![socket, self.page.read_only()?])))
            }
            Copy::Elsewhere => {
                Err(Error::new(ErrorKind::PermissionDenied, "activate", "that end is another controller's"))
            }
        }
    }

    /// Sets the reason for the end of the channel, and shuts down the local ends. The first reason
    /// stays, except that a revocation replaces it.
    pub(crate) fn end(&self, how: State) {
        let now = self.state.get();
        if now == State::Active || now == State::Configured || how == State::Revoked {
            self.state.state.0.store(how as u32, Ordering::SeqCst);
            bell::wake(&self.state.state.0, &self.state);
        }
        // This comes after the reason, so that woken threads see it. Bytes that a dead sender has
        // sent still arrive.
        let shut = |copy: &Copy| {
            if let Copy::Here(socket) = copy {
                // It may be shut down already.
                let _ = shutdown(socket, Shutdown::Both);
            }
        };
        match how {
            State::SenderGone => shut(&self.sender),
            State::ReceiverGone => shut(&self.receiver),
            _ => [&self.sender, &self.receiver].into_iter().for_each(shut),
        }
    }
}

/// Sets socket options that a locked-down device cannot set.
fn prepare(socket: &OwnedFd) {
    // Both options are optional.
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
}

/// Makes a pair of connected sockets.
pub(super) fn unix(shape: ChannelShape) -> Result<(OwnedFd, OwnedFd)> {
    let os = |e: rustix::io::Errno| Error::os("create", e.raw_os_error(), "a pair of sockets");
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(os)?;
    for socket in [&pair.0, &pair.1] {
        // It is set as far as the system allows: taking a block at once needs fewer wake-ups.
        let _ = sockopt::set_socket_send_buffer_size(socket, (shape.block_bytes * 2).clamp(1 << 18, 4 << 20));
    }
    Ok(pair)
}

fn tcp() -> Result<(OwnedFd, OwnedFd)> {
    let io = |e: std::io::Error| Error::io("connect", e, "the loopback interface");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io)?;
    let one = TcpStream::connect(listener.local_addr().map_err(io)?).map_err(io)?;
    let own = one.local_addr().map_err(io)?;
    // Other processes on this machine can connect in between as well.
    for _ in 0..64 {
        let (other, who) = listener.accept().map_err(io)?;
        if who == own {
            let pair = (OwnedFd::from(one), OwnedFd::from(other));
            prepare(&pair.0);
            prepare(&pair.1);
            return Ok(pair);
        }
    }
    Err(Error::new(ErrorKind::Busy, "connect", "strangers connect to every port of the loopback interface"))
}
