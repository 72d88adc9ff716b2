//! What two controllers have in common: the key, and what each says of its half of a link.

use std::fmt;

use datapipes_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::capability::Rights;
use crate::channel::ChannelShape;
use crate::transport::Token;

/// Whether the bytes of a link are encrypted and protected against change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Encryption {
    /// Bytes are encrypted and authenticated.
    #[default]
    On,
    /// They are not: anyone who can read or change packets on the way can read or change the bytes.
    /// Only the identity of the connecting party is verified. This is for private networks.
    Off,
}

/// What carries the bytes of a link between two machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkCarrier {
    /// The TCP connection of the two controllers.
    #[default]
    Tcp,
    /// UCX, which uses RDMA where it is told to. Both controllers must have
    /// [`UcxLinkOptions`](super::UcxLinkOptions), which say that the network is trusted.
    Ucx,
}

/// One half of a link. The other half has the same shape, encryption and carrier, and the opposite
/// side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct LinkSpec {
    /// The shape of the channel.
    pub shape: ChannelShape,
    /// [`Rights::SEND`] or [`Rights::RECEIVE`].
    pub side: Rights,
    /// The encryption of the bytes.
    pub encryption: Encryption,
    /// What carries the bytes.
    #[serde(default)]
    pub carrier: LinkCarrier,
}

datapipes_core::setters! {
    LinkSpec {
        shape: ChannelShape,
        side: Rights,
        encryption: Encryption,
        carrier: LinkCarrier,
    }
}

impl LinkSpec {
    /// Makes an encrypted half with this shape and side, over TCP.
    pub const fn new(shape: ChannelShape, side: Rights) -> LinkSpec {
        LinkSpec { shape, side, encryption: Encryption::On, carrier: LinkCarrier::Tcp }
    }
}

/// The secret that two controllers share.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key([u8; 32]);

impl Key {
    /// Makes a key from these bytes, which nobody should be able to guess.
    pub const fn new(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// Makes a random key.
    ///
    /// # Errors
    /// Errors of reading random bytes.
    pub fn random() -> Result<Key> {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&secret()?);
        key[16..].copy_from_slice(&secret()?);
        Ok(Key(key))
    }

    /// The bytes of the key. Bring them to the other machine in a secure way.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Returns 16 random bytes.
pub(crate) fn secret() -> Result<Token> {
    let mut token = [0; 16];
    let mut source = std::fs::File::open("/dev/urandom").map_err(|e| Error::io("open", e, "/dev/urandom"))?;
    std::io::Read::read_exact(&mut source, &mut token).map_err(|e| Error::io("read", e, "/dev/urandom"))?;
    Ok(token)
}
