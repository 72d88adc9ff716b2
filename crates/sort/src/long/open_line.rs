//! A long line that is still being read: its bytes go to the spill places, piece by piece.

use datapipes_core::{Error, ErrorKind, Result, Span, Transfer};

use super::stored_line::StoredLine;
use super::{LineBuffers, LongLines, PIECE};
use crate::records::layout::Layout;
use crate::records::stub::{StoredPiece, StoredPlace, StubParts};
use crate::records::tally::RecordHash;
use crate::runs::checksum;

/// Direct writes have lengths that are multiples of this.
const ALIGN: usize = 4096;

/// A line of which some bytes came.
pub(crate) struct OpenLine<'l> {
    lines: &'l LongLines<'l>,
    buffers: Option<LineBuffers>,
    /// The writes of the two buffers that are in flight.
    flying: [Option<Transfer>; 2],
    /// The buffer that is being filled, and its bytes.
    half: usize,
    filled: usize,
    head: Vec<u8>,
    place: StoredPlace,
    hash: RecordHash,
}

impl<'l> OpenLine<'l> {
    pub(crate) fn begin(lines: &'l LongLines<'l>) -> Result<OpenLine<'l>> {
        let place = StoredPlace { len: 0, pieces: Vec::new() };
        let mut head = Vec::new();
        head.try_reserve_exact(lines.longest()).map_err(|_| {
            Error::new(ErrorKind::OutOfMemory, "sort", format!("{} bytes for the start of a long line", lines.limit))
        })?;
        let (buffers, flying) = (Some(lines.take_buffers()?), [None, None]);
        Ok(OpenLine { lines, buffers, flying, half: 0, filled: 0, head, place, hash: RecordHash::default() })
    }

    /// Takes the bytes that follow.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        let missing = self.lines.longest().saturating_sub(self.head.len());
        self.head.extend_from_slice(&bytes[..bytes.len().min(missing)]);
        self.hash.push(bytes);
        self.place.len = self.place.len.saturating_add(bytes.len() as u64);
        while !bytes.is_empty() {
            let now = bytes.len().min(PIECE - self.filled);
            let (here, rest) = bytes.split_at(now);
            if let Some(buffers) = &self.buffers {
                buffers.memory.range(self.half * PIECE + self.filled, now)?.lease_mut()?.copy_from_slice(here);
            }
            self.filled += now;
            bytes = rest;
            if self.filled == PIECE {
                self.write()?;
            }
        }
        Ok(())
    }

    /// Begins to write what is in the buffer, and goes on to the other one.
    fn write(&mut self) -> Result<()> {
        let Some(buffers) = &self.buffers else { return Ok(()) };
        let (from, padded) = (self.half * PIECE, self.filled.next_multiple_of(ALIGN));
        let mut lease = buffers.memory.range(from, padded)?.lease_mut()?;
        lease[self.filled..].fill(0);
        let at = self.lines.place(padded)?;
        self.place.pieces.push(StoredPiece { at, sum: checksum::sum(&lease[..self.filled]) });
        drop(lease);
        let span = Span { source: from as u64, target: at, len: padded as u64 };
        self.flying[self.half] = Some(buffers.out.start(span)?);
        (self.half, self.filled) = (self.half ^ 1, 0);
        self.wait(self.half)
    }

    fn wait(&mut self, half: usize) -> Result<()> {
        self.flying[half].take().map_or(Ok(()), Transfer::wait)
    }

    /// Ends what is a binary record, and returns its place and the hash of its bytes.
    pub(crate) fn finish_record(mut self) -> Result<(StoredPlace, u64)> {
        self.end()?;
        let place = std::mem::replace(&mut self.place, StoredPlace { len: 0, pieces: Vec::new() });
        Ok((place, std::mem::take(&mut self.hash).finish()))
    }

    /// Writes what is left, and waits for all of it.
    fn end(&mut self) -> Result<()> {
        if self.filled > 0 {
            self.write()?;
        }
        self.wait(0)?;
        self.wait(1)
    }

    /// Ends the line, and returns its stub.
    pub(crate) fn finish<L: Layout>(mut self, layout: &L) -> Result<Vec<u8>> {
        self.end()?;
        let Some(buffers) = self.buffers.take() else { return Ok(Vec::new()) };
        let key = {
            let mut line = StoredLine::open(&buffers, 0, &self.head, &self.place);
            layout.key_of_long(&mut line)
        };
        self.lines.give_back(buffers);
        let terminator = self.lines.terminator;
        self.hash.push(&[terminator]);
        let hash = std::mem::take(&mut self.hash).finish();
        let record = StubParts { head: &self.head, key: &key?, place: &self.place, hash, terminator }.record();
        self.lines.note(self.place.len.saturating_add(1), record.len());
        Ok(record)
    }
}

impl Drop for OpenLine<'_> {
    fn drop(&mut self) {
        // Nothing may be in flight from the buffers when they are used again.
        for flying in &mut self.flying {
            // The line is given up: whether its bytes arrived no longer matters.
            let _ = flying.take().map(Transfer::wait);
        }
        if let Some(buffers) = self.buffers.take() {
            self.lines.give_back(buffers);
        }
    }
}
