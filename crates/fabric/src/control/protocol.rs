//! The messages between a party and the controller.

use std::net::SocketAddr;

use datapipes_core::Error;
use datapipes_metrics::{Sample, vocabulary};
use serde::{Deserialize, Serialize};

use super::key::{Key, LinkSpec};
use super::limits::{Charge, DeviceLimits, Threads};
use super::tls::TlsIdentity;
use super::ucx_links::UcxLinkOptions;
use crate::capability::{Cap, Party, Rights};
use crate::channel::{ChannelShape, Copies, ReceiveMode};
use crate::device::role::{DeviceRole, StreamReport};
use crate::error_text::text_of;
use crate::transport::seal::Keys;
use crate::transport::{Carrier, Token};

/// The number of an endpoint that the controller configured at a party.
pub(crate) type EndpointId = u64;

/// The most descriptors of a device.
pub(crate) const DEVICE_DESCRIPTORS: usize = 64;

/// The first argument of a controller process.
pub(crate) const CONTROLLER: &str = "--fabric-controller";
/// The first argument of a device process.
pub(crate) const DEVICE: &str = "--fabric-device";
/// The first argument of a process that moves the bytes of a link.
pub(crate) const BRIDGE: &str = "--fabric-bridge";

/// Messages from a party to the controller. Descriptors are accepted only from the application.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Ask {
    /// Launches a device. It gets the descriptors of the packet.
    Launch {
        name: String,
        role: DeviceRole,
        limits: DeviceLimits,
    },
    /// Creates a channel, held by the sender of the message.
    Channel {
        shape: ChannelShape,
    },
    /// Creates a channel over a socket within this machine, held by the sender of the message.
    Connection {
        shape: ChannelShape,
        carrier: Carrier,
    },
    /// Creates one end of a channel. Another controller gets the other end by joining at the
    /// address.
    Offer {
        spec: LinkSpec,
        at: SocketAddr,
        key: Key,
    },
    /// Creates one end of a channel that another controller offers.
    Join {
        spec: LinkSpec,
        to: SocketAddr,
        key: Key,
    },
    /// Lets the controller connect links by UCX, as this says.
    UcxLinks {
        options: UcxLinkOptions,
    },
    /// Gives the controller a certificate and a key. From then on it connects links over TLS.
    Secure {
        identity: Box<TlsIdentity>,
    },
    /// Creates a memory, held by the sender of the message.
    Memory {
        len: usize,
    },
    Delegate {
        cap: Cap,
        to: Party,
        rights: Rights,
    },
    /// Configures an endpoint at the holder of the capability.
    Activate {
        cap: Cap,
        port: String,
        rights: Rights,
        trust: ReceiveMode,
        #[serde(default)]
        copies: Copies,
    },
    Revoke {
        cap: Cap,
    },
    /// Starts a device's work, from the ports `ins` to the ports `outs`.
    Run {
        device: Party,
        ins: Vec<String>,
        outs: Vec<String>,
    },
    Stop {
        device: Party,
    },
    /// Asks for the resources, with some of the devices after this party.
    Status {
        after: Party,
    },
    /// Reports that an endpoint's first half is mapped. There is no answer.
    Mapped {
        endpoint: EndpointId,
    },
    /// Reports that nothing of the endpoint is mapped any more. There is no answer.
    Unmapped {
        endpoint: EndpointId,
    },
    /// Reports that a device has locked itself down and awaits its ports. There is no answer.
    Ready {
        confined: Confined,
        /// The number of its open descriptors.
        #[serde(default)]
        descriptors: usize,
    },
    /// Reports on a stream. There is no answer.
    Report(StreamReport),
}

/// Messages from the controller to a party.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tell {
    Answer(Answer),
    /// The first message to a device.
    Boot {
        party: Party,
        name: String,
        role: DeviceRole,
        threads: Threads,
    },
    /// The part of an endpoint that only its holder may write, to be mapped.
    Endpoint(EndpointSpec),
    /// The part that others write and this party may read.
    Complete {
        endpoint: EndpointId,
    },
    /// The endpoint was revoked and must be unmapped.
    Release {
        endpoint: EndpointId,
    },
    /// The revocation is complete: no party has any of the memory.
    Settled {
        revocation: u64,
    },
    Run {
        ins: Vec<String>,
        outs: Vec<String>,
    },
    Event(DeviceEvent),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndpointSpec {
    pub(crate) endpoint: EndpointId,
    pub(crate) port: String,
    pub(crate) kind: EndpointKind,
    /// How the holder copies.
    pub(crate) copies: Copies,
}

/// The descriptors of both halves of an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EndpointKind {
    /// First its page, the payload and the state; then the receiver's page.
    Send { shape: ChannelShape, epoch: u64 },
    /// First its page and the state; then the sender's page and the payload.
    Receive { shape: ChannelShape, epoch: u64, trust: ReceiveMode },
    /// First the socket and the state; then nothing.
    SendLink { shape: ChannelShape, epoch: u64, token: Token, keys: Option<Keys> },
    /// The same for the half that receives.
    ReceiveLink { shape: ChannelShape, epoch: u64, token: Token, keys: Option<Keys> },
    /// The memory: in the first half for writing, or in the second for reading.
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
    /// The number of revoked capabilities. With `settles`, some holder may still have access to
    /// their objects. When none has, [`Tell::Settled`] reports it.
    Revoked {
        count: usize,
        settles: Option<u64>,
    },
    /// With `more`, there are devices after the last of these.
    Status {
        status: ControllerStatus,
        more: bool,
    },
    Refused {
        kind: String,
        errno: Option<i32>,
        text: String,
    },
}

/// Events of devices and links for the application.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The device has locked itself down and can get endpoints.
    Ready {
        /// The device.
        device: Party,
        /// The extent of its lock-down.
        confined: Confined,
    },
    /// A stream through the device ended, well or not.
    Report {
        /// The device.
        device: Party,
        /// The report on the stream.
        report: StreamReport,
    },
    /// A link to another controller was connected, or cannot be connected; or a link by UCX has
    /// lost its bridge.
    Link {
        /// The capability of the link.
        cap: Cap,
        /// The error for display, if it cannot be connected or was lost.
        error: Option<String>,
    },
    /// The device's process has ended.
    Ended {
        /// The device.
        device: Party,
        /// The exit status or signal, for display.
        how: String,
    },
}

impl DeviceEvent {
    /// The device of the event. None for a link.
    pub fn device(&self) -> Option<Party> {
        match self {
            DeviceEvent::Ready { device, .. }
            | DeviceEvent::Report { device, .. }
            | DeviceEvent::Ended { device, .. } => Some(*device),
            DeviceEvent::Link { .. } => None,
        }
    }
}

/// The extent of a device's lock-down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Confined {
    /// The part of Landlock in force: "fully", "partially", or the reason why none.
    pub landlock: String,
    /// Whether the filter of system calls is in force.
    pub seccomp: bool,
    /// Whether it runs as a user without rights.
    pub unprivileged: bool,
    /// The limit of its threads, for display.
    #[serde(default)]
    pub threads: String,
}

/// The resources of a controller, to detect leaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ControllerStatus {
    /// The controller's process.
    pub pid: u32,
    /// The running devices: party, name and process id.
    pub devices: Vec<(Party, String, u32)>,
    /// Channels and memories that exist.
    pub objects: usize,
    /// Bytes of the channels and memories.
    pub bytes: usize,
    /// The number of capabilities.
    pub capabilities: usize,
    /// Descriptors that the controller has open.
    pub descriptors: usize,
    /// The number of revoked endpoints, of channels and of memories, that are not yet known to be
    /// unmapped.
    pub releasing: usize,
    /// The use and the limits of devices, in the order of `devices`.
    pub charges: Vec<Charge>,
    /// Running bridges, the processes that move the bytes of links by UCX. They are no devices and
    /// are charged to nobody.
    pub bridges: usize,
    /// The bytes that bridges moved which have ended well: what each took from its socket.
    pub bridged_bytes: u64,
}

impl ControllerStatus {
    /// Returns it as samples.
    pub fn samples(&self) -> Vec<Sample> {
        vec![
            Sample::new(&vocabulary::FABRIC_DEVICES, self.devices.len()),
            Sample::new(&vocabulary::FABRIC_OBJECTS, self.objects),
            Sample::new(&vocabulary::FABRIC_OBJECT_BYTES, self.bytes),
            Sample::new(&vocabulary::FABRIC_CAPABILITIES, self.capabilities),
            Sample::new(&vocabulary::FABRIC_DESCRIPTORS, self.descriptors),
            Sample::new(&vocabulary::FABRIC_RELEASING, self.releasing),
        ]
    }
}

impl Answer {
    pub(crate) fn refused(error: &Error) -> Answer {
        Answer::Refused { kind: format!("{:?}", error.kind()), errno: error.errno(), text: text_of(error) }
    }
}
