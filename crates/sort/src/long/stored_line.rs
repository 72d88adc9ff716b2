//! A long line in the spill places, read piece by piece.

use datapipes_core::{Error, ErrorKind, Lease, Result, Span, Transfer};

use super::{LineBuffers, PIECE};
use crate::records::stub::{StoredPiece, StoredPlace};
use crate::records::tally::RecordHash;
use crate::runs::checksum;
use crate::text::PiecedLine;

const ALIGN: usize = 4096;

/// A line whose pieces are read into one of two buffers when they are asked for.
pub(crate) struct StoredLine<'s> {
    buffers: &'s LineBuffers,
    half: usize,
    /// The first bytes, which need not be read.
    head: &'s [u8],
    place: &'s StoredPlace,
    view: Option<Lease>,
    view_at: u64,
}

impl<'s> StoredLine<'s> {
    pub(crate) fn open(
        buffers: &'s LineBuffers,
        half: usize,
        head: &'s [u8],
        place: &'s StoredPlace,
    ) -> StoredLine<'s> {
        StoredLine { buffers, half, head, place, view: None, view_at: 0 }
    }
}

impl PiecedLine for StoredLine<'_> {
    fn len(&self) -> u64 {
        self.place.len
    }

    fn piece(&mut self, from: u64) -> Result<&[u8]> {
        if from >= self.place.len {
            return Ok(&[]);
        }
        if let Some(head) = usize::try_from(from).ok().and_then(|from| self.head.get(from..)).filter(|h| !h.is_empty())
        {
            return Ok(head);
        }
        let index = from / PIECE as u64;
        if self.view.is_none() || self.view_at != index * PIECE as u64 {
            self.view = None;
            let read = PieceRead::start(self.buffers, self.half, self.place, index)?;
            self.view = Some(read.wait(self.buffers)?);
            self.view_at = index * PIECE as u64;
        }
        let at = (from - self.view_at) as usize;
        Ok(self.view.as_ref().and_then(|view| view.get(at..)).unwrap_or_default())
    }
}

/// A piece that is being read into a buffer.
struct PieceRead {
    transfer: Transfer,
    half: usize,
    index: u64,
    len: usize,
    piece: StoredPiece,
}

impl PieceRead {
    fn start(buffers: &LineBuffers, half: usize, place: &StoredPlace, index: u64) -> Result<PieceRead> {
        let from = index * PIECE as u64;
        let len = place.len.saturating_sub(from).min(PIECE as u64) as usize;
        let piece = usize::try_from(index).ok().and_then(|index| place.pieces.get(index));
        let piece = *piece.ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "read", format!("a long line of {} bytes lacks a piece", place.len))
        })?;
        let padded = len.next_multiple_of(ALIGN);
        let span = Span { source: piece.at, target: (half * PIECE) as u64, len: padded as u64 };
        Ok(PieceRead { transfer: buffers.back.start(span)?, half, index, len, piece })
    }

    /// Waits for the bytes, and checks them.
    fn wait(self, buffers: &LineBuffers) -> Result<Lease> {
        self.transfer.wait()?;
        let lease = buffers.memory.range(self.half * PIECE, self.len)?.lease()?;
        checksum::check(&lease, self.piece.sum, self.piece.at)?;
        Ok(lease)
    }
}

/// Hands out a line from its start to its end, with one piece read ahead. Returns the hash of its
/// bytes and of those of `end`.
pub(crate) fn read_through(
    buffers: &LineBuffers,
    place: &StoredPlace,
    end: &[u8],
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<u64> {
    let mut hash = RecordHash::default();
    let pieces = place.len.div_ceil(PIECE as u64);
    let mut ahead = (pieces > 0).then(|| PieceRead::start(buffers, 0, place, 0)).transpose()?;
    while let Some(read) = ahead.take() {
        let next = read.index + 1;
        let half = read.half ^ 1;
        let piece = read.wait(buffers)?;
        if next < pieces {
            ahead = Some(PieceRead::start(buffers, half, place, next)?);
        }
        hash.push(&piece);
        take(&piece)?;
    }
    hash.push(end);
    take(end)?;
    Ok(hash.finish())
}
