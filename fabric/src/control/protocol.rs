//! What a party and the controller say to each other.

use std::net::SocketAddr;

use datapipes_core::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::joining::{Key, LinkSpec};
use super::quota::{Charge, DeviceLimits};
use crate::capability::{Cap, Party, Rights};
use crate::channel::{ChannelShape, Copies, Taking};
use crate::device::{DeviceRole, StreamReport};
use crate::transport::seal::Keys;
use crate::transport::{Carrier, Token};

/// A number that the controller gives to what it configured at a party.
pub(crate) type EndpointId = u64;

/// Descriptors that a device can have.
pub(crate) const DEVICE_DESCRIPTORS: usize = 64;

/// From a party to the controller. Descriptors beside a packet are taken from the application only.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Ask {
    /// A device, please; the descriptors of the packet are what it is given.
    Launch {
        name: String,
        role: DeviceRole,
        limits: DeviceLimits,
    },
    /// A channel, held by who asks.
    Channel {
        shape: ChannelShape,
    },
    /// A channel over a socket within this machine, held by who asks.
    Connection {
        shape: ChannelShape,
        carrier: Carrier,
    },
    /// One end of a channel, whose other end another controller is to have: it joins at the
    /// address.
    Offer {
        spec: LinkSpec,
        at: SocketAddr,
        key: Key,
    },
    /// One end of a channel that another controller offers.
    Join {
        spec: LinkSpec,
        to: SocketAddr,
        key: Key,
    },
    /// A memory, held by who asks.
    Memory {
        len: usize,
    },
    Delegate {
        cap: Cap,
        to: Party,
        rights: Rights,
    },
    /// Configures the endpoint at the holder of the capability.
    Activate {
        cap: Cap,
        port: String,
        rights: Rights,
        trust: Taking,
        #[serde(default)]
        copies: Copies,
    },
    Revoke {
        cap: Cap,
    },
    /// The device works, from these ports to those.
    Run {
        device: Party,
        ins: Vec<String>,
        outs: Vec<String>,
    },
    Stop {
        device: Party,
    },
    Status,
    /// Not answered: an endpoint's first half is mapped.
    Mapped {
        endpoint: EndpointId,
    },
    /// Not answered: nothing of the endpoint is mapped any more.
    Unmapped {
        endpoint: EndpointId,
    },
    /// Not answered: a device has locked itself down and awaits its ports.
    Ready {
        confined: Confined,
        /// How many descriptors it has open.
        #[serde(default)]
        descriptors: usize,
    },
    /// Not answered: how a stream went.
    Report(StreamReport),
}

/// From the controller to a party.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tell {
    Answer(Answer),
    /// To a device, first of all.
    Boot {
        party: Party,
        name: String,
        role: DeviceRole,
        threads: Threads,
    },
    /// The part of an endpoint that its holder alone may write, to be mapped.
    Endpoint(EndpointSpec),
    /// The part that others write, and this party may read.
    Complete {
        endpoint: EndpointId,
    },
    /// Revoked: to be unmapped.
    Release {
        endpoint: EndpointId,
    },
    /// What a revocation took away, nobody has any more.
    Settled {
        revocation: u64,
    },
    Run {
        ins: Vec<String>,
        outs: Vec<String>,
    },
    Event(DeviceEvent),
}

/// How a device bounds its threads itself, before it runs anything of anybody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Threads {
    /// It has one, and makes no other.
    One,
    /// A control group of the controller bounds them.
    Grouped,
    /// A limit on processes in a user namespace of its own.
    Limited(u32),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndpointSpec {
    pub(crate) endpoint: EndpointId,
    pub(crate) port: String,
    pub(crate) kind: EndpointKind,
    /// How the holder copies.
    pub(crate) copies: Copies,
}

/// Which descriptors come with it, in both halves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EndpointKind {
    /// Its page, the payload, the state; then the receiver's page.
    Send { shape: ChannelShape, epoch: u64 },
    /// Its page, the state; then the sender's page, the payload.
    Receive { shape: ChannelShape, epoch: u64, trust: Taking },
    /// The socket, the state; then nothing.
    SendLink { shape: ChannelShape, epoch: u64, token: Token, keys: Option<Keys> },
    /// The same.
    ReceiveLink { shape: ChannelShape, epoch: u64, token: Token, keys: Option<Keys> },
    /// The memory, in the first half to write it, in the second to read it.
    Memory { len: usize, writable: bool },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Done,
    Device {
        party: Party,
    },
    Created {
        cap: Cap,
    },
    Offered {
        cap: Cap,
        address: SocketAddr,
    },
    /// So many capabilities have gone. With a number: what they were about is not out of reach of
    /// everybody yet; when it is,
    /// [`Tell::Settled`] says so.
    Revoked {
        count: usize,
        settles: Option<u64>,
    },
    Status(ControllerStatus),
    Refused {
        kind: String,
        errno: Option<i32>,
        text: String,
    },
}

/// What happens to devices, as the application is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DeviceEvent {
    /// It has locked itself down and can be given endpoints.
    Ready {
        /// Which.
        device: Party,
        /// How far.
        confined: Confined,
    },
    /// A stream through it ended, well or not.
    Report {
        /// Which.
        device: Party,
        /// How it went.
        report: StreamReport,
    },
    /// A link to another controller was connected, or cannot be.
    Link {
        /// Which.
        cap: Cap,
        /// Why not, for people.
        error: Option<String>,
    },
    /// Its process has ended.
    Ended {
        /// Which.
        device: Party,
        /// How: an exit status or a signal, for people.
        how: String,
    },
}

impl DeviceEvent {
    /// Which device it is about.
    pub fn device(&self) -> Option<Party> {
        match self {
            DeviceEvent::Ready { device, .. }
            | DeviceEvent::Report { device, .. }
            | DeviceEvent::Ended { device, .. } => Some(*device),
            DeviceEvent::Link { .. } => None,
        }
    }
}

/// How far a device has locked itself down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confined {
    /// What Landlock denies: "fully", "partially", or why nothing.
    pub landlock: String,
    /// Whether the filter of system calls is in force.
    pub seccomp: bool,
    /// Whether it runs as a user without rights.
    pub unprivileged: bool,
    /// What bounds its threads.
    #[serde(default)]
    pub threads: String,
}

/// What a controller has, so that leaks can be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerStatus {
    /// The controller's process.
    pub pid: u32,
    /// Devices that run, with their processes.
    pub devices: Vec<(Party, String, u32)>,
    /// Channels and memories that exist.
    pub objects: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Capabilities.
    pub capabilities: usize,
    /// Descriptors that the controller has open.
    pub descriptors: usize,
    /// Endpoints that were revoked and are not yet known to be unmapped, of channels and of
    /// memories.
    pub releasing: usize,
    /// What devices use and may use, in the order of `devices`.
    pub charges: Vec<Charge>,
}

impl Answer {
    pub(crate) fn refused(error: &Error) -> Answer {
        Answer::Refused { kind: format!("{:?}", error.kind()), errno: error.raw_os_error(), text: text_of(error) }
    }
}

/// What an error says, as far as it fits a packet.
pub(crate) fn text_of(error: &Error) -> String {
    error.to_string().chars().take(2000).collect()
}

/// The error that was told by its kind's name and its text.
pub(crate) fn relayed(kind: &str, errno: Option<i32>, text: String) -> Error {
    use ErrorKind::*;
    let kinds = [InvalidInput, OutOfRange, Misaligned, Busy, Unsupported, Unavailable, NotFound, PermissionDenied];
    let kinds = kinds.into_iter().chain([NoSpace, OutOfMemory, EndOfFile, Device, Interrupted, Corrupt]);
    let kind = kinds.into_iter().find(|k| format!("{k:?}") == kind).unwrap_or(System);
    let error = Error::relayed(kind, text);
    match errno {
        Some(errno) => error.errno(errno),
        None => error,
    }
}
