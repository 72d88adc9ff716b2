//! A service in a process of its own, for tests.
// Helpers of tests may unwrap; not every test uses all of them.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub)]

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use datapipes::{ConnectFdOptions, Dram, Span, Ssd};
use datapipes_service::protocol::{MAX_ANSWER_BYTES, ServiceAnswer};
use datapipes_service::{Client, ClientPlace, ServiceStatus, SharedMemory};
use datapipes_testkit::TempFolder;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};

pub const MIB: u64 = 1 << 20;
pub const FILE_TO_MEMORY: &[u8] =
    br#"{"ask":"connect","source":{"kind":"file","fd":0},"target":{"kind":"memory","fd":1}}"#;
pub const MEMORY_TO_MEMORY: &[u8] =
    br#"{"ask":"connect","source":{"kind":"memory","fd":0},"target":{"kind":"memory","fd":1}}"#;
/// So long that only a hang takes longer.
#[allow(unused_imports)] // Some tests do not wait.
pub use datapipes_testkit::PATIENCE;

/// A folder on a real disk with a name short enough for a socket; removed at the end.
pub struct Dir(pub TempFolder);

impl Dir {
    pub fn new() -> Dir {
        Dir(TempFolder::new().unwrap())
    }
}

pub struct Service {
    pub child: Child,
    pub socket: PathBuf,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
    _dir: Dir,
}

impl Service {
    pub fn start(flags: &[&str]) -> Service {
        let dir = Dir::new();
        let socket = dir.0.join("s");
        let mut command = Command::new(env!("CARGO_BIN_EXE_dpiped"));
        command.arg("--socket").arg(&socket).args(flags);
        Service::of(command, socket, dir)
    }

    /// Runs a command that serves at a path, and waits until it says so.
    pub fn of(mut command: Command, socket: PathBuf, dir: Dir) -> Service {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut reader = BufReader::new(child.stderr.take().unwrap());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let mut line = String::new();
        while !line.contains("serves at") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "it ended: {:?}", child.wait());
            lines.lock().unwrap().push(line.trim_end().to_owned());
        }
        let theirs = lines.clone();
        let reader = std::thread::spawn(move || {
            for line in reader.lines().map_while(Result::ok) {
                theirs.lock().unwrap().push(line);
            }
        });
        Service { child, socket, lines, reader: Some(reader), _dir: dir }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    /// Returns the status with this many clients besides the asking one, after earlier ones are
    /// gone.
    pub fn with(&self, clients: u64) -> ServiceStatus {
        self.until("others are there", |now| now.connected == clients + 1)
    }

    pub fn log(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// Waits until it has logged something: its counters can be read before its lines are.
    pub fn until_says(&self, what: &str) {
        let until = std::time::Instant::now() + PATIENCE;
        while !self.log().contains(what) {
            assert!(std::time::Instant::now() < until, "it does not say {what:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for its end. Returns all that it logged too.
    pub fn end(mut self) -> (ExitStatus, String) {
        let status = datapipes_testkit::ended(&mut self.child);
        datapipes_testkit::joined(self.reader.take().unwrap());
        (status, self.log())
    }

    /// The same as [`end`](Self::end), but fails if it takes longer.
    pub fn end_within(mut self, patience: Duration) -> (ExitStatus, String) {
        let until = std::time::Instant::now() + patience;
        while self.child.try_wait().unwrap().is_none() {
            assert!(std::time::Instant::now() < until, "it does not end\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.end()
    }

    /// Polls until the condition holds. If it never does, fails with the last status.
    pub fn until(&self, what: &str, holds: impl Fn(&ServiceStatus) -> bool) -> ServiceStatus {
        // Clients that left a moment ago may still have the last slots and descriptors.
        let asks = |_| {
            let client = Client::connect(&self.socket).and_then(|client| Ok((client.status()?, client)));
            client.inspect_err(|_| std::thread::sleep(Duration::from_millis(1))).ok()
        };
        let (mut status, client) = (0..30_000).find_map(asks).unwrap();
        for _ in 0..30_000 {
            if holds(&status) {
                return status;
            }
            std::thread::sleep(Duration::from_millis(1));
            status = client.status().unwrap();
        }
        panic!("{what}: {status:?}\n{}", self.log());
    }

    /// Waits until nothing but the asking client is left: descriptors and memory are as before.
    /// They may be fewer, because a helper process may still have existed before.
    pub fn until_as(&self, before: &ServiceStatus) {
        self.until("it does not go back to where it was", |now| {
            now.descriptors <= before.descriptors
                && now.mapped_bytes <= before.mapped_bytes
                && now.connected == before.connected
        });
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let ended = self.child.try_wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("how the service ended before this: {ended:?}");
        }
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        if std::thread::panicking() {
            eprintln!("what the service said:\n{}", self.log());
        }
    }
}

pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

pub fn file_of(bytes: &[u8]) -> Ssd {
    let ssd = Ssd::unlinked_in(disk()).unwrap();
    std::fs::File::from(ssd.file().cached_fd().try_clone_to_owned().unwrap()).write_all_at(bytes, 0).unwrap();
    ssd
}

pub fn content(file: &Ssd, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    std::fs::File::from(file.file().cached_fd().try_clone_to_owned().unwrap()).read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

pub fn memory_of(bytes: &[u8]) -> SharedMemory {
    let memory = SharedMemory::create(bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

pub fn disk() -> &'static Path {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(dir).unwrap();
    dir
}

/// A client that can send anything.
pub struct Raw(pub OwnedFd);

impl Raw {
    pub fn connect(path: &Path) -> Raw {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Raw(socket)
    }

    pub fn hello(path: &Path) -> Raw {
        let raw = Raw::connect(path);
        raw.send(br#"{"ask":"hello","version":1,"name":"raw"}"#, &[]).unwrap();
        assert!(matches!(raw.answer(), Some(ServiceAnswer::Hello { .. })));
        raw
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(drop)
    }

    /// Asks for a pipe: returns its descriptor, or the refusal.
    pub fn pipe(&self, request: &str, fds: &[BorrowedFd<'_>]) -> datapipes::Result<OwnedFd> {
        self.send(request.as_bytes(), fds).unwrap();
        let mut buffer = vec![0; MAX_ANSWER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(&self.0, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags).unwrap();
        let answer: ServiceAnswer = serde_json::from_slice(&buffer[..got.bytes]).unwrap();
        let mut passed = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let pipe = passed.next();
        answer.into_result().map(|answer| match (answer, pipe) {
            (ServiceAnswer::Pipe { .. }, Some(pipe)) => pipe,
            other => panic!("{other:?}"),
        })
    }

    /// Returns the next answer; `None` if the service closed the connection. Descriptors that come
    /// with it are closed.
    pub fn answer(&self) -> Option<ServiceAnswer> {
        let mut buffer = vec![0; MAX_ANSWER_BYTES];
        loop {
            match rustix::net::recv(&self.0, &mut buffer, RecvFlags::empty()) {
                Ok((0, _)) => return None,
                Ok((len, _)) => return Some(serde_json::from_slice(&buffer[..len]).unwrap()),
                Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::INTR) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// Sends a request, and returns the kind and the text of the refusal.
    pub fn refused(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> (datapipes::ErrorKind, String) {
        self.send(bytes, fds).unwrap();
        match self.answer().map(ServiceAnswer::into_result) {
            Some(Err(e)) => (e.kind(), e.to_string()),
            other => panic!("{other:?} to {}", String::from_utf8_lossy(bytes)),
        }
    }
}

/// Starts a process that runs an ignored test of this program.
pub fn child(test: &str, socket: &Path, seed: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    command.env("DPIPED_CHILD", socket).env("DPIPED_SEED", seed.to_string()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// The arguments of such a process.
///
/// # Panics
/// Where the process was not started by its test: it would pass without a check.
pub fn told() -> (PathBuf, u64) {
    let socket = std::env::var_os("DPIPED_CHILD").expect("its parent names the socket");
    (socket.into(), std::env::var("DPIPED_SEED").unwrap().parse().unwrap())
}

pub fn as_fd(fd: &impl AsFd) -> BorrowedFd<'_> {
    fd.as_fd()
}

pub fn dram_of(memory: &SharedMemory) -> &Dram {
    memory.as_dram()
}

pub fn whole(len: u64) -> Span {
    Span { source: 0, target: 0, len }
}

/// Moves something for another client, and checks it.
pub fn others_are_served(service: &Service) {
    let client = service.client();
    let (source, target) = (file_of(&pattern(MIB as usize, 3)), memory_of(&vec![0; MIB as usize]));
    let mut pipe = client
        .connect_pipe(&ClientPlace::file(&source), &ClientPlace::memory(&target), &ConnectFdOptions::default())
        .unwrap();
    pipe.transfer(whole(MIB)).unwrap();
    assert!(target.to_vec().unwrap() == pattern(MIB as usize, 3));
}

/// Whether the other end closes the connection before the test's patience ends.
pub fn is_hung_up_on(raw: &Raw) -> bool {
    let until = Instant::now() + PATIENCE;
    loop {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let mut fds = [PollFd::new(&raw.0, PollFlags::empty())];
        match poll(&mut fds, Some(&second)) {
            Ok(1) if fds[0].revents().contains(PollFlags::HUP) => return true,
            _ if Instant::now() > until => return false,
            _ => {}
        }
    }
}
