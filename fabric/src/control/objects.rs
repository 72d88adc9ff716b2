//! Channels and memories as the controller has them, and which half of which endpoint is where.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use datapipes_core::{Error, ErrorKind, Result};

use super::audit::{Inode, inode};
use super::link::Link;
use super::protocol::{EndpointId, EndpointKind};
use super::quota::Needs;
use crate::capability::{Cap, Party, Rights};
use crate::channel::layout::{ReceiverPage, SenderPage, State, StatePage};
use crate::channel::memory::{Mapping, Object, View, page_bytes};
use crate::channel::{ChannelShape, Taking, bell};
use crate::sync::atomic::Ordering;
use crate::transport::Token;
use crate::transport::seal::Keys;

/// An endpoint at a party.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) party: Party,
    pub(super) cap: Cap,
    pub(super) rights: Rights,
    /// The name that its holder knows it by.
    pub(super) port: String,
    pub(super) trust: Taking,
    /// Its first half is mapped.
    pub(super) mapped: bool,
    /// Its holder was told to release it.
    pub(super) asked: bool,
    /// Nothing of it is mapped, as far as can be known.
    pub(super) gone: bool,
    /// The revocation that waits for its end.
    pub(super) revocation: Option<u64>,
}

/// What capabilities are about.
pub(super) struct Thing {
    pub(super) kind: Kind,
    pub(super) endpoints: BTreeMap<EndpointId, Endpoint>,
    /// The same by capability.
    by_cap: BTreeMap<Cap, Vec<EndpointId>>,
    /// Nobody gets an endpoint of it any more.
    pub(super) ended: bool,
    /// By which it is found in processes.
    pub(super) inodes: Vec<Inode>,
    pub(super) bytes: usize,
}

pub(super) enum Kind {
    Channel(Box<Channel>),
    Link(Box<Link>),
    Memory { object: Object, sealed: bool },
}

pub(super) struct Channel {
    shape: ChannelShape,
    epoch: u64,
    state: View<StatePage>,
    /// Until both halves are given out.
    pages: Option<Pages>,
}

struct Pages {
    sender: Object,
    receiver: Object,
    payload: Object,
    state: Object,
}

/// Descriptors to be sent to a party.
pub(super) type Halves = Vec<(Party, EndpointId, Vec<OwnedFd>)>;

impl Thing {
    pub(super) fn channel(shape: ChannelShape, epoch: u64) -> Result<Thing> {
        shape.check()?;
        let pages = Pages {
            sender: Object::create(page_bytes::<SenderPage>())?,
            receiver: Object::create(page_bytes::<ReceiverPage>())?,
            payload: Object::create(shape.payload_bytes().next_multiple_of(4096))?,
            state: Object::create(page_bytes::<StatePage>())?,
        };
        let state = View::of(Mapping::new(pages.state.as_fd(), pages.state.len(), true)?)?;
        // From here on the controller alone can write it.
        pages.state.seal_for_good()?;
        let all = [&pages.sender, &pages.receiver, &pages.payload, &pages.state];
        let inodes = all.iter().map(|o| inode_of(o)).collect::<Result<_>>()?;
        let bytes = all.iter().map(|o| o.len()).sum();
        let kind = Kind::Channel(Box::new(Channel { shape, epoch, state, pages: Some(pages) }));
        Ok(Thing::new(kind, inodes, bytes))
    }

    fn new(kind: Kind, inodes: Vec<Inode>, bytes: usize) -> Thing {
        let (endpoints, by_cap) = (BTreeMap::new(), BTreeMap::new());
        Thing { kind, endpoints, by_cap, ended: false, inodes, bytes }
    }

    pub(super) fn link(link: Link) -> Result<Thing> {
        let (inodes, bytes) = (vec![inode_of(link.page())?], link.page().len());
        Ok(Thing::new(Kind::Link(Box::new(link)), inodes, bytes))
    }

    /// Whether it has two ends, and is none without one of them.
    pub(super) fn has_two_ends(&self) -> bool {
        matches!(self.kind, Kind::Channel(_) | Kind::Link(_))
    }

    pub(super) fn connected(&mut self, socket: OwnedFd, token: Token, keys: Option<Keys>) {
        if let Kind::Link(link) = &mut self.kind {
            link.connected(socket, token, keys);
        }
    }

    /// What is told to an endpoint of a link that was just connected.
    pub(super) fn half(&self, endpoint: EndpointId) -> Result<Option<(EndpointKind, Vec<OwnedFd>)>> {
        match (&self.kind, self.endpoints.get(&endpoint)) {
            (Kind::Link(link), Some(own)) if !self.ended && !own.gone && !own.asked => link.half(own),
            _ => Ok(None),
        }
    }

    pub(super) fn memory(len: usize) -> Result<Thing> {
        if len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "create", "0 bytes of shared memory"));
        }
        let object = Object::create(len)?;
        let inodes = vec![inode_of(&object)?];
        Ok(Thing::new(Kind::Memory { object, sealed: false }, inodes, len))
    }

    /// Rights of the first capability.
    pub(super) fn all_rights(&self) -> Rights {
        let own = match &self.kind {
            Kind::Channel(_) => Rights::SEND.and(Rights::RECEIVE),
            Kind::Link(link) => link.rights(),
            Kind::Memory { .. } => Rights::READ.and(Rights::WRITE),
        };
        own.and(Rights::DELEGATE)
    }

    /// Takes an endpoint in, and says what its first half is; None where that is told when a link
    /// is connected.
    ///
    /// # Errors
    /// `Busy` where its place is taken, or writers of a memory are not done mapping;
    /// `PermissionDenied` where it has ended or is sealed; `InvalidInput` for rights that are no
    /// endpoint.
    pub(super) fn activate(
        &mut self,
        id: EndpointId,
        endpoint: Endpoint,
    ) -> Result<Option<(EndpointKind, Vec<OwnedFd>)>> {
        let refuse = |kind, what: &str| Err(Error::new(kind, "activate", what));
        if self.ended {
            return refuse(ErrorKind::PermissionDenied, "the channel or memory was revoked");
        }
        let side = endpoint.rights;
        if self.has_two_ends() {
            if side != Rights::SEND && side != Rights::RECEIVE {
                return refuse(ErrorKind::InvalidInput, "an end of a channel either sends or receives");
            }
            if self.endpoints.values().any(|e| e.rights == side) {
                let what = "this end of the channel is active: for several use several channels";
                return refuse(ErrorKind::Busy, what);
            }
        }
        let half = match &mut self.kind {
            Kind::Channel(channel) => Some(channel.first_half(&endpoint)?),
            Kind::Link(link) => link.half(&endpoint)?,
            Kind::Memory { object, sealed } => {
                let writable = endpoint.rights.include(Rights::WRITE);
                if !writable && endpoint.rights != Rights::READ {
                    return refuse(ErrorKind::InvalidInput, "an end of a memory reads, or reads and writes");
                }
                // Of two endpoints of one device the one could not be taken away: nobody can tell
                // by which it has the memory.
                if endpoint.party != Party::APPLICATION && self.endpoints.values().any(|e| e.party == endpoint.party) {
                    return refuse(ErrorKind::Busy, "the device has this memory: revoke that endpoint first");
                }
                if writable && *sealed {
                    return refuse(ErrorKind::PermissionDenied, "the memory has readers: writers come before them");
                }
                if !writable && !*sealed {
                    if self.endpoints.values().any(|e| !e.mapped && !e.asked) {
                        return refuse(ErrorKind::Busy, "a writer of the memory has not mapped it yet");
                    }
                    object.seal_for_good()?;
                    *sealed = true;
                }
                let fds = if writable { vec![dup(object)?] } else { Vec::new() };
                Some((EndpointKind::Memory { len: object.len(), writable }, fds))
            }
        };
        self.by_cap.entry(endpoint.cap).or_default().push(id);
        self.endpoints.insert(id, endpoint);
        Ok(half)
    }

    /// The endpoints that were configured by a capability.
    pub(super) fn of_cap(&self, cap: Cap) -> &[EndpointId] {
        self.by_cap.get(&cap).map_or(&[], Vec::as_slice)
    }

    /// Nothing of an endpoint is mapped any more: it, where it was not known to be gone before.
    pub(super) fn gone(&mut self, id: EndpointId) -> Option<Endpoint> {
        let end = self.endpoints.get_mut(&id).filter(|end| !end.gone)?;
        end.gone = true;
        let copy = Endpoint { port: std::mem::take(&mut end.port), ..*end };
        // The place of a channel's end stays taken; a memory can have others.
        if !self.has_two_ends() {
            self.endpoints.remove(&id);
            if let Some(ids) = self.by_cap.get_mut(&copy.cap) {
                ids.retain(|other| *other != id);
                if ids.is_empty() {
                    self.by_cap.remove(&copy.cap);
                }
            }
        }
        Some(copy)
    }

    /// What a party needs for an end of it.
    pub(super) fn needs(&self) -> Needs {
        let private = match &self.kind {
            Kind::Channel(channel) => channel.shape.payload_bytes(),
            Kind::Link(link) => link.shape().payload_bytes(),
            Kind::Memory { .. } => 0,
        };
        let descriptors = usize::from(matches!(self.kind, Kind::Link(_)));
        Needs { private: private as u64, mapped: (self.bytes as u64).next_multiple_of(4096), descriptors }
    }

    /// An endpoint has mapped its first half: what is to be sent now, and to whom.
    ///
    /// # Errors
    /// What sealing meets.
    pub(super) fn mapped(&mut self, endpoint: EndpointId) -> Result<Halves> {
        let Some(own) = self.endpoints.get_mut(&endpoint).filter(|e| !e.mapped) else { return Ok(Vec::new()) };
        own.mapped = true;
        let (party, reads) = (own.party, !own.rights.include(Rights::WRITE));
        // Nobody gets more of what is being taken away.
        if own.asked || own.gone {
            return Ok(Vec::new());
        }
        match &mut self.kind {
            Kind::Memory { object, .. } => {
                let fds = if reads { vec![object.read_only()?] } else { Vec::new() };
                Ok(vec![(party, endpoint, fds)])
            }
            Kind::Link(_) => Ok(vec![(party, endpoint, Vec::new())]),
            Kind::Channel(_) => self.completed(),
        }
    }

    /// The second halves of a channel, once both its ends are there, or one is and the other will
    /// never be: its holder has died before, and who waits for the channel must learn that from it.
    ///
    /// # Errors
    /// What sealing meets.
    pub(super) fn completed(&mut self) -> Result<Halves> {
        let both = self.endpoints.len() == 2 && self.endpoints.values().all(|e| e.mapped || e.gone);
        match &mut self.kind {
            Kind::Channel(channel) if both && !self.ended => channel.complete(&self.endpoints),
            _ => Ok(Vec::new()),
        }
    }

    /// Tells both ends of a channel that it has ended, and how. The first word stands.
    pub(super) fn end(&mut self, how: State) {
        if let Kind::Channel(channel) = &self.kind
            && (channel.state.get() == State::Active
                || channel.state.get() == State::Configured
                || how == State::Revoked)
        {
            channel.state.state.0.store(how as u32, Ordering::SeqCst);
            bell::wake(&channel.state.state.0, &channel.state);
        }
        if let Kind::Link(link) = &self.kind {
            link.end(how);
        }
        self.ended |= how == State::Revoked;
    }

    /// Whether nobody has any of it.
    pub(super) fn is_free(&self) -> bool {
        self.endpoints.values().all(|e| e.gone)
    }
}

impl Channel {
    fn first_half(&self, endpoint: &Endpoint) -> Result<(EndpointKind, Vec<OwnedFd>)> {
        let (shape, epoch, trust) = (self.shape, self.epoch, endpoint.trust);
        let Some(pages) = &self.pages else {
            return Err(Error::new(ErrorKind::Busy, "activate", "the channel is complete"));
        };
        if endpoint.rights == Rights::SEND {
            let fds = vec![dup(&pages.sender)?, dup(&pages.payload)?, pages.state.read_only()?];
            return Ok((EndpointKind::Send { shape, epoch }, fds));
        }
        Ok((EndpointKind::Receive { shape, epoch, trust }, vec![dup(&pages.receiver)?, pages.state.read_only()?]))
    }

    /// Everybody who writes has mapped, or is dead: nobody else will. Then, and only then, others
    /// get to see it.
    fn complete(&mut self, endpoints: &BTreeMap<EndpointId, Endpoint>) -> Result<Halves> {
        let Some(pages) = self.pages.take() else { return Ok(Vec::new()) };
        for object in [&pages.sender, &pages.receiver, &pages.payload] {
            object.seal_for_good()?;
        }
        if self.state.get() == State::Configured {
            self.state.state.0.store(State::Active as u32, Ordering::SeqCst);
        }
        let halves = endpoints.iter().filter(|(_, e)| !e.gone).map(|(id, e)| {
            let fds = match e.rights {
                Rights::SEND => vec![pages.receiver.read_only()?],
                _ => vec![pages.sender.read_only()?, pages.payload.read_only()?],
            };
            Ok((e.party, *id, fds))
        });
        halves.collect()
    }
}

fn inode_of(object: &Object) -> Result<Inode> {
    inode(object.as_fd()).map_err(|e| Error::io("stat", &e, "a shared memory"))
}

fn dup(object: &Object) -> Result<OwnedFd> {
    object.as_fd().try_clone_to_owned().map_err(|e| Error::io("duplicate", &e, "a shared memory"))
}
