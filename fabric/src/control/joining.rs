//! How two controllers, each of its machine, connect the two halves of a link.
//!
//! ```text
//! who joins  -> who offered   64 bytes: its half of the key; the channel's shape; which side it wants
//! who joins  <- who offered   64 bytes: the other half of the key; a token for this connection
//! ```
//!
//! A key of 32 bytes says who the other is: each side shows one half and knows both. It keeps strangers and mistakes out.
//! **Nothing is encrypted or signed**, the key included: who can read or change packets on the way can read and change all of
//! it, so a link belongs on a network that is trusted, or in a tunnel.
//!
//! A stranger is cut off without an answer; one that is silent is cut off after [`TALK`], and keeps nobody else waiting.

use std::collections::VecDeque;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with, sockopt};
use serde::{Deserialize, Serialize};

use super::controller::Controller;
use super::link::{Link, secret};
use super::objects::Thing;
use super::protocol::{Answer, EndpointId, EndpointSpec, Event, Tell, text_of};
use crate::capability::{Cap, ObjectId, Party, Rights};
use crate::channel::Shape;
use crate::transport::Token;

/// What two controllers have in common that nobody else knows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key([u8; 32]);

impl Key {
    /// A key of these bytes. The first half is shown by who joins, the second by who offered.
    pub const fn new(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// A new one.
    ///
    /// # Errors
    /// What reading random bytes meets.
    pub fn random() -> Result<Key> {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&secret()?);
        key[16..].copy_from_slice(&secret()?);
        Ok(Key(key))
    }

    /// Its bytes, to be brought to the other machine by a way that is safe.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    fn half(&self, second: bool) -> &[u8] {
        if second { &self.0[16..] } else { &self.0[..16] }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// How long the other side may take to say who it is.
const TALK: Duration = Duration::from_secs(10);
/// Connections that have not said who they are; the oldest makes room.
const MOST_TALKS: usize = 16;
const HAIL: u32 = 0x6461_7411;
const WELCOME: u32 = 0x6461_7412;
const BYTES: usize = 64;

/// A link that is not connected yet.
pub(super) struct Joining {
    cap: Cap,
    shape: Shape,
    side: Rights,
    key: Key,
    /// None for who joins.
    listener: Option<TcpListener>,
    talks: VecDeque<Talk>,
    /// Endpoints that are to be told when it is.
    pub(super) waiting: Vec<(EndpointId, Party, String)>,
}

/// A connection with somebody.
struct Talk {
    socket: OwnedFd,
    hailed: bool,
    bytes: [u8; BYTES],
    have: usize,
    until: Instant,
}

impl Talk {
    fn new(socket: OwnedFd) -> Talk {
        Talk { socket, hailed: false, bytes: [0; BYTES], have: 0, until: Instant::now() + TALK }
    }

    /// Whether all of the other's words are there.
    fn heard(&mut self) -> Result<bool> {
        while self.have < BYTES {
            match recv(&self.socket, &mut self.bytes[self.have..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    let what = "the other controller hung up: it knows another key, or another channel";
                    return Err(Error::new(ErrorKind::PermissionDenied, "join", what));
                }
                Ok((n, _)) => self.have += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(Error::os("join", e.raw_os_error(), "the other controller")),
            }
        }
        Ok(true)
    }

    /// 64 bytes always fit a socket that nothing was sent over.
    fn say(&self, bytes: &[u8; BYTES]) -> Result<()> {
        match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(BYTES) => Ok(()),
            Ok(_) => Err(Error::new(ErrorKind::Device, "join", "the connection takes no 64 bytes")),
            Err(e) => Err(Error::os("join", e.raw_os_error(), "the other controller")),
        }
    }
}

fn words(kind: u32, proof: &[u8], token: &Token, shape: Shape, side: Rights) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4] = u8::from(side == Rights::SEND);
    bytes[5] = u8::from(shape.checked);
    bytes[8..12].copy_from_slice(&shape.credits.to_le_bytes());
    bytes[16..24].copy_from_slice(&(shape.block_bytes as u64).to_le_bytes());
    bytes[24..40].copy_from_slice(proof);
    bytes[40..56].copy_from_slice(token);
    bytes
}

impl Joining {
    fn opposite(&self) -> Rights {
        if self.side == Rights::SEND { Rights::RECEIVE } else { Rights::SEND }
    }

    /// What is waited for, and how.
    pub(super) fn polled(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let talks = self.talks.iter().map(|talk| {
            let joins = self.listener.is_none() && !talk.hailed;
            (talk.socket.as_fd(), if joins { PollFlags::OUT } else { PollFlags::IN })
        });
        self.listener.iter().map(|l| (l.as_fd(), PollFlags::IN)).chain(talks).collect()
    }

    /// When somebody's time is over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.talks.iter().map(|t| t.until).min()
    }

    /// Goes on as far as can be without waiting: a connection with who knows the key, once there is one.
    ///
    /// # Errors
    /// Of who joins: why it cannot.
    fn go_on(&mut self) -> Result<Option<(OwnedFd, Token)>> {
        while let Some(Ok((stream, _))) = self.listener.as_ref().map(TcpListener::accept) {
            if self.talks.len() >= MOST_TALKS {
                self.talks.pop_front();
            }
            self.talks.push_back(Talk::new(stream.into()));
        }
        let offers = self.listener.is_some();
        for _ in 0..self.talks.len() {
            let Some(mut talk) = self.talks.pop_front() else { break };
            match self.talk(&mut talk) {
                Ok(Some(token)) => return Ok(Some((talk.socket, token))),
                Ok(None) if talk.until > Instant::now() => self.talks.push_back(talk),
                // A stranger is no news.
                _ if offers => {}
                Ok(None) => {
                    return Err(Error::new(ErrorKind::Busy, "join", "the other controller did not answer in time"));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    fn talk(&self, talk: &mut Talk) -> Result<Option<Token>> {
        let offers = self.listener.is_some();
        if !offers && !talk.hailed {
            match sockopt::socket_error(&talk.socket) {
                Ok(Ok(())) => {}
                Ok(Err(e)) | Err(e) => return Err(Error::os("join", e.raw_os_error(), "the other controller")),
            }
            match talk.say(&words(HAIL, self.key.half(false), &[0; 16], self.shape, self.side)) {
                // Not connected yet.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOTCONN)) => return Ok(None),
                other => other?,
            }
            talk.hailed = true;
        }
        if !talk.heard()? {
            return Ok(None);
        }
        let mut token = [0; 16];
        if !offers {
            token.copy_from_slice(&talk.bytes[40..56]);
        }
        let kind = if offers { HAIL } else { WELCOME };
        let expected = words(kind, self.key.half(!offers), &token, self.shape, self.opposite());
        // All of it is compared, however early it differs.
        if talk.bytes.iter().zip(&expected).fold(0, |d, (a, b)| d | (a ^ b)) != 0 {
            let what = "the other controller has another key, or another shape or side of the channel";
            return Err(Error::new(ErrorKind::PermissionDenied, "join", what));
        }
        if offers {
            token = secret()?;
            talk.say(&words(WELCOME, self.key.half(true), &token, self.shape, self.side))?;
        }
        Ok(Some(token))
    }
}

impl Controller {
    /// A link whose other end is to be joined from elsewhere.
    pub(super) fn offer(&mut self, shape: Shape, side: Rights, at: SocketAddr, key: Key) -> Result<Answer> {
        let io = |e: std::io::Error| Error::io("offer", &e, at.to_string());
        let listener = TcpListener::bind(at).map_err(io)?;
        listener.set_nonblocking(true).map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        let cap = self.await_link(shape, side, key, Some(listener), VecDeque::new())?;
        Ok(Answer::Offered { cap, address })
    }

    /// A link whose other end was offered elsewhere.
    pub(super) fn join(&mut self, shape: Shape, side: Rights, to: SocketAddr, key: Key) -> Result<Answer> {
        let os = |e: Errno| Error::os("join", e.raw_os_error(), to.to_string());
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(os)?;
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(e) => return Err(os(e)),
        }
        let cap = self.await_link(shape, side, key, None, [Talk::new(socket)].into())?;
        Ok(Answer::Created { cap })
    }

    fn await_link(
        &mut self,
        shape: Shape,
        side: Rights,
        key: Key,
        listener: Option<TcpListener>,
        talks: VecDeque<Talk>,
    ) -> Result<Cap> {
        let link = |epoch| Thing::link(Link::across(shape, epoch, side)?);
        let (object, cap) = self.create(Party::APPLICATION, link)?;
        self.joins.insert(object, Joining { cap, shape, side, key, listener, talks, waiting: Vec::new() });
        Ok(cap)
    }

    /// Goes on with a link that is being connected.
    pub(super) fn progress(&mut self, object: ObjectId) {
        let Some(joining) = self.joins.get_mut(&object) else { return };
        let error = match joining.go_on() {
            Ok(None) => return,
            Ok(Some((socket, token))) => self.joined(object, socket, token).err(),
            Err(e) => Some(e),
        };
        let Some(joining) = self.joins.remove(&object) else { return };
        let event = Event::Link { cap: joining.cap, error: error.map(|e| text_of(&e)) };
        self.tell(Party::APPLICATION, Tell::Event(event), Vec::new());
    }

    fn joined(&mut self, object: ObjectId, socket: OwnedFd, token: Token) -> Result<()> {
        let waiting = self.joins.get_mut(&object).map(|j| std::mem::take(&mut j.waiting)).unwrap_or_default();
        let Some(thing) = self.things.get_mut(&object) else { return Ok(()) };
        thing.connected(socket, token);
        let mut told = Vec::new();
        for (endpoint, party, port) in waiting {
            if let Some((kind, fds)) = thing.half(endpoint)? {
                told.push((party, Tell::Endpoint(EndpointSpec { endpoint, port, kind }), fds));
            }
        }
        told.into_iter().for_each(|(party, tell, fds)| self.tell(party, tell, fds));
        Ok(())
    }
}
