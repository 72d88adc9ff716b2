//! Moving regions in pieces: some are in flight while others are checked. Also progress and
//! cancellation.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use datapipes_core::{Constraints, Dram, Error, ErrorKind, Locator, Machine, Pipe, Result, Span, Transfer};

use super::manifest::CHUNK;

/// Bytes of one transfer: long enough that two of them fill a device's queue.
pub(crate) const PIECE: usize = 32 << 20;
/// The most bytes in flight at once.
const IN_FLIGHT_BYTES: usize = 3 * PIECE;
/// The most pieces in flight at once, which matters for small regions.
const IN_FLIGHT: usize = 16;

/// The progress of a save, a restore or a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointProgress {
    /// Bytes moved so far.
    pub done: u64,
    /// Bytes of all regions.
    pub total: u64,
}

/// A function that is called between pieces of some MiB. Breaking cancels the work, which then ends
/// with `Interrupted` and leaves nothing in flight.
pub type ProgressCallback<'a> = &'a mut dyn FnMut(CheckpointProgress) -> ControlFlow<()>;

/// Ignores the progress and never cancels.
pub fn ignore_progress(_: CheckpointProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A region and its offset in the file.
pub(crate) struct Job<'a> {
    pub(crate) memory: &'a Dram,
    pub(crate) offset: u64,
}

/// The direction of the transfers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyDirection {
    Save,
    Restore,
}

/// A piece in flight.
struct PieceInFlight {
    job: usize,
    at: usize,
    len: usize,
    transfer: Transfer,
}

/// A function that checks a piece: the region's index, the offset in it, the bytes.
type Look<'a> = &'a mut dyn FnMut(usize, usize, &[u8]) -> Result<()>;

/// The pieces in flight.
struct PiecesInFlight<'a> {
    way: CopyDirection,
    jobs: &'a [Job<'a>],
    pieces: VecDeque<PieceInFlight>,
    bytes: usize,
    pace: Pace<'a>,
    look: Look<'a>,
}

impl PiecesInFlight<'_> {
    fn is_full_for(&self, len: usize) -> bool {
        self.pieces.len() >= IN_FLIGHT || (self.bytes + len > IN_FLIGHT_BYTES && !self.pieces.is_empty())
    }

    fn start(&mut self, pipe: &Pipe, job: usize, at: usize, len: usize) -> Result<()> {
        let (memory, file) = (at as u64, self.jobs[job].offset + at as u64);
        let span = match self.way {
            CopyDirection::Save => Span { source: memory, target: file, len: len as u64 },
            CopyDirection::Restore => Span { source: file, target: memory, len: len as u64 },
        };
        self.pieces.push_back(PieceInFlight { job, at, len, transfer: pipe.start(span)? });
        self.bytes += len;
        match self.way {
            // Both only read the memory: the device for the write, this thread for the checksum.
            CopyDirection::Save => self.look_at(job, at, len),
            CopyDirection::Restore => Ok(()),
        }
    }

    /// Waits for the oldest piece.
    fn finish_oldest(&mut self) -> Result<()> {
        let Some(PieceInFlight { job, at, len, transfer }) = self.pieces.pop_front() else { return Ok(()) };
        self.bytes -= len;
        transfer.wait()?;
        if self.way == CopyDirection::Restore {
            self.look_at(job, at, len)?;
        }
        self.pace.advance(len)
    }

    fn look_at(&mut self, job: usize, at: usize, len: usize) -> Result<()> {
        (self.look)(job, at, &self.jobs[job].memory.range(at, len)?.lease()?)
    }
}

/// Moves regions and calls `look` once for each piece: when its save has been started (the device
/// writes it meanwhile), or when it has been restored.
pub(crate) fn run(
    machine: &Machine,
    (way, file): (CopyDirection, &dyn Locator),
    jobs: &[Job<'_>],
    watch: ProgressCallback<'_>,
    look: Look<'_>,
) -> Result<()> {
    let total = jobs.iter().map(|job| job.memory.len() as u64).sum();
    let pace = Pace { done: 0, total, watch };
    let mut in_flight = PiecesInFlight { way, jobs, pieces: VecDeque::new(), bytes: 0, pace, look };
    // Empty regions have nothing to move.
    for (index, job) in jobs.iter().enumerate().filter(|(_, job)| job.memory.len() > 0) {
        let pipe = connect(machine, way, file, job)?;
        let whole = job.memory.len();
        for at in (0..whole).step_by(PIECE) {
            let len = PIECE.min(whole - at);
            while in_flight.is_full_for(len) {
                in_flight.finish_oldest()?;
            }
            in_flight.start(&pipe, index, at, len)?;
        }
    }
    while !in_flight.pieces.is_empty() {
        in_flight.finish_oldest()?;
    }
    Ok(())
}

fn connect(machine: &Machine, way: CopyDirection, file: &dyn Locator, job: &Job<'_>) -> Result<Pipe> {
    let constraints = Constraints::default().typical_len(PIECE as u64);
    match way {
        CopyDirection::Save => machine.connect_with(job.memory, file, &constraints),
        CopyDirection::Restore => machine.connect_with(file, job.memory, &constraints),
    }
}

/// Counts the bytes done, and asks whether to go on.
pub(crate) struct Pace<'a> {
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) watch: ProgressCallback<'a>,
}

impl Pace<'_> {
    pub(crate) fn advance(&mut self, bytes: usize) -> Result<()> {
        self.done += bytes as u64;
        match (self.watch)(CheckpointProgress { done: self.done, total: self.total }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::new(ErrorKind::Interrupted, "checkpoint", "it was cancelled")),
        }
    }
}

/// Returns the checksums of a piece, one for each chunk. Pieces start at multiples of a chunk.
pub(crate) fn checksums(piece: &[u8]) -> impl Iterator<Item = u32> {
    const { assert!(PIECE.is_multiple_of(CHUNK)) };
    piece.chunks(CHUNK).map(crc32fast::hash)
}
