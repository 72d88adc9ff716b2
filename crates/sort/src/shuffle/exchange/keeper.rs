//! The process of a node that keeps what its tasks have sorted, and gives it to others.
//!
//! ```text
//! map task     --file-->   keeper     a Unix socket takes the descriptor; the file has no name
//! keeper       --file-->   reduce task of this node, which reads the file itself
//! keeper       --bytes-->  reduce task of another node, over TCP
//! ```
//! The files are gone when the keeper ends, however it ends.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use datapipes_core::locks::Mutex;
use datapipes_core::{Error, Result, packet, threads};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    socket_with,
};

use crate::shuffle::exchange::sending::send_bytes;
use crate::shuffle::exchange::wire::{Answer, BlockTicket, REQUEST_BYTES, Request, What};

/// How long a request may take to come once somebody has connected.
const HURRY: Duration = Duration::from_secs(10);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// The most connections of other nodes at once that have not shown the ticket, each a thread.
/// Beyond that, the oldest one is ended: whoever has the ticket shows it at once.
const MAX_STRANGERS: usize = 128;
/// The most tasks of this node that are served at once. A further one is served by the thread that
/// lets them in, and the ones behind it wait.
const MAX_TASKS: usize = 64;

/// Keeps sorted parts of sorts for the tasks of this node, and sends blocks of them to other nodes.
///
/// Each sort has a ticket. Whoever has it may have all blocks of that sort, and none of others. On
/// the node itself it must be the same user, too.
#[derive(Debug)]
pub struct BlockKeeper {
    shared: Arc<Shared>,
    address: SocketAddr,
    local: OwnedFd,
    listener: TcpListener,
    name: String,
}

#[derive(Debug)]
struct Shared {
    /// A sort has few nodes, and a node few sorts.
    sorts: Mutex<Vec<KeptSort>>,
    last: AtomicU64,
    stopping: AtomicBool,
    /// Connections of other nodes, so that they can be ended.
    connections: Mutex<BTreeMap<u64, Connection>>,
    /// Tasks of this node that are served by threads of their own.
    served_locally: AtomicUsize,
}

/// A connection of another node.
#[derive(Debug)]
struct Connection {
    socket: Arc<TcpStream>,
    /// Whether it has shown the ticket.
    is_known: bool,
}

/// What is kept for a sort.
#[derive(Debug)]
struct KeptSort {
    ticket: BlockTicket,
    files: HashMap<u64, Arc<File>>,
}

impl BlockKeeper {
    /// Begins to keep blocks, of no sort yet. Other nodes connect to this address, at a port that
    /// the system chooses.
    ///
    /// # Errors
    /// Errors of sockets and threads.
    pub fn start(address: IpAddr) -> Result<BlockKeeper> {
        let fail = |e| Error::io("listen", e, address.to_string());
        let listener = TcpListener::bind((address, 0)).map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let (local, name) = listen_locally()?;
        let shared = Arc::new(Shared {
            sorts: Mutex::default(),
            last: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            connections: Mutex::default(),
            served_locally: AtomicUsize::new(0),
        });
        let keeper = BlockKeeper { shared, address, local, listener, name };
        let again = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().map_err(fail);
        let (shared, socket) = (keeper.shared.clone(), again(&keeper.local)?);
        threads::spawn("blocks-local", move || serve_locally(&shared, &socket))?;
        let (shared, socket) = (keeper.shared.clone(), TcpListener::from(again(&keeper.listener)?));
        threads::spawn("blocks-net", move || serve_others(&shared, &socket))?;
        Ok(keeper)
    }

    /// Where other nodes connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The name of the socket for tasks of this node.
    pub fn local_name(&self) -> &str {
        &self.name
    }

    /// Takes files of the sort with this ticket from now on.
    pub fn admit(&self, ticket: BlockTicket) {
        let mut sorts = self.shared.sorts.lock();
        if !sorts.iter().any(|sort| sort.ticket.is(&ticket)) {
            sorts.push(KeptSort { ticket, files: HashMap::new() });
        }
    }

    /// Lets go of the files of the sort with this ticket, and takes no more of them. Blocks that
    /// are being sent go on.
    pub fn dismiss(&self, ticket: &BlockTicket) {
        self.shared.sorts.lock().retain(|sort| !sort.ticket.is(ticket));
    }

    /// How many files are kept.
    pub fn kept(&self) -> usize {
        self.shared.sorts.lock().iter().map(|sort| sort.files.len()).sum()
    }
}

impl Drop for BlockKeeper {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Relaxed);
        // These wake the threads that wait there.
        let _ = rustix::net::shutdown(&self.local, rustix::net::Shutdown::Both);
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        for connection in self.shared.connections.lock().values() {
            let _ = connection.socket.shutdown(Shutdown::Both);
        }
        self.shared.sorts.lock().clear();
    }
}

/// Makes the socket for this node, in the abstract namespace: it has no file that could be left.
fn listen_locally() -> Result<(OwnedFd, String)> {
    let fail = |e: Errno| Error::os("listen", e.raw_os_error(), "a local socket for blocks");
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(fail)?;
    let name = random.iter().fold("datapipes-blocks-".to_owned(), |name, byte| format!("{name}{byte:02x}"));
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(fail)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(fail)?).map_err(fail)?;
    listen(&socket, BACKLOG).map_err(fail)?;
    Ok((socket, name))
}

/// Waits a moment where a call failed for want of something that may come back.
fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

fn serve_locally(shared: &Arc<Shared>, socket: &OwnedFd) {
    while !shared.stopping.load(Relaxed) {
        match accept_with(socket, SocketFlags::CLOEXEC) {
            Ok(connection) => serve_task(shared, connection),
            Err(Errno::INVAL | Errno::BADF) => return,
            Err(_) => pause(),
        }
    }
}

/// Serves a connection of this node, whose name everybody can see: others than this user are turned
/// away at once, and a task that says nothing keeps nobody waiting.
fn serve_task(shared: &Arc<Shared>, connection: OwnedFd) {
    let is_ours = sockopt::socket_peercred(&connection).is_ok_and(|peer| peer.uid == rustix::process::geteuid());
    if !is_ours {
        // Whoever takes no answer gets none: the answer does not wait for room.
        let answer = Answer { errno: libc::EACCES, number: 0 }.to_bytes();
        let _ = packet::send(&connection, &answer, &[], SendFlags::DONTWAIT);
        return;
    }
    let connection = Arc::new(connection);
    let (mine, its) = (shared.clone(), connection.clone());
    // Whoever asks nothing or takes no answer is left alone.
    let serve = move || {
        let _ = answer_locally(&mine, &its);
        mine.served_locally.fetch_sub(1, Relaxed);
    };
    let before = shared.served_locally.fetch_add(1, Relaxed);
    if before >= MAX_TASKS || threads::spawn("blocks-task", serve).is_err() {
        let _ = answer_locally(shared, &connection);
        shared.served_locally.fetch_sub(1, Relaxed);
    }
}

fn answer_locally(shared: &Shared, connection: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_socket_timeout(connection, Timeout::Recv, Some(HURRY))?;
    sockopt::set_socket_timeout(connection, Timeout::Send, Some(HURRY))?;
    let mut bytes = [0; REQUEST_BYTES + 1];
    let (facts, files) = packet::receive(connection, &mut bytes, 1, RecvFlags::empty())?;
    let denied = Answer { errno: libc::EACCES, number: 0 };
    let request = bytes.get(..facts.bytes).and_then(Request::parse);
    let Some((ticket, request)) = request.filter(|(ticket, _)| shared.knows(ticket)) else {
        return say(connection, denied, None);
    };
    let found = |file: &Arc<File>| Answer { errno: 0, number: file.metadata().map_or(0, |meta| meta.len()) };
    let missing = Answer { errno: libc::ENOENT, number: 0 };
    match (request.what, files.into_iter().next()) {
        (What::Keep, Some(file)) => match shared.keep(&ticket, File::from(file)) {
            Some(number) => say(connection, Answer { errno: 0, number }, None),
            None => say(connection, denied, None),
        },
        (What::Open, None) => match shared.file(&ticket, request.file) {
            Some(file) => say(connection, found(&file), Some(&file)),
            None => say(connection, missing, None),
        },
        (What::Ask, None) => say(connection, shared.file(&ticket, request.file).as_ref().map_or(missing, found), None),
        _ => say(connection, Answer { errno: libc::EINVAL, number: 0 }, None),
    }
}

fn say(connection: &OwnedFd, answer: Answer, file: Option<&File>) -> Result<(), Errno> {
    let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    packet::send(connection, &answer.to_bytes(), &files, SendFlags::empty())
}

fn serve_others(shared: &Arc<Shared>, listener: &TcpListener) {
    let mut number = 0;
    while !shared.stopping.load(Relaxed) {
        let connection = match listener.accept() {
            Ok((connection, _)) => Arc::new(connection),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EBADF)) => return,
            Err(_) => {
                pause();
                continue;
            }
        };
        number += 1;
        let (mine, number) = (shared.clone(), number);
        mine.enter(number, &connection);
        let served = threads::spawn("blocks-send", move || {
            // Whoever is not served asks again, or makes the block anew.
            let _ = serve(&mine, number, &connection);
            mine.connections.lock().remove(&number);
        });
        if served.is_err() {
            shared.connections.lock().remove(&number);
            pause();
        }
    }
}

/// Answers one request of another node.
fn serve(shared: &Shared, number: u64, mut connection: &TcpStream) -> std::io::Result<()> {
    connection.set_read_timeout(Some(HURRY))?;
    connection.set_nodelay(true)?;
    sockopt::set_socket_keepalive(connection, true)?;
    let mut bytes = [0; REQUEST_BYTES];
    connection.read_exact(&mut bytes)?;
    let mut say = |errno, number| connection.write_all(&Answer { errno, number }.to_bytes());
    let Some((ticket, request)) = Request::parse(&bytes).filter(|(ticket, _)| shared.knows(ticket)) else {
        return say(libc::EACCES, 0);
    };
    if let Some(connection) = shared.connections.lock().get_mut(&number) {
        connection.is_known = true;
    }
    let Some(file) = shared.file(&ticket, request.file) else { return say(libc::ENOENT, 0) };
    let len = file.metadata()?.len();
    match request.what {
        What::Ask => say(0, len),
        What::Send if request.from <= request.to && request.to <= len => {
            say(0, request.to - request.from)?;
            let connections = shared.connections.lock().len();
            send_bytes(&file, connection, request.from, request.to, connections)
        }
        What::Send | What::Keep | What::Open => say(libc::EINVAL, 0),
    }
}

impl Shared {
    /// Notes a connection, and ends the oldest one of those that have not shown the ticket where
    /// there are too many.
    fn enter(&self, number: u64, socket: &Arc<TcpStream>) {
        let mut connections = self.connections.lock();
        connections.insert(number, Connection { socket: socket.clone(), is_known: false });
        let strangers = || connections.iter().filter(|(_, connection)| !connection.is_known);
        let oldest = strangers().next().map(|(number, _)| *number).filter(|_| strangers().count() > MAX_STRANGERS);
        if let Some(oldest) = oldest.and_then(|oldest| connections.remove(&oldest)) {
            // Its thread hears of it, and ends. It may have ended by itself.
            let _ = oldest.socket.shutdown(Shutdown::Both);
        }
    }

    fn knows(&self, ticket: &BlockTicket) -> bool {
        // All are compared, so that the time tells nothing of which it is.
        self.sorts.lock().iter().fold(false, |known, sort| known | sort.ticket.is(ticket))
    }

    /// Takes a file of a sort, and returns its number; `None` if the sort is over.
    fn keep(&self, ticket: &BlockTicket, file: File) -> Option<u64> {
        let mut sorts = self.sorts.lock();
        let sort = sorts.iter_mut().find(|sort| sort.ticket.is(ticket))?;
        let number = self.last.fetch_add(1, Relaxed) + 1;
        sort.files.insert(number, Arc::new(file));
        Some(number)
    }

    fn file(&self, ticket: &BlockTicket, number: u64) -> Option<Arc<File>> {
        let sorts = self.sorts.lock();
        sorts.iter().find(|sort| sort.ticket.is(ticket))?.files.get(&number).cloned()
    }
}
