//! Encryption of connections between machines: AES-256-GCM, with a key for each direction on which
//! the two controllers have agreed (see `control/noise.rs`).
//!
//! The nonce of each piece is its sequence number, so pieces that were recorded, omitted or moved
//! do not open. After [`MAX_BYTES`] a key is replaced by one derived from it, as in Noise.

use datapipes_core::{Error, ErrorKind, Result};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

/// The bytes that sealing adds to a piece.
pub(crate) const TAG_BYTES: usize = 16;
/// The most bytes under one key, far below the limit of AES-GCM.
const MAX_BYTES: u64 = 1 << 36;
/// A number that no piece has.
const REKEY: u64 = u64::MAX;

/// The keys of one end.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keys {
    /// The key for sent bytes.
    pub(crate) out: [u8; 32],
    /// The key for received bytes.
    pub(crate) into: [u8; 32],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// One direction of a connection.
pub(crate) struct Seal {
    key: LessSafeKey,
    /// The number of the next piece. Number 0 was used to agree on the key.
    next: u64,
    bytes: u64,
    most_bytes: u64,
}

impl Seal {
    pub(crate) fn new(key: &[u8; 32]) -> Result<Seal> {
        Ok(Seal { key: key_of(key)?, next: 1, bytes: 0, most_bytes: MAX_BYTES })
    }

    /// Seals the piece that comes after `ahead` others and ends with room for its tag. Until
    /// [`keep`](Self::keep) is called, the same number is used again, because a piece that was not
    /// sent does not count.
    ///
    /// # Errors
    /// `Corrupt` for a piece without room for a tag.
    pub(crate) fn seal(&self, piece: &mut [u8], ahead: u64) -> Result<()> {
        let (bytes, tag) = split(piece)?;
        let nonce = Nonce::assume_unique_for_key(nonce(self.next + ahead));
        let made = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), bytes);
        tag.copy_from_slice(made.map_err(|_| wrong("seal", "a piece that cannot be sealed"))?.as_ref());
        Ok(())
    }

    /// Opens the piece that comes after `ahead` others and ends with its tag.
    ///
    /// # Errors
    /// `Corrupt` for a piece that is not the next one that the other side sealed.
    pub(crate) fn open(&self, piece: &mut [u8], ahead: u64) -> Result<()> {
        let nonce = Nonce::assume_unique_for_key(nonce(self.next + ahead));
        let opened = self.key.open_in_place(nonce, Aad::empty(), piece);
        opened
            .map(|_| ())
            .map_err(|_| wrong("open", "the received piece was not sealed by the other side, or is out of order"))
    }

    /// Notes that pieces with this sum of bytes were sent or opened. The pieces of one message are
    /// noted together, so that the key does not change between them.
    ///
    /// # Errors
    /// `Corrupt` where the next key cannot be made, which does not happen.
    pub(crate) fn keep(&mut self, pieces: u64, bytes: usize) -> Result<()> {
        self.next += pieces;
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes >= self.most_bytes {
            let mut next = [0; 32];
            let nonce = Nonce::assume_unique_for_key(nonce(REKEY));
            let made = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut next);
            let _tag = made.map_err(|_| wrong("seal", "a key that has no next"))?;
            self.key = key_of(&next)?;
            self.bytes = 0;
        }
        Ok(())
    }
}

fn split(piece: &mut [u8]) -> Result<(&mut [u8], &mut [u8])> {
    let len = piece.len().checked_sub(TAG_BYTES).ok_or_else(|| wrong("seal", "a piece without room for its tag"))?;
    Ok(piece.split_at_mut(len))
}

fn key_of(key: &[u8; 32]) -> Result<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, key).map(LessSafeKey::new).map_err(|_| wrong("seal", "an invalid key"))
}

/// The nonce format of Noise for this cipher: 4 zero bytes, and the number with its highest byte
/// first.
fn nonce(number: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    nonce
}

fn wrong(operation: &'static str, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, operation, what)
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    fn pair() -> (Seal, Seal) {
        (Seal::new(&[7; 32]).unwrap(), Seal::new(&[7; 32]).unwrap())
    }

    fn sealed(seal: &Seal, text: &[u8]) -> Vec<u8> {
        let mut piece = [text, &[0; TAG_BYTES]].concat();
        seal.seal(&mut piece, 0).unwrap();
        piece
    }

    #[test]
    fn pieces_open_once_and_in_their_order() {
        let (mut ours, mut theirs) = pair();
        let one = sealed(&ours, b"one");
        assert!(!one.windows(3).any(|w| w == b"one"));
        // It was not sent, so it is sealed again under the same number.
        assert_eq!(one, sealed(&ours, b"one"));
        ours.keep(1, one.len()).unwrap();
        let two = sealed(&ours, b"two");
        ours.keep(1, two.len()).unwrap();
        assert_eq!(theirs.open(&mut two.clone(), 0).unwrap_err().kind(), ErrorKind::Corrupt);
        let mut opened = one.clone();
        theirs.open(&mut opened, 0).unwrap();
        theirs.keep(1, one.len()).unwrap();
        assert_eq!(&opened[..3], b"one");
        assert!(theirs.open(&mut one.clone(), 0).is_err(), "a piece that was recorded");
        let mut changed = two.clone();
        changed[0] ^= 1;
        assert!(theirs.open(&mut changed, 0).is_err());
        assert!(theirs.open(&mut [0; 5], 0).is_err());
        theirs.open(&mut two.clone(), 0).unwrap();
    }

    #[test]
    fn both_sides_change_the_key_at_the_same_piece() {
        let (mut ours, mut theirs) = pair();
        (ours.most_bytes, theirs.most_bytes) = (100, 100);
        for n in 0..20u8 {
            let mut piece = sealed(&ours, &[n; 10]);
            ours.keep(1, piece.len()).unwrap();
            let len = piece.len();
            theirs.open(&mut piece, 0).unwrap();
            theirs.keep(1, len).unwrap();
            assert_eq!(piece[..10], [n; 10]);
        }
        assert_eq!((ours.next, theirs.next), (21, 21));
        // Nothing opens with the first key any more.
        let (_, old) = pair();
        assert!(old.open(&mut sealed(&ours, b"x"), 0).is_err());
    }
}
