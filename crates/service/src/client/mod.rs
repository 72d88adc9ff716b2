//! The client's side of the service.

mod pipe;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use datapipes_core::locks::Mutex;
use datapipes_core::memory::MemoryRange;
use datapipes_core::packet::{self, PacketFacts};
use datapipes_core::process::OwningProcess;
use datapipes_core::{ConnectFdOptions, Error, ErrorKind, Result, Ssd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::protocol::{
    ClientRequest, MAX_ANSWER_BYTES, MAX_DESCRIPTORS, MAX_REQUEST_BYTES, PipeSpec, PlaceSpec, ServiceAnswer, VERSION,
};
use crate::server::ServiceLimits;
use crate::shared::SharedMemory;
use crate::status::ServiceStatus;

pub use pipe::ClientPipe;

const START_IT: &str = "start dpiped (`systemctl start dpiped.socket`, or `dpiped`), or give the path of its socket";
/// The longest status that is accepted.
const MAX_STATUS_BYTES: u64 = 64 << 20;

/// Returns the default paths of a service's socket: `$XDG_RUNTIME_DIR/dpiped.sock`, then
/// `/run/dpiped.sock`.
pub fn default_paths() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let own = own.map(|dir| Path::new(&dir).join("dpiped.sock"));
    own.into_iter().chain([PathBuf::from("/run/dpiped.sock")]).collect()
}

/// A connection to a service. Several threads may use it; their requests take turns. It stays open
/// until its last pipe is dropped.
///
/// A connection and its pipes belong to the process that opened it. In a child made by `fork` they
/// fail (`Forked`), and dropping them there ends nothing.
///
/// ```standalone_crate
/// use std::time::Duration;
/// use datapipes::service::server::{Listener, Server, ServerOptions, ServiceLog};
/// use datapipes::service::{Client, ClientPlace, SharedMemory};
/// use datapipes::{ConnectFdOptions, Span, Ssd};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     // The service, which is else a program of its own: `dpiped --socket PATH`.
///     let path = std::env::temp_dir().join(format!("datapipes-service-{}", std::process::id()));
///     let machine = datapipes::discover();
///     let options = ServerOptions::default().log(ServiceLog::to(std::io::sink()));
///     let server = Server::start(&machine, Listener::bind(&path, 0o600)?, options)?;
///
///     // A client: its file and its memory go there as descriptors, and a pipe comes back.
///     let client = Client::connect(&path)?;
///     let file = Ssd::unlinked_in(std::env::temp_dir())?;
///     let memory = SharedMemory::create(1 << 20)?;
///     memory.write(0, &[7; 4096])?;
///     let (source, target) = (ClientPlace::memory(&memory), ClientPlace::file(&file));
///     let mut pipe = client.connect_pipe(&source, &target, &ConnectFdOptions::default())?;
///     pipe.transfer(Span { source: 0, target: 0, len: 1 << 20 })?;
///     println!("{}", pipe.route());
///     drop((pipe, client));
///     server.stop(Duration::from_secs(10));
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Client(Arc<Session>);

struct Session {
    socket: OwnedFd,
    path: PathBuf,
    limits: ServiceLimits,
    /// Serializes requests.
    turn: Mutex<()>,
    owner: OwningProcess,
    /// The longest time that an answer may take.
    limit: Option<Duration>,
    /// Whether an answer was late. It may still come, and would be taken for the next one.
    was_late: AtomicBool,
}

/// A place that is passed to the service.
#[derive(Debug)]
pub struct ClientPlace<'a> {
    kind: Kind<'a>,
}

#[derive(Debug)]
enum Kind<'a> {
    Memory { memory: &'a SharedMemory, at: u64, len: u64 },
    File(&'a Ssd),
}

impl<'a> ClientPlace<'a> {
    /// Returns the whole of a shared memory as a place.
    pub fn memory(memory: &'a SharedMemory) -> ClientPlace<'a> {
        ClientPlace { kind: Kind::Memory { memory, at: 0, len: memory.len() as u64 } }
    }

    /// Returns `len` bytes at `at` of a shared memory as a place. The service maps the whole memory
    /// nevertheless.
    ///
    /// # Errors
    /// `OutOfRange` if they do not lie within the memory.
    pub fn memory_range(memory: &'a SharedMemory, at: usize, len: usize) -> Result<ClientPlace<'a>> {
        memory.as_dram().range(at, len)?;
        Ok(ClientPlace { kind: Kind::Memory { memory, at: at as u64, len: len as u64 } })
    }

    /// Returns an open file or block device as a place, with the rights of its descriptor.
    pub fn file(file: &'a Ssd) -> ClientPlace<'a> {
        ClientPlace { kind: Kind::File(file) }
    }

    /// The description of the place in the request; its descriptors are added to `fds`.
    fn spec(&self, fds: &mut Vec<BorrowedFd<'a>>) -> PlaceSpec {
        let mut add = |fd| {
            fds.push(fd);
            fds.len() - 1
        };
        match self.kind {
            Kind::Memory { memory, at, len } => {
                PlaceSpec::Memory { fd: add(memory.as_fd()), offset: at, len: Some(len) }
            }
            Kind::File(ssd) => {
                let file = ssd.file();
                let fd = add(file.cached_fd());
                PlaceSpec::File { fd, direct: file.direct_fd().ok().map(add), access: file.access() }
            }
        }
    }

    /// The range of this process's memory that transfers lease.
    fn range(&self) -> Result<Option<MemoryRange>> {
        match self.kind {
            Kind::Memory { memory, at, len } => Ok(Some(memory.as_dram().memory().range(at as usize, len as usize)?)),
            Kind::File(_) => Ok(None),
        }
    }
}

impl Client {
    /// Connects to the service at a path.
    ///
    /// # Errors
    /// `Unavailable` if no service runs there, with advice how to start one; `PermissionDenied`;
    /// `Busy` if it has too many clients; `Unsupported` if it speaks another version.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client> {
        Client::connect_at(path.as_ref(), None)
    }

    /// As [`connect`](Self::connect), with a limit for the connection and for each answer: a
    /// service that takes longer, because it is stopped for example, is given up.
    ///
    /// # Errors
    /// The same as for [`connect`](Self::connect), and `Busy` if the service does not answer in
    /// time. The connection has then ended, and later calls fail with `Unavailable`.
    pub fn connect_within(path: impl AsRef<Path>, limit: Duration) -> Result<Client> {
        Client::connect_at(path.as_ref(), Some(limit))
    }

    fn connect_at(path: &Path, limit: Option<Duration>) -> Result<Client> {
        let fail = |e: Errno| {
            let context = format!("the service at {}", path.display());
            match e {
                // No socket can have a name that is too long.
                Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::NAMETOOLONG => {
                    Error::new(ErrorKind::Unavailable, "connect to", format!("{context}: none is running"))
                        .with_errno(e.raw_os_error())
                        .with_advice(START_IT)
                }
                // Its queue of connections is full.
                Errno::AGAIN if limit.is_some() => late(path, limit.unwrap_or_default()),
                e => Error::os("connect to", e.raw_os_error(), context),
            }
        };
        let address = SocketAddrUnix::new(path).map_err(fail)?;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(fail)?;
        // A limit of 0 would be none.
        let of_connect = limit.map(|limit| limit.max(Duration::from_micros(1)));
        set_socket_timeout(&socket, Timeout::Send, of_connect).map_err(fail)?;
        loop {
            match connect(&socket, &address) {
                // A signal that is handled: the connection was not made.
                Err(Errno::INTR) => {}
                connected => break connected.map_err(fail)?,
            }
        }
        let hello = ClientRequest::Hello { version: VERSION, name: own_name() };
        let (path, turn, owner) = (path.to_path_buf(), Mutex::new(()), OwningProcess::here());
        let was_late = AtomicBool::new(false);
        let mut session = Session { socket, path, limits: ServiceLimits::default(), turn, owner, limit, was_late };
        match session.ask(&hello, &[])? {
            (ServiceAnswer::Hello { limits, .. }, _) => session.limits = limits,
            (other, _) => return Err(session.strange(&other)),
        }
        Ok(Client(Arc::new(session)))
    }

    /// Connects to the first service that runs at one of the [default paths](default_paths).
    ///
    /// # Errors
    /// The same as for [`connect`](Self::connect).
    pub fn connect_default() -> Result<Client> {
        Client::connect_default_at(None)
    }

    /// As [`connect_default`](Self::connect_default), with the limit of
    /// [`connect_within`](Self::connect_within).
    ///
    /// # Errors
    /// The same as for [`connect_within`](Self::connect_within).
    pub fn connect_default_within(limit: Duration) -> Result<Client> {
        Client::connect_default_at(Some(limit))
    }

    fn connect_default_at(limit: Option<Duration>) -> Result<Client> {
        let mut missing = Vec::new();
        for path in default_paths() {
            match Client::connect_at(&path, limit) {
                Err(e) if e.kind() == ErrorKind::Unavailable => missing.push(path.display().to_string()),
                other => return other,
            }
        }
        let context = format!("the service: none is running at {}", missing.join(" or "));
        Err(Error::new(ErrorKind::Unavailable, "connect to", context).with_advice(START_IT))
    }

    /// Connects two places by a pipe that the service carries out.
    ///
    /// # Errors
    /// The same as for [`datapipes_core::Runtime::connect_fd_with`], and refusals of the service:
    /// `PermissionDenied` if a descriptor lacks a right that its role needs; `InvalidInput` for a
    /// descriptor that is neither a file nor sealed memory, and for a target in memory that may
    /// grow ([`PlaceSpec::File`]); `Busy` if a limit is reached; `InvalidInput` for a
    /// `connect.queue`, which only a runtime of this process has; `Unavailable` if the service is
    /// gone or stops.
    pub fn connect_pipe(
        &self,
        source: &ClientPlace<'_>,
        target: &ClientPlace<'_>,
        ask: &ConnectFdOptions,
    ) -> Result<ClientPipe> {
        if ask.connect.queue.is_some() {
            let why = "queue: the service's runtime has its own";
            return Err(Error::new(ErrorKind::InvalidInput, "connect", why).with_advice("set `depth` instead"));
        }
        let mut fds = Vec::new();
        let (from, to) = (source.spec(&mut fds), target.spec(&mut fds));
        let request = ClientRequest::Connect(Box::new(PipeSpec {
            source: from,
            target: to,
            constraints: ask.connect.constraints.clone(),
            service: ask.connect.service.clone(),
            depth: ask.depth,
            place: ask.place,
        }));
        match self.0.ask(&request, &fds)? {
            (ServiceAnswer::Pipe { route }, Some(socket)) => {
                Ok(ClientPipe::new(socket, self.clone(), route, (source.range()?, target.range()?)))
            }
            (other, _) => Err(self.0.strange(&other)),
        }
    }

    /// Returns what the service is doing.
    ///
    /// # Errors
    /// `Unavailable` if the service is gone.
    pub fn status(&self) -> Result<ServiceStatus> {
        let text = self.0.ask_status()?;
        serde_json::from_slice(&text)
            .map_err(|e| Error::new(ErrorKind::Corrupt, "read", format!("the status: {e}")).with_source(e))
    }

    /// Returns the limits of this client.
    pub fn limits(&self) -> &ServiceLimits {
        &self.0.limits
    }
}

fn late(path: &Path, limit: Duration) -> Error {
    let context = format!("the service at {} did not answer within {limit:?}", path.display());
    Error::new(ErrorKind::Busy, "ask", context).with_advice("see whether it is stopped, and connect again")
}

impl Session {
    fn ask(&self, request: &ClientRequest, fds: &[BorrowedFd<'_>]) -> Result<(ServiceAnswer, Option<OwnedFd>)> {
        self.owner.check("ask")?;
        let _turn = self.turn.lock();
        self.exchange(request, fds, self.deadline())
    }

    fn deadline(&self) -> Option<Instant> {
        self.limit.and_then(|limit| Instant::now().checked_add(limit))
    }

    /// Waits until the socket can be used, up to a deadline. A connection whose answer is late has
    /// ended.
    fn ready(&self, events: PollFlags, until: Option<Instant>) -> Result<()> {
        let Some(until) = until else { return Ok(()) };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let limit = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.socket, events)], Some(&limit)) {
                Ok(0) if left.is_zero() => {
                    self.was_late.store(true, Relaxed);
                    let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
                    return Err(late(&self.path, self.limit.unwrap_or_default()));
                }
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(self.failed(e)),
            }
        }
    }

    /// Returns the text of a status, which follows its answer.
    fn ask_status(&self) -> Result<Vec<u8>> {
        self.owner.check("ask")?;
        let _turn = self.turn.lock();
        let until = self.deadline();
        let len = match self.exchange(&ClientRequest::Status, &[], until)? {
            (ServiceAnswer::Status { len }, _) if len <= MAX_STATUS_BYTES => usize::try_from(len).unwrap_or(0),
            (other, _) => return Err(self.strange(&other)),
        };
        let mut text = vec![0; len];
        let mut at = 0;
        while at < len {
            let (PacketFacts { bytes, cut, .. }, _) = self.receive(&mut text[at..], until)?;
            if cut {
                let context = format!("the service at {}: a status longer than announced", self.path.display());
                return Err(Error::new(ErrorKind::Corrupt, "ask", context));
            }
            at += bytes;
        }
        Ok(text)
    }

    /// Sends a request and receives its answer. The caller holds `turn`.
    fn exchange(
        &self,
        request: &ClientRequest,
        fds: &[BorrowedFd<'_>],
        until: Option<Instant>,
    ) -> Result<(ServiceAnswer, Option<OwnedFd>)> {
        let bytes = serde_json::to_vec(request).map_err(|e| {
            Error::new(ErrorKind::InvalidInput, "ask", format!("{}: {e}", self.path.display())).with_source(e)
        })?;
        if bytes.len() > MAX_REQUEST_BYTES {
            let context = format!("a request of {} bytes; the limit is {MAX_REQUEST_BYTES}", bytes.len());
            return Err(Error::new(ErrorKind::InvalidInput, "ask", context));
        }
        if self.was_late.load(Relaxed) {
            return Err(self.gone());
        }
        // A service that refused sent the reason before it closed the connection: that can still be
        // read.
        self.ready(PollFlags::OUT, until)?;
        let sent = packet::send(self.socket.as_fd(), &bytes, fds, SendFlags::empty());
        if let Err(e) = sent
            && !matches!(e, Errno::PIPE | Errno::CONNRESET)
        {
            return Err(self.failed(e));
        }
        let mut buffer = vec![0; MAX_ANSWER_BYTES];
        let (PacketFacts { bytes, .. }, mut fds) = self.receive(&mut buffer, until)?;
        let answer: ServiceAnswer = serde_json::from_slice(&buffer[..bytes]).map_err(|e| {
            Error::new(ErrorKind::Corrupt, "ask", format!("the service at {}: {e}", self.path.display())).with_source(e)
        })?;
        Ok((answer.into_result()?, fds.pop()))
    }

    fn receive(&self, buffer: &mut [u8], until: Option<Instant>) -> Result<(PacketFacts, Vec<OwnedFd>)> {
        self.ready(PollFlags::IN, until)?;
        // The first read after the service closed the connection fails with ECONNRESET; what it
        // sent before can be read after that.
        let mut receive = || packet::receive(&self.socket, buffer, MAX_DESCRIPTORS, RecvFlags::empty());
        let packet = match receive() {
            Err(Errno::CONNRESET) => receive(),
            other => other,
        };
        match packet {
            Ok((packet, _)) if packet.bytes == 0 => Err(self.gone()),
            Ok(packet) => Ok(packet),
            Err(e) => Err(self.failed(e)),
        }
    }

    fn failed(&self, e: Errno) -> Error {
        match e {
            Errno::PIPE | Errno::CONNRESET => self.gone(),
            e => Error::os("ask", e.raw_os_error(), format!("the service at {}", self.path.display())),
        }
    }

    fn gone(&self) -> Error {
        let context = format!("the service at {} ended the connection", self.path.display());
        Error::new(ErrorKind::Unavailable, "ask", context).with_advice("see its log, and connect again")
    }

    fn strange(&self, answer: &ServiceAnswer) -> Error {
        let context = format!("the service at {} answered {answer:?}", self.path.display());
        Error::new(ErrorKind::Corrupt, "ask", context)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.0.path.display())
    }
}

/// The name of this program for the service's log.
fn own_name() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    Path::new(&name).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}
