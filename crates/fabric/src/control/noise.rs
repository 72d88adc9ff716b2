//! How two controllers with the same key authenticate each other: the Noise pattern `NNpsk0`, and
//! two messages that confirm it.
//!
//! ```text
//! joiner  -> offerer   48 bytes: a new public key, sealed by the shared key
//! joiner  <- offerer   48 bytes: another public key, sealed by the result of both
//! joiner  -> offerer   16 bytes: sealed by the derived key, which only the author of the
//!                      first message knows
//! joiner  <- offerer   16 bytes: accepted: this is the one connection of the link
//! ```
//!
//! The key itself is never shown. Recorded messages open nothing, because each side answers to
//! fresh data of the other. A party that gets the key later cannot read earlier messages. The
//! parameters on which both must agree (the shape, the sides, whether bytes are encrypted, what
//! carries them) are the prologue of Noise: if they differ, nothing opens.

use datapipes_core::{Error, ErrorKind, Result};
use snow::{Builder, HandshakeState};

use crate::capability::Rights;
use crate::control::key::{Encryption, Key, LinkCarrier, LinkSpec};
use crate::transport::Token;
use crate::transport::seal::{Keys, TAG_BYTES};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// The bytes of each of the first two messages.
pub(super) const MESSAGE_BYTES: usize = 48;
/// The bytes of each of the two confirmations.
pub(super) const WORD_BYTES: usize = TAG_BYTES;

/// The side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Joins,
    Offers,
}

/// One conversation.
pub(super) struct Conversation {
    role: Role,
    state: Box<HandshakeState>,
}

/// The result of a conversation.
#[derive(Debug)]
pub(super) struct Agreed {
    /// The secret that a sender proves with its first bytes.
    pub(super) token: Token,
    /// The keys of the local end.
    keys: Keys,
}

impl Conversation {
    /// The binding is that of a connection over TLS: over another one, nothing opens.
    pub(super) fn new(role: Role, key: &Key, spec: &LinkSpec, binding: &[u8]) -> Result<Conversation> {
        let said = [said_before(role, spec), binding.to_vec()].concat();
        let pattern = PATTERN.parse().map_err(failed)?;
        let builder = Builder::new(pattern).prologue(&said).and_then(|b| b.psk(0, key.bytes())).map_err(failed)?;
        let state = match role {
            Role::Joins => builder.build_initiator(),
            Role::Offers => builder.build_responder(),
        };
        Ok(Conversation { role, state: Box::new(state.map_err(failed)?) })
    }

    /// Makes the next message of this side.
    pub(super) fn say(&mut self) -> Result<[u8; MESSAGE_BYTES]> {
        let mut message = [0; MESSAGE_BYTES];
        match self.state.write_message(&[], &mut message) {
            Ok(MESSAGE_BYTES) => Ok(message),
            Ok(len) => Err(Error::new(ErrorKind::System, "join", format!("a message of {len} bytes"))),
            Err(e) => Err(failed(e)),
        }
    }

    /// # Errors
    /// `PermissionDenied` for a message that was made without the key, or not in this conversation.
    pub(super) fn hear(&mut self, message: &[u8]) -> Result<()> {
        let heard = self.state.read_message(message, &mut []);
        heard.map(|_| ()).map_err(|_| stranger())
    }

    /// Returns what both sides share after both messages.
    pub(super) fn agreed(mut self) -> Agreed {
        let (one, two) = self.state.dangerously_get_raw_split();
        let keys = match self.role {
            Role::Joins => Keys { out: one, into: two },
            Role::Offers => Keys { out: two, into: one },
        };
        // The token is visible where bytes are not encrypted, so it must not reveal the keys.
        let mut token = Token::default();
        let hash = ring::digest::digest(&ring::digest::SHA256, &[&one[..], &two[..]].concat());
        token.copy_from_slice(&hash.as_ref()[..16]);
        Agreed { token, keys }
    }
}

impl Agreed {
    /// Makes this side's confirmation.
    pub(super) fn word(&self) -> Result<[u8; WORD_BYTES]> {
        word(&self.keys.out)
    }

    /// # Errors
    /// `PermissionDenied` for anything but the other side's confirmation.
    pub(super) fn check(&self, heard: &[u8]) -> Result<()> {
        let expected = word(&self.keys.into)?;
        // All bytes are compared, even after a difference.
        let differs = heard.len() != WORD_BYTES || heard.iter().zip(expected).fold(0, |d, (a, b)| d | (a ^ b)) != 0;
        if differs { Err(stranger()) } else { Ok(()) }
    }

    /// Keys for what the controllers say to each other afterwards. The ends have others, so no
    /// number is used twice under one key.
    pub(super) fn keys_of_controllers(&self) -> Keys {
        let derived = |key: &[u8; 32]| {
            let mut made = [0; 32];
            let said = [&b"datapipes fabric controllers"[..], key].concat();
            made.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, &said).as_ref());
            made
        };
        Keys { out: derived(&self.keys.out), into: derived(&self.keys.into) }
    }

    /// The keys of the local end, if bytes are encrypted.
    pub(super) fn keys(self, encryption: Encryption) -> Option<Keys> {
        (encryption == Encryption::On).then_some(self.keys)
    }
}

/// The tag of an empty message under a key, with the first nonce. Pieces of a stream start with the
/// second.
fn word(key: &[u8; 32]) -> Result<[u8; WORD_BYTES]> {
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    let wrong = |_| Error::new(ErrorKind::System, "join", "an invalid key");
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).map_err(wrong)?);
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut []).map_err(wrong)?;
    let mut word = [0; WORD_BYTES];
    word.copy_from_slice(tag.as_ref());
    Ok(word)
}

/// The parameters on which both sides must agree, with the same bytes on both.
fn said_before(role: Role, spec: &LinkSpec) -> Vec<u8> {
    let LinkSpec { shape, side, encryption, carrier } = spec;
    let offerer_sends = (role == Role::Offers) == (*side == Rights::SEND);
    let mut said = b"datapipes fabric link 2".to_vec();
    said.extend(shape.credits.to_le_bytes());
    said.extend((shape.block_bytes as u64).to_le_bytes());
    said.extend([u8::from(shape.checked), u8::from(offerer_sends), u8::from(*encryption == Encryption::On)]);
    // A controller before there was a choice says nothing here.
    said.extend((*carrier == LinkCarrier::Ucx).then_some(1));
    said
}

fn stranger() -> Error {
    let what =
        "the other controller has another key, or means another shape, side, encryption or carrier of the channel";
    Error::new(ErrorKind::PermissionDenied, "join", what)
}

fn failed(e: snow::Error) -> Error {
    Error::new(ErrorKind::System, "join", format!("the handshake: {e}")).with_source(e)
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;
    use crate::channel::ChannelShape;

    fn spec(side: Rights) -> LinkSpec {
        LinkSpec::new(ChannelShape::new(2, 64), side)
    }

    fn pair(ours: (&Key, LinkSpec), theirs: (&Key, LinkSpec)) -> (Conversation, Conversation) {
        let joins = Conversation::new(Role::Joins, ours.0, &ours.1, b"one").unwrap();
        (joins, Conversation::new(Role::Offers, theirs.0, &theirs.1, b"one").unwrap())
    }

    #[test]
    fn only_sides_with_the_same_key_and_spec_agree() {
        let (key, other) = (Key::new([3; 32]), Key::new([4; 32]));
        let (mut joins, mut offers) = pair((&key, spec(Rights::SEND)), (&key, spec(Rights::RECEIVE)));
        let first = joins.say().unwrap();
        offers.hear(&first).unwrap();
        let second = offers.say().unwrap();
        joins.hear(&second).unwrap();
        let (ours, theirs) = (joins.agreed(), offers.agreed());
        assert_eq!(ours.token, theirs.token);
        assert_eq!((ours.keys.out, ours.keys.into), (theirs.keys.into, theirs.keys.out));
        theirs.check(&ours.word().unwrap()).unwrap();
        ours.check(&theirs.word().unwrap()).unwrap();
        assert!(theirs.check(&theirs.word().unwrap()).is_err(), "its own word, sent back");
        let (said, heard) = (ours.keys_of_controllers(), theirs.keys_of_controllers());
        assert!(said.out == heard.into && said.into == heard.out && said.out != ours.keys.out);

        // The cases are another key, another shape, the same side, other encryption, and another
        // carrier.
        let plain = LinkSpec { encryption: Encryption::Off, ..spec(Rights::RECEIVE) };
        let by_ucx = LinkSpec { carrier: LinkCarrier::Ucx, ..spec(Rights::RECEIVE) };
        let large = LinkSpec { shape: ChannelShape::new(2, 128), ..spec(Rights::RECEIVE) };
        for (key_2, spec_2) in
            [(&other, spec(Rights::RECEIVE)), (&key, large), (&key, spec(Rights::SEND)), (&key, plain), (&key, by_ucx)]
        {
            let (mut joins, mut offers) = pair((&key, spec(Rights::SEND)), (key_2, spec_2));
            assert_eq!(offers.hear(&joins.say().unwrap()).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        // Relayed from another connection over TLS.
        let mut joins = Conversation::new(Role::Joins, &key, &spec(Rights::SEND), b"another").unwrap();
        let (_, mut offers) = pair((&key, spec(Rights::SEND)), (&key, spec(Rights::RECEIVE)));
        assert_eq!(offers.hear(&joins.say().unwrap()).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn what_was_recorded_confirms_nothing() {
        let key = Key::new([3; 32]);
        let (mut joins, mut offers) = pair((&key, spec(Rights::SEND)), (&key, spec(Rights::RECEIVE)));
        let first = joins.say().unwrap();
        offers.hear(&first).unwrap();
        joins.hear(&offers.say().unwrap()).unwrap();
        let recorded = joins.agreed().word().unwrap();
        // The same first message is sent again to the same offer. The answer is a new one, and the
        // old confirmation does not match it.
        let mut again = Conversation::new(Role::Offers, &key, &spec(Rights::RECEIVE), b"one").unwrap();
        again.hear(&first).unwrap();
        let _ = again.say().unwrap();
        assert!(again.agreed().check(&recorded).is_err());
    }
}
