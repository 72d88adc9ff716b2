//! A segment: a header block, then frames.
//!
//! Positions count the bytes of frames in the whole log. A segment states the position and the
//! record number at which it starts. Both must equal the end of the segment before it, so a missing
//! or cut segment is found.

use std::sync::Arc;

use datapipes_core::{Error, ErrorKind, Result};

use super::frame::Codec;
use super::sealed::Kind;
use crate::log::place::storage::SegmentSpace;

/// The offset of the first frame.
pub(crate) const DATA_AT: u64 = 4096;
const KIND: Kind<{ DATA_AT as usize }> = Kind { name: *b"DPLOGSEG", version: 1 };

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The id of its log.
    pub(crate) log_id: [u8; 16],
    pub(crate) number: u64,
    /// The position of its first frame.
    pub(crate) base: u64,
    /// The number of its first record.
    pub(crate) first: u64,
    /// The epoch when the segment was begun.
    pub(crate) epoch: u32,
    /// The longest frame in it, in bytes.
    pub(crate) frame_limit: u32,
    /// Its length in bytes, with this header.
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

    /// Decodes a header; `None` if these bytes are not one.
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
        // Values with a correct checksum may still make no sense.
        let sane = header.len > DATA_AT && i64::try_from(header.len).is_ok() && header.base < 1 << 62;
        sane.then_some(header)
    }

    /// Returns the bytes for frames.
    pub(crate) fn room(&self) -> u64 {
        self.len - DATA_AT
    }
}

/// An open segment.
#[derive(Clone)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) medium: Arc<dyn SegmentSpace>,
    /// Its name for messages.
    pub(crate) name: String,
}

impl Segment {
    pub(crate) fn codec(&self) -> Codec {
        Codec::new(&self.header.log_id)
    }

    /// Checks that the segment has all the bytes that its header states. It had them when it became
    /// part of the log, so a shorter one was cut later, and what the lost part held is not known.
    pub(crate) fn check_length(&self, has: u64) -> Result<()> {
        let len = self.header.len;
        if has >= len {
            return Ok(());
        }
        let why = format!("log {}: it was cut: it has {has} of {len} bytes", self.name);
        Err(Error::new(ErrorKind::Corrupt, "read", why)
            .with_offset(has)
            .with_advice("read what is left of it from a copy; the log takes no more records"))
    }

    /// The error for damaged bytes at a position of the log.
    pub(crate) fn corrupt(&self, position: u64, what: &str) -> Error {
        let offset = position.saturating_sub(self.header.base) + DATA_AT;
        Error::new(ErrorKind::Corrupt, "read", format!("log {}: {what}", self.name)).with_offset(offset)
    }
}

/// The error for a segment without a valid header.
pub(crate) fn no_header(name: &str) -> Error {
    let why = format!("log {name}: the header is damaged, or this is not a segment of a log");
    Error::new(ErrorKind::Corrupt, "read", why).with_offset(0)
}

/// The longest frame of a segment, checked to be a length for which memory can be reserved.
pub(crate) fn checked_limit(header: &Header, name: &str) -> Result<usize> {
    const MAX_FRAME_BYTES: u32 = 1 << 30;
    if header.frame_limit == 0 || header.frame_limit > MAX_FRAME_BYTES || u64::from(header.frame_limit) > header.room()
    {
        return Err(no_header(name));
    }
    Ok(header.frame_limit as usize)
}

/// The position behind a frame, with the number and the epoch that the next frame must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPosition {
    pub(crate) position: u64,
    /// The number of the next record.
    pub(crate) number: u64,
    pub(crate) epoch: u32,
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
