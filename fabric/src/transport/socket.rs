//! The contract over a connected stream socket: TCP across machines, a Unix socket within one.
//!
//! ```text
//! sender -> receiver   hello: 64 bytes; then for each block 64 bytes of header, and its bytes
//! receiver -> sender   for each block 32 bytes of reply
//! sender -> receiver   goodbye: 64 bytes. A connection that ends without it was broken, and no stream ended.
//! ```
//!
//! The kernel copies a block into the receiver's own buffer, so the sender cannot touch it again: a socket needs no trust. A
//! credit is a buffer of the receiver; a sender that sends without one is cut off. All calls are bounded; a connection that
//! got stuck in the middle of a block cannot be used again.
//!
//! Sends are plain `sendmsg` of whole blocks: a ring would go around the filter of a device (see [`crate::device`]). The bytes
//! are neither encrypted nor signed; the token of the hello keeps strangers away, not who listens on the wire.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, shutdown, sockopt};
use rustix::time::Timespec;

use super::ends::{Block, Data};
use super::{Back, Credits, Event, Inlet, Outlet, Returned, Source};
use crate::channel::ring::{Common, Side, broken, controller_gone};
use crate::channel::{Head, Outcome, Patience, Reply, Shape, Waiting};
use crate::sync::{Mutex, lock};

/// What a sender proves with its first bytes.
pub type Token = [u8; 16];

const HELLO: u32 = 0x6461_7401;
const BLOCK: u32 = 0x6461_7402;
const REPLY: u32 = 0x6461_7403;
const GOODBYE: u32 = 0x6461_7404;
const HEADER_BYTES: usize = 64;
const REPLY_BYTES: usize = 32;
/// A reply fits the socket's buffer unless the sender does not read; then the receiver is not held up for longer.
const REPLY_PATIENCE: Duration = Duration::from_secs(1);

struct Words<'a>(&'a mut [u8]);

impl Words<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

/// The sender's end.
pub struct SocketOutlet {
    socket: Arc<OwnedFd>,
    shape: Shape,
    slots: Vec<Vec<u8>>,
    free: Vec<u32>,
    under_way: Vec<Option<(u64, bool)>>,
    sequence: u64,
    outstanding: u32,
    patience: Patience,
    part: Part<REPLY_BYTES>,
    common: Option<Common>,
    dead: bool,
}

/// The receiver's end.
pub struct SocketInlet {
    socket: Arc<OwnedFd>,
    shape: Shape,
    token: Token,
    greeted: bool,
    header: Part<HEADER_BYTES>,
    body: Option<Body>,
    sequence: u64,
    back: Arc<SocketCredits>,
    common: Option<Common>,
    left: bool,
    dead: bool,
}

/// Bytes of fixed length that arrive piece by piece.
struct Part<const N: usize> {
    bytes: [u8; N],
    have: usize,
}

struct Body {
    buffer: Vec<u8>,
    have: usize,
    len: usize,
    head: Head,
    slot: u32,
    check: u32,
}

struct SocketCredits {
    socket: Arc<OwnedFd>,
    state: Mutex<Held>,
}

struct Held {
    slots: Vec<bool>,
    buffers: Vec<Vec<u8>>,
    /// Nobody receives any more; what is held is still replied to.
    closed: bool,
    dead: bool,
}

impl SocketOutlet {
    /// An end over a connected stream socket; says hello.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape; `Busy`, `Device` where the hello cannot be sent.
    pub fn new(socket: OwnedFd, shape: Shape, token: Token) -> Result<SocketOutlet> {
        shape.check()?;
        // A Unix socket has no such option, and needs none.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let mut hello = [0u8; HEADER_BYTES];
        let mut words = Words(&mut hello);
        words.put(0, &HELLO.to_le_bytes());
        words.put(4, &shape.credits.to_le_bytes());
        words.put(8, &(shape.block_bytes as u64).to_le_bytes());
        words.put(16, &token);
        words.put(32, &[u8::from(shape.checked)]);
        let patience = Patience::default();
        send_all(socket.as_fd(), &hello, &[], patience).map_err(|(e, _)| e)?;
        let count = shape.credits as usize;
        Ok(SocketOutlet {
            socket: Arc::new(socket),
            shape,
            slots: vec![Vec::new(); count],
            free: (0..shape.credits).rev().collect(),
            under_way: vec![None; count],
            sequence: 0,
            outstanding: 0,
            patience,
            part: Part::new(),
            common: None,
            dead: false,
        })
    }

    /// An end of a controller's channel, which says how it ended.
    pub(crate) fn watched(mut self, common: Common) -> SocketOutlet {
        self.common = Some(common);
        self
    }

    fn check(&self) -> Result<()> {
        self.common.as_ref().map_or(Ok(()), |c| c.check("send", Side::Sender))
    }

    /// Why, as far as the controller says.
    fn because(&self, error: Error) -> Error {
        because(&self.common, "send", Side::Sender, error)
    }

    fn wrong<T>(&mut self, what: String) -> Result<T> {
        self.dead = true;
        Err(broken("send", "receiver", what))
    }

    fn pushed(&mut self, slot: u32, sent: Result<(), (Error, bool)>, head: Head) -> Result<()> {
        if let Err((error, torn)) = sent {
            self.dead |= torn;
            self.give_back(slot);
            return Err(self.because(error));
        }
        self.under_way[slot as usize] = Some((self.sequence, head.end));
        self.sequence += 1;
        self.outstanding += 1;
        Ok(())
    }
}

impl Outlet for SocketOutlet {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    fn memory(&mut self, slot: u32) -> &mut [u8] {
        let bytes = &mut self.slots[slot as usize];
        bytes.resize(self.shape.block_bytes, 0);
        bytes
    }

    fn push(&mut self, slot: u32, len: usize, head: Head) -> Result<()> {
        self.memory(slot);
        let bytes = std::mem::take(&mut self.slots[slot as usize]);
        let sent = self.transmit(slot, &bytes[..len], head);
        self.slots[slot as usize] = bytes;
        self.pushed(slot, sent, head)
    }

    /// The kernel copies them from there.
    fn push_bytes(&mut self, slot: u32, bytes: &[u8], head: Head) -> Result<()> {
        let sent = self.transmit(slot, bytes, head);
        self.pushed(slot, sent, head)
    }

    fn poll_reply(&mut self) -> Result<Option<Returned>> {
        self.check()?;
        if self.dead {
            return Err(gone("send"));
        }
        match self.part.fill(self.socket.as_fd()) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(e) => {
                self.dead = true;
                return Err(self.because(ended("send", e)));
            }
        }
        let bytes = self.part.take();
        let (slot, status, word) = (u32_at(&bytes, 4), u32_at(&bytes, 8), u64_at(&bytes, 16));
        if u32_at(&bytes, 0) != REPLY {
            return self.wrong("what came is no reply".into());
        }
        let Some((sequence, end)) = self.under_way.get_mut(slot as usize).and_then(Option::take) else {
            return self.wrong(format!("a reply to slot {slot}, which is not under way"));
        };
        self.free.push(slot);
        self.outstanding -= 1;
        Ok(Some(Returned { sequence, end, reply: Reply { outcome: Outcome::of(status), word } }))
    }

    fn await_reply(&mut self, patience: Patience) -> Result<Returned> {
        let mut waiting = Waiting::new(patience);
        loop {
            if let Some(returned) = self.poll_reply()? {
                return Ok(returned);
            }
            let Some(slice) = waiting.slice() else { return Err(waiting.over("send", "no credit came back")) };
            await_socket(self.socket.as_fd(), PollFlags::IN, slice)?;
            lives(&self.common, "send")?;
        }
    }

    fn outstanding(&self) -> u32 {
        self.outstanding
    }

    fn close(&mut self) {
        // Replies that nobody read would make the kernel reset the connection, and the receiver lose what it did not read yet.
        while let Ok(Some(_)) = self.poll_reply() {}
        // Who is gone already needs no farewell; one that does not fit now would be a torn one.
        if !self.dead && self.check().is_ok() {
            let mut header = [0u8; HEADER_BYTES];
            Words(&mut header).put(0, &GOODBYE.to_le_bytes());
            let _ = send_all(self.socket.as_fd(), &header, &[], Patience::up_to(REPLY_PATIENCE));
        }
        let _ = shutdown(&self.socket, rustix::net::Shutdown::Write);
    }
}

impl SocketOutlet {
    /// Sends header and bytes. An error says whether the stream is torn by it.
    fn transmit(&mut self, slot: u32, bytes: &[u8], head: Head) -> Result<(), (Error, bool)> {
        self.check().map_err(|e| (e, false))?;
        if self.dead {
            return Err((gone("send"), true));
        }
        let mut header = [0u8; HEADER_BYTES];
        let mut words = Words(&mut header);
        words.put(0, &BLOCK.to_le_bytes());
        words.put(4, &slot.to_le_bytes());
        words.put(8, &(bytes.len() as u32).to_le_bytes());
        words.put(12, &u32::from(head.end).to_le_bytes());
        words.put(16, &self.sequence.to_le_bytes());
        words.put(24, &if self.shape.checked { crc32fast::hash(bytes) } else { 0 }.to_le_bytes());
        for (at, word) in head.words.iter().enumerate() {
            words.put(32 + 8 * at, &word.to_le_bytes());
        }
        send_all(self.socket.as_fd(), &header, bytes, self.patience)
    }
}

impl SocketInlet {
    /// An end over a connected stream socket. The sender's hello, which must bring the same shape and token, is looked at with
    /// the first block.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape.
    pub fn new(socket: OwnedFd, shape: Shape, token: Token) -> Result<SocketInlet> {
        shape.check()?;
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let socket = Arc::new(socket);
        let held = Held { slots: vec![false; shape.credits as usize], buffers: Vec::new(), closed: false, dead: false };
        let back = Arc::new(SocketCredits { socket: socket.clone(), state: Mutex::new(held) });
        let (header, body) = (Part::new(), None);
        let (common, greeted, left, dead) = (None, false, false, false);
        Ok(SocketInlet { socket, shape, token, greeted, header, body, sequence: 0, back, common, left, dead })
    }

    /// An end of a controller's channel, which says how it ended.
    pub(crate) fn watched(mut self, common: Common) -> SocketInlet {
        self.common = Some(common);
        self
    }

    fn because(&mut self, error: Error) -> Error {
        self.dead = true;
        because(&self.common, "receive", Side::Receiver, error)
    }

    fn wrong<T>(&mut self, what: String) -> Result<T> {
        self.dead = true;
        lock(&self.back.state).dead = true;
        let _ = shutdown(&self.socket, rustix::net::Shutdown::Both);
        Err(broken("receive", "sender", what))
    }

    fn greet(&mut self, hello: &[u8]) -> Result<()> {
        let differs = hello[16..32].iter().zip(&self.token).fold(0, |d, (a, b)| d | (a ^ b));
        if u32_at(hello, 0) != HELLO || differs != 0 {
            return self.wrong("it does not know the token of this channel".into());
        }
        let (credits, block_bytes, checked) = (u32_at(hello, 4), u64_at(hello, 8), hello[32] != 0);
        if (credits, block_bytes, checked) != (self.shape.credits, self.shape.block_bytes as u64, self.shape.checked) {
            return self.wrong(format!("{credits} credits of {block_bytes} bytes, where {:?} was agreed", self.shape));
        }
        self.greeted = true;
        Ok(())
    }

    /// Checks a header, and takes a buffer for the block.
    fn admit(&mut self, header: &[u8]) -> Result<Body> {
        let (slot, len, flags) = (u32_at(header, 4), u32_at(header, 8) as usize, u32_at(header, 12));
        let (sequence, check) = (u64_at(header, 16), u32_at(header, 24));
        if u32_at(header, 0) != BLOCK || flags > 1 {
            return self.wrong("what came is no block".into());
        }
        if len > self.shape.block_bytes {
            return self.wrong(format!("a block of {len} bytes, where {} fit", self.shape.block_bytes));
        }
        if sequence != self.sequence {
            return self.wrong(format!("block {sequence} where {} comes next", self.sequence));
        }
        let taken = {
            let mut state = lock(&self.back.state);
            let free = state.slots.get_mut(slot as usize).filter(|held| !**held);
            free.map(|held| *held = true).map(|()| state.buffers.pop())
        };
        let Some(buffer) = taken else {
            return self.wrong(format!("a block in slot {slot} of {}, for which it has no credit", self.shape.credits));
        };
        let buffer = buffer.unwrap_or_else(|| vec![0; self.shape.block_bytes]);
        let words = std::array::from_fn(|i| u64_at(header, 32 + 8 * i));
        self.sequence += 1;
        Ok(Body { buffer, have: 0, len, head: Head { words, end: flags == 1 }, slot, check })
    }

    fn finish(&mut self, body: Body) -> Result<Block> {
        let back: Back = self.back.clone();
        let block = Block::new(Data::Private(body.buffer), body.len, body.head, body.slot, None, back);
        if self.shape.checked && crc32fast::hash(&block) != body.check {
            let _ = block.reply(Reply { outcome: Outcome::Damaged, word: 0 });
            let what = "a block does not have the checksum that came with it";
            return Err(Error::new(ErrorKind::Corrupt, "receive", what));
        }
        Ok(block)
    }
}

impl Inlet for SocketInlet {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn poll_block(&mut self) -> Result<Option<Block>> {
        loop {
            if let Some(common) = self.common.as_ref().filter(|c| c.is_revoked()) {
                common.check("receive", Side::Receiver)?;
            }
            if self.left {
                return Err(Error::new(ErrorKind::EndOfFile, "receive", "the sender has closed the channel"));
            }
            if self.dead {
                return Err(self.because(gone("receive")));
            }
            if let Some(mut body) = self.body.take() {
                while body.have < body.len {
                    match receive_some(self.socket.as_fd(), &mut body.buffer[body.have..body.len]) {
                        Ok(Some(n)) => body.have += n,
                        Ok(None) => {
                            self.body = Some(body);
                            return Ok(None);
                        }
                        Err(e) => return Err(self.because(ended("receive", e))),
                    }
                }
                return self.finish(body).map(Some);
            }
            match self.header.fill(self.socket.as_fd()) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(e) => return Err(self.because(ended("receive", e))),
            }
            let header = self.header.take();
            if self.greeted && u32_at(&header, 0) == GOODBYE {
                self.left = true;
            } else if self.greeted {
                self.body = Some(self.admit(&header)?);
            } else {
                self.greet(&header)?;
            }
        }
    }

    fn await_block(&mut self, patience: Patience) -> Result<Block> {
        let mut waiting = Waiting::new(patience);
        loop {
            if let Some(block) = self.poll_block()? {
                return Ok(block);
            }
            let Some(slice) = waiting.slice() else { return Err(waiting.over("receive", "no block came")) };
            await_socket(self.socket.as_fd(), PollFlags::IN, slice)?;
            lives(&self.common, "receive")?;
        }
    }

    fn event(&self) -> Event<'_> {
        Event(Source::Descriptor(self.socket.as_fd(), self.common.as_ref().map(|c| &c.alive)))
    }

    fn say_sleeping(&self, _sleeping: bool) {}

    fn close(&mut self) {
        let mut state = lock(&self.back.state);
        state.closed = true;
        // A sender that waits is told. Blocks that are still held are replied to first.
        let held = state.slots.contains(&true);
        let _ = shutdown(&self.socket, if held { rustix::net::Shutdown::Read } else { rustix::net::Shutdown::Both });
    }
}

impl Credits for SocketCredits {
    fn reply(&self, slot: u32, reply: Reply, copy: Option<Vec<u8>>) {
        let mut state = lock(&self.state);
        state.buffers.extend(copy);
        if let Some(held) = state.slots.get_mut(slot as usize) {
            *held = false;
        }
        if state.dead {
            return;
        }
        let mut bytes = [0u8; REPLY_BYTES];
        let mut words = Words(&mut bytes);
        words.put(0, &REPLY.to_le_bytes());
        words.put(4, &slot.to_le_bytes());
        words.put(8, &reply.outcome.code().to_le_bytes());
        words.put(16, &reply.word.to_le_bytes());
        // Under the lock, so that replies do not mix. A sender that does not take them has lost the channel.
        state.dead = send_all(self.socket.as_fd(), &bytes, &[], Patience::up_to(REPLY_PATIENCE)).is_err();
        if state.closed && !state.slots.contains(&true) {
            let _ = shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }
}

impl<const N: usize> Part<N> {
    fn new() -> Part<N> {
        Part { bytes: [0; N], have: 0 }
    }

    /// Receives what there is; whether it is complete.
    fn fill(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        while self.have < N {
            match receive_some(socket, &mut self.bytes[self.have..])? {
                Some(n) => self.have += n,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn take(&mut self) -> [u8; N] {
        self.have = 0;
        self.bytes
    }
}

/// Receives without waiting: bytes, None where there are none now, `PIPE` where the other side has gone.
fn receive_some(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
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

/// Sends all of it. An error says whether some of it was sent, which leaves the stream torn.
fn send_all(socket: BorrowedFd<'_>, header: &[u8], body: &[u8], patience: Patience) -> Result<(), (Error, bool)> {
    let (all, mut done) = (header.len() + body.len(), 0);
    let until = Instant::now() + patience.limit;
    while done < all {
        let head = &header[done.min(header.len())..];
        let rest = &body[done.saturating_sub(header.len())..];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let both = [IoSlice::new(head), IoSlice::new(rest)];
        let sent = match sendmsg(socket, &both, &mut SendAncillaryBuffer::default(), flags) {
            // A device may not gather: it sends one part after the other.
            Err(Errno::PERM) if !head.is_empty() => rustix::net::send(socket, head, flags | SendFlags::MORE),
            Err(Errno::PERM) => rustix::net::send(socket, rest, flags),
            other => other,
        };
        match sent {
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let what = format!("{done} of {all} bytes within {:?}", patience.limit);
                    return Err((Error::new(ErrorKind::Busy, "send", what), done > 0));
                }
                await_socket(socket, PollFlags::OUT, left).map_err(|e| (e, done > 0))?;
            }
            Err(e) => return Err((ended("send", e), true)),
        }
    }
    Ok(())
}

fn await_socket(socket: BorrowedFd<'_>, what: PollFlags, limit: Duration) -> Result<()> {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut [PollFd::new(&socket, what)], Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(Error::os("wait", e.raw_os_error(), "for a socket")),
    }
}

fn ended(operation: &'static str, e: Errno) -> Error {
    match e {
        Errno::PIPE | Errno::CONNRESET => Error::new(ErrorKind::Device, operation, "the other side has gone"),
        e => Error::os(operation, e.raw_os_error(), "over a socket"),
    }
}

/// Why a connection ended, as far as the controller says.
fn because(common: &Option<Common>, operation: &'static str, side: Side, error: Error) -> Error {
    match common {
        Some(common) if !(common.alive)() => controller_gone(operation),
        Some(common) => common.check(operation, side).err().unwrap_or(error),
        None => error,
    }
}

fn lives(common: &Option<Common>, operation: &'static str) -> Result<()> {
    match common {
        Some(common) if !(common.alive)() => Err(controller_gone(operation)),
        _ => Ok(()),
    }
}

fn gone(operation: &'static str) -> Error {
    Error::new(ErrorKind::Device, operation, "the connection was broken before")
}
