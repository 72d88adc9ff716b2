//! The exporter: a thread that accepts clients, the exports, and their revocation.

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use datapipes_core::process::OwningProcess;
use datapipes_core::{Error, ErrorKind, Result, threads};
use datapipes_ucx::Ucx;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::client;
use super::exportable::ExportableMemory;
use super::exports::{ExportState, ExporterOptions, ExporterState, signal};
use super::holder::is_holder;
use super::socket_path::SocketPath;
use crate::control::key::{ExportKey, ExportNumber, RemoteTicket};
use crate::control::settings::{ExportAddress, RemoteRights, RemoteTransport, check_served};

/// How long the exporter waits after it could not take a client (no descriptors, for example).
const AFTER_TROUBLE: Duration = Duration::from_millis(50);

/// Lets clients that have a key read or write memory of this process.
///
/// Its exports end with it. It belongs to the process that made it: in a child made by `fork` it
/// neither listens nor ends anything.
pub struct Exporter {
    state: Arc<ExporterState>,
    address: ExportAddress,
    /// A Unix socket's path, which is removed at the end.
    path: Option<SocketPath>,
    acceptor: Option<threads::JoinHandle<()>>,
    owner: OwningProcess,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Exporter {
    /// Listens for clients. Port 0 is one that the kernel chooses.
    ///
    /// # Errors
    /// `PermissionDenied` where the network is not said to be trusted and bytes or keys would leave
    /// the machine; `InvalidInput` where no client could use the names of transports or devices, or
    /// devices are needed and not named; `NotFound` where no interface has the address;
    /// `Unavailable` where a network is asked for and UCX is absent; errors of
    /// listening.
    pub fn listen(address: &ExportAddress, options: ExporterOptions) -> Result<Exporter> {
        if is_holder() {
            let why = "this process was started as a holder, and its `main` has not called `enter_holder` first";
            return Err(Error::new(ErrorKind::InvalidInput, "export", why));
        }
        address.check(&options.network, "export")?;
        check_served(&options.network, address)?;
        // Without it, the kernel copies within this machine.
        if options.network.transport == RemoteTransport::Network {
            Ucx::required("export")?;
        }
        let failed = |e| Error::io("listen", e, address.to_string());
        let (listener, address, path) = match address {
            ExportAddress::Unix(path) => {
                let (listener, own) = SocketPath::bind(path)?;
                let address = ExportAddress::Unix(own.path().to_path_buf());
                (Listener::Unix(listener), address, Some(own))
            }
            ExportAddress::Tcp(wanted) => {
                let listener = TcpListener::bind(wanted).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                (Listener::Tcp(listener), ExportAddress::Tcp(bound), None)
            }
        };
        let state = Arc::new(ExporterState::new(options)?);
        let mut exporter =
            Exporter { state: state.clone(), address, path, acceptor: None, owner: OwningProcess::here() };
        exporter.acceptor = Some(threads::spawn("export", move || accept(&state, &listener))?);
        Ok(exporter)
    }

    /// The address at which it listens.
    pub fn address(&self) -> &ExportAddress {
        &self.address
    }

    /// Exports `len` bytes at `at` of a memory, until the export is revoked or dropped.
    ///
    /// # Errors
    /// `OutOfRange`; `Misaligned` for a range that is not of whole pages; `Forked`.
    pub fn export(&self, memory: &ExportableMemory, (at, len): (usize, usize), rights: RemoteRights) -> Result<Export> {
        self.owner.check("export")?;
        memory.check_range(at, len)?;
        let (number, key) = (ExportNumber::random()?, ExportKey::random()?);
        let state = Arc::new(ExportState::new(memory, (at, len), rights, key.clone())?);
        self.state.exports.lock().insert(number, state.clone());
        let ticket = RemoteTicket::new(self.address.clone(), number, key);
        Ok(Export { state, exporter: self.state.clone(), ticket, owner: self.owner })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let acceptor = self.acceptor.take();
        if !self.owner.is_here() {
            return std::mem::forget(acceptor);
        }
        signal(&self.state.stop);
        // There is none where its thread could not be started.
        if let Some(acceptor) = acceptor {
            let _ = threads::join(acceptor);
        }
        if let Some(path) = self.path.take() {
            path.remove();
        }
        let exports: Vec<_> = self.state.exports.lock().drain().map(|(_, export)| export).collect();
        exports.iter().for_each(|export| export.revoke());
    }
}

/// Memory that clients with its ticket can reach. It is revoked when this is dropped.
pub struct Export {
    state: Arc<ExportState>,
    exporter: Arc<ExporterState>,
    ticket: RemoteTicket,
    owner: OwningProcess,
}

impl Export {
    /// What a client needs to reach it.
    pub fn ticket(&self) -> &RemoteTicket {
        &self.ticket
    }

    /// The clients' pipes that are open now.
    pub fn clients(&self) -> usize {
        self.state.clients()
    }

    /// Ends the export: when this returns, no client reaches the memory, and none will. Transfers
    /// that were under way have moved some of their bytes; their clients get an error.
    pub fn revoke(self) {
        drop(self);
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.exporter.exports.lock().remove(&self.ticket.number);
            self.state.revoke();
        }
    }
}

/// The acceptor's thread.
fn accept(state: &Arc<ExporterState>, listener: &Listener) {
    loop {
        let socket = match listener {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        };
        let mut fds = [PollFd::new(&state.stop, PollFlags::IN), PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => std::thread::sleep(AFTER_TROUBLE),
        }
        let [stop, _] = &fds;
        if !stop.revents().is_empty() {
            return;
        }
        let taken = match listener {
            Listener::Unix(listener) => listener.accept().map(|(socket, _)| (OwnedFd::from(socket), false)),
            Listener::Tcp(listener) => listener.accept().map(|(socket, _)| (OwnedFd::from(socket), true)),
        };
        match taken {
            Ok((socket, is_tcp)) => take_client(state, socket, is_tcp),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => {}
            Err(_) => std::thread::sleep(AFTER_TROUBLE),
        }
    }
}

/// Starts a client's thread. A client without a thread finds the connection closed.
fn take_client(state: &Arc<ExporterState>, socket: OwnedFd, is_tcp: bool) {
    let state = state.clone();
    let _ = threads::spawn("export-client", move || {
        // A client that fails is told where that is possible; nobody here waits for it.
        let _ = client::serve(&state, socket, is_tcp);
    });
}
