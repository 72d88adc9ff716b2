//! What controller and bridge tell each other.

use datapipes_core::Error;
use datapipes_ucx::UcxSettings;
use serde::{Deserialize, Serialize};

use crate::error_text::text_of;

/// The longest address of UCX that is passed on. Those of one interface have some hundred bytes.
pub(crate) const MAX_ADDRESS_BYTES: usize = 4 << 10;

/// Messages from the controller to a bridge.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BridgeTold {
    /// The first message, with the end of the socket whose bytes it moves.
    Begin(UcxSettings),
    /// The address of the peer.
    Peer(Vec<u8>),
}

/// Messages from a bridge to its controller.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BridgeSaid {
    /// The address of the bridge.
    Address(Vec<u8>),
    /// The peer has answered, and the bridge is confined.
    Met,
    /// Both directions have ended, and both sides have all bytes.
    Ended(BridgedBytes),
    /// It cannot go on.
    Failed { kind: String, errno: Option<i32>, text: String },
}

/// The bytes that a bridge has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BridgedBytes {
    /// The bytes that went from its socket to the peer.
    pub(crate) sent: u64,
    /// The bytes that came from the peer.
    pub(crate) received: u64,
}

impl BridgeSaid {
    pub(crate) fn failed(error: &Error) -> BridgeSaid {
        BridgeSaid::Failed { kind: format!("{:?}", error.kind()), errno: error.errno(), text: text_of(error) }
    }
}
