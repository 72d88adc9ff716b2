//! The connection between two controllers while they connect a link: over TLS where this side has
//! an identity, until the ends get the socket, or for as long as bridges move the bytes by UCX. The
//! ends seal their bytes themselves.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::control::noise::Role;
use crate::control::tls::{TlsIdentity, TlsProgress, TlsSession};

/// What the two sides say that TLS is used for.
const PURPOSE: &str = "datapipes-link/1";

/// A connection to another controller.
pub(super) struct LinkWire {
    socket: OwnedFd,
    tls: Option<Box<TlsSession>>,
    awaits_room: bool,
}

impl LinkWire {
    pub(super) fn over(socket: OwnedFd) -> LinkWire {
        LinkWire { socket, tls: None, awaits_room: false }
    }

    /// Begins TLS; nothing is sent yet.
    ///
    /// # Errors
    /// Those of the identity.
    pub(super) fn begin_tls(&mut self, identity: &TlsIdentity, role: Role, other: IpAddr) -> Result<()> {
        let session = match role {
            Role::Joins => TlsSession::client(identity, PURPOSE, Some(other.to_canonical())),
            Role::Offers => TlsSession::server(identity, PURPOSE),
        };
        self.tls = Some(Box::new(session?));
        Ok(())
    }

    /// Goes on with the handshake of TLS; whether it is done.
    ///
    /// # Errors
    /// `PermissionDenied` where one side does not believe the other; `Device` where it hangs up.
    pub(super) fn greet(&mut self) -> Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        let progress = tls.greet(&self.socket)?;
        self.awaits_room = progress == TlsProgress::AwaitsRoom;
        Ok(progress == TlsProgress::Done)
    }

    /// Whether the handshake waits for room in the socket, and not for bytes.
    pub(super) fn awaits_room(&self) -> bool {
        self.awaits_room
    }

    /// What only the two sides of this connection know; nothing without TLS.
    ///
    /// # Errors
    /// Those of TLS.
    pub(super) fn binding(&self) -> Result<Vec<u8>> {
        self.tls.as_ref().map_or_else(|| Ok(Vec::new()), |tls| tls.binding().map(|secret| secret.to_vec()))
    }

    /// Sends a message. So few bytes always fit a socket that is hardly used.
    ///
    /// # Errors
    /// Errors of sending.
    pub(super) fn say(&mut self, bytes: &[u8]) -> Result<()> {
        let full = || Error::new(ErrorKind::Device, "join", "the connection did not take a short message");
        if let Some(tls) = &mut self.tls {
            tls.write(bytes)?;
            return if tls.flush(&self.socket)? { Ok(()) } else { Err(full()) };
        }
        match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(n) if n == bytes.len() => Ok(()),
            Ok(_) => Err(full()),
            Err(e) => Err(Error::os("join", e.raw_os_error(), "the other controller")),
        }
    }

    /// Receives what is there; `None` where nothing is yet, and 0 where the other side hung up.
    ///
    /// # Errors
    /// Errors of receiving, and those of TLS.
    pub(super) fn hear(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        if let Some(tls) = &mut self.tls {
            return tls.read(&self.socket, into);
        }
        loop {
            match recv(&self.socket, &mut *into, RecvFlags::DONTWAIT) {
                Ok((_, n)) => return Ok(Some(n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(Error::os("join", e.raw_os_error(), "the other controller")),
            }
        }
    }

    /// The address of this side.
    ///
    /// # Errors
    /// Errors of asking the kernel.
    pub(super) fn local(&self) -> Result<IpAddr> {
        let os = |e: Errno| Error::os("join", e.raw_os_error(), "the address of this side");
        let address = rustix::net::getsockname(&self.socket).map_err(os)?;
        let address = std::net::SocketAddr::try_from(address).map_err(os)?;
        Ok(address.ip().to_canonical())
    }

    /// The socket, for the end of the link. Not a byte behind the conversation was read.
    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

impl AsFd for LinkWire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
