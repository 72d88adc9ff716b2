//! The close note: where a closed log begins and ends, stored beside its segments.
//!
//! ```text
//! open    if there is a note: the log must end as it says, or it is corrupt;
//!         then the note is removed durably, and a mark of the new epoch is written
//! close   sync; closing mark; the note is written, synced and named
//! ```
//! So the note exists exactly while the log is closed. Without a note (after a crash, or by an
//! older program) the end is found only from the frames: records that were acknowledged and then
//! lost from the very end cannot be told from records that never existed. An older program leaves a
//! note in place and appends behind it; its frames have a later epoch, which shows that the note is
//! old.

use datapipes_core::{Error, ErrorKind, Result};

use super::sealed::Kind;
use super::segment::{Header, LogPosition, Segment};
use crate::log::place::storage::SegmentStorage;

/// Bytes of a note.
const LEN: usize = 68;
const KIND: Kind<LEN> = Kind { name: *b"DPLOGEND", version: 1 };

/// Where a closed log begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CloseNote {
    pub(crate) log_id: [u8; 16],
    /// The numbers of its first and last segments. Older segments that could not be removed may
    /// exist too.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The position behind its closing mark.
    pub(crate) tail: LogPosition,
}

impl CloseNote {
    /// Makes the note of a log with segments `first` to `last`.
    pub(crate) const fn of(first: &Segment, last: &Segment, tail: LogPosition) -> CloseNote {
        let (first, last) = (&first.header, &last.header);
        CloseNote { log_id: first.log_id, first: first.number, last: last.number, tail }
    }

    pub(crate) fn encode(&self) -> [u8; LEN] {
        KIND.seal(&[
            &self.log_id,
            &self.first.to_le_bytes(),
            &self.last.to_le_bytes(),
            &self.tail.position.to_le_bytes(),
            &self.tail.number.to_le_bytes(),
            &self.tail.epoch.to_le_bytes(),
        ])
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<CloseNote> {
        let block = KIND.open(bytes).filter(|_| bytes.len() == LEN)?;
        let tail = LogPosition { position: block.long(48), number: block.long(56), epoch: block.word(64) };
        Some(CloseNote { log_id: block.id(), first: block.long(32), last: block.long(40), tail })
    }

    /// Reads the storage's close note; `None` if the log was not closed.
    ///
    /// # Errors
    /// `Corrupt` for a damaged note.
    pub(crate) fn read(storage: &dyn SegmentStorage) -> Result<Option<CloseNote>> {
        let Some(bytes) = storage.note()? else { return Ok(None) };
        CloseNote::decode(&bytes).map(Some).ok_or_else(|| {
            corrupt(storage, "its close note is damaged").with_advice(
                "remove the note to open the log as after a crash; a loss of its last records is not noticed then",
            )
        })
    }

    /// Checks that these are the segments with which the log was closed.
    ///
    /// # Errors
    /// `Corrupt` if some are missing or others exist.
    pub(crate) fn check_segments(&self, storage: &dyn SegmentStorage, segments: &[Segment]) -> Result<()> {
        let header = |segment: Option<&Segment>| segment.map(|segment| segment.header);
        let (first, last) = (header(segments.first()), header(segments.last()));
        // A writer that appended behind an old note made no older segment, and may have released
        // some.
        if last.is_some_and(|Header { epoch, .. }| epoch > self.tail.epoch) {
            return Ok(());
        }
        let Some((first, last)) = first.zip(last) else {
            let why = format!("it was closed with segments {} to {}, and there are none", self.first, self.last);
            return Err(corrupt(storage, &why));
        };
        if first.log_id != self.log_id {
            return Err(corrupt(storage, "its close note belongs to another log"));
        }
        if first.number > self.first || last.number != self.last {
            let why = format!(
                "it was closed with segments {} to {}, but there are {} to {}",
                self.first, self.last, first.number, last.number
            );
            return Err(corrupt(storage, &why));
        }
        Ok(())
    }

    /// Checks that a log whose frames end here has all that it had when it was closed.
    ///
    /// # Errors
    /// `Corrupt` if it had more.
    pub(crate) fn check_end(&self, segment: &Segment, found: LogPosition) -> Result<()> {
        if found.epoch > self.tail.epoch || found == self.tail {
            return Ok(());
        }
        let what = format!(
            "record {} or what follows it is damaged: the log was closed with {} records up to there",
            found.number,
            self.tail.number.saturating_sub(1)
        );
        Err(segment.corrupt(found.position, &what))
    }
}

fn corrupt(storage: &dyn SegmentStorage, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "read", format!("log {}: {why}", storage.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_and_no_flip_passes() {
        let tail = LogPosition { position: 1 << 40, number: 77, epoch: 5 };
        let closing = CloseNote { log_id: [9; 16], first: 3, last: 1 << 33, tail };
        let bytes = closing.encode();
        assert_eq!(CloseNote::decode(&bytes), Some(closing));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(CloseNote::decode(&bad), None, "bit {bit}");
        }
        assert_eq!(CloseNote::decode(&bytes[..LEN - 1]), None);
        assert_eq!(CloseNote::decode(&[&bytes[..], &[0]].concat()), None);
    }
}
