//! The sender's end of a connection.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use datapipes_core::{Error, Result};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, shutdown, sockopt};

use super::wire::{
    FAREWELL, HEADER_BYTES, Header, Part, REPLY_BYTES, SocketWait, because, ended, gone, goodbye, hello, reply_of,
    send_last, send_some,
};
use crate::channel::ring::{Common, Side, broken};
use crate::channel::{ChannelShape, Head, Patience};
use crate::transport::seal::{Keys, Seal, TAG_BYTES};
use crate::transport::{Outlet, Returned, Token};

/// The offset of a block's bytes in the memory of its slot. The header and its tag end there.
const BODY: usize = 128;

/// The sender's end of a connection.
pub struct SocketOutlet {
    socket: Arc<OwnedFd>,
    shape: ChannelShape,
    slots: Vec<Vec<u8>>,
    free: Vec<u32>,
    under_way: Vec<Option<(u64, bool)>>,
    sequence: u64,
    outstanding: u32,
    /// A message that was begun and is not in the kernel yet. It is sent before everything else.
    pending: Option<Pending>,
    replies: Part,
    /// The seals for sent and for received bytes, if the connection is encrypted.
    seals: Option<(Seal, Seal)>,
    /// Whether the kernel lets this process use gathering sends. A device may not.
    gathers: bool,
    common: Option<Common>,
    dead: bool,
}

/// Bytes that the kernel is still to take.
struct Pending {
    bytes: Begun,
    done: usize,
    end: usize,
}

enum Begun {
    Hello(Vec<u8>),
    Slot(u32),
}

/// The result of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// No byte was taken in time.
    Nothing,
    /// It is in the kernel, or its rest is sent before everything else.
    Begun,
}

impl SocketOutlet {
    /// Makes an end over a connected stream socket. It sends the hello now, or with the first
    /// block.
    ///
    /// # Errors
    /// `InvalidInput` for a bad shape. `Device` where the other side has gone.
    pub fn new(socket: OwnedFd, shape: ChannelShape, token: Token) -> Result<SocketOutlet> {
        SocketOutlet::sealed(socket, shape, token, None)
    }

    /// As [`new`](Self::new), encrypted if there are keys.
    pub(crate) fn sealed(
        socket: OwnedFd,
        shape: ChannelShape,
        token: Token,
        keys: Option<&Keys>,
    ) -> Result<SocketOutlet> {
        shape.check()?;
        // A Unix socket has no such option and does not need it.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let count = shape.credits as usize;
        let mut seals = keys.map(|keys| Ok::<_, Error>((Seal::new(&keys.out)?, Seal::new(&keys.into)?))).transpose()?;
        let tag = if seals.is_some() { TAG_BYTES } else { 0 };
        let mut hello = hello(shape, &token).to_vec();
        hello.resize(HEADER_BYTES + tag, 0);
        if let Some((out, _)) = &mut seals {
            out.seal(&mut hello, 0)?;
            out.keep(1, hello.len())?;
        }
        let end = hello.len();
        let mut outlet = SocketOutlet {
            socket: Arc::new(socket),
            shape,
            slots: vec![Vec::new(); count],
            free: (0..shape.credits).rev().collect(),
            under_way: vec![None; count],
            sequence: 0,
            outstanding: 0,
            pending: Some(Pending { bytes: Begun::Hello(hello), done: 0, end }),
            replies: Part::new(REPLY_BYTES + tag),
            seals,
            gathers: true,
            common: None,
            dead: false,
        };
        outlet.flush_some()?;
        Ok(outlet)
    }

    /// Adds the controller's state, which tells how the channel ended.
    pub(crate) fn watched(mut self, common: Common) -> SocketOutlet {
        self.common = Some(common);
        self
    }

    fn check(&self) -> Result<()> {
        self.common.as_ref().map_or(Ok(()), |c| c.check("send", Side::Sender))
    }

    /// Marks the connection as ended. Returns the reason, as far as the controller tells it.
    fn broken_off(&mut self, e: Errno) -> datapipes_core::Error {
        self.dead = true;
        because(self.common.as_ref(), "send", Side::Sender, ended("send", e))
    }

    fn wrong<T>(&mut self, what: String) -> Result<T> {
        self.dead = true;
        Err(broken("send", "receiver", what))
    }

    /// Sends as much of the pending message as the socket takes now. Returns whether nothing is
    /// left.
    fn flush_some(&mut self) -> Result<bool> {
        let Some(pending) = &mut self.pending else { return Ok(true) };
        let bytes = match &pending.bytes {
            Begun::Hello(bytes) => &bytes[..],
            Begun::Slot(slot) => &self.slots[*slot as usize][..],
        };
        match send_some(self.socket.as_fd(), &bytes[pending.done..pending.end], false) {
            Ok(n) => pending.done += n,
            Err(e) => return Err(self.broken_off(e)),
        }
        if pending.done == pending.end {
            self.pending = None;
        }
        Ok(self.pending.is_none())
    }

    /// Sends the pending message, and waits for that.
    fn flush(&mut self, patience: Patience) -> Result<()> {
        if self.flush_some()? {
            return Ok(());
        }
        let common = self.common.take();
        let mut waiting = SocketWait::new(patience, common.as_ref(), Side::Sender);
        let flushed = loop {
            match waiting.sleep(self.socket.as_fd(), PollFlags::OUT, "the block before was not taken") {
                Ok(()) => {}
                Err(e) => break Err(e),
            }
            match self.flush_some() {
                Ok(true) => break Ok(()),
                Ok(false) => {}
                Err(e) => break Err(e),
            }
        };
        self.common = common;
        // The controller tells what the end of the connection means.
        flushed.map_err(|e| if self.dead { because(self.common.as_ref(), "send", Side::Sender, e) } else { e })
    }

    /// Checks and sends what must come before a block.
    fn ready(&mut self, patience: Patience) -> Result<()> {
        self.check()?;
        if self.dead {
            return Err(gone("send"));
        }
        self.flush(patience)
    }

    fn room(&mut self, slot: u32) -> &mut Vec<u8> {
        let len = BODY + self.shape.block_bytes + TAG_BYTES;
        let bytes = &mut self.slots[slot as usize];
        if bytes.len() != len {
            bytes.resize(len, 0);
        }
        bytes
    }

    /// Sends a slot with its header.
    fn transmit(&mut self, slot: u32, header: &Header, patience: Patience) -> Result<()> {
        let (len, bytes) = (header.len as usize, header.bytes());
        let sealed = self.seals.is_some();
        let tag = if sealed { TAG_BYTES } else { 0 };
        let begin = BODY - HEADER_BYTES - tag;
        let memory = self.room(slot);
        memory[begin..begin + HEADER_BYTES].copy_from_slice(&bytes);
        let body_end = if len > 0 { BODY + len + tag } else { BODY };
        let mut pieces = 0;
        if let Some((out, _)) = &self.seals {
            let memory = &mut self.slots[slot as usize];
            out.seal(&mut memory[begin..BODY], 0)?;
            pieces = 1;
            if len > 0 {
                out.seal(&mut memory[BODY..body_end], 1)?;
                pieces = 2;
            }
        }
        match self.send_slot(slot, begin, body_end, patience)? {
            Sent::Nothing => return Err(self.nothing(patience)),
            Sent::Begun => {}
        }
        if let Some((out, _)) = &mut self.seals {
            out.keep(pieces, body_end - begin)?;
        }
        Ok(())
    }

    fn nothing(&self, patience: Patience) -> datapipes_core::Error {
        crate::channel::Waiting::new(patience).over("send", "the other side did not take a block")
    }

    fn send_slot(&mut self, slot: u32, begin: usize, end: usize, patience: Patience) -> Result<Sent> {
        self.pending = Some(Pending { bytes: Begun::Slot(slot), done: begin, end });
        match self.flush(patience) {
            Ok(()) => Ok(Sent::Begun),
            Err(e) if e.kind() == datapipes_core::ErrorKind::Busy => {
                let done = self.pending.as_ref().map_or(end, |pending| pending.done);
                if done > begin {
                    return Ok(Sent::Begun);
                }
                self.pending = None;
                Ok(Sent::Nothing)
            }
            Err(e) => {
                self.pending = None;
                Err(e)
            }
        }
    }

    /// Sends header and bytes from where they are. The part that is not taken at once is kept in
    /// the slot.
    fn transmit_from(&mut self, slot: u32, header: &Header, bytes: &[u8], patience: Patience) -> Result<()> {
        let head = header.bytes();
        let done = match self.gather(&head, bytes) {
            Ok(done) => done,
            Err(e) => return Err(self.broken_off(e)),
        };
        let begin = BODY - HEADER_BYTES;
        let end = BODY + bytes.len();
        if begin + done == end {
            return Ok(());
        }
        // The rest is copied here, because the caller gets its bytes back.
        let memory = self.room(slot);
        memory[begin..BODY].copy_from_slice(&head);
        memory[BODY..end].copy_from_slice(bytes);
        if done == 0 {
            return match self.send_slot(slot, begin, end, patience)? {
                Sent::Nothing => Err(self.nothing(patience)),
                Sent::Begun => Ok(()),
            };
        }
        self.pending = Some(Pending { bytes: Begun::Slot(slot), done: begin + done, end });
        match self.flush(patience) {
            Err(e) if e.kind() == datapipes_core::ErrorKind::Busy => Ok(()),
            other => other,
        }
    }

    /// Sends as much of both parts as the socket takes now.
    fn gather(&mut self, head: &[u8], bytes: &[u8]) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while self.gathers {
            let both = [IoSlice::new(head), IoSlice::new(bytes)];
            match sendmsg(&self.socket, &both, &mut SendAncillaryBuffer::default(), flags) {
                Ok(done) if done >= head.len() => {
                    let rest = &bytes[done - head.len()..];
                    return Ok(done + send_some(self.socket.as_fd(), rest, false)?);
                }
                Ok(done) => return Ok(done),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::PERM) => self.gathers = false,
                Err(e) => return Err(e),
            }
        }
        let done = send_some(self.socket.as_fd(), head, !bytes.is_empty())?;
        if done < head.len() {
            return Ok(done);
        }
        Ok(done + send_some(self.socket.as_fd(), bytes, false)?)
    }

    fn header(&self, slot: u32, bytes: &[u8], head: Head) -> Header {
        let check = if self.shape.checked { crc32fast::hash(bytes) } else { 0 };
        Header { slot, len: bytes.len() as u32, sequence: self.sequence, check, head }
    }

    fn pushed(&mut self, slot: u32, sent: Result<()>, head: Head) -> Result<()> {
        if let Err(e) = sent {
            self.give_back(slot);
            return Err(e);
        }
        self.under_way[slot as usize] = Some((self.sequence, head.end));
        self.sequence += 1;
        self.outstanding += 1;
        Ok(())
    }
}

impl Outlet for SocketOutlet {
    fn shape(&self) -> ChannelShape {
        self.shape
    }

    fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    fn memory(&mut self, slot: u32) -> &mut [u8] {
        let most = self.shape.block_bytes;
        &mut self.room(slot)[BODY..BODY + most]
    }

    fn push(&mut self, slot: u32, len: usize, head: Head, patience: Patience) -> Result<()> {
        let sent = self.ready(patience).and_then(|()| {
            self.room(slot);
            let header = self.header(slot, &self.slots[slot as usize][BODY..BODY + len], head);
            self.transmit(slot, &header, patience)
        });
        self.pushed(slot, sent, head)
    }

    /// The kernel copies the bytes from where they are, unless they are sealed first.
    fn push_bytes(&mut self, slot: u32, bytes: &[u8], head: Head, patience: Patience) -> Result<()> {
        let sent = self.ready(patience).and_then(|()| {
            let header = self.header(slot, bytes, head);
            if self.seals.is_some() {
                self.memory(slot)[..bytes.len()].copy_from_slice(bytes);
                return self.transmit(slot, &header, patience);
            }
            self.transmit_from(slot, &header, bytes, patience)
        });
        self.pushed(slot, sent, head)
    }

    fn poll_reply(&mut self) -> Result<Option<Returned>> {
        self.check()?;
        if self.dead {
            return Err(gone("send"));
        }
        self.flush_some()?;
        match self.replies.fill(self.socket.as_fd()) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(e) => return Err(self.broken_off(e)),
        }
        if let Some((_, into)) = &mut self.seals {
            let len = self.replies.bytes.len();
            let opened = into.open(&mut self.replies.bytes, 0).and_then(|()| into.keep(1, len));
            if let Err(e) = opened {
                self.dead = true;
                return Err(e);
            }
        }
        let Some((slot, reply)) = reply_of(&self.replies.bytes) else {
            return self.wrong("the received bytes are not a reply".into());
        };
        let Some((sequence, end)) = self.under_way.get_mut(slot as usize).and_then(Option::take) else {
            return self.wrong(format!("a reply to slot {slot}, which is not under way"));
        };
        if matches!(&self.pending, Some(Pending { bytes: Begun::Slot(pending), .. }) if *pending == slot) {
            return self.wrong(format!("a reply to slot {slot}, which was not sent yet"));
        }
        self.free.push(slot);
        self.outstanding -= 1;
        Ok(Some(Returned { sequence, end, reply, at_ns: None }))
    }

    fn await_reply(&mut self, patience: Patience) -> Result<Returned> {
        if let Some(returned) = self.poll_reply()? {
            return Ok(returned);
        }
        // It is a local variable, so that the calls below can borrow `self`.
        let mut clock = crate::channel::Waiting::new(patience);
        loop {
            let flags = if self.pending.is_some() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let Some(slice) = clock.slice() else { return Err(clock.over("send", "no credit came back")) };
            let slice = Patience::up_to(slice);
            let slept =
                SocketWait::new(slice, self.common.as_ref(), Side::Sender).sleep(self.socket.as_fd(), flags, "");
            slept?;
            if let Some(returned) = self.poll_reply()? {
                return Ok(returned);
            }
        }
    }

    fn outstanding(&self) -> u32 {
        self.outstanding
    }

    fn close(&mut self) {
        let until = Instant::now() + FAREWELL;
        // With unread replies the kernel would reset the connection, and the receiver would lose
        // bytes that it did not read yet.
        while let Ok(Some(_)) = self.poll_reply() {}
        // A side that is gone needs no goodbye, and one that does not fit now would be torn.
        if !self.dead && self.check().is_ok() {
            let _ = self.farewell(until);
        }
        let _ = shutdown(&self.socket, rustix::net::Shutdown::Write);
    }
}

impl SocketOutlet {
    /// Sends the pending message and the goodbye.
    fn farewell(&mut self, until: Instant) -> Result<()> {
        let mut last = goodbye().to_vec();
        if let Some((out, _)) = &self.seals {
            last.resize(HEADER_BYTES + TAG_BYTES, 0);
            out.seal(&mut last, 0)?;
        }
        self.flush(Patience::up_to(FAREWELL))?;
        send_last(&self.socket, &last, until);
        Ok(())
    }
}
