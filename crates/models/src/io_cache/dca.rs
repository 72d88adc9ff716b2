//! Figure 5b: a DMA engine copies from DRAM into persistent memory, through the cache (DCA) or past
//! it.
//!
//! With DCA each line is allocated in the cache, and reaches the memory when it is replaced. Lines
//! of a block that are replaced apart from each other cost a block each.

use datapipes_core::{Error, ErrorKind, Result};
use serde::Serialize;

use super::cache::{AccessAgent, AccessKind, LastLevelCache, LineAccess, LlcCounts};
use super::parameters::{LlcShape, PmemShape, WayMask};
use super::pmem::{PmemCounts, PmemMedia};

/// The parameters of figure 5b.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DcaSetup {
    /// The cache.
    pub llc: LlcShape,
    /// Ways in which the engine's writes allocate; 0 is DCA off. Calibrated to the paper's 3.27:
    /// the register of DDIO says 2 for PCIe devices, and nobody documents the engine's.
    pub io_ways: u32,
    /// Requests under way (paper, section 4.2: 8). The engine writes a line of each in turn:
    /// assumed.
    pub depth: u32,
    /// Bytes of a request. The amplification does not depend on it.
    pub chunk_bytes: u64,
    /// Bytes of the target, over and over again. Assumed: 1 GiB, a spill far larger than the cache.
    pub region_bytes: u64,
    /// The memory.
    pub pmem: PmemShape,
    /// The seed of random replacement.
    pub seed: u64,
}

/// The chunk sizes that are shown. Assumed: the text has "requests of increasing size".
pub const CHUNKS: [u64; 8] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

/// The ways that meet the paper's 3.27. Calibrated.
pub const CALIBRATED_WAYS: u32 = 4;

impl DcaSetup {
    /// Returns the paper's setup.
    pub fn paper() -> DcaSetup {
        DcaSetup {
            llc: LlcShape::paper(),
            io_ways: CALIBRATED_WAYS,
            depth: 8,
            chunk_bytes: 512 << 10,
            region_bytes: 1 << 30,
            pmem: PmemShape::paper(),
            seed: 1,
        }
    }

    /// Returns the same with a target of as many buffers as requests: each is written again and
    /// again.
    #[must_use]
    pub fn reusing_buffers(self) -> DcaSetup {
        DcaSetup { region_bytes: u64::from(self.depth) * self.chunk_bytes, ..self }
    }

    /// Checks that the model can run it.
    ///
    /// # Errors
    /// `InvalidInput`: shapes that their own checks refuse, a depth of 0 or above 1024, chunks
    /// smaller than a block or larger than the region over the depth, a region above 1 TiB.
    pub fn check(&self) -> Result<()> {
        let wrong =
            |what: String, advice: String| Err(Error::new(ErrorKind::InvalidInput, "model", what).with_advice(advice));
        self.llc.check()?;
        self.pmem.check(self.llc.line_bytes)?;
        if self.io_ways > self.llc.ways {
            return wrong(
                format!("{} ways for the engine", self.io_ways),
                format!("take 0 (DCA off) to {}", self.llc.ways),
            );
        }
        if !(1..=1024).contains(&self.depth) {
            return wrong(format!("a depth of {}", self.depth), "take 1 to 1024 requests".into());
        }
        if self.chunk_bytes < self.pmem.block_bytes || !self.chunk_bytes.is_multiple_of(self.llc.line_bytes) {
            let advice = format!("take at least a block of {} bytes, in whole lines", self.pmem.block_bytes);
            return wrong(format!("chunks of {} bytes", self.chunk_bytes), advice);
        }
        let buffers = self.chunk_bytes.saturating_mul(u64::from(self.depth));
        if !(buffers..=1 << 40).contains(&self.region_bytes) {
            let advice = format!("take at least {buffers} bytes (depth times chunk) and at most 1 TiB");
            return wrong(format!("a target of {} bytes", self.region_bytes), advice);
        }
        Ok(())
    }
}

/// The result of one setup.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DcaPoint {
    /// Ways of the engine; 0 is DCA off.
    pub io_ways: u32,
    /// Bytes of a request.
    pub chunk_bytes: u64,
    /// Bytes of the target.
    pub region_bytes: u64,
    /// Bytes that the media wrote for each that reached the memory; nothing if none did.
    pub amplification: Option<f64>,
    /// Bytes that the media wrote for each that the engine wrote. It is below the amplification
    /// where lines are written again before they leave the cache.
    pub media_bytes_per_byte: f64,
    /// What the cache counted.
    pub llc: LlcCounts,
    /// What the memory counted.
    pub pmem: PmemCounts,
}

/// Simulates the engine's writes: first until the cache is as after a long time, then counting.
///
/// # Errors
/// `InvalidInput`: a setup that [`DcaSetup::check`] refuses.
pub fn simulate(setup: &DcaSetup) -> Result<DcaPoint> {
    setup.check()?;
    let line_bytes = setup.llc.line_bytes;
    let mut cache = LastLevelCache::new(setup.llc, WayMask::upper(setup.io_ways, setup.llc.ways), setup.seed);
    let mut pmem = PmemMedia::new(setup.pmem, line_bytes);
    let mut engine = Engine::new(setup);
    let mut write = |lines: u64, cache: &mut LastLevelCache, pmem: &mut PmemMedia| {
        for _ in 0..lines {
            let line = engine.next_line();
            let access = LineAccess { agent: AccessAgent::Device, kind: AccessKind::Write, line, is_whole: true };
            let outcome = cache.access(access);
            outcome.written_back.into_iter().for_each(|old| pmem.write(old));
            if outcome.is_written_past {
                pmem.write(line);
            }
        }
    };
    // The ages of lines under random replacement need several times their number to settle.
    let in_ways = setup.llc.sets * u64::from(setup.io_ways);
    write((4 * in_ways).max(1 << 16), &mut cache, &mut pmem);
    cache.reset_counts();
    pmem.restart();
    write((2 * in_ways).max(1 << 18), &mut cache, &mut pmem);
    pmem.flush();
    let (llc, counts) = (cache.counts(), pmem.counts());
    let written = llc.device.writes * line_bytes;
    Ok(DcaPoint {
        io_ways: setup.io_ways,
        chunk_bytes: setup.chunk_bytes,
        region_bytes: setup.region_bytes,
        amplification: pmem.amplification(),
        media_bytes_per_byte: (counts.blocks * setup.pmem.block_bytes) as f64 / written.max(1) as f64,
        llc,
        pmem: counts,
    })
}

/// The lines in the order in which the engine writes them: one of each request in turn.
struct Engine {
    chunk_lines: u64,
    chunks: u64,
    /// The chunk of each request, and its lines that are written.
    requests: Vec<(u64, u64)>,
    turn: usize,
    next_chunk: u64,
}

impl Engine {
    fn new(setup: &DcaSetup) -> Engine {
        let chunks = setup.region_bytes / setup.chunk_bytes;
        let depth = u64::from(setup.depth);
        Engine {
            chunk_lines: setup.chunk_bytes / setup.llc.line_bytes,
            chunks,
            requests: (0..depth).map(|chunk| (chunk, 0)).collect(),
            turn: 0,
            next_chunk: depth % chunks,
        }
    }

    fn next_line(&mut self) -> u64 {
        let turn = self.turn;
        self.turn = if turn + 1 == self.requests.len() { 0 } else { turn + 1 };
        let (chunk, done) = &mut self.requests[turn];
        let line = *chunk * self.chunk_lines + *done;
        *done += 1;
        if *done == self.chunk_lines {
            (*chunk, *done) = (self.next_chunk, 0);
            self.next_chunk = (self.next_chunk + 1) % self.chunks;
        }
        line
    }
}

/// Returns the amplification of an endless stream of blocks under random replacement, in closed
/// form.
///
/// A pass over all sets replaces one of `ways` lines of each set at random. A line is replaced in
/// pass `k` with the probability `p q^(k-1)`, `p = 1 / ways`, `q = 1 - p`. The lines of a block
/// that are replaced in the same pass are combined, so that a block is written in each pass in
/// which at least one of its lines is replaced: `sum over k of 1 - (1 - p q^(k-1))^lines`.
pub fn closed_form_amplification(ways: u32, lines_of_block: u32) -> f64 {
    let p = 1.0 / f64::from(ways.max(1));
    let (mut part, mut sum) = (p, 0.0);
    while part > 1e-12 {
        sum += 1.0 - (1.0 - part).powi(lines_of_block as i32);
        part *= 1.0 - p;
    }
    sum
}
