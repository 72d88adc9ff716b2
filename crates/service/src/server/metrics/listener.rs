//! The socket at which metrics can be fetched.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use datapipes_core::file_lock::FileLock;
use datapipes_core::{Error, ErrorKind, Result};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::address::MetricsAddress;
use crate::server::entrance::listen;

/// A socket at which metrics can be fetched. If it was bound here to a path, the path is removed
/// when it is dropped.
#[derive(Debug)]
pub struct MetricsListener {
    pub(super) socket: OwnedFd,
    /// Whether single clients and their pipes are among the metrics.
    pub(super) shows_clients: bool,
    place: String,
    path: Option<PathBuf>,
    /// Held while we serve the path.
    lock: Option<FileLock>,
}

impl MetricsListener {
    /// Listens at an address; `mode` are the permissions of a Unix socket. Single clients and their
    /// pipes are shown at a Unix socket, whose permissions say who may see them, and not at a TCP
    /// port, to which every user of the machine can connect
    /// ([`with_clients`](Self::with_clients)).
    ///
    /// # Errors
    /// `Busy` if another service has the path; `InvalidInput` if something other than a socket is
    /// there; errors of the kernel.
    pub fn bind(address: &MetricsAddress, mode: u32) -> Result<MetricsListener> {
        match address {
            MetricsAddress::Tcp(address) => {
                let fail = |e| Error::io("listen", e, address.to_string());
                let listener = TcpListener::bind(address).map_err(fail)?;
                listener.set_nonblocking(true).map_err(fail)?;
                let bound = listener.local_addr().map_err(fail)?;
                Ok(MetricsListener::of(listener.into(), false, shown(bound)))
            }
            MetricsAddress::Unix(path) => {
                let (socket, lock) = listen::bind_path(path, mode, SocketType::STREAM)?;
                let mut listener = MetricsListener::of(socket, true, path.display().to_string());
                (listener.path, listener.lock) = (Some(path.clone()), Some(lock));
                Ok(listener)
            }
        }
    }

    /// Takes a socket that was passed to this process.
    ///
    /// # Errors
    /// `InvalidInput` unless it is a listening stream socket; errors of the kernel.
    pub(in crate::server) fn passed(socket: OwnedFd) -> Result<MetricsListener> {
        let checks = || -> rustix::io::Result<(bool, bool)> {
            rustix::io::ioctl_fionbio(&socket, true)?;
            let listens = sockopt::socket_type(&socket)? == SocketType::STREAM && sockopt::socket_acceptconn(&socket)?;
            Ok((listens, sockopt::socket_domain(&socket)? == AddressFamily::UNIX))
        };
        let bad = |why: &str| Error::new(ErrorKind::InvalidInput, "listen", format!("LISTEN_FDS, metrics: {why}"));
        let (listens, is_unix) = checks().map_err(|e| bad("it is not a socket").with_errno(e.raw_os_error()))?;
        if !listens {
            return Err(bad("it is not a listening stream socket"));
        }
        let address = rustix::net::getsockname(&socket).ok().and_then(|name| SocketAddr::try_from(name).ok());
        let place = address.map_or_else(|| "the socket that was passed".into(), shown);
        Ok(MetricsListener::of(socket, is_unix, place))
    }

    fn of(socket: OwnedFd, is_unix: bool, place: String) -> MetricsListener {
        if is_unix {
            // Only Unix sockets pass descriptors, and nothing here takes any. Where an older kernel
            // cannot forbid them, it drops those that come.
            listen::may_carry(&socket);
        }
        MetricsListener { socket, shows_clients: is_unix, place, path: None, lock: None }
    }

    /// Returns whether single clients and their pipes are among the metrics.
    pub fn shows_clients(&self) -> bool {
        self.shows_clients
    }

    /// Sets whether single clients and their pipes are among the metrics: by number and class,
    /// never by name.
    #[must_use]
    pub fn with_clients(mut self, shows: bool) -> MetricsListener {
        self.shows_clients = shows;
        self
    }

    /// Returns where the metrics are, in words: an address of HTTP, or a path.
    pub fn place(&self) -> &str {
        &self.place
    }
}

impl Drop for MetricsListener {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            // If another process removed it before, nothing is left to do.
            let _ = rustix::fs::unlink(path);
        }
        // Only now may another service take the path.
        drop(self.lock.take());
    }
}

fn shown(address: SocketAddr) -> String {
    format!("http://{address}/metrics")
}
