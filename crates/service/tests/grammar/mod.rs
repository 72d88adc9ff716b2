//! A client made of bytes: each input is a conversation with a service, through its whole protocol.
//!
//! ```text
//! input -> steps: connect, hello, a pipe over some descriptors, a span, completions, status,
//!          leaving, ...; most steps are valid, some have extreme numbers, some have changed bytes;
//!          several connections at once
//! ```
//! Zeros make valid steps, so a mutated input stays deep in the protocol. The test `protocol_fuzz`
//! uses it with bytes from a seed, and the fuzz target `dpiped` with bytes chosen by coverage. It
//! fails if a request is not answered.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)] // Parts of tests may unwrap.

mod descriptors;
mod requests;

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use datapipes::descriptor::wire::{Completion, MESSAGE_BYTES};
use datapipes_service::protocol::{MAX_ANSWER_BYTES, ServiceAnswer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, shutdown, socket_with,
};

/// Only a service that hangs takes longer for an answer.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// Connections of one input at a time, and pipes of each.
const CONNECTIONS: usize = 5;
const PIPES: usize = 12;

/// Bytes that make choices. When they are used up, the conversation ends.
pub struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        match self.0 {
            [first, rest @ ..] => {
                self.0 = rest;
                *first
            }
            [] => 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    /// True once in `n` times, and not for zeros.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// A number, mostly small, otherwise from the edges.
    fn number(&mut self) -> u64 {
        const EDGES: [u64; 15] = [
            1,
            511,
            4095,
            4096,
            (64 << 10) - 1,
            64 << 10,
            (64 << 10) + 1,
            1 << 20,
            u32::MAX as u64,
            1 << 40,
            i64::MAX as u64,
            i64::MAX as u64 + 1,
            u64::MAX - 4096,
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.byte() {
            byte @ 0..200 => u64::from(byte) * 64,
            byte => EDGES[usize::from(byte - 200) % EDGES.len()],
        }
    }
}

/// The service to talk to, and the folder for files.
pub struct World {
    /// The service's socket.
    pub socket: PathBuf,
    /// A folder on a disk.
    pub dir: PathBuf,
}

/// How far a conversation went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Depth {
    pub connections: u64,
    pub hellos: u64,
    pub pipes: u64,
    pub statuses: u64,
    pub refusals: u64,
    pub submitted: u64,
    /// Transfers that were carried out.
    pub done: u64,
    /// Transfers that were refused, or failed.
    pub failed: u64,
}

impl Depth {
    pub fn add(&mut self, other: Depth) {
        self.connections += other.connections;
        self.hellos += other.hellos;
        self.pipes += other.pipes;
        self.statuses += other.statuses;
        self.refusals += other.refusals;
        self.submitted += other.submitted;
        self.done += other.done;
        self.failed += other.failed;
    }
}

struct Connection {
    socket: OwnedFd,
    pipes: VecDeque<OwnedFd>,
    /// Requests that were not answered yet.
    owed: u32,
    /// Bytes of a status that are still to come.
    status_left: usize,
}

/// Carries out the conversation of an input, and closes all connections.
pub fn converse(world: &World, input: &[u8]) -> Depth {
    let mut talk =
        Talk { world, choices: Choices(input), open: Vec::new(), passed: VecDeque::new(), depth: Depth::default() };
    while !talk.choices.is_over() {
        talk.step();
    }
    talk.depth
}

struct Talk<'a> {
    world: &'a World,
    choices: Choices<'a>,
    open: Vec<Connection>,
    /// Descriptors that the service may have too.
    passed: VecDeque<OwnedFd>,
    depth: Depth,
}

impl Talk<'_> {
    fn step(&mut self) {
        let Some(which) = self.which() else { return };
        match self.choices.below(32) {
            0..8 => self.submit(which),
            8..15 => self.ask_pipe(which),
            15..19 => self.complete(which),
            19 | 20 => self.say(which, br#"{"ask":"status"}"#, &[]),
            21 | 22 => self.say_changed(which),
            23 | 24 => self.change_what_was_passed(),
            25 => self.garble_pipe(which),
            26 => self.close_pipe(which),
            27 => drop(self.open.swap_remove(which)),
            28 => self.shut(which),
            29 => drop(self.reach()),
            30 => std::thread::sleep(Duration::from_micros(self.choices.number().min(2000))),
            _ => self.say_garbage(which),
        }
    }

    /// Returns a connection, possibly a new one.
    fn which(&mut self) -> Option<usize> {
        let which = self.choices.below(CONNECTIONS);
        if which < self.open.len() {
            return Some(which);
        }
        let socket = self.reach()?;
        self.open.push(Connection { socket, pipes: VecDeque::new(), owed: 0, status_left: 0 });
        let which = self.open.len() - 1;
        if !self.choices.once_in(16) {
            self.say(which, br#"{"ask":"hello","version":1,"name":"bytes"}"#, &[]);
        }
        // It may have been refused.
        (which < self.open.len()).then_some(which)
    }

    /// Opens a connection without sending anything.
    fn reach(&mut self) -> Option<OwnedFd> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(&self.world.socket).unwrap()).ok()?;
        self.depth.connections += 1;
        Some(socket)
    }

    /// Sends something and mostly waits for the answer. Drops the connection if it has ended.
    fn say(&mut self, which: usize, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let sent = send(&self.open[which].socket, bytes, fds);
        self.open[which].owed += u32::from(sent.is_ok() && !bytes.is_empty());
        let ended = !bytes.is_empty() && !matches!(sent, Ok(()) | Err(Errno::AGAIN | Errno::TOOMANYREFS));
        let waits = !self.choices.once_in(8);
        if ended || !self.hear(which, waits) {
            self.open.swap_remove(which);
        }
    }

    /// Receives answers; with `wait`, all that are outstanding. Returns false if the connection has
    /// ended.
    fn hear(&mut self, which: usize, wait: bool) -> bool {
        let connection = &mut self.open[which];
        while wait && connection.owed > 0 || is_readable(&connection.socket) {
            let ready = poll(&mut [PollFd::new(&connection.socket, PollFlags::IN)], Some(&PATIENCE));
            assert_eq!(ready, Ok(1), "{} requests are not answered", connection.owed);
            let mut buffer = vec![0; MAX_ANSWER_BYTES];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let got = match recvmsg(&connection.socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags) {
                Ok(got) if got.bytes > 0 => got,
                // The connection has ended.
                Ok(_) => return false,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(e) => panic!("the connection was broken: {e}"),
            };
            let mut fds = control.drain().flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
                _ => Vec::new(),
            });
            if connection.status_left > 0 {
                // This is not an answer.
                connection.status_left = connection.status_left.checked_sub(got.bytes).expect("more than was said");
                continue;
            }
            connection.owed = connection.owed.saturating_sub(1);
            let answer: ServiceAnswer = serde_json::from_slice(&buffer[..got.bytes]).expect("an answer");
            match answer {
                ServiceAnswer::Hello { .. } => self.depth.hellos += 1,
                ServiceAnswer::Status { len } => {
                    self.depth.statuses += 1;
                    connection.status_left = len as usize;
                }
                ServiceAnswer::Error { .. } => self.depth.refusals += 1,
                ServiceAnswer::Pipe { .. } => {
                    self.depth.pipes += 1;
                    connection.pipes.push_back(fds.next().expect("a pipe's descriptor"));
                    if connection.pipes.len() > PIPES {
                        connection.pipes.pop_front();
                    }
                }
            }
        }
        true
    }

    fn ask_pipe(&mut self, which: usize) {
        let (request, kinds) = requests::connect(&mut self.choices);
        let fds: Vec<OwnedFd> = kinds.into_iter().map(|kind| self.descriptor(kind, which)).collect();
        let changed = if self.choices.once_in(12) {
            requests::change(&mut self.choices, request.into_bytes())
        } else {
            request.into_bytes()
        };
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.say(which, &changed, &borrowed);
        self.passed.extend(fds);
        while self.passed.len() > 32 {
            self.passed.pop_front();
        }
    }

    fn say_changed(&mut self, which: usize) {
        let (request, _) = requests::connect(&mut self.choices);
        let request = match self.choices.below(4) {
            0 => br#"{"ask":"hello","version":1,"name":"again"}"#.to_vec(),
            1 => br#"{"ask":"status"}"#.to_vec(),
            _ => request.into_bytes(),
        };
        let changed = requests::change(&mut self.choices, request);
        let fds: Vec<OwnedFd> = (0..self.choices.below(7)).map(|_| self.descriptor(0, which)).collect();
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.say(which, &changed, &fds);
    }

    fn say_garbage(&mut self, which: usize) {
        let len = [0, 1, 17, 4000, (16 << 10) - 1, 16 << 10, (16 << 10) + 1, 40 << 10][self.choices.below(8)];
        let garbage: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(31) ^ self.choices.byte()).collect();
        let many = if self.choices.once_in(8) { 200 } else { 0 };
        let fd = self.descriptor(0, which);
        self.say(which, &garbage, &vec![fd.as_fd(); many]);
    }

    fn pipe(&mut self, which: usize) -> Option<usize> {
        let pipes = self.open[which].pipes.len();
        if pipes == 0 { None } else { Some(self.choices.below(pipes)) }
    }

    fn submit(&mut self, which: usize) {
        let Some(pipe) = self.pipe(which) else { return self.ask_pipe(which) };
        for _ in 0..=self.choices.below(4) {
            let message = requests::span(&mut self.choices);
            let pipe = &self.open[which].pipes[pipe];
            self.depth.submitted += u64::from(send(pipe, &message, &[]).is_ok());
        }
    }

    /// Takes completions, and sometimes waits for one. It does not wait long, because the pipe may
    /// be slow.
    fn complete(&mut self, which: usize) {
        let Some(at) = self.pipe(which) else { return };
        let pipe = &self.open[which].pipes[at];
        let pause = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let _ = poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&pause));
        let mut message = [0; MESSAGE_BYTES];
        while let Ok((len @ 1.., _)) = rustix::net::recv(pipe, &mut message, RecvFlags::DONTWAIT) {
            let completion = Completion::from_bytes(&message[..len]).expect("a completion");
            match completion.result {
                Ok(()) => self.depth.done += 1,
                Err(_) => self.depth.failed += 1,
            }
        }
    }

    fn garble_pipe(&mut self, which: usize) {
        let Some(at) = self.pipe(which) else { return };
        let message = requests::span(&mut self.choices);
        let garbled = requests::change(&mut self.choices, message);
        let fd = self.descriptor(0, which);
        let fds = vec![fd.as_fd(); self.choices.below(3)];
        let _ = send(&self.open[which].pipes[at], &garbled, &fds);
    }

    fn close_pipe(&mut self, which: usize) {
        if let Some(at) = self.pipe(which) {
            self.open[which].pipes.remove(at);
        }
    }

    fn shut(&mut self, which: usize) {
        let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both][self.choices.below(3)];
        match self.pipe(which) {
            Some(at) if self.choices.below(2) == 0 => {
                let _ = shutdown(&self.open[which].pipes[at], how);
            }
            _ => {
                // A connection of which half is shut is left alone, with its pipes.
                let connection = self.open.swap_remove(which);
                let _ = shutdown(&connection.socket, how);
                if self.passed.len() < 32 {
                    self.passed.push_back(connection.socket);
                }
            }
        }
    }
}

fn is_readable(socket: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
}
