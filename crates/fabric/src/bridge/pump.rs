//! Moves the bytes of a link between a socket and the peer's bridge, both ways.
//!
//! ```text
//! socket --bytes, as many messages as there are credits--> peer's socket
//!        <--credits for what was written there--
//!        --end, once the socket has ended-->                the peer shuts its socket for writing
//!        <--done: all of it is written--
//!        <--stop: the peer's socket takes no more--         this side shuts its socket for reading
//! ```
//! The same goes the other way, independently. The bridge has ended when both ends were said and
//! both were answered by "done".

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use datapipes_core::{Error, ErrorKind, Result};
use datapipes_ucx::{MAX_MESSAGE_BYTES, PeerMessages, UcxMessage};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::idle::{Awaited, Idle};
use super::spec::BridgedBytes;
use super::words::{WINDOW, Word};

/// The direction from the socket to the peer.
struct Outgoing {
    credits: usize,
    bytes: u64,
    /// Whether the end was said.
    ended: bool,
    /// Whether the peer has all of it.
    is_done: bool,
}

/// The direction from the peer to the socket.
#[derive(Default)]
struct Incoming {
    waiting: VecDeque<Vec<u8>>,
    /// How much of the first of these was written.
    written: usize,
    bytes: u64,
    /// The number of all bytes, once the peer has said the end.
    total: Option<u64>,
    /// Whether the socket takes no more.
    is_refused: bool,
    /// Messages whose credit was not returned.
    owed: usize,
    /// Whether this side has said that it has all of it.
    is_done: bool,
}

/// A bridge at work.
pub(super) struct Pump<'a> {
    controller: BorrowedFd<'a>,
    socket: OwnedFd,
    peer: PeerMessages,
    outgoing: Outgoing,
    incoming: Incoming,
    has_flushed: bool,
}

impl<'a> Pump<'a> {
    pub(super) fn new(controller: BorrowedFd<'a>, socket: OwnedFd, peer: PeerMessages) -> Pump<'a> {
        let outgoing = Outgoing { credits: WINDOW, bytes: 0, ended: false, is_done: false };
        Pump { controller, socket, peer, outgoing, incoming: Incoming::default(), has_flushed: false }
    }

    /// Greets the peer, and waits until it has done so. Then all connections are there.
    ///
    /// # Errors
    /// `Device` where the peer is not there, `Unavailable` where the controller has ended.
    pub(super) fn meet(&mut self) -> Result<()> {
        let mut idle = Idle::new();
        let mut is_met = false;
        self.peer.send(Word::Hello.words(), Vec::new())?;
        self.peer.flush()?;
        loop {
            let worked = self.peer.progress();
            if !is_met && let Some(message) = self.peer.receive()? {
                if Word::of(message.words) != Some(Word::Hello) || !message.body.is_empty() {
                    return Err(wrong("something else than its greeting"));
                }
                is_met = true;
            } else if is_met && self.peer.settle()? == 0 {
                return Ok(());
            } else if worked {
                idle.worked();
            } else if !idle.wait(&mut self.peer, &Awaited { controller: self.controller, socket: None })? {
                return Err(alone());
            }
        }
    }

    /// Moves bytes until both directions have ended.
    ///
    /// # Errors
    /// `Device` where the peer has gone before, `Corrupt` where it breaks the protocol,
    /// `Unavailable` where the controller has ended. Errors of the socket.
    pub(super) fn run(&mut self) -> Result<BridgedBytes> {
        let mut idle = Idle::new();
        loop {
            if self.step()? {
                idle.worked();
                continue;
            }
            if self.has_ended()? {
                return Ok(BridgedBytes { sent: self.outgoing.bytes, received: self.incoming.bytes });
            }
            let flags = self.awaited_of_socket();
            let socket = Some((self.socket.as_fd(), flags)).filter(|(_, flags)| !flags.is_empty());
            if !idle.wait(&mut self.peer, &Awaited { controller: self.controller, socket })? {
                return Err(alone());
            }
        }
    }

    /// What the socket is waited for. A socket that is not waited for is left out: its end would
    /// wake the bridge again and again.
    fn awaited_of_socket(&self) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.outgoing.ended && self.outgoing.credits > 0);
        flags.set(PollFlags::OUT, !self.incoming.waiting.is_empty());
        flags
    }

    /// Does what can be done without waiting. Returns whether there was something.
    fn step(&mut self) -> Result<bool> {
        let mut worked = self.peer.progress();
        // What has ended is forgotten in each step: a busy bridge has no other time for it.
        if !self.is_over() {
            self.peer.settle()?;
        }
        worked |= self.hear()?;
        worked |= self.write()?;
        worked |= self.read()?;
        Ok(worked)
    }

    /// Whether both directions have ended, and the last words have left this process.
    fn has_ended(&mut self) -> Result<bool> {
        if !self.is_over() {
            return Ok(false);
        }
        // A peer that has the last word may be gone.
        if !std::mem::replace(&mut self.has_flushed, true) && self.peer.flush().is_err() {
            return Ok(true);
        }
        Ok(self.peer.settle().map_or(true, |under_way| under_way == 0))
    }

    /// Whether both directions have ended on both sides.
    fn is_over(&self) -> bool {
        self.outgoing.ended && self.outgoing.is_done && self.incoming.is_done
    }

    /// Takes what the peer said.
    fn hear(&mut self) -> Result<bool> {
        let mut heard = false;
        loop {
            match self.peer.receive() {
                Ok(Some(message)) => self.obey(message)?,
                Ok(None) => return Ok(heard),
                Err(_) if self.is_over() => return Ok(heard),
                Err(e) => return Err(e),
            }
            heard = true;
        }
    }

    fn obey(&mut self, message: UcxMessage) -> Result<()> {
        let Some(word) = Word::of(message.words) else { return Err(wrong("a word of another version")) };
        if word != Word::Bytes && !message.body.is_empty() {
            return Err(wrong("bytes with a word that has none"));
        }
        let into = &mut self.incoming;
        match word {
            Word::Bytes if into.waiting.len() + into.owed >= WINDOW => Err(wrong("more than its credits")),
            Word::Bytes if message.body.is_empty() || into.total.is_some() => Err(wrong("bytes after its end")),
            Word::Bytes => {
                into.bytes += message.body.len() as u64;
                if into.is_refused {
                    into.owed += 1;
                    self.peer.give_back(message.body);
                } else {
                    into.waiting.push_back(message.body);
                }
                Ok(())
            }
            Word::Credit(count) if self.outgoing.credits + count <= WINDOW => {
                self.outgoing.credits += count;
                Ok(())
            }
            Word::End(total) if into.total.is_none() && total == into.bytes => {
                into.total = Some(total);
                Ok(())
            }
            Word::End(total) => Err(wrong(&format!("an end after {total} bytes, where {} came", into.bytes))),
            Word::Stop => {
                // The sender on this side learns that nobody takes its bytes.
                let _ = shutdown(&self.socket, Shutdown::Read);
                self.end_outgoing()
            }
            Word::Done if self.outgoing.ended && !self.outgoing.is_done => {
                self.outgoing.is_done = true;
                Ok(())
            }
            Word::Hello | Word::Credit(_) | Word::Done => Err(wrong("a word that is not its turn")),
        }
    }

    /// Writes what came to the socket, and returns credits.
    fn write(&mut self) -> Result<bool> {
        let mut worked = false;
        while let Some(first) = self.incoming.waiting.front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.socket, &first[self.incoming.written..], flags) {
                Ok(count) => {
                    worked = true;
                    self.incoming.written += count;
                    if self.incoming.written == first.len() {
                        let body = self.incoming.waiting.pop_front().unwrap_or_default();
                        (self.incoming.written, self.incoming.owed) = (0, self.incoming.owed + 1);
                        self.peer.give_back(body);
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    worked = true;
                    let into = &mut self.incoming;
                    (into.is_refused, into.written, into.owed) = (true, 0, into.owed + into.waiting.len());
                    into.waiting.clear();
                    self.peer.send(Word::Stop.words(), Vec::new())?;
                }
                Err(e) => return Err(Error::os("send", e.raw_os_error(), "the socket of a bridge")),
            }
        }
        let into = &mut self.incoming;
        if into.total.is_some() {
            // No more credits are needed.
            if into.waiting.is_empty() && !into.is_done {
                into.is_done = true;
                let _ = shutdown(&self.socket, Shutdown::Write);
                self.peer.send(Word::Done.words(), Vec::new())?;
                worked = true;
            }
        } else if into.owed > 0 && (into.waiting.is_empty() || into.owed >= WINDOW / 2) {
            let owed = std::mem::take(&mut into.owed);
            self.peer.send(Word::Credit(owed).words(), Vec::new())?;
            worked = true;
        }
        Ok(worked)
    }

    /// Takes bytes from the socket for which there are credits.
    fn read(&mut self) -> Result<bool> {
        let mut worked = false;
        while !self.outgoing.ended && self.outgoing.credits > 0 {
            let mut body = self.peer.buffer();
            body.resize(MAX_MESSAGE_BYTES, 0);
            match recv(&self.socket, &mut body[..], RecvFlags::DONTWAIT) {
                // A device that died with bytes that it had not read has ended as well.
                Ok((0, _)) | Err(Errno::CONNRESET) => self.end_outgoing()?,
                Ok((count, _)) => {
                    body.truncate(count);
                    self.outgoing.credits -= 1;
                    self.outgoing.bytes += count as u64;
                    self.peer.send(Word::Bytes.words(), body)?;
                }
                Err(e) => {
                    self.peer.give_back(body);
                    match e {
                        Errno::AGAIN => break,
                        Errno::INTR => continue,
                        e => return Err(Error::os("receive", e.raw_os_error(), "the socket of a bridge")),
                    }
                }
            }
            worked = true;
        }
        Ok(worked)
    }

    fn end_outgoing(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.outgoing.ended, true) {
            return Ok(());
        }
        self.peer.send(Word::End(self.outgoing.bytes).words(), Vec::new())
    }
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "receive", format!("the peer's bridge sent {what}"))
        .with_advice("both sides need the same version of the library")
}

fn alone() -> Error {
    Error::new(ErrorKind::Unavailable, "wait", "the controller of this bridge has ended")
}
