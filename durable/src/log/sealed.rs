//! Blocks of fixed length that say what they are, and that they are whole.
//!
//! ```text
//! 0   8        12       16      ...
//! kind checksum version  fields  zeros
//! ```
//! The checksum is of all bytes but its own, those behind the fields included. Numbers are
//! little-endian.

use crc32fast::Hasher;

const CHECKSUM: std::ops::Range<usize> = 8..12;
const FIELDS: usize = 16;

/// A kind of blocks of `LEN` bytes.
pub(super) struct Kind<const LEN: usize> {
    pub(super) name: [u8; 8],
    pub(super) version: u32,
}

/// The fields of a block that is whole.
pub(super) struct Fields<'a, const LEN: usize>(&'a [u8; LEN]);

impl<const LEN: usize> Kind<LEN> {
    /// A block with these fields, one right after the other. What does not fit is left out.
    pub(super) fn seal(&self, fields: &[&[u8]]) -> [u8; LEN] {
        let mut block = [0; LEN];
        let parts: [&[u8]; 3] = [&self.name, &[0; 4], &self.version.to_le_bytes()];
        let bytes = parts.iter().chain(fields).flat_map(|part| part.iter());
        block.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        let sum = checksum(&block);
        block[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// The fields of a block; None where it is of another kind, of another version, or damaged.
    /// What follows it is not looked at.
    pub(super) fn open<'a>(&self, bytes: &'a [u8]) -> Option<Fields<'a, LEN>> {
        let block = bytes.first_chunk()?;
        let fields = Fields(block);
        let whole = block[..8] == self.name && fields.word(8) == checksum(block) && fields.word(12) == self.version;
        whole.then_some(fields)
    }
}

impl<const LEN: usize> Fields<'_, LEN> {
    /// The bytes at a place in the block, which is within it.
    fn at<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..].first_chunk().copied().unwrap_or([0; N])
    }

    pub(super) fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.at(at))
    }

    pub(super) fn long(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.at(at))
    }

    /// The first of the fields, where it is a name of 16 bytes.
    pub(super) fn id(&self) -> [u8; 16] {
        self.at(FIELDS)
    }
}

fn checksum<const LEN: usize>(block: &[u8; LEN]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&block[..CHECKSUM.start]);
    hasher.update(&block[CHECKSUM.end..]);
    hasher.finalize()
}
