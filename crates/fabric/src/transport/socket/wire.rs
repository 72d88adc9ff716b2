//! The bytes on a connection, and how they get into and out of the kernel without waiting.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::time::Timespec;

use crate::channel::ring::{Common, Side, controller_gone};
use crate::channel::{BlockOutcome, ChannelShape, Head, Patience, Reply, Waiting};
use crate::transport::Token;

pub(super) const HELLO: u32 = 0x6461_7401;
pub(super) const BLOCK: u32 = 0x6461_7402;
pub(super) const REPLY: u32 = 0x6461_7403;
pub(super) const GOODBYE: u32 = 0x6461_7404;
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const REPLY_BYTES: usize = 32;
/// The longest time that a farewell waits for a side that does not read.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

/// The header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) slot: u32,
    pub(super) len: u32,
    pub(super) sequence: u64,
    pub(super) check: u32,
    pub(super) head: Head,
}

struct Words<'a>(&'a mut [u8]);

impl Words<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

impl Header {
    pub(super) fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0u8; HEADER_BYTES];
        let mut words = Words(&mut header);
        words.put(0, &BLOCK.to_le_bytes());
        words.put(4, &self.slot.to_le_bytes());
        words.put(8, &self.len.to_le_bytes());
        words.put(12, &u32::from(self.head.end).to_le_bytes());
        words.put(16, &self.sequence.to_le_bytes());
        words.put(24, &self.check.to_le_bytes());
        for (at, word) in self.head.words.iter().enumerate() {
            words.put(32 + 8 * at, &word.to_le_bytes());
        }
        header
    }

    /// Decodes a header. Returns None for other bytes.
    pub(super) fn of(bytes: &[u8]) -> Option<Header> {
        let (kind, flags) = (u32_at(bytes, 0), u32_at(bytes, 12));
        let words = std::array::from_fn(|i| u64_at(bytes, 32 + 8 * i));
        (kind == BLOCK && flags <= 1).then(|| Header {
            slot: u32_at(bytes, 4),
            len: u32_at(bytes, 8),
            sequence: u64_at(bytes, 16),
            check: u32_at(bytes, 24),
            head: Head { words, end: flags == 1 },
        })
    }
}

pub(super) fn hello(shape: ChannelShape, token: &Token) -> [u8; HEADER_BYTES] {
    let mut hello = [0u8; HEADER_BYTES];
    let mut words = Words(&mut hello);
    words.put(0, &HELLO.to_le_bytes());
    words.put(4, &shape.credits.to_le_bytes());
    words.put(8, &(shape.block_bytes as u64).to_le_bytes());
    words.put(16, token);
    words.put(32, &[u8::from(shape.checked)]);
    hello
}

pub(super) fn goodbye() -> [u8; HEADER_BYTES] {
    let mut header = [0u8; HEADER_BYTES];
    Words(&mut header).put(0, &GOODBYE.to_le_bytes());
    header
}

pub(super) fn reply(slot: u32, reply: Reply) -> [u8; REPLY_BYTES] {
    let mut bytes = [0u8; REPLY_BYTES];
    let mut words = Words(&mut bytes);
    words.put(0, &REPLY.to_le_bytes());
    words.put(4, &slot.to_le_bytes());
    words.put(8, &reply.outcome.code().to_le_bytes());
    words.put(16, &reply.word.to_le_bytes());
    bytes
}

/// Decodes the slot and the reply. Returns None for other bytes.
pub(super) fn reply_of(bytes: &[u8]) -> Option<(u32, Reply)> {
    let reply = Reply { outcome: BlockOutcome::of(u32_at(bytes, 8)), word: u64_at(bytes, 16) };
    (u32_at(bytes, 0) == REPLY).then(|| (u32_at(bytes, 4), reply))
}

/// Bytes of fixed length that arrive in pieces.
pub(super) struct Part {
    pub(super) bytes: Vec<u8>,
    have: usize,
}

impl Part {
    pub(super) fn new(len: usize) -> Part {
        Part { bytes: vec![0; len], have: 0 }
    }

    /// Receives the available bytes. Returns whether the whole is complete. Then the next call
    /// starts again.
    pub(super) fn fill(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        while self.have < self.bytes.len() {
            match receive_some(socket, &mut self.bytes[self.have..])? {
                Some(n) => self.have += n,
                None => return Ok(false),
            }
        }
        self.have = 0;
        Ok(true)
    }
}

/// Receives without waiting: the number of bytes, None if there are none now, `PIPE` where the
/// other side has gone.
pub(super) fn receive_some(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(Errno::PIPE),
            Ok((n, _)) => return Ok(Some(n)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Sends without waiting. Returns the number of bytes taken.
pub(super) fn send_some(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> Result<usize, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let flags = if more { flags | SendFlags::MORE } else { flags };
    let mut done = 0;
    while done < bytes.len() {
        match send(socket, &bytes[done..], flags) {
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// A wait for the other side of a connection.
pub(super) struct SocketWait<'a> {
    waiting: Waiting,
    common: Option<&'a Common>,
    operation: &'static str,
    side: Side,
}

impl<'a> SocketWait<'a> {
    pub(super) fn new(patience: Patience, common: Option<&'a Common>, side: Side) -> SocketWait<'a> {
        let operation = match side {
            Side::Sender => "send",
            Side::Receiver => "receive",
        };
        SocketWait { waiting: Waiting::new(patience), common, operation, side }
    }

    /// Sleeps until the socket is ready, or for a moment.
    ///
    /// # Errors
    /// `Busy` when the patience is over, with what did not happen. `Unavailable` where the
    /// controller has ended. The error of a revocation.
    pub(super) fn sleep(&mut self, socket: BorrowedFd<'_>, flags: PollFlags, what: &str) -> Result<()> {
        let Some(slice) = self.waiting.slice() else { return Err(self.waiting.over(self.operation, what)) };
        await_socket(socket, flags, slice)?;
        match self.common {
            Some(common) if !(common.alive)() => Err(controller_gone(self.operation)),
            Some(common) if common.is_revoked() => common.check(self.operation, self.side),
            _ => Ok(()),
        }
    }
}

fn await_socket(socket: BorrowedFd<'_>, what: PollFlags, limit: Duration) -> Result<()> {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut [PollFd::new(&socket, what)], Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(Error::os("wait", e.raw_os_error(), "for a socket")),
    }
}

/// Sends the last bytes of an end, within the time of a farewell.
pub(super) fn send_last(socket: impl AsFd, bytes: &[u8], until: Instant) -> bool {
    let (socket, mut done) = (socket.as_fd(), 0);
    loop {
        match send_some(socket, &bytes[done..], false) {
            Ok(n) => done += n,
            Err(_) => return false,
        }
        let left = until.saturating_duration_since(Instant::now());
        if done == bytes.len() {
            return true;
        }
        if left.is_zero() || await_socket(socket, PollFlags::OUT, left).is_err() {
            return false;
        }
    }
}

pub(super) fn ended(operation: &'static str, e: Errno) -> Error {
    match e {
        Errno::PIPE | Errno::CONNRESET => Error::new(ErrorKind::Device, operation, "the other side has gone"),
        e => Error::os(operation, e.raw_os_error(), "over a socket"),
    }
}

/// Returns why a connection ended, as far as the controller tells it.
pub(super) fn because(common: Option<&Common>, operation: &'static str, side: Side, error: Error) -> Error {
    match common {
        Some(common) if !(common.alive)() => controller_gone(operation),
        Some(common) => common.check(operation, side).err().unwrap_or(error),
        None => error,
    }
}

pub(super) fn gone(operation: &'static str) -> Error {
    Error::new(ErrorKind::Device, operation, "the connection was broken before")
}
