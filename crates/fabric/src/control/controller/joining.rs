//! How two controllers on different machines connect the two halves of a link. `noise` has the
//! messages.
//!
//! A stranger is cut off without an answer. A silent connection is cut off after [`TALK`], or
//! earlier if there are too many: then one of the address with most of them is cut off. So only
//! connections from its own address, or a very large number of others, can displace a slow joiner.
//! An offer is used up only by a party that has proved the key. Recorded messages are refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use datapipes_core::{Error, ErrorKind, Result};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::Controller;
use super::link::Link;
use super::link_wire::LinkWire;
use super::objects::ControlledObject;
use crate::capability::{Cap, ObjectId, Party};
use crate::channel::Copies;
use crate::control::key::{Key, LinkCarrier, LinkSpec};
use crate::control::noise::{Agreed, Conversation, MESSAGE_BYTES, Role, WORD_BYTES};
use crate::control::protocol::{Answer, DeviceEvent, EndpointId, EndpointSpec, Tell};
use crate::control::tls::TlsIdentity;
use crate::control::ucx_links::UcxLinkOptions;
use crate::error_text::text_of;
use crate::transport::Token;
use crate::transport::seal::Keys;

/// The longest time that the other side may take to prove its identity.
const TALK: Duration = Duration::from_secs(10);
/// The most connections that have not proved the key. Beyond it one is cut off, see [`in_excess`].
const MAX_TALKS: usize = 128;
/// The most first messages that are remembered, so that none is answered twice.
const MAX_SEEN: usize = 4096;

/// A link that is not connected yet.
pub(crate) struct Joining {
    cap: Cap,
    spec: LinkSpec,
    key: Key,
    /// With one, both sides talk over TLS.
    identity: Option<TlsIdentity>,
    /// None for the joining side.
    listener: Option<TcpListener>,
    talks: VecDeque<Talk>,
    /// First messages that were answered.
    seen: BTreeSet<[u8; MESSAGE_BYTES]>,
    /// Endpoints that wait for the connection.
    pub(crate) waiting: Vec<(EndpointId, Party, String, Copies)>,
}

/// The source of a connection. For an address of version 6 it is the half that names a network,
/// because its owner has all addresses of the other half.
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

/// Chooses the connection to cut off among these, oldest first: the oldest one of the source that
/// has most. Among several such sources it is the oldest of all.
fn in_excess(strangers: &[Source]) -> Option<usize> {
    let mut counts = BTreeMap::new();
    strangers.iter().for_each(|source| *counts.entry(source).or_insert(0usize) += 1);
    let most = counts.values().max()?;
    strangers.iter().position(|source| counts.get(source) == Some(most))
}

/// A connection to another party.
struct Talk {
    wire: LinkWire,
    source: Source,
    other: IpAddr,
    stage: TalkStage,
    bytes: [u8; MESSAGE_BYTES],
    have: usize,
    until: Instant,
}

/// The state of a conversation.
enum TalkStage {
    /// The joining side is not connected yet.
    Connecting,
    /// The two sides show each other their certificates.
    Securing,
    /// The offering side waits for a first message, or the joining side for its answer.
    Greeting(Box<Conversation>),
    /// It waits for the other side's confirmation.
    Confirming(Agreed),
}

/// The result of continuing a conversation.
enum Turn {
    /// It waits for the other side.
    Awaits(Box<Talk>),
    /// The other side has proved that it knows the key and is present.
    Joined(Joined),
}

/// A connection to a party that knows the key.
struct Joined {
    wire: LinkWire,
    agreed: Agreed,
}

impl Talk {
    fn new(socket: OwnedFd, other: SocketAddr, stage: TalkStage) -> Talk {
        Talk {
            wire: LinkWire::over(socket),
            source: Source::of(other.ip()),
            other: other.ip(),
            stage,
            bytes: [0; MESSAGE_BYTES],
            have: 0,
            until: Instant::now() + TALK,
        }
    }

    /// Receives the next message. Returns whether it is complete.
    fn heard(&mut self) -> Result<bool> {
        let len = if matches!(self.stage, TalkStage::Confirming(_)) { WORD_BYTES } else { MESSAGE_BYTES };
        while self.have < len {
            match self.wire.hear(&mut self.bytes[self.have..len])? {
                Some(0) => {
                    let what = "the other controller hung up: it knows another key, or another channel, or too many strangers \
                                talk to it";
                    return Err(Error::new(ErrorKind::PermissionDenied, "join", what));
                }
                Some(n) => self.have += n,
                None => return Ok(false),
            }
        }
        self.have = 0;
        Ok(true)
    }
}

impl Joining {
    fn role(&self) -> Role {
        if self.listener.is_some() { Role::Offers } else { Role::Joins }
    }

    /// Begins what is said over a connection, with nothing heard yet.
    fn conversation(&self, wire: &LinkWire) -> Result<Box<Conversation>> {
        Conversation::new(self.role(), &self.key, &self.spec, &wire.binding()?).map(Box::new)
    }

    /// A connection of a party that was accepted.
    fn accepted(&self, socket: OwnedFd, from: SocketAddr) -> Result<Talk> {
        let mut talk = Talk::new(socket, from, TalkStage::Securing);
        match &self.identity {
            Some(identity) => talk.wire.begin_tls(identity, Role::Offers, from.ip())?,
            None => talk.stage = TalkStage::Greeting(self.conversation(&talk.wire)?),
        }
        Ok(talk)
    }

    /// The descriptors to wait for, and their events.
    pub(crate) fn polled(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let talks = self.talks.iter().map(|talk| {
            let for_room = matches!(talk.stage, TalkStage::Connecting) || talk.wire.awaits_room();
            (talk.wire.as_fd(), if for_room { PollFlags::OUT } else { PollFlags::IN })
        });
        self.listener.iter().map(|l| (l.as_fd(), PollFlags::IN)).chain(talks).collect()
    }

    /// The time when the first conversation must end.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.talks.iter().map(|t| t.until).min()
    }

    /// Accepts new connections.
    fn accept(&mut self) -> Result<()> {
        while let Some(Ok((stream, from))) = self.listener.as_ref().map(TcpListener::accept) {
            let talk = self.accepted(stream.into(), from)?;
            self.talks.push_back(talk);
            // Strangers do not displace a connection that has proved the key.
            let is_stranger = |talk: &Talk| matches!(talk.stage, TalkStage::Securing | TalkStage::Greeting(_));
            let strangers = self.talks.iter().enumerate().filter(|(_, talk)| is_stranger(talk));
            let (at, sources): (Vec<usize>, Vec<Source>) = strangers.map(|(at, talk)| (at, talk.source)).unzip();
            if sources.len() > MAX_TALKS {
                in_excess(&sources).map(|n| self.talks.remove(at[n]));
            }
        }
        Ok(())
    }

    /// Continues as far as possible without waiting. Returns a connection to a party that knows the
    /// key, once there is one.
    ///
    /// # Errors
    /// For the joining side: the reason why it cannot join.
    fn go_on(&mut self) -> Result<Option<Joined>> {
        self.accept()?;
        let offers = self.role() == Role::Offers;
        for _ in 0..self.talks.len() {
            let Some(talk) = self.talks.pop_front() else { break };
            let until = talk.until;
            match self.talk(talk) {
                Ok(Turn::Joined(joined)) => return Ok(Some(joined)),
                Ok(Turn::Awaits(talk)) if until > Instant::now() => self.talks.push_back(*talk),
                // A failed stranger is not reported.
                _ if offers => {}
                Ok(Turn::Awaits(_)) => {
                    return Err(Error::new(ErrorKind::Busy, "join", "the other controller did not answer in time"));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// Continues one conversation as far as possible.
    fn talk(&mut self, mut talk: Talk) -> Result<Turn> {
        loop {
            if !matches!(talk.stage, TalkStage::Connecting | TalkStage::Securing) && !talk.heard()? {
                return Ok(Turn::Awaits(Box::new(talk)));
            }
            let stage = match talk.stage {
                TalkStage::Connecting => {
                    if !self.is_connected(&mut talk)? {
                        return Ok(Turn::Awaits(Box::new(talk)));
                    }
                    TalkStage::Securing
                }
                TalkStage::Securing => match self.secured(&mut talk.wire)? {
                    Some(conversation) => TalkStage::Greeting(conversation),
                    None => return Ok(Turn::Awaits(Box::new(talk))),
                },
                TalkStage::Greeting(conversation) => {
                    TalkStage::Confirming(self.greeted(&mut talk.wire, &talk.bytes, *conversation)?)
                }
                TalkStage::Confirming(agreed) => {
                    agreed.check(&talk.bytes[..WORD_BYTES])?;
                    if self.role() == Role::Offers {
                        talk.wire.say(&agreed.word()?)?;
                    }
                    return Ok(Turn::Joined(Joined { wire: talk.wire, agreed }));
                }
            };
            talk.stage = stage;
        }
    }

    /// Whether the joining side's connection is there; begins TLS over it.
    fn is_connected(&self, talk: &mut Talk) -> Result<bool> {
        let os = |e: Errno| Error::os("join", e.raw_os_error(), "the other controller");
        sockopt::socket_error(&talk.wire).map_err(os)?.map_err(os)?;
        match rustix::net::getpeername(&talk.wire) {
            Err(Errno::NOTCONN) => return Ok(false),
            other => other.map_err(os)?,
        };
        if let Some(identity) = &self.identity {
            talk.wire.begin_tls(identity, Role::Joins, talk.other)?;
        }
        Ok(true)
    }

    /// Once the certificates are believed, begins the conversation: the joining side speaks first.
    fn secured(&self, wire: &mut LinkWire) -> Result<Option<Box<Conversation>>> {
        if !wire.greet()? {
            return Ok(None);
        }
        let mut conversation = self.conversation(wire)?;
        if self.role() == Role::Joins {
            wire.say(&conversation.say()?)?;
        }
        Ok(Some(conversation))
    }

    /// Handles a first message, or the answer to one.
    fn greeted(
        &mut self,
        wire: &mut LinkWire,
        message: &[u8; MESSAGE_BYTES],
        mut conversation: Conversation,
    ) -> Result<Agreed> {
        conversation.hear(message)?;
        if self.role() == Role::Joins {
            let agreed = conversation.agreed();
            wire.say(&agreed.word()?)?;
            return Ok(agreed);
        }
        // Its author sends it once. The second time it is a replay.
        if self.seen.len() >= MAX_SEEN || !self.seen.insert(*message) {
            let what = "a message that opened this link before was sent again";
            return Err(Error::new(ErrorKind::PermissionDenied, "join", what));
        }
        wire.say(&conversation.say()?)?;
        Ok(conversation.agreed())
    }
}

impl Controller {
    /// Offers a link whose other end a remote controller is to join.
    pub(crate) fn offer(&mut self, spec: LinkSpec, at: SocketAddr, key: Key) -> Result<Answer> {
        let io = |e: std::io::Error| Error::io("offer", e, at.to_string());
        let listener = TcpListener::bind(at).map_err(io)?;
        listener.set_nonblocking(true).map_err(io)?;
        let address = listener.local_addr().map_err(io)?;
        let cap = self.await_link(spec, key, Some(listener), VecDeque::new())?;
        Ok(Answer::Offered { cap, address })
    }

    /// Joins a link that a remote controller offers.
    pub(crate) fn join(&mut self, spec: LinkSpec, to: SocketAddr, key: Key) -> Result<Answer> {
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
        if spec.carrier == LinkCarrier::Ucx {
            UcxLinkOptions::check(self.ucx_links.as_ref(), if listener.is_some() { "offer" } else { "join" })?;
        }
        let link = |epoch| ControlledObject::link(Link::across(spec.shape, epoch, spec.side)?);
        let (object, cap) = self.create(Party::APPLICATION, link)?;
        let identity = self.identity.clone();
        self.joins.insert(
            object,
            Joining { cap, spec, key, identity, listener, talks, seen: BTreeSet::new(), waiting: Vec::new() },
        );
        Ok(cap)
    }

    /// Continues connecting a link.
    pub(crate) fn progress(&mut self, object: ObjectId) {
        let Some(joining) = self.joins.get_mut(&object) else { return };
        let error = match joining.go_on() {
            Ok(None) => return,
            Ok(Some(Joined { wire, agreed })) if joining.spec.carrier == LinkCarrier::Ucx => {
                // Nobody else joins. Endpoints still wait for the connection.
                joining.listener = None;
                joining.talks.clear();
                let what = (joining.cap, joining.spec);
                match self.bridge_across(object, what, wire, agreed) {
                    Ok(()) => return,
                    Err(e) => Some(e),
                }
            }
            Ok(Some(Joined { wire, agreed })) => {
                let socket = wire.into_socket();
                let (token, keys) = (agreed.token, agreed.keys(joining.spec.encryption));
                self.joined(object, socket, token, keys).err()
            }
            Err(e) => Some(e),
        };
        self.tell_link(object, error.as_ref());
    }

    /// Tells the application that a link is connected, or why it is not.
    pub(super) fn tell_link(&mut self, object: ObjectId, error: Option<&Error>) {
        let Some(joining) = self.joins.remove(&object) else { return };
        let event = DeviceEvent::Link { cap: joining.cap, error: error.map(text_of) };
        self.tell(Party::APPLICATION, Tell::Event(event), Vec::new());
    }

    /// Gives a link its socket, and the endpoints that wait for it.
    pub(super) fn joined(&mut self, object: ObjectId, socket: OwnedFd, token: Token, keys: Option<Keys>) -> Result<()> {
        let waiting = self.joins.get_mut(&object).map(|j| std::mem::take(&mut j.waiting)).unwrap_or_default();
        let Some(controlled) = self.objects.get_mut(&object) else { return Ok(()) };
        controlled.connected(socket, token, keys);
        let mut told = Vec::new();
        for (endpoint, party, port, copies) in waiting {
            if let Some((kind, fds)) = controlled.half(endpoint)? {
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
    fn the_source_with_most_connections_loses_its_oldest() {
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
