//! Channels and memories in the controller, and the halves of their endpoints.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use datapipes_core::{Error, ErrorKind, Result};

use super::link::Link;
use crate::capability::{Cap, Party, Rights};
use crate::channel::layout::{ReceiverPage, SenderPage, State, StatePage};
use crate::channel::memory::{Mapping, Object, View, page_bytes};
use crate::channel::{ChannelShape, ReceiveMode, bell};
use crate::control::devices::audit::{Inode, inode};
use crate::control::devices::quota::Needs;
use crate::control::protocol::{EndpointId, EndpointKind};
use crate::sync::atomic::Ordering;
use crate::transport::Token;
use crate::transport::seal::Keys;

/// An endpoint at a party.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) party: Party,
    pub(crate) cap: Cap,
    pub(crate) rights: Rights,
    /// The name by which its holder knows it.
    pub(crate) port: String,
    pub(crate) trust: ReceiveMode,
    /// Whether its first half is mapped.
    pub(crate) mapped: bool,
    /// Whether its holder was told to release it.
    pub(crate) asked: bool,
    /// Whether none of it is mapped any more, as far as can be known.
    pub(crate) gone: bool,
    /// The revocation that waits for its end.
    pub(crate) revocation: Option<u64>,
}

/// The object of capabilities.
pub(crate) struct ControlledObject {
    pub(crate) kind: Kind,
    pub(crate) endpoints: BTreeMap<EndpointId, Endpoint>,
    /// The endpoints of each capability.
    by_cap: BTreeMap<Cap, Vec<EndpointId>>,
    /// Whether no party gets a further endpoint of it.
    pub(crate) ended: bool,
    /// The identities by which it is found in processes.
    pub(crate) inodes: Vec<Inode>,
    pub(crate) bytes: usize,
}

pub(crate) enum Kind {
    Channel(Box<Channel>),
    Link(Box<Link>),
    Memory { object: Object, sealed: bool },
}

pub(crate) struct Channel {
    shape: ChannelShape,
    epoch: u64,
    state: View<StatePage>,
    /// The pages, until both halves are handed out.
    pages: Option<Pages>,
}

struct Pages {
    sender: Object,
    receiver: Object,
    payload: Object,
    state: Object,
}

/// Descriptors to send to parties.
pub(crate) type Halves = Vec<(Party, EndpointId, Vec<OwnedFd>)>;

impl ControlledObject {
    pub(crate) fn channel(shape: ChannelShape, epoch: u64) -> Result<ControlledObject> {
        shape.check()?;
        let pages = Pages {
            sender: Object::create(page_bytes::<SenderPage>())?,
            receiver: Object::create(page_bytes::<ReceiverPage>())?,
            payload: Object::create(shape.payload_bytes().next_multiple_of(4096))?,
            state: Object::create(page_bytes::<StatePage>())?,
        };
        let state = View::of(Mapping::new(pages.state.as_fd(), pages.state.len(), true)?)?;
        // From here on only the controller can write it.
        pages.state.seal_for_good()?;
        let all = [&pages.sender, &pages.receiver, &pages.payload, &pages.state];
        let inodes = all.iter().map(|o| inode_of(o)).collect::<Result<_>>()?;
        let bytes = all.iter().map(|o| o.len()).sum();
        let kind = Kind::Channel(Box::new(Channel { shape, epoch, state, pages: Some(pages) }));
        Ok(ControlledObject::new(kind, inodes, bytes))
    }

    fn new(kind: Kind, inodes: Vec<Inode>, bytes: usize) -> ControlledObject {
        let (endpoints, by_cap) = (BTreeMap::new(), BTreeMap::new());
        ControlledObject { kind, endpoints, by_cap, ended: false, inodes, bytes }
    }

    pub(crate) fn link(link: Link) -> Result<ControlledObject> {
        let (inodes, bytes) = (vec![inode_of(link.page())?], link.page().len());
        Ok(ControlledObject::new(Kind::Link(Box::new(link)), inodes, bytes))
    }

    /// Whether it has two ends and is useless without one of them.
    pub(crate) fn has_two_ends(&self) -> bool {
        matches!(self.kind, Kind::Channel(_) | Kind::Link(_))
    }

    pub(crate) fn connected(&mut self, socket: OwnedFd, token: Token, keys: Option<Keys>) {
        if let Kind::Link(link) = &mut self.kind {
            link.connected(socket, token, keys);
        }
    }

    /// The data for an endpoint of a link that was just connected.
    pub(crate) fn half(&self, endpoint: EndpointId) -> Result<Option<(EndpointKind, Vec<OwnedFd>)>> {
        match (&self.kind, self.endpoints.get(&endpoint)) {
            (Kind::Link(link), Some(own)) if !self.ended && !own.gone && !own.asked => link.half(own),
            _ => Ok(None),
        }
    }

    pub(crate) fn memory(len: usize) -> Result<ControlledObject> {
        if len == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "create", "0 bytes of shared memory"));
        }
        let object = Object::create(len)?;
        let inodes = vec![inode_of(&object)?];
        Ok(ControlledObject::new(Kind::Memory { object, sealed: false }, inodes, len))
    }

    /// The rights of the first capability.
    pub(crate) fn all_rights(&self) -> Rights {
        let own = match &self.kind {
            Kind::Channel(_) => Rights::SEND.and(Rights::RECEIVE),
            Kind::Link(link) => link.rights(),
            Kind::Memory { .. } => Rights::READ.and(Rights::WRITE),
        };
        own.and(Rights::DELEGATE)
    }

    /// Adds an endpoint. Returns its first half, or None where a link must be connected first.
    ///
    /// # Errors
    /// `Busy` where the end is in use, or writers of a memory have not mapped yet.
    /// `PermissionDenied` where it has ended or is sealed. `InvalidInput` for rights that do not
    /// make an endpoint.
    pub(crate) fn activate(
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
                let what = "this end of the channel is active: use one channel for each receiver or sender";
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
                // One of two endpoints of the same device could not be taken away, because the
                // memory does not show which endpoint it came by.
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
    pub(crate) fn of_cap(&self, cap: Cap) -> &[EndpointId] {
        self.by_cap.get(&cap).map_or(&[], Vec::as_slice)
    }

    /// Notes that none of an endpoint is mapped any more. Returns the endpoint, if that is new.
    pub(crate) fn gone(&mut self, id: EndpointId) -> Option<Endpoint> {
        let end = self.endpoints.get_mut(&id).filter(|end| !end.gone)?;
        end.gone = true;
        let copy = Endpoint { port: std::mem::take(&mut end.port), ..*end };
        // The end of a channel stays in use. A memory can have other endpoints.
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

    /// The resources that a party needs for an end of it.
    pub(crate) fn needs(&self) -> Needs {
        let private = match &self.kind {
            Kind::Channel(channel) => channel.shape.payload_bytes(),
            Kind::Link(link) => link.shape().payload_bytes(),
            Kind::Memory { .. } => 0,
        };
        let descriptors = usize::from(matches!(self.kind, Kind::Link(_)));
        Needs { private: private as u64, mapped: (self.bytes as u64).next_multiple_of(4096), descriptors }
    }

    /// Notes that an endpoint has mapped its first half. Returns the halves to send now.
    ///
    /// # Errors
    /// Errors of sealing.
    pub(crate) fn mapped(&mut self, endpoint: EndpointId) -> Result<Halves> {
        let Some(own) = self.endpoints.get_mut(&endpoint).filter(|e| !e.mapped) else { return Ok(Vec::new()) };
        own.mapped = true;
        let (party, reads) = (own.party, !own.rights.include(Rights::WRITE));
        // A party gets no more of an endpoint that is being taken away.
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

    /// The second halves of a channel, once both its ends are there. They are also sent if one
    /// end's holder has died before, because the other must learn that from the channel.
    ///
    /// # Errors
    /// Errors of sealing.
    pub(crate) fn completed(&mut self) -> Result<Halves> {
        let both = self.endpoints.len() == 2 && self.endpoints.values().all(|e| e.mapped || e.gone);
        match &mut self.kind {
            Kind::Channel(channel) if both && !self.ended => channel.complete(&self.endpoints),
            _ => Ok(Vec::new()),
        }
    }

    /// Tells both ends of a channel that it has ended, with the reason. The first reason stays.
    pub(crate) fn end(&mut self, how: State) {
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

    /// Whether no party has any of it.
    pub(crate) fn is_free(&self) -> bool {
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

    /// All writers have mapped or are dead, so there will be no other. Only then other parties get
    /// access.
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
    inode(object.as_fd()).map_err(|e| Error::io("stat", e, "a shared memory"))
}

fn dup(object: &Object) -> Result<OwnedFd> {
    object.as_fd().try_clone_to_owned().map_err(|e| Error::io("duplicate", e, "a shared memory"))
}
