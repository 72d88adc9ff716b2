//! A segment: a header block, then frames.
//!
//! Positions count the bytes of frames in the whole log. A segment says at which position and with which number it
//! starts; that both equal the end of the segment before is checked, so a segment that is missing or cut is found.

use std::sync::Arc;

use crc32fast::Hasher;
use datapipes_core::{Error, ErrorKind, Result};

use super::frame::Codec;
use super::storage::Medium;

/// Frames start here.
pub(crate) const DATA_AT: u64 = 4096;
const MAGIC: [u8; 8] = *b"DPLOGSEG";
const VERSION: u32 = 1;

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Which log it is of.
    pub(crate) log_id: [u8; 16],
    pub(crate) number: u64,
    /// The position of its first frame.
    pub(crate) base: u64,
    /// The number of its first record.
    pub(crate) first: u64,
    /// The epoch when it was made.
    pub(crate) epoch: u32,
    /// No frame of it is longer.
    pub(crate) frame_limit: u32,
    /// Its bytes, this header's included.
    pub(crate) len: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; DATA_AT as usize] {
        let mut bytes = [0; DATA_AT as usize];
        let fields: [&[u8]; 9] = [
            &MAGIC,
            &[0; 4],
            &VERSION.to_le_bytes(),
            &self.log_id,
            &self.number.to_le_bytes(),
            &self.base.to_le_bytes(),
            &self.first.to_le_bytes(),
            &self.len.to_le_bytes(),
            &[self.epoch.to_le_bytes(), self.frame_limit.to_le_bytes()].concat(),
        ];
        let mut at = 0;
        for field in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        let crc = checksum(&bytes);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` where these bytes are none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.first_chunk::<{ DATA_AT as usize }>()?;
        let long = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        if bytes[..8] != MAGIC || word(8) != checksum(bytes) || word(12) != VERSION {
            return None;
        }
        let log_id = *bytes[16..].first_chunk()?;
        let header = Header {
            log_id,
            number: long(32),
            base: long(40),
            first: long(48),
            len: long(56),
            epoch: word(64),
            frame_limit: word(68),
        };
        // What the checksum vouches for may still be nonsense that somebody wrote.
        let sane = header.len > DATA_AT && i64::try_from(header.len).is_ok() && header.base < 1 << 62;
        sane.then_some(header)
    }

    /// Bytes for frames.
    pub(crate) fn room(&self) -> u64 {
        self.len - DATA_AT
    }
}

/// Of the whole block but the checksum's own place: a flip in the unused part is noticed too.
fn checksum(block: &[u8; DATA_AT as usize]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&block[..8]);
    hasher.update(&block[12..]);
    hasher.finalize()
}

/// An open segment.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) medium: Arc<dyn Medium>,
    /// Where it lies, for messages.
    pub(crate) name: String,
}

impl Segment {
    pub(crate) fn codec(&self) -> Codec {
        Codec::new(&self.header.log_id)
    }

    /// Whether the segment's place has all the bytes that its header says. It has from the moment in which it is part of the
    /// log, so one that is shorter was cut since, and nobody knows what was in the part that is gone.
    pub(crate) fn check_length(&self, has: u64) -> Result<()> {
        let len = self.header.len;
        if has >= len {
            return Ok(());
        }
        let why = format!("log {}: it was cut: {has} bytes are there, of {len}", self.name);
        Err(Error::new(ErrorKind::Corrupt, "read", why)
            .offset(has)
            .advice("read what is left of it from a copy; the log takes no more records"))
    }

    /// The error of bytes that are not what was written, at a position of the log.
    pub(crate) fn corrupt(&self, position: u64, what: &str) -> Error {
        let offset = position.saturating_sub(self.header.base) + DATA_AT;
        Error::new(ErrorKind::Corrupt, "read", format!("log {}: {what}", self.name)).offset(offset)
    }
}

/// The error of a segment whose header is none.
pub(crate) fn no_header(name: &str) -> Error {
    let why = format!("log {name}: the header is damaged, or this is no segment of a log");
    Error::new(ErrorKind::Corrupt, "read", why).offset(0)
}

/// What a frame may be at most, with room for it in memory.
pub(crate) fn checked_limit(header: &Header, name: &str) -> Result<usize> {
    const MOST: u32 = 1 << 30;
    if header.frame_limit == 0 || header.frame_limit > MOST || u64::from(header.frame_limit) > header.room() {
        return Err(no_header(name));
    }
    Ok(header.frame_limit as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written_and_no_flip_passes() {
        let header =
            Header { log_id: [9; 16], number: 3, base: 1 << 40, first: 77, epoch: 5, frame_limit: 4096, len: 1 << 20 };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bad), None, "bit {bit}");
        }
        assert_eq!(Header::decode(&bytes[..4095]), None);
    }
}
