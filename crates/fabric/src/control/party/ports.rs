//! The endpoints that the controller configured at this party: their halves until they are
//! complete, and then the ends until they are taken.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use datapipes_core::{Error, ErrorKind, Result};

use crate::channel::ChannelShape;
use crate::channel::layout::{ReceiverPage, SenderPage, StatePage};
use crate::channel::memory::{Mapping, Payload, View, page_bytes};
use crate::channel::ring::{Alive, Common, ReceiveRing, SendRing};
use crate::control::protocol::{EndpointId, EndpointKind, EndpointSpec};
use crate::memory::MemoryEndpoint;
use crate::transport::{Receiver, Sender, SharedInlet, SharedOutlet, SocketInlet, SocketOutlet};

/// The endpoints of a party, by port.
pub(crate) struct Ports {
    alive: Alive,
    /// Whether writable memory is separated when it is revoked, rather than given back.
    parts: bool,
    halves: BTreeMap<EndpointId, Half>,
    whole: BTreeMap<String, (EndpointId, End)>,
    /// The mappings of each endpoint, also after its end was taken.
    mapped: BTreeMap<EndpointId, Vec<Weak<Mapping>>>,
    /// Revoked endpoints to report when none of them is mapped any more.
    releasing: Vec<EndpointId>,
    /// Ports whose ends were revoked before they were taken.
    lost: BTreeSet<String>,
}

/// The most names of lost ports. Further ones replace the first.
const MAX_LOST: usize = 1024;

struct Half {
    spec: EndpointSpec,
    own: Own,
}

enum Own {
    Sender { page: View<SenderPage>, payload: Payload, state: View<StatePage> },
    Receiver { page: View<ReceiverPage>, state: View<StatePage> },
    Link { socket: OwnedFd, state: View<StatePage> },
    Memory(Option<Arc<Mapping>>),
}

pub(crate) enum End {
    Sender(Sender),
    Receiver(Receiver),
    Memory(MemoryEndpoint),
}

impl Ports {
    /// Makes the ports of a device, which keeps no descriptor of a memory.
    pub(crate) fn new(alive: Alive) -> Ports {
        let (halves, whole, mapped) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ports { alive, parts: false, halves, whole, mapped, releasing: Vec::new(), lost: BTreeSet::new() }
    }

    /// Makes the ports of an application, which is not ended for memory that it keeps. Its writes
    /// after a revocation are invisible to others, even through an older borrow.
    pub(crate) fn of_application(alive: Alive) -> Ports {
        Ports { parts: true, ..Ports::new(alive) }
    }

    /// Maps the memory that only this party may write.
    pub(crate) fn first_half(&mut self, spec: EndpointSpec, fds: Vec<OwnedFd>) -> Result<()> {
        self.lost.remove(&spec.port);
        let mut fds = Fds { fds: fds.into_iter(), mapped: Vec::new(), parts: self.parts };
        let own = match &spec.kind {
            EndpointKind::Send { shape, .. } => {
                shape.check()?;
                let page = View::of(fds.map(page_bytes::<SenderPage>(), true)?)?;
                let payload = Payload::of(fds.map_parting(shape.payload_bytes(), true)?, *shape, spec.copies)?;
                Own::Sender { page, payload, state: View::of(fds.map(page_bytes::<StatePage>(), false)?)? }
            }
            EndpointKind::Receive { shape, .. } => {
                shape.check()?;
                let page = View::of(fds.map(page_bytes::<ReceiverPage>(), true)?)?;
                Own::Receiver { page, state: View::of(fds.map(page_bytes::<StatePage>(), false)?)? }
            }
            EndpointKind::SendLink { shape, .. } | EndpointKind::ReceiveLink { shape, .. } => {
                shape.check()?;
                let socket = fds.next()?;
                Own::Link { socket, state: View::of(fds.map(page_bytes::<StatePage>(), false)?)? }
            }
            EndpointKind::Memory { len, writable: true } => Own::Memory(Some(fds.map_parting(*len, true)?)),
            EndpointKind::Memory { .. } => Own::Memory(None),
        };
        self.mapped.insert(spec.endpoint, fds.mapped);
        self.halves.insert(spec.endpoint, Half { spec, own });
        Ok(())
    }

    /// Maps the memory that others write, and makes the end.
    pub(crate) fn second_half(&mut self, endpoint: EndpointId, fds: Vec<OwnedFd>) -> Result<()> {
        let unknown = || Error::new(ErrorKind::Corrupt, "map", format!("endpoint {endpoint} was not announced"));
        let half = self.halves.remove(&endpoint).ok_or_else(unknown)?;
        if self.whole.contains_key(&half.spec.port) {
            let context = format!("port {}, where another end is", half.spec.port);
            return Err(Error::new(ErrorKind::Corrupt, "map", context));
        }
        let mut fds = Fds { fds: fds.into_iter(), mapped: Vec::new(), parts: self.parts };
        let end = match (half.own, half.spec.kind) {
            (Own::Sender { page, payload, state }, EndpointKind::Send { shape, epoch }) => {
                let peer = View::of(fds.map(page_bytes::<ReceiverPage>(), false)?)?;
                let ring = SendRing::new(self.common(shape, epoch, state), page, peer);
                End::Sender(Sender::new(Box::new(SharedOutlet::new(ring, payload, shape))))
            }
            (Own::Receiver { page, state }, EndpointKind::Receive { shape, epoch, trust }) => {
                let peer = View::of(fds.map(page_bytes::<SenderPage>(), false)?)?;
                let payload = Payload::of(fds.map(shape.payload_bytes(), false)?, shape, half.spec.copies)?;
                let ring = ReceiveRing::new(self.common(shape, epoch, state), page, peer);
                End::Receiver(Receiver::new(Box::new(SharedInlet::new(ring, payload, shape, trust)?)))
            }
            (Own::Link { socket, state }, EndpointKind::SendLink { shape, epoch, token, keys }) => {
                let outlet = SocketOutlet::sealed(socket, shape, token, keys.as_ref())?;
                End::Sender(Sender::new(Box::new(outlet.watched(self.common(shape, epoch, state)))))
            }
            (Own::Link { socket, state }, EndpointKind::ReceiveLink { shape, epoch, token, keys }) => {
                let inlet = SocketInlet::sealed(socket, shape, token, keys.as_ref())?;
                End::Receiver(Receiver::new(Box::new(inlet.watched(self.common(shape, epoch, state)))))
            }
            (Own::Memory(own), EndpointKind::Memory { len, writable }) => {
                let mapping = match own {
                    Some(mapping) => mapping,
                    None => fds.map(len, false)?,
                };
                End::Memory(MemoryEndpoint::new(mapping, writable))
            }
            _ => return Err(unknown()),
        };
        self.mapped.entry(endpoint).or_default().extend(fds.mapped);
        self.whole.insert(half.spec.port, (endpoint, end));
        Ok(())
    }

    /// Handles the revocation of an endpoint. An end that was not taken is dropped now.
    pub(crate) fn release(&mut self, endpoint: EndpointId) {
        let half = self.halves.remove(&endpoint).map(|half| half.spec.port);
        let whole = self.whole.iter().find(|(_, (id, _))| *id == endpoint).map(|(port, _)| port.clone());
        if let Some(port) = half.or(whole) {
            self.whole.remove(&port);
            self.lost.insert(port);
            if self.lost.len() > MAX_LOST {
                self.lost.pop_first();
            }
        }
        let mapped = self.mapped.get(&endpoint).into_iter().flatten();
        mapped.filter_map(Weak::upgrade).for_each(|mapping| mapping.part());
        self.releasing.push(endpoint);
    }

    /// Returns revoked endpoints of which nothing is mapped any more, each once.
    pub(crate) fn unmapped(&mut self) -> Vec<EndpointId> {
        let mapped = &mut self.mapped;
        let in_use = |id: &EndpointId| mapped.get(id).is_some_and(|m| m.iter().any(|m| m.strong_count() > 0));
        let (keep, gone): (Vec<_>, Vec<_>) = self.releasing.drain(..).partition(in_use);
        self.releasing = keep;
        gone.iter().for_each(|id| drop(mapped.remove(id)));
        gone
    }

    /// Takes the end at a port, if it is complete.
    pub(crate) fn take(&mut self, port: &str) -> Option<End> {
        Some(self.whole.remove(port)?.1)
    }

    /// Whether the end at a port was revoked before it was taken.
    pub(crate) fn lost(&self, port: &str) -> bool {
        self.lost.contains(port)
    }

    pub(crate) fn has(&self, port: &str) -> bool {
        self.whole.contains_key(port)
    }

    fn common(&self, shape: ChannelShape, epoch: u64, state: View<StatePage>) -> Common {
        let (credits, block_bytes) = (shape.credits, shape.block_bytes);
        Common { credits, block_bytes, epoch, state, alive: self.alive.clone() }
    }
}

/// The descriptors of a packet. Each is mapped and closed.
struct Fds {
    fds: std::vec::IntoIter<OwnedFd>,
    mapped: Vec<Weak<Mapping>>,
    parts: bool,
}

impl Fds {
    fn next(&mut self) -> Result<OwnedFd> {
        self.fds.next().ok_or_else(|| Error::new(ErrorKind::Corrupt, "map", "a descriptor is missing"))
    }

    fn map(&mut self, len: usize, writable: bool) -> Result<Arc<Mapping>> {
        let fd = self.next()?;
        let mapping = Mapping::new(fd.as_fd(), len, writable)?;
        self.mapped.push(Arc::downgrade(&mapping));
        Ok(mapping)
    }

    /// Maps memory that is written to.
    fn map_parting(&mut self, len: usize, writable: bool) -> Result<Arc<Mapping>> {
        if !self.parts {
            return self.map(len, writable);
        }
        let mapping = Mapping::new_apart(self.next()?, len, writable)?;
        self.mapped.push(Arc::downgrade(&mapping));
        Ok(mapping)
    }
}

pub(crate) fn no_such(port: &str) -> Error {
    Error::new(ErrorKind::NotFound, "take", format!("port {port}"))
}
