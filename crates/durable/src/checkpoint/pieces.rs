//! Moving regions in pieces: some are in flight while others are checked. Also progress and
//! cancellation.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Instant;

use datapipes_core::in_flight_limit::{InFlightLimit, InFlightMark};
use datapipes_core::{
    Constraints, Dram, Error, ErrorKind, Locator, Machine, Pipe, Reach, Result, Route, Span, Transfer,
};

use super::manifest::CHUNK;
use crate::movements::Movements;

/// The most bytes of one transfer: long enough that two of them fill a device's queue.
pub(crate) const PIECE: usize = 32 << 20;
/// The bytes that may be in flight at first.
const FIRST_IN_FLIGHT: usize = 2 * CHUNK;
/// The most bytes in flight at once.
const IN_FLIGHT_BYTES: usize = 3 * PIECE;
/// The most pieces in flight at once, which matters for small regions.
const IN_FLIGHT: usize = 16;

/// Bytes that are copied at once for their checksum: less than a core's first cache has.
const SCRATCH: usize = 16 << 10;

/// The progress of a save, a restore or a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointProgress {
    /// Bytes moved so far.
    pub done: u64,
    /// Bytes of all regions.
    pub total: u64,
}

/// A function that is called between pieces, which are of 1 to 32 MiB and take about 100 ms.
/// Breaking cancels the work, which then ends with `Interrupted` and leaves nothing in flight.
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
    begun: InFlightMark,
    /// Its pipe, which goes with its last piece.
    pipe: Rc<Pipe>,
}

/// A function that takes the checksums of a piece: the region's index, the offset in it, one for
/// each chunk.
type Look<'a> = &'a mut dyn FnMut(usize, usize, &[u32]) -> Result<()>;

/// The pieces in flight.
struct PiecesInFlight<'a> {
    way: CopyDirection,
    jobs: &'a [Job<'a>],
    pieces: VecDeque<PieceInFlight>,
    bytes: usize,
    limit: PieceLimit,
    pace: Pace<'a>,
    look: Look<'a>,
    /// Where bytes are copied for their checksums. It stays in the core's cache.
    scratch: Vec<u8>,
    moved: Moved,
}

/// What a run of transfers took and did.
#[derive(Default)]
pub(crate) struct Moved {
    /// The time that checksums took.
    pub(crate) seconds: f64,
    pub(crate) movements: Movements,
    /// The route of the first region's bytes.
    pub(crate) route: Option<Route>,
}

impl PiecesInFlight<'_> {
    fn is_full_for(&self, len: usize) -> bool {
        self.pieces.len() >= IN_FLIGHT || (self.bytes + len > self.limit.bytes() && !self.pieces.is_empty())
    }

    fn start(&mut self, pipe: &Rc<Pipe>, job: usize, at: usize, len: usize) -> Result<()> {
        let (memory, file) = (at as u64, self.jobs[job].offset + at as u64);
        let span = match self.way {
            CopyDirection::Save => Span { source: memory, target: file, len: len as u64 },
            CopyDirection::Restore => Span { source: file, target: memory, len: len as u64 },
        };
        let begun = self.limit.begin();
        self.pieces.push_back(PieceInFlight { job, at, len, transfer: pipe.start(span)?, begun, pipe: pipe.clone() });
        self.bytes += len;
        match self.way {
            // Both only read the memory: the device for the write, this thread for the checksum.
            CopyDirection::Save => {
                let memory = self.jobs[job].memory;
                self.look_at(job, at, |scratch| copied_checksums(memory, at, len, scratch))
            }
            CopyDirection::Restore => Ok(()),
        }
    }

    /// Waits for the oldest piece.
    fn finish_oldest(&mut self) -> Result<()> {
        let Some(PieceInFlight { job, at, len, transfer, begun, pipe }) = self.pieces.pop_front() else {
            return Ok(());
        };
        self.bytes -= len;
        transfer.wait()?;
        self.limit.arrived(begun);
        self.let_go(pipe);
        if self.way == CopyDirection::Restore {
            let memory = self.jobs[job].memory;
            self.look_at(job, at, |_| Ok(checksums(&memory.range(at, len)?.lease()?).collect()))?;
        }
        self.pace.advance(len)
    }

    /// Keeps what a pipe did whose last piece is done.
    fn let_go(&mut self, pipe: Rc<Pipe>) {
        if let Some(pipe) = Rc::into_inner(pipe) {
            self.moved.movements.add(pipe.report());
        }
    }

    fn look_at(&mut self, job: usize, at: usize, sums: impl FnOnce(&mut [u8]) -> Result<Vec<u32>>) -> Result<()> {
        let since = Instant::now();
        let sums = sums(&mut self.scratch)?;
        self.moved.seconds += since.elapsed().as_secs_f64();
        (self.look)(job, at, &sums)
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
) -> Result<Moved> {
    let total = jobs.iter().map(|job| job.memory.len() as u64).sum();
    let pace = Pace { done: 0, total, watch };
    let (pieces, scratch) = (VecDeque::new(), vec![0; SCRATCH]);
    let (limit, moved) = (PieceLimit::of(file), Moved::default());
    let mut in_flight = PiecesInFlight { way, jobs, pieces, bytes: 0, limit, pace, look, scratch, moved };
    // Empty regions have nothing to move.
    for (index, job) in jobs.iter().enumerate().filter(|(_, job)| job.memory.len() > 0) {
        let pipe = Rc::new(connect(machine, way, file, job)?);
        in_flight.moved.route.get_or_insert_with(|| pipe.route().clone());
        let whole = job.memory.len();
        let mut at = 0;
        while at < whole {
            let mut len = in_flight.limit.piece().min(whole - at);
            while in_flight.is_full_for(len) {
                in_flight.finish_oldest()?;
                len = in_flight.limit.piece().min(whole - at);
            }
            in_flight.start(&pipe, index, at, len)?;
            at += len;
        }
        in_flight.let_go(pipe);
    }
    while !in_flight.pieces.is_empty() {
        in_flight.finish_oldest()?;
    }
    Ok(in_flight.moved)
}

fn connect(machine: &Machine, way: CopyDirection, file: &dyn Locator, job: &Job<'_>) -> Result<Pipe> {
    let constraints = Constraints::default().typical_len(PIECE as u64);
    match way {
        CopyDirection::Save => machine.connect_with(job.memory, file, &constraints),
        CopyDirection::Restore => machine.connect_with(file, job.memory, &constraints),
    }
}

/// How long pieces are, and how many bytes of them are in flight: both by the time for which they
/// are, so that a request to stop is soon heard on a slow device too.
pub(crate) struct PieceLimit(InFlightLimit);

impl PieceLimit {
    /// The limit for pieces of a file or an object. A server gives more the more is asked for at
    /// once, so there it stays as it is.
    pub(crate) fn of(file: &dyn Locator) -> PieceLimit {
        let most = IN_FLIGHT_BYTES as u64;
        PieceLimit(match file.endpoint().facts.reach {
            Reach::Server => InFlightLimit::fixed(most),
            _ => InFlightLimit::new(CHUNK as u64, FIRST_IN_FLIGHT as u64, most),
        })
    }

    fn bytes(&self) -> usize {
        self.0.bytes() as usize
    }

    /// Bytes of the next piece: whole chunks, and two of them where there is room for so many.
    pub(crate) fn piece(&self) -> usize {
        (self.bytes() / 2 / CHUNK * CHUNK).clamp(CHUNK, PIECE)
    }

    pub(crate) fn begin(&self) -> InFlightMark {
        self.0.begin()
    }

    pub(crate) fn arrived(&mut self, begun: InFlightMark) {
        self.0.arrived(begun);
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

/// Returns the checksums of bytes that may be those of a mapped file. A file that becomes shorter
/// takes its pages away, and who touches them is ended by SIGBUS. The copy returns an error.
fn copied_checksums(memory: &Dram, at: usize, len: usize, scratch: &mut [u8]) -> Result<Vec<u32>> {
    let mut sums = Vec::with_capacity(len.div_ceil(CHUNK));
    for chunk in (0..len).step_by(CHUNK) {
        let end = (chunk + CHUNK).min(len);
        let mut hasher = crc32fast::Hasher::new();
        for from in (chunk..end).step_by(scratch.len()) {
            let bytes = &mut scratch[..SCRATCH.min(end - from)];
            memory.memory().read(at + from, bytes)?;
            hasher.update(bytes);
        }
        sums.push(hasher.finalize());
    }
    Ok(sums)
}

/// Returns the checksums of a piece, one for each chunk. Pieces start at multiples of a chunk.
pub(crate) fn checksums(piece: &[u8]) -> impl Iterator<Item = u32> {
    const { assert!(PIECE.is_multiple_of(CHUNK)) };
    piece.chunks(CHUNK).map(crc32fast::hash)
}
