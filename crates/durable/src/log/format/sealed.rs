//! Blocks of fixed length with their kind and a checksum.
//!
//! ```text
//! 0   8        12       16      ...
//! kind checksum version  fields  zeros
//! ```
//! The checksum covers all bytes but its own, also those behind the fields. Numbers are
//! little-endian.

use crc32fast::Hasher;

const CHECKSUM: std::ops::Range<usize> = 8..12;
const FIELDS: usize = 16;

/// A kind of blocks of `LEN` bytes.
pub(in crate::log) struct Kind<const LEN: usize> {
    pub(in crate::log) name: [u8; 8],
    pub(in crate::log) version: u32,
}

/// The fields of an intact block.
pub(in crate::log) struct Fields<'a, const LEN: usize>(&'a [u8; LEN]);

impl<const LEN: usize> Kind<LEN> {
    /// Makes a block with these fields, one right after the other. Fields that do not fit are left
    /// out.
    pub(in crate::log) fn seal(&self, fields: &[&[u8]]) -> [u8; LEN] {
        let mut block = [0; LEN];
        let parts: [&[u8]; 3] = [&self.name, &[0; 4], &self.version.to_le_bytes()];
        let bytes = parts.iter().chain(fields).flat_map(|part| part.iter());
        block.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        let sum = checksum(&block);
        block[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Returns the fields of a block; `None` if it is of another kind or version, or damaged. Bytes
    /// behind the block are ignored.
    pub(in crate::log) fn open<'a>(&self, bytes: &'a [u8]) -> Option<Fields<'a, LEN>> {
        let block = bytes.first_chunk()?;
        let fields = Fields(block);
        let whole = block[..8] == self.name && fields.word(8) == checksum(block) && fields.word(12) == self.version;
        whole.then_some(fields)
    }
}

impl<const LEN: usize> Fields<'_, LEN> {
    /// Returns the bytes at an offset, which lies within the block.
    fn at<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..].first_chunk().copied().unwrap_or([0; N])
    }

    pub(in crate::log) fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.at(at))
    }

    pub(in crate::log) fn long(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.at(at))
    }

    /// Returns the first field, if it is a name of 16 bytes.
    pub(in crate::log) fn id(&self) -> [u8; 16] {
        self.at(FIELDS)
    }
}

fn checksum<const LEN: usize>(block: &[u8; LEN]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&block[..CHECKSUM.start]);
    hasher.update(&block[CHECKSUM.end..]);
    hasher.finalize()
}
