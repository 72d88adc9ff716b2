//! The format of a record in a log.
//!
//! ```text
//!  0 magic    4 header checksum    8 length   12 payload checksum
//! 16 number  24 epoch             28 since    32 kind   36 zero   40 payload
//! ```
//! Numbers are little-endian; the next frame starts at the next multiple of 8. The header's
//! checksum also covers the log's id and the frame's position in the log. So bytes of another log,
//! bytes of an earlier use of the space, and a frame that was itself logged as a payload are never
//! taken for a record here. The header's checksum is separate from the payload's for two reasons: a
//! damaged length is found before it is used, and the payload's is computed outside the lock.
//!
//! `since` leads back to the start of the batch. A batch is written only when everything before it
//! is durable, so a frame proves that everything before its batch was durable once. This is how a
//! torn tail and damage are told apart.

use crc32fast::Hasher;

/// Bytes of a frame's header.
pub(crate) const HEADER: usize = 40;
/// Frames start at multiples of this.
pub(crate) const ALIGN: u64 = 8;
/// The first bytes of each frame.
pub(crate) const MAGIC: [u8; 4] = *b"DPr1";

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A record of the user.
    Record,
    /// A mark: the log was opened (with a new epoch) or closed here.
    Mark,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    /// The record's number; for a mark, the number of the next record.
    pub(crate) number: u64,
    /// How often the log had been opened for appending when this was written. The rest of a torn
    /// batch has a smaller epoch than what is written over it.
    pub(crate) epoch: u32,
    /// Bytes from the start of its batch.
    pub(crate) since: u32,
    /// Bytes of payload.
    pub(crate) len: u32,
    pub(crate) payload_crc: u32,
}

impl Frame {
    /// Returns the bytes from this frame's start to the next one's.
    pub(crate) fn extent(&self) -> u64 {
        extent(u64::from(self.len))
    }
}

/// Returns the bytes that a payload takes in a log.
pub(crate) fn extent(len: u64) -> u64 {
    (HEADER as u64 + len).next_multiple_of(ALIGN)
}

/// Returns the checksum of a payload (the CRC-32 of zlib, with carry-less multiplication if the
/// processor has it).
pub(crate) fn payload_crc(payload: &[u8]) -> u32 {
    crc32fast::hash(payload)
}

/// Writes and reads the headers of one log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codec {
    seed: u32,
}

impl Codec {
    /// Makes the codec of the log with this id.
    pub(crate) fn new(id: &[u8; 16]) -> Codec {
        Codec { seed: crc32fast::hash(id) }
    }

    fn crc(self, position: u64, rest: &[u8]) -> u32 {
        let mut hasher = Hasher::new_with_initial(self.seed);
        hasher.update(&position.to_le_bytes());
        hasher.update(rest);
        hasher.finalize()
    }

    /// Encodes the header of a frame at a position of the log.
    pub(crate) fn encode(self, frame: &Frame, position: u64) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let kind: u32 = match frame.kind {
            FrameKind::Record => 1,
            FrameKind::Mark => 2,
        };
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&frame.len.to_le_bytes());
        bytes[12..16].copy_from_slice(&frame.payload_crc.to_le_bytes());
        bytes[16..24].copy_from_slice(&frame.number.to_le_bytes());
        bytes[24..28].copy_from_slice(&frame.epoch.to_le_bytes());
        bytes[28..32].copy_from_slice(&frame.since.to_le_bytes());
        bytes[32..36].copy_from_slice(&kind.to_le_bytes());
        let crc = self.crc(position, &bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header at a position, if it belongs to this log and was written for this
    /// position.
    pub(crate) fn decode(self, bytes: &[u8], position: u64) -> Option<Frame> {
        let bytes = bytes.first_chunk::<HEADER>()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..4] != MAGIC || word(4) != self.crc(position, &bytes[8..]) || word(36) != 0 {
            return None;
        }
        let kind = match word(32) {
            1 => FrameKind::Record,
            2 => FrameKind::Mark,
            _ => return None,
        };
        let number = u64::from(word(16)) | u64::from(word(20)) << 32;
        Some(Frame { kind, number, epoch: word(24), since: word(28), len: word(8), payload_crc: word(12) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Frame =
        Frame { kind: FrameKind::Record, number: 1 << 40 | 7, epoch: 3, since: 80, len: 1234, payload_crc: 99 };

    #[test]
    fn a_header_is_read_as_it_was_written_and_only_at_its_place() {
        let (ours, other) = (Codec::new(&[1; 16]), Codec::new(&[2; 16]));
        let bytes = ours.encode(&FRAME, 4000);
        assert_eq!(ours.decode(&bytes, 4000), Some(FRAME));
        assert_eq!(ours.decode(&bytes, 4008), None, "at another position");
        assert_eq!(other.decode(&bytes, 4000), None, "in another log");
        assert_eq!(ours.decode(&bytes[..39], 4000), None, "cut");
        let mark = Frame { kind: FrameKind::Mark, len: 0, ..FRAME };
        assert_eq!(ours.decode(&ours.encode(&mark, 0), 0), Some(mark));
    }

    #[test]
    fn no_flipped_bit_passes() {
        let codec = Codec::new(&[7; 16]);
        let bytes = codec.encode(&FRAME, 8);
        for bit in 0..HEADER * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(codec.decode(&bad, 8), None, "bit {bit}");
        }
    }
}
