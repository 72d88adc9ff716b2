//! A segment: a header block, then frames.
//!
//! Positions count the bytes of frames in the whole log. A segment says at which position and with
//! which number it starts; that both equal the end of the segment before is checked, so a segment
//! that is missing or cut is found.

use std::sync::Arc;

use datapipes_core::{Error, ErrorKind, Result};

use super::frame::Codec;
use super::sealed::Kind;
use super::storage::SegmentSpace;

/// Frames start here.
pub(crate) const DATA_AT: u64 = 4096;
const KIND: Kind<{ DATA_AT as usize }> = Kind { name: *b"DPLOGSEG", version: 1 };

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
        KIND.seal(&[
            &self.log_id,
            &self.number.to_le_bytes(),
            &self.base.to_le_bytes(),
            &self.first.to_le_bytes(),
            &self.len.to_le_bytes(),
            &self.epoch.to_le_bytes(),
            &self.frame_limit.to_le_bytes(),
        ])
    }

    /// Reads a header; `None` where these bytes are none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Header> {
        let block = KIND.open(bytes)?;
        let header = Header {
            log_id: block.id(),
            number: block.long(32),
            base: block.long(40),
            first: block.long(48),
            len: block.long(56),
            epoch: block.word(64),
            frame_limit: block.word(68),
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

/// An open segment.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) medium: Arc<dyn SegmentSpace>,
    /// Where it lies, for messages.
    pub(crate) name: String,
}

impl Segment {
    pub(crate) fn codec(&self) -> Codec {
        Codec::new(&self.header.log_id)
    }

    /// Whether the segment's place has all the bytes that its header says. It has from the moment
    /// in which it is part of the log, so one that is shorter was cut since, and nobody knows what
    /// was in the part that is gone.
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
    const MAX_FRAME_BYTES: u32 = 1 << 30;
    if header.frame_limit == 0 || header.frame_limit > MAX_FRAME_BYTES || u64::from(header.frame_limit) > header.room()
    {
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
