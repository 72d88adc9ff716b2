//! Figures 3 and 4: a device fills chunks at a queue depth, a core sums each when it is complete,
//! and a load beside them brings other lines into the cache.
//!
//! ```text
//!   device  [fills several chunks at once, a piece of each in turn] --complete--> queue
//!   core    takes the next complete chunk, reads each line once, gives the buffer back
//!   load    one new line after the other; every third is written (STREAM's triad)
//! ```
//! Each has a rate; whoever's next line is due first makes its access. Sets are independent of each
//! other, so only one in a number of sets is simulated, with that part of all lines: the sample is
//! exact for a cache whose line `n` is in set `n % sets`.

use std::collections::VecDeque;

use datapipes_core::{Error, ErrorKind, Result};
use serde::Serialize;

use super::cache::{AccessAgent, AccessKind, LastLevelCache, LineAccess, LlcCounts};
use super::parameters::{LlcShape, WayMask};

/// The parameters of figures 3 and 4.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DdioSetup {
    /// The cache.
    pub llc: LlcShape,
    /// Requests under way (paper, section 4.1: 32), each with a buffer of its own.
    pub depth: u32,
    /// Requests that the device serves at the same time, a piece of 4 KiB of each in turn. Assumed:
    /// all of them, because an SSD spreads requests over its channels.
    pub served_at_once: u32,
    /// The rate of the device: 3.5 GB/s, the vendor's figure for the paper's Samsung 970 Pro.
    #[serde(rename = "device_bytes_per_second")]
    pub device_bytes_per_s: f64,
    /// The rate at which the core sums. Assumed: 10 GB/s, several times the device's.
    #[serde(rename = "core_bytes_per_second")]
    pub core_bytes_per_s: f64,
    /// The rate at which the load brings lines into the cache; 0 is no load. Calibrated to the
    /// paper's 41 %. It is less than a tenth of what STREAM moves when it saturates six channels of
    /// DRAM: the model cannot say whether the processor keeps the rest out of the cache, or
    /// replaces it first.
    #[serde(rename = "load_bytes_per_second")]
    pub load_bytes_per_s: f64,
    /// The seed of random replacement.
    pub seed: u64,
}

/// The load that meets the paper's 41 %. Calibrated.
pub const CALIBRATED_LOAD_BYTES_PER_S: f64 = 7.6e9;

/// The chunk sizes that are shown. Assumed: the text has "increasing chunk sizes".
pub const CHUNKS: [u64; 13] = [
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
];

/// The largest chunk of the model.
pub const MAX_CHUNK_BYTES: u64 = 1 << 30;
/// The largest queue depth of the model.
pub const MAX_DEPTH: u32 = 1024;

impl DdioSetup {
    /// Returns the paper's setup, with its load.
    pub fn paper() -> DdioSetup {
        DdioSetup {
            llc: LlcShape::paper(),
            depth: 32,
            served_at_once: 32,
            device_bytes_per_s: 3.5e9,
            core_bytes_per_s: 10e9,
            load_bytes_per_s: CALIBRATED_LOAD_BYTES_PER_S,
            seed: 1,
        }
    }

    /// Checks that the model can run it.
    ///
    /// # Errors
    /// `InvalidInput`: a cache that [`LlcShape::check`] refuses, a depth of 0 or above
    /// [`MAX_DEPTH`], a rate that is no number of at least 1 MB/s (0 for no load), or more than
    /// 1000 times another.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, advice: &'static str| {
            Err(Error::new(ErrorKind::InvalidInput, "model", what).with_advice(advice))
        };
        self.llc.check()?;
        let what = || format!("a depth of {} with {} served at once", self.depth, self.served_at_once);
        if !(1..=MAX_DEPTH).contains(&self.depth) {
            return wrong(what(), "take 1 to 1024 requests");
        }
        if !(1..=self.depth).contains(&self.served_at_once) {
            return wrong(what(), "no more are served at once than are under way, and at least one");
        }
        for (name, rate) in [("device", self.device_bytes_per_s), ("core", self.core_bytes_per_s)] {
            if !(1e6..=1e12).contains(&rate) {
                return wrong(format!("a {name} of {rate} bytes a second"), "take 1 MB to 1 TB a second");
            }
        }
        if self.load_bytes_per_s != 0.0 && !(1e6..=1e12).contains(&self.load_bytes_per_s) {
            let what = format!("a load of {} bytes a second", self.load_bytes_per_s);
            return wrong(what, "take 0 for none, or 1 MB to 1 TB a second");
        }
        if self.load_bytes_per_s > 100.0 * self.device_bytes_per_s.min(self.core_bytes_per_s) {
            return wrong("a load more than 100 times as fast as the device or the core".into(), "take less load");
        }
        Ok(())
    }
}

/// The result for one chunk size and one number of ways.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DdioPoint {
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Ways in which the device's writes allocate; 0 is DDIO off.
    pub io_ways: u32,
    /// The part of the core's reads that missed.
    pub core_misses: f64,
    /// The part of the device's writes that updated a line in place.
    pub updated_in_place: f64,
    /// Lines that memory read for a line of a chunk, without the load's own.
    pub memory_reads: f64,
    /// One in this many sets was simulated.
    pub sample: u64,
    /// The counts of the simulated sets.
    pub counts: LlcCounts,
}

/// The piece of a request that the device writes before it goes on to the next.
const PIECE_BYTES: u64 = 4 << 10;
/// Lines of a chunk that are simulated at least, if it has so many.
const MIN_LINES_OF_CHUNK: u64 = 64;
/// Sets that are simulated at least.
const MIN_SETS: u64 = 256;
/// The lines that the core reads before counting and while counting, at least; or so many that it
/// has seen all buffers.
const WARM_LINES: u64 = 8 << 10;
const COUNTED_LINES: u64 = 32 << 10;
/// The load's lines are far from the buffers.
const LOAD_BASE: u64 = 1 << 48;

/// Simulates one chunk size with one number of ways of the device.
///
/// # Errors
/// `InvalidInput`: a setup that [`DdioSetup::check`] refuses, chunks smaller than a line or above
/// [`MAX_CHUNK_BYTES`], more ways than the cache has.
pub fn simulate(setup: &DdioSetup, chunk_bytes: u64, io_ways: u32) -> Result<DdioPoint> {
    setup.check()?;
    let wrong =
        |what: String, advice: String| Err(Error::new(ErrorKind::InvalidInput, "model", what).with_advice(advice));
    if !(setup.llc.line_bytes..=MAX_CHUNK_BYTES).contains(&chunk_bytes) {
        let advice = format!("take {} to {MAX_CHUNK_BYTES} bytes", setup.llc.line_bytes);
        return wrong(format!("chunks of {chunk_bytes} bytes"), advice);
    }
    if io_ways > setup.llc.ways {
        let advice = format!("take 0 (DDIO off) to {}", setup.llc.ways);
        return wrong(format!("{io_ways} ways for the device"), advice);
    }
    Ok(sampled(setup, chunk_bytes, io_ways, sample_of(&setup.llc, chunk_bytes)))
}

/// Simulates one in `sample` sets. The arguments were checked.
pub(super) fn sampled(setup: &DdioSetup, chunk_bytes: u64, io_ways: u32, sample: u64) -> DdioPoint {
    let mut machine = Machine::new(setup, chunk_bytes, io_ways, sample);
    let of_round = u64::from(setup.depth) * machine.chunk_lines;
    machine.run(WARM_LINES.max(of_round + of_round / 2));
    machine.cache.reset_counts();
    machine.run(COUNTED_LINES.max(of_round));
    let counts = machine.cache.counts();
    let of = |count: u64, all: u64| count as f64 / all.max(1) as f64;
    DdioPoint {
        chunk_bytes,
        io_ways,
        core_misses: counts.core.miss_part(),
        updated_in_place: of(counts.device.hits, counts.device.writes),
        memory_reads: of(counts.core.memory_reads + counts.device.memory_reads, counts.core.reads),
        sample,
        counts,
    }
}

/// The largest power of two such that enough sets, and enough lines of a chunk, are simulated.
fn sample_of(llc: &LlcShape, chunk_bytes: u64) -> u64 {
    let most = (chunk_bytes / llc.line_bytes / MIN_LINES_OF_CHUNK).min(llc.sets / MIN_SETS).max(1);
    1 << most.ilog2()
}

/// A request that the device serves.
#[derive(Clone, Copy, Debug)]
struct Request {
    buffer: u64,
    /// Lines of it that are written.
    filled: u64,
}

/// The core's chunk.
#[derive(Clone, Copy, Debug)]
struct Summing {
    buffer: u64,
    line: u64,
}

/// When an agent is due, in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: u64,
    step: u64,
}

impl Due {
    fn of(bytes_per_s: f64, line_bytes: u64) -> Due {
        let step = if bytes_per_s > 0.0 { (line_bytes as f64 * 1e12 / bytes_per_s) as u64 } else { NEVER };
        Due { at: step, step }
    }

    /// Goes on to the next line.
    fn advance(&mut self) {
        self.at = self.at.saturating_add(self.step);
    }
}

const NEVER: u64 = u64::MAX;

struct Machine {
    cache: LastLevelCache,
    chunk_lines: u64,
    piece_lines: u64,
    served_at_once: usize,
    /// Requests in order; the first `served_at_once` are served.
    open: VecDeque<Request>,
    /// Whose turn it is among those that are served.
    turn: usize,
    complete: VecDeque<u64>,
    summing: Option<Summing>,
    device: Due,
    core: Due,
    load: Due,
    load_lines: u64,
    core_lines: u64,
}

impl Machine {
    fn new(setup: &DdioSetup, chunk_bytes: u64, io_ways: u32, sample: u64) -> Machine {
        let llc = LlcShape { sets: setup.llc.sets / sample, ..setup.llc };
        let chunk_lines = (chunk_bytes / llc.line_bytes / sample).max(1);
        let depth = u64::from(setup.depth);
        // As in a run that has lasted: each request is at another point.
        let request = |buffer| Request { buffer, filled: chunk_lines * buffer / depth };
        let due = |rate| Due::of(rate, llc.line_bytes);
        let mut machine = Machine {
            cache: LastLevelCache::new(llc, WayMask::upper(io_ways, llc.ways), setup.seed),
            chunk_lines,
            piece_lines: (PIECE_BYTES / llc.line_bytes / sample).max(1),
            served_at_once: setup.served_at_once as usize,
            open: (0..depth).map(request).collect(),
            turn: 0,
            complete: VecDeque::new(),
            summing: None,
            device: due(setup.device_bytes_per_s),
            core: due(setup.core_bytes_per_s),
            load: due(setup.load_bytes_per_s),
            load_lines: 0,
            core_lines: 0,
        };
        if setup.load_bytes_per_s > 0.0 {
            // The load was there before.
            (0..llc.lines()).for_each(|_| machine.load_line());
        }
        machine
    }

    /// Runs until the core has read this many lines.
    fn run(&mut self, lines: u64) {
        let end = self.core_lines + lines;
        while self.core_lines < end {
            let device = if self.open.is_empty() { NEVER } else { self.device.at };
            let core = if self.summing.is_none() && self.complete.is_empty() { NEVER } else { self.core.at };
            if self.load.at <= device && self.load.at <= core {
                self.load.advance();
                self.load_line();
            } else if device <= core {
                self.device_line();
            } else {
                self.core_line();
            }
        }
    }

    fn load_line(&mut self) {
        let kind = if self.load_lines % 3 == 2 { AccessKind::Write } else { AccessKind::Read };
        let line = LOAD_BASE + self.load_lines;
        self.load_lines += 1;
        self.cache.access(LineAccess { agent: AccessAgent::Load, kind, line, is_whole: true });
    }

    fn device_line(&mut self) {
        let now = self.device.at;
        self.device.advance();
        let served = self.served_at_once.min(self.open.len());
        if self.turn >= served {
            self.turn = 0;
        }
        let request = &mut self.open[self.turn];
        let line = request.buffer * self.chunk_lines + request.filled;
        request.filled += 1;
        let Request { buffer, filled } = *request;
        self.cache.access(LineAccess { agent: AccessAgent::Device, kind: AccessKind::Write, line, is_whole: true });
        if filled >= self.chunk_lines {
            // The next in the queue takes its place.
            self.open.remove(self.turn);
            if self.summing.is_none() && self.complete.is_empty() {
                self.core.at = self.core.at.max(now);
            }
            self.complete.push_back(buffer);
        } else if filled % self.piece_lines == 0 {
            self.turn += 1;
        }
    }

    fn core_line(&mut self) {
        let now = self.core.at;
        self.core.advance();
        let taken = self.summing.or_else(|| self.complete.pop_front().map(|buffer| Summing { buffer, line: 0 }));
        let Some(Summing { buffer, line }) = taken else { return };
        let address = buffer * self.chunk_lines + line;
        self.core_lines += 1;
        self.cache.access(LineAccess {
            agent: AccessAgent::Core,
            kind: AccessKind::Read,
            line: address,
            is_whole: true,
        });
        self.summing = (line + 1 < self.chunk_lines).then_some(Summing { buffer, line: line + 1 });
        if self.summing.is_none() {
            if self.open.is_empty() {
                self.device.at = self.device.at.max(now);
            }
            self.open.push_back(Request { buffer, filled: 0 });
        }
    }
}

/// The curves of one setup: for each chunk size a point for each number of ways.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DdioFigure {
    /// The parameters.
    pub setup: DdioSetup,
    /// The numbers of ways; 0 is DDIO off.
    pub io_ways: Vec<u32>,
    /// The points by chunk size, then ways.
    pub rows: Vec<Vec<DdioPoint>>,
}

/// Simulates chunk sizes with numbers of ways.
///
/// # Errors
/// Those of [`simulate`].
pub fn figure(setup: &DdioSetup, chunks: &[u64], io_ways: &[u32]) -> Result<DdioFigure> {
    let row = |chunk: &u64| io_ways.iter().map(|ways| simulate(setup, *chunk, *ways)).collect();
    let rows = chunks.iter().map(row).collect::<Result<_>>()?;
    Ok(DdioFigure { setup: *setup, io_ways: io_ways.to_vec(), rows })
}
