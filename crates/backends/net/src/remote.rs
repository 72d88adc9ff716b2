//! The locator of another process's memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes_core::locator::{EndpointHandle, PlaceFacts};
use datapipes_core::{Endpoint, Error, ErrorKind, Locator, Persistence, Reach, Result};
use datapipes_ucx::{PeerConnection, PeerMemory, Ucx, UcxSettings};

use crate::control::key::RemoteTicket;
use crate::control::messages::{ClientAsk, ExportFacts, ExporterAnswer};
use crate::control::noise::SealedStream;
use crate::control::settings::{NetworkOptions, RemoteRights, RemoteTransport, ucx_settings};
use crate::control::wire::{CONVERSATION, ControlStream};
use crate::direct::peer::DirectMemory;

/// The options of a [`Remote`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemoteOptions {
    /// How bytes travel, and whether the network is trusted. The exporter must say the same.
    pub network: NetworkOptions,
    /// How long nothing may move before transfers end with an error, though the other side is
    /// there; 30 seconds by default. A process that has died is noticed at once, a machine that has
    /// died within some seconds.
    pub patience: Duration,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        RemoteOptions { network: NetworkOptions::default(), patience: Duration::from_secs(30) }
    }
}

datapipes_core::setters! {
    RemoteOptions {
        network: NetworkOptions,
        patience: Duration,
    }
}

/// Memory that another process exports, on this machine or another.
///
/// A pipe to it or from it reads or writes it one-sidedly: the exporting program is not disturbed.
/// The client trusts the exporter, whose side of UCX can reach this process's memory; the exporter
/// need not trust the client.
#[derive(Clone, Debug)]
pub struct Remote {
    place: Arc<RemotePlace>,
}

/// What the backend knows of the place.
#[derive(Debug)]
pub(crate) struct RemotePlace {
    ticket: RemoteTicket,
    pub(crate) options: RemoteOptions,
    pub(crate) facts: ExportFacts,
    pub(crate) name: String,
}

impl Remote {
    /// Asks the exporter for the facts of an export. Nothing stays open: each pipe makes a
    /// connection of its own, so a revoked export is refused when a pipe is opened.
    ///
    /// # Errors
    /// `PermissionDenied` where the key is wrong, the export was revoked, or the network would have
    /// to be trusted and is not; `Unavailable` where a network is asked for and UCX is absent;
    /// errors of connecting.
    pub fn connect(ticket: &RemoteTicket, options: RemoteOptions) -> Result<Remote> {
        // Without it, memory of this machine can still be reached by the kernel.
        if options.network.transport == RemoteTransport::Network {
            Ucx::required("connect")?;
        }
        let name = ticket.name();
        let asked = converse(ticket, &options, ClientAsk::Facts).map_err(|e| e.within(&name))?;
        let (_, ExporterAnswer::Facts(facts)) = asked else { return Err(strange(&name)) };
        if facts.transport != options.network.transport {
            let by = |transport| match transport {
                RemoteTransport::SharedMemory => "shared memory",
                RemoteTransport::Network => "a network",
            };
            let (theirs, ours) = (by(facts.transport), by(options.network.transport));
            let context = format!("{name}: the exporter moves bytes by {theirs}, and {ours} was asked for");
            return Err(Error::new(ErrorKind::InvalidInput, "connect", context)
                .with_advice("set `transport` of the network options to the same on both sides"));
        }
        if usize::try_from(facts.len).is_err() {
            return Err(strange(&name));
        }
        Ok(Remote { place: Arc::new(RemotePlace { ticket: ticket.clone(), options, facts, name }) })
    }

    /// The length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.place.facts.len
    }

    /// What the key permits.
    pub fn rights(&self) -> RemoteRights {
        self.place.facts.rights
    }
}

impl Locator for Remote {
    fn endpoint(&self) -> Endpoint {
        let facts = PlaceFacts {
            kind: "remote",
            name: self.place.name.clone(),
            reach: Reach::Device,
            granularity: 1,
            alignment: 64,
            persistence: Persistence::Volatile,
            len: Some(self.place.facts.len),
            node: None,
            core: None,
        };
        Endpoint { facts: Arc::new(facts), handle: EndpointHandle::Other(self.place.clone()) }
    }
}

/// A connection to the memory, and the one beside it that tells of its end. The first is dropped
/// first: the other side ends its part when the second closes.
pub(crate) struct RemoteLine {
    pub(crate) memory: PeerConnection,
    pub(crate) control: SealedStream,
}

/// Memory that the kernel reaches, and the connection that tells of its end.
pub(crate) struct DirectLine {
    pub(crate) memory: DirectMemory,
    pub(crate) control: SealedStream,
}

impl RemotePlace {
    /// The place of an endpoint, if it is a remote one.
    pub(crate) fn of(endpoint: &Endpoint) -> Option<Arc<RemotePlace>> {
        match &endpoint.handle {
            EndpointHandle::Other(other) => other.clone().downcast().ok(),
            _ => None,
        }
    }

    /// Connects to the memory, for one pipe.
    ///
    /// # Errors
    /// As [`Remote::connect`], and those of UCX.
    pub(crate) fn open(&self) -> Result<RemoteLine> {
        self.connect().map_err(|e| e.within(&self.name))
    }

    /// Connects to memory of this machine, for one pipe that copies by the kernel.
    ///
    /// # Errors
    /// As [`Remote::connect`]; `Unavailable` where the kernel does not let this process reach the
    /// holder.
    pub(crate) fn open_direct(&self) -> Result<DirectLine> {
        let connect = || {
            let (control, answer) = converse(&self.ticket, &self.options, ClientAsk::Direct)?;
            let ExporterAnswer::Direct(facts, memory) = answer else { return Err(strange("a pipe")) };
            if facts != self.facts {
                return Err(strange("a pipe"));
            }
            memory.prove()?;
            Ok(DirectLine { memory, control })
        };
        connect().map_err(|e| e.within(&self.name))
    }

    fn connect(&self) -> Result<RemoteLine> {
        let (mut control, answer) = converse(&self.ticket, &self.options, ClientAsk::Memory)?;
        let ExporterAnswer::Memory(facts, memory) = answer else { return Err(strange("a pipe")) };
        if facts != self.facts {
            return Err(strange("a pipe"));
        }
        let settings = ucx_settings(&self.options.network, control.stream.local_ip(), "connect")?;
        match self.connect_ucx(&settings, &memory) {
            Ok(memory) => Ok(RemoteLine { memory, control }),
            // The exporter may have ended meanwhile, and says so.
            Err(e) => match control.reason_of_end(Instant::now() + REASON) {
                Some((kind, why)) => Err(Error::new(kind, "connect", why)),
                None => Err(e),
            },
        }
    }

    fn connect_ucx(&self, settings: &UcxSettings, memory: &PeerMemory) -> Result<PeerConnection> {
        PeerConnection::open(settings, memory).map_err(|e| match self.facts.transport {
            RemoteTransport::SharedMemory => {
                e.with_advice("shared memory needs an exporter of the same user and machine (and the same /dev/shm)")
            }
            RemoteTransport::Network => e.with_advice("both sides need a transport in common: see `ucx_info -d`"),
        })
    }
}

/// How long the reason for an end is waited for.
pub(crate) const REASON: Duration = Duration::from_millis(200);

/// The conversation: what was asked for is answered, or the error says why not.
fn converse(ticket: &RemoteTicket, options: &RemoteOptions, ask: ClientAsk) -> Result<(SealedStream, ExporterAnswer)> {
    ticket.address().check(&options.network, "connect")?;
    let until = Instant::now() + CONVERSATION;
    #[cfg_attr(not(feature = "tls"), allow(unused_mut))]
    let mut stream = ControlStream::connect(ticket.address())?;
    #[cfg(feature = "tls")]
    stream.secure(&options.network, true, until)?;
    let mut control = SealedStream::open(stream, ticket, until)?;
    control.send(&ask.to_bytes(), until)?;
    match ExporterAnswer::from_bytes(&control.receive(until)?)? {
        ExporterAnswer::Refused(why) => {
            let why = format!("the exporter says: {why}");
            Err(Error::new(ErrorKind::PermissionDenied, "connect", why))
        }
        answer => Ok((control, answer)),
    }
}

fn strange(whose: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "connect", format!("{whose}: the exporter answers something else than was asked"))
}
