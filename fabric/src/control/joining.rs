//! How two controllers, each of its machine, connect the two halves of a link: see `noise` for what
//! they say.
//!
//! A stranger is cut off without an answer; one that is silent is cut off after [`TALK`], or
//! before, where too many are silent: then one of the address that has most of them goes. So a
//! joiner that is slow is pushed out by connections from its own address alone, or from very many.
//! An offer is used up by nobody but who has shown the key; what was said to another, and is said
//! again, is refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with, sockopt};
use serde::{Deserialize, Serialize};

use super::controller::Controller;
use super::link::Link;
use super::noise::{Agreed, Conversation, MESSAGE_BYTES, Role, WORD_BYTES};
use super::objects::Thing;
use super::protocol::{Answer, DeviceEvent, EndpointId, EndpointSpec, Tell, text_of};
use crate::capability::{Cap, ObjectId, Party, Rights};
use crate::channel::{ChannelShape, Copies};
use crate::transport::Token;
use crate::transport::seal::Keys;

/// Whether what goes over a link is encrypted, and protected against change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Encryption {
    /// It is.
    #[default]
    On,
    /// It is not: who can read packets on the way can read it, and who can change them can change
    /// it. Only who connects is found out. For networks that nobody else has.
    Off,
}

/// One half of a link. The other half has the same shape and encryption, and the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// How large the channel is.
    pub shape: ChannelShape,
    /// [`Rights::SEND`] or [`Rights::RECEIVE`].
    pub side: Rights,
    /// Whether bytes are encrypted.
    pub encryption: Encryption,
}

impl LinkSpec {
    /// A half of this shape and side, encrypted.
    pub const fn new(shape: ChannelShape, side: Rights) -> LinkSpec {
        LinkSpec { shape, side, encryption: Encryption::On }
    }
}

/// What two controllers have in common that nobody else knows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key([u8; 32]);

impl Key {
    /// A key of these bytes, which nobody should be able to guess.
    pub const fn new(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// A new one.
    ///
    /// # Errors
    /// What reading random bytes meets.
    pub fn random() -> Result<Key> {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&super::link::secret()?);
        key[16..].copy_from_slice(&super::link::secret()?);
        Ok(Key(key))
    }

    /// Its bytes, to be brought to the other machine by a way that is safe.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// How long the other side may take to say who it is.
const TALK: Duration = Duration::from_secs(10);
/// Connections that have not shown that they know the key; one of them makes room, see
/// [`in_excess`].
const MAX_TALKS: usize = 128;
/// First messages that are remembered, so that none is answered twice.
const MAX_SEEN: usize = 4096;

/// A link that is not connected yet.
pub(super) struct Joining {
    cap: Cap,
    spec: LinkSpec,
    key: Key,
    /// None for who joins.
    listener: Option<TcpListener>,
    talks: VecDeque<Talk>,
    /// First messages that were answered.
    seen: BTreeSet<[u8; MESSAGE_BYTES]>,
    /// Endpoints that are to be told when it is.
    pub(super) waiting: Vec<(EndpointId, Party, String, Copies)>,
}

/// Where a connection comes from: of an address of version 6 the half that names a network, for its
/// owner has all of the other half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Four(Ipv4Addr),
    Six([u8; 8]),
}

impl Source {
    fn of(address: IpAddr) -> Source {
        match address.to_canonical() {
            IpAddr::V4(address) => Source::Four(address),
            IpAddr::V6(address) => Source::Six(address.octets().first_chunk().copied().unwrap_or_default()),
        }
    }
}

/// Which of these, oldest first, makes room: the oldest of the source that has most; of several
/// such sources the oldest of all.
fn in_excess(strangers: &[Source]) -> Option<usize> {
    let mut counts = BTreeMap::new();
    strangers.iter().for_each(|source| *counts.entry(source).or_insert(0usize) += 1);
    let most = counts.values().max()?;
    strangers.iter().position(|source| counts.get(source) == Some(most))
}

/// A connection with somebody.
struct Talk {
    socket: OwnedFd,
    source: Source,
    stage: TalkStage,
    bytes: [u8; MESSAGE_BYTES],
    have: usize,
    until: Instant,
}

/// How far a conversation has come.
enum TalkStage {
    /// Who joins: it is not connected yet.
    Connecting,
    /// A first message (who offers) or its answer (who joins) is awaited.
    Greeting(Box<Conversation>),
    /// The other's word is awaited.
    Confirming(Agreed),
}

/// Where a conversation is after a turn.
enum Turn {
    /// The other is awaited.
    Awaits(Box<Talk>),
    /// The other knows the key, and has shown that it is there.
    Joined(Joined),
}

/// A connection with who knows the key.
struct Joined {
    socket: OwnedFd,
    agreed: Agreed,
}

impl Talk {
    fn new(socket: OwnedFd, other: SocketAddr, stage: TalkStage) -> Talk {
        Talk {
            socket,
            source: Source::of(other.ip()),
            stage,
            bytes: [0; MESSAGE_BYTES],
            have: 0,
            until: Instant::now() + TALK,
        }
    }

    /// Whether all of the next words are there.
    fn heard(&mut self) -> Result<bool> {
        let len = if matches!(self.stage, TalkStage::Confirming(_)) { WORD_BYTES } else { MESSAGE_BYTES };
        while self.have < len {
            match recv(&self.socket, &mut self.bytes[self.have..len], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    let what = "the other controller hung up: it knows another key, or another channel, or too many strangers \
                                talk to it";
                    return Err(Error::new(ErrorKind::PermissionDenied, "join", what));
                }
                Ok((n, _)) => self.have += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(Error::os("join", e.raw_os_error(), "the other controller")),
            }
        }
        self.have = 0;
        Ok(true)
    }
}

/// So few bytes always fit a socket that hardly anything was sent over.
fn say(socket: &OwnedFd, bytes: &[u8]) -> Result<()> {
    match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(Error::new(ErrorKind::Device, "join", "the connection takes no 48 bytes")),
        Err(e) => Err(Error::os("join", e.raw_os_error(), "the other controller")),
    }
}

impl Joining {
    fn role(&self) -> Role {
        if self.listener.is_some() { Role::Offers } else { Role::Joins }
    }

    fn conversation(&self) -> Result<Box<Conversation>> {
        Conversation::new(self.role(), &self.key, &self.spec).map(Box::new)
    }

    /// What is waited for, and how.
    pub(super) fn polled(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let talks = self.talks.iter().map(|talk| {
            let connects = matches!(talk.stage, TalkStage::Connecting);
            (talk.socket.as_fd(), if connects { PollFlags::OUT } else { PollFlags::IN })
        });
        self.listener.iter().map(|l| (l.as_fd(), PollFlags::IN)).chain(talks).collect()
    }

    /// When somebody's time is over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.talks.iter().map(|t| t.until).min()
    }

    /// Takes new connections in.
    fn accept(&mut self) -> Result<()> {
        while let Some(Ok((stream, from))) = self.listener.as_ref().map(TcpListener::accept) {
            let talk = Talk::new(stream.into(), from, TalkStage::Greeting(self.conversation()?));
            self.talks.push_back(talk);
            // Strangers do not push out who has shown that it knows the key.
            let strangers = self.talks.iter().enumerate().filter(|(_, t)| matches!(t.stage, TalkStage::Greeting(_)));
            let (at, sources): (Vec<usize>, Vec<Source>) = strangers.map(|(at, talk)| (at, talk.source)).unzip();
            if sources.len() > MAX_TALKS {
                in_excess(&sources).map(|n| self.talks.remove(at[n]));
            }
        }
        Ok(())
    }

    /// Goes on as far as can be without waiting: a connection with who knows the key, once there is
    /// one.
    ///
    /// # Errors
    /// Of who joins: why it cannot.
    fn go_on(&mut self) -> Result<Option<Joined>> {
        self.accept()?;
        let offers = self.role() == Role::Offers;
        for _ in 0..self.talks.len() {
            let Some(talk) = self.talks.pop_front() else { break };
            let until = talk.until;
            match self.talk(talk) {
                Ok(Turn::Joined(joined)) => return Ok(Some(joined)),
                Ok(Turn::Awaits(talk)) if until > Instant::now() => self.talks.push_back(*talk),
                // A stranger is no news.
                _ if offers => {}
                Ok(Turn::Awaits(_)) => {
                    return Err(Error::new(ErrorKind::Busy, "join", "the other controller did not answer in time"));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// One conversation: at its end, or as far as it has come.
    fn talk(&mut self, mut talk: Talk) -> Result<Turn> {
        loop {
            if !matches!(talk.stage, TalkStage::Connecting) && !talk.heard()? {
                return Ok(Turn::Awaits(Box::new(talk)));
            }
            talk = match talk.stage {
                TalkStage::Connecting => match self.hail(&talk)? {
                    Some(conversation) => Talk { stage: TalkStage::Greeting(conversation), ..talk },
                    None => return Ok(Turn::Awaits(Box::new(talk))),
                },
                TalkStage::Greeting(conversation) => {
                    let (socket, bytes) = (talk.socket, talk.bytes);
                    let agreed = self.greeted(&socket, &bytes, *conversation)?;
                    let (source, until) = (talk.source, talk.until);
                    Talk { stage: TalkStage::Confirming(agreed), socket, source, bytes, have: 0, until }
                }
                TalkStage::Confirming(agreed) => {
                    agreed.check(&talk.bytes[..WORD_BYTES])?;
                    if self.role() == Role::Offers {
                        say(&talk.socket, &agreed.word()?)?;
                    }
                    return Ok(Turn::Joined(Joined { socket: talk.socket, agreed }));
                }
            };
        }
    }

    /// Says the first message, once there is a connection.
    fn hail(&self, talk: &Talk) -> Result<Option<Box<Conversation>>> {
        match sockopt::socket_error(&talk.socket) {
            Ok(Ok(())) => {}
            Ok(Err(e)) | Err(e) => return Err(Error::os("join", e.raw_os_error(), "the other controller")),
        }
        let mut conversation = self.conversation()?;
        match say(&talk.socket, &conversation.say()?) {
            // Not connected yet.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::ENOTCONN)) => Ok(None),
            other => other.map(|()| Some(conversation)),
        }
    }

    /// A first message has come, or the answer to one.
    fn greeted(
        &mut self,
        socket: &OwnedFd,
        message: &[u8; MESSAGE_BYTES],
        mut conversation: Conversation,
    ) -> Result<Agreed> {
        conversation.hear(message)?;
        if self.role() == Role::Joins {
            let agreed = conversation.agreed();
            say(socket, &agreed.word()?)?;
            return Ok(agreed);
        }
        // Said once by who made it; a second time it is an echo.
        if self.seen.len() >= MAX_SEEN || !self.seen.insert(*message) {
            let what = "what was said before to open this link is said again";
            return Err(Error::new(ErrorKind::PermissionDenied, "join", what));
        }
        say(socket, &conversation.say()?)?;
        Ok(conversation.agreed())
    }
}

impl Controller {
    /// A link whose other end is to be joined from elsewhere.
    pub(super) fn offer(&mut self, spec: LinkSpec, at: SocketAddr, key: Key) -> Result<Answer> {
        let io = |e: std::io::Error| Error::io("offer", &e, at.to_string());
        let listener = TcpListener::bind(at).map_err(io)?;
        listener.set_nonblocking(true).map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        let cap = self.await_link(spec, key, Some(listener), VecDeque::new())?;
        Ok(Answer::Offered { cap, address })
    }

    /// A link whose other end was offered elsewhere.
    pub(super) fn join(&mut self, spec: LinkSpec, to: SocketAddr, key: Key) -> Result<Answer> {
        let os = |e: Errno| Error::os("join", e.raw_os_error(), to.to_string());
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(os)?;
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(e) => return Err(os(e)),
        }
        let talk = Talk::new(socket, to, TalkStage::Connecting);
        let cap = self.await_link(spec, key, None, [talk].into())?;
        Ok(Answer::Created { cap })
    }

    fn await_link(
        &mut self,
        spec: LinkSpec,
        key: Key,
        listener: Option<TcpListener>,
        talks: VecDeque<Talk>,
    ) -> Result<Cap> {
        let link = |epoch| Thing::link(Link::across(spec.shape, epoch, spec.side)?);
        let (object, cap) = self.create(Party::APPLICATION, link)?;
        self.joins
            .insert(object, Joining { cap, spec, key, listener, talks, seen: BTreeSet::new(), waiting: Vec::new() });
        Ok(cap)
    }

    /// Goes on with a link that is being connected.
    pub(super) fn progress(&mut self, object: ObjectId) {
        let Some(joining) = self.joins.get_mut(&object) else { return };
        let error = match joining.go_on() {
            Ok(None) => return,
            Ok(Some(Joined { socket, agreed })) => {
                let (token, keys) = (agreed.token, agreed.keys(joining.spec.encryption));
                self.joined(object, socket, token, keys).err()
            }
            Err(e) => Some(e),
        };
        let Some(joining) = self.joins.remove(&object) else { return };
        let event = DeviceEvent::Link { cap: joining.cap, error: error.map(|e| text_of(&e)) };
        self.tell(Party::APPLICATION, Tell::Event(event), Vec::new());
    }

    fn joined(&mut self, object: ObjectId, socket: OwnedFd, token: Token, keys: Option<Keys>) -> Result<()> {
        let waiting = self.joins.get_mut(&object).map(|j| std::mem::take(&mut j.waiting)).unwrap_or_default();
        let Some(thing) = self.things.get_mut(&object) else { return Ok(()) };
        thing.connected(socket, token, keys);
        let mut told = Vec::new();
        for (endpoint, party, port, copies) in waiting {
            if let Some((kind, fds)) = thing.half(endpoint)? {
                told.push((party, Tell::Endpoint(EndpointSpec { endpoint, port, kind, copies }), fds));
            }
        }
        told.into_iter().for_each(|(party, tell, fds)| self.tell(party, tell, fds));
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn who_has_most_connections_makes_room() {
        let source = |text: &str| Source::of(text.parse().unwrap());
        let (slow, loud, other) = (source("10.0.0.1"), source("10.0.0.2"), source("10.0.0.3"));
        assert_eq!(in_excess(&[slow, loud, other, loud, other, loud]), Some(1));
        assert_eq!(in_excess(&[slow, loud, other, other, loud]), Some(1));
        assert_eq!(in_excess(&[slow, loud]), Some(0));
        assert_eq!(in_excess(&[]), None);
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), slow);
    }
}
