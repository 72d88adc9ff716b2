//! The receiver's end of a connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::PollFlags;
use rustix::net::{shutdown, sockopt};

use super::wire::{
    FAREWELL, GOODBYE, HEADER_BYTES, HELLO, Header, Part, REPLY_BYTES, SocketWait, because, ended, gone, receive_some,
    reply, send_last, send_some, u32_at, u64_at,
};
use crate::channel::ring::{Common, Side, broken};
use crate::channel::{BlockOutcome, ChannelShape, Patience, Reply};
use crate::sync::Mutex;
use crate::transport::ends::{Block, Data};
use crate::transport::seal::{Keys, Seal, TAG_BYTES};
use crate::transport::{Back, Credits, Inlet, InletEvent, Source, Token};

/// The receiver's end of a connection.
pub struct SocketInlet {
    socket: Arc<OwnedFd>,
    shape: ChannelShape,
    token: Token,
    greeted: bool,
    header: Part,
    body: Option<Body>,
    sequence: u64,
    back: Arc<SocketCredits>,
    seal: Option<Seal>,
    common: Option<Common>,
    left: bool,
    dead: bool,
}

struct Body {
    buffer: Vec<u8>,
    have: usize,
    /// The number of bytes to receive, including the tag.
    len: usize,
    header: Header,
}

struct SocketCredits {
    socket: Arc<OwnedFd>,
    state: Mutex<Held>,
}

struct Held {
    slots: Vec<bool>,
    buffers: Vec<Vec<u8>>,
    /// Replies that the kernel has not taken yet. There are no more than credits, because a sender
    /// that has not read a reply does not have its credit.
    pending: Vec<u8>,
    /// Whether the sender continues without reading replies.
    overrun: bool,
    seal: Option<Seal>,
    /// Whether nobody receives any more. Held blocks are still replied to.
    closed: bool,
    dead: bool,
}

impl Held {
    /// Sends as many replies as the socket takes now.
    fn flush(&mut self, socket: BorrowedFd<'_>) {
        if self.dead || self.pending.is_empty() {
            return;
        }
        match send_some(socket, &self.pending, false) {
            Ok(n) => drop(self.pending.drain(..n)),
            Err(_) => self.dead = true,
        }
    }
}

impl SocketInlet {
    /// Makes an end over a connected stream socket. The sender's hello must have the same shape and
    /// token. It is checked with the first block.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape.
    pub fn new(socket: OwnedFd, shape: ChannelShape, token: Token) -> Result<SocketInlet> {
        SocketInlet::sealed(socket, shape, token, None)
    }

    /// As [`new`](Self::new), encrypted if there are keys.
    pub(crate) fn sealed(
        socket: OwnedFd,
        shape: ChannelShape,
        token: Token,
        keys: Option<&Keys>,
    ) -> Result<SocketInlet> {
        shape.check()?;
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let socket = Arc::new(socket);
        let seal = keys.map(|keys| Seal::new(&keys.into)).transpose()?;
        let held = Held {
            slots: vec![false; shape.credits as usize],
            buffers: Vec::new(),
            pending: Vec::new(),
            overrun: false,
            seal: keys.map(|keys| Seal::new(&keys.out)).transpose()?,
            closed: false,
            dead: false,
        };
        let back = Arc::new(SocketCredits { socket: socket.clone(), state: Mutex::new(held) });
        let header = Part::new(HEADER_BYTES + if seal.is_some() { TAG_BYTES } else { 0 });
        let (body, common, greeted, left, dead) = (None, None, false, false, false);
        Ok(SocketInlet { socket, shape, token, greeted, header, body, sequence: 0, back, seal, common, left, dead })
    }

    /// Adds the controller's state, which tells how the channel ended.
    pub(crate) fn watched(mut self, common: Common) -> SocketInlet {
        self.common = Some(common);
        self
    }

    fn because(&mut self, error: Error) -> Error {
        self.dead = true;
        because(self.common.as_ref(), "receive", Side::Receiver, error)
    }

    fn wrong<T>(&mut self, what: String) -> Result<T> {
        let error = broken("receive", "sender", what);
        Err(self.cut_off(error))
    }

    /// Ends the connection to a side that cannot be trusted.
    fn cut_off(&mut self, error: Error) -> Error {
        self.dead = true;
        self.back.state.lock().dead = true;
        let _ = shutdown(&self.socket, rustix::net::Shutdown::Both);
        error
    }

    fn greet(&mut self) -> Result<()> {
        let hello = &self.header.bytes;
        let differs = hello[16..32].iter().zip(&self.token).fold(0, |d, (a, b)| d | (a ^ b));
        if u32_at(hello, 0) != HELLO || differs != 0 {
            return self.wrong("its token is not that of this channel".into());
        }
        let (credits, block_bytes, checked) = (u32_at(hello, 4), u64_at(hello, 8), hello[32] != 0);
        if (credits, block_bytes, checked) != (self.shape.credits, self.shape.block_bytes as u64, self.shape.checked) {
            return self.wrong(format!("{credits} credits of {block_bytes} bytes, where {:?} was agreed", self.shape));
        }
        self.greeted = true;
        Ok(())
    }

    /// Checks a header, and takes a buffer for the block.
    fn admit(&mut self) -> Result<Body> {
        let Some(header) = Header::of(&self.header.bytes) else {
            return self.wrong("the received bytes are not a block".into());
        };
        let len = header.len as usize;
        if len > self.shape.block_bytes {
            return self.wrong(format!("a block of {len} bytes, where {} fit", self.shape.block_bytes));
        }
        if header.sequence != self.sequence {
            return self.wrong(format!("block {} where {} comes next", header.sequence, self.sequence));
        }
        let slot = header.slot;
        let taken = {
            let mut state = self.back.state.lock();
            let free = state.slots.get_mut(slot as usize).filter(|held| !**held);
            free.map(|held| *held = true).map(|()| state.buffers.pop())
        };
        let Some(buffer) = taken else {
            return self.wrong(format!("a block in slot {slot} of {}, for which it has no credit", self.shape.credits));
        };
        let tag = if self.seal.is_some() && len > 0 { TAG_BYTES } else { 0 };
        let buffer = buffer.unwrap_or_else(|| vec![0; self.shape.block_bytes + TAG_BYTES]);
        self.sequence += 1;
        Ok(Body { buffer, have: 0, len: len + tag, header })
    }

    fn finish(&mut self, mut body: Body) -> Result<Block> {
        let Header { len, slot, head, check, .. } = body.header;
        if let Some(seal) = &mut self.seal {
            let pieces = if len > 0 { 2 } else { 1 };
            let opened = if len > 0 { seal.open(&mut body.buffer[..body.len], 1) } else { Ok(()) };
            let opened = opened.and_then(|()| seal.keep(pieces, HEADER_BYTES + TAG_BYTES + body.len));
            opened.map_err(|e| self.cut_off(e))?;
        }
        let back: Back = self.back.clone();
        let block = Block::new(Data::Private(body.buffer), len as usize, head, slot, None, back);
        if self.shape.checked && crc32fast::hash(&block) != check {
            let _ = block.reply(Reply { outcome: BlockOutcome::Damaged, word: 0 });
            let what = "a block does not have the checksum that came with it";
            return Err(Error::new(ErrorKind::Corrupt, "receive", what));
        }
        Ok(block)
    }

    /// Receives more of a block, if one is in progress. Returns the block when it is complete.
    fn body(&mut self) -> Result<Option<Block>, Error> {
        let Some(mut body) = self.body.take() else { return Ok(None) };
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
        self.finish(body).map(Some)
    }

    /// Handles a complete header.
    fn headed(&mut self) -> Result<()> {
        if let Some(seal) = &self.seal
            && let Err(e) = seal.open(&mut self.header.bytes, 0)
        {
            return Err(self.cut_off(e));
        }
        let is_block = self.greeted && u32_at(&self.header.bytes, 0) != GOODBYE;
        if is_block {
            self.body = Some(self.admit()?);
            return Ok(());
        }
        if let Some(seal) = &mut self.seal {
            seal.keep(1, HEADER_BYTES + TAG_BYTES)?;
        }
        if self.greeted {
            self.left = true;
            return Ok(());
        }
        self.greet()
    }

    fn has_replies(&self) -> bool {
        !self.back.state.lock().pending.is_empty()
    }
}

impl Inlet for SocketInlet {
    fn shape(&self) -> ChannelShape {
        self.shape
    }

    fn poll_block(&mut self) -> Result<Option<Block>> {
        let overrun = {
            let mut state = self.back.state.lock();
            state.flush(self.socket.as_fd());
            state.overrun && !self.dead
        };
        if overrun {
            return self.wrong("it uses credits without reading their replies".into());
        }
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
            if self.body.is_some() {
                return self.body();
            }
            match self.header.fill(self.socket.as_fd()) {
                Ok(true) => self.headed()?,
                Ok(false) => return Ok(None),
                Err(e) => return Err(self.because(ended("receive", e))),
            }
        }
    }

    fn await_block(&mut self, patience: Patience) -> Result<Block> {
        let mut clock = crate::channel::Waiting::new(patience);
        loop {
            if let Some(block) = self.poll_block()? {
                return Ok(block);
            }
            let Some(slice) = clock.slice() else { return Err(clock.over("receive", "no block came")) };
            let flags = if self.has_replies() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let mut waiting = SocketWait::new(Patience::up_to(slice), self.common.as_ref(), Side::Receiver);
            waiting.sleep(self.socket.as_fd(), flags, "")?;
        }
    }

    fn event(&self) -> InletEvent<'_> {
        InletEvent(Source::Descriptor(self.socket.as_fd(), self.common.as_ref().map(|c| &c.alive)))
    }

    fn say_sleeping(&self, _sleeping: bool) {}

    fn close(&mut self) {
        let mut state = self.back.state.lock();
        state.closed = true;
        // A waiting sender is told. Blocks that are still held are replied to first.
        let held = state.slots.contains(&true);
        if !held {
            state.farewell(&self.socket);
        }
        let _ = shutdown(&self.socket, if held { rustix::net::Shutdown::Read } else { rustix::net::Shutdown::Both });
    }
}

impl Held {
    /// Sends the last replies to a sender that reads them.
    fn farewell(&mut self, socket: &OwnedFd) {
        if !self.dead && !self.pending.is_empty() {
            self.dead = !send_last(socket, &self.pending, Instant::now() + FAREWELL);
            self.pending.clear();
        }
    }

    /// Appends a reply to the pending ones.
    fn add(&mut self, slot: u32, of: Reply) -> Result<()> {
        let from = self.pending.len();
        if from >= self.slots.len() * (REPLY_BYTES + TAG_BYTES) {
            self.overrun = true;
            return Err(broken("receive", "sender", "it reads no replies".into()));
        }
        self.pending.extend_from_slice(&reply(slot, of));
        if let Some(seal) = &mut self.seal {
            self.pending.extend_from_slice(&[0; TAG_BYTES]);
            let piece = &mut self.pending[from..];
            seal.seal(piece, 0)?;
            seal.keep(1, piece.len())?;
        }
        Ok(())
    }
}

impl Credits for SocketCredits {
    /// Sends a reply without waiting: a sender that does not read replies has no credit either.
    fn reply(&self, slot: u32, reply: Reply, copy: Option<Vec<u8>>) {
        let mut state = self.state.lock();
        state.buffers.extend(copy);
        if let Some(held) = state.slots.get_mut(slot as usize) {
            *held = false;
        }
        if state.dead {
            return;
        }
        // The lock prevents replies from mixing.
        state.dead = state.add(slot, reply).is_err();
        state.flush(self.socket.as_fd());
        if state.closed && !state.slots.contains(&true) {
            state.farewell(&self.socket);
            let _ = shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }
}
