//! The figures with what the paper says of them, and traces in the same cache.

use datapipes_core::Result;
use serde::Serialize;

use super::cache::{LastLevelCache, LlcCounts};
use super::dca::{self, DcaPoint, DcaSetup};
use super::ddio::{self, DdioFigure, DdioSetup};
use super::offload::{self, MediaBytes, OffloadPoint, OffloadRates};
use super::parameters::{LlcShape, PmemShape, Replacement, WayMask};
use super::pmem::{PmemCounts, PmemMedia};
use super::published;
use super::trace::AccessTrace;
use crate::pipette::report::Agreement;

/// A statement of the paper, and what the model has for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Where it is in the paper.
    pub source: &'static str,
    /// The statement.
    pub what: String,
    /// The unit of both numbers.
    pub unit: &'static str,
    /// The paper's number, if its text has one.
    pub published: Option<f64>,
    /// The model's number, if it has one.
    pub ours: Option<f64>,
    /// Their agreement.
    pub standing: Agreement,
    /// Where the agreement comes from, or why there is none.
    pub why: &'static str,
}

/// The ways that the paper compares.
const PAPER_WAYS: [u32; 2] = [2, 11];
/// A difference in misses that counts as one.
const NOTABLE: f64 = 0.05;
/// Below this part of misses the ratio of two is noise.
pub const MIN_MISSES: f64 = 0.02;

/// Returns what the paper says of figures 3 and 4, with the numbers of a setup.
///
/// # Errors
/// Those of [`ddio::simulate`].
pub fn ddio_findings(setup: &DdioSetup) -> Result<Vec<Finding>> {
    let ways = PAPER_WAYS.map(|ways| ways.min(setup.llc.ways));
    let all = ddio::figure(setup, &ddio::CHUNKS, &[0, ways[0], ways[1]])?;
    let one = DdioSetup { served_at_once: 1, ..*setup };
    let one = ddio::figure(&one, &[CHUNKS_OF_ONE, &ddio::CHUNKS[..]].concat(), &[0, ways[0]])?;
    let finding = |source, what: String, unit, numbers: (Option<f64>, Option<f64>), standing, why| Finding {
        source,
        what,
        unit,
        published: numbers.0,
        ours: numbers.1,
        standing,
        why,
    };
    let largest = |figure: &DdioFigure| {
        let helps = |row: &&Vec<ddio::DdioPoint>| fewer(row[0].core_misses, row[1].core_misses) >= NOTABLE;
        figure.rows.iter().filter(helps).map(|row| row[0].chunk_bytes).max().map(|bytes| bytes as f64 / MIB)
    };
    let below = |is_below: bool| {
        let rows = all.rows.iter().filter(|row| {
            let chunk = row[0].chunk_bytes;
            if is_below { chunk < published::BELOW_BYTES } else { chunk > published::BELOW_BYTES }
        });
        let is_seen = |row: &&Vec<ddio::DdioPoint>| row[1].core_misses >= MIN_MISSES;
        rows.filter(is_seen).map(|row| fewer(row[1].core_misses, row[2].core_misses)).fold(0.0, f64::max) * 100.0
    };
    let findings = vec![
        finding(
            "4.1, figure 4",
            format!("misses from {} to {} ways, below 1 MiB: fewer by up to", ways[0], ways[1]),
            "%",
            (Some(published::FEWER_MISSES * 100.0), Some(below(true))),
            Agreement::Calibrated,
            "the load that reaches the cache is chosen for it; other loads, LRU, and a cache that is inclusive give others",
        ),
        finding(
            "4.1, figure 4",
            "the same above 1 MiB".into(),
            "%",
            (None, Some(below(false))),
            Agreement::Unpublished,
            "not fitted: the gain is largest where 32 chunks outgrow 2 ways (6.5 MiB), and small where they outgrow 11",
        ),
        finding(
            "4.1, figure 3b",
            "largest chunk for which DDIO saves 5 % of the misses or more".into(),
            "MiB",
            (Some(LlcShape::paper().size_bytes() as f64 / MIB), largest(&all)),
            Agreement::OutOfReach,
            "the paper has \"as long as the chunk fits into L3\"; here all chunks under way have to fit",
        ),
        finding(
            "4.1, figure 3b",
            "the same if the device serves one request after the other".into(),
            "MiB",
            (Some(LlcShape::paper().size_bytes() as f64 / MIB), largest(&one)),
            Agreement::OutOfReach,
            "the two rows are bounds, because the text does not say how the SSD spreads requests; served one by one, the ways \
             would matter above 1 MiB, and not below",
        ),
        finding(
            "4.1, figures 3a, 3c",
            "throughput and latency with and without DDIO".into(),
            "",
            (None, None),
            Agreement::OutOfReach,
            "the text prints no numbers, and the model has no bandwidth of memory under the load",
        ),
    ];
    let is_papers = *setup == DdioSetup { seed: setup.seed, ..DdioSetup::paper() };
    Ok(standing_of(findings, is_papers))
}

/// Of another setup than the paper's no number is exact or calibrated.
fn standing_of(mut findings: Vec<Finding>, is_papers: bool) -> Vec<Finding> {
    for finding in findings.iter_mut().filter(|finding| !is_papers && finding.standing != Agreement::OutOfReach) {
        finding.standing = Agreement::Unpublished;
    }
    findings
}

const MIB: f64 = (1u64 << 20) as f64;
/// The largest chunk that fits into the paper's cache, for a device that serves one request at a
/// time.
const CHUNKS_OF_ONE: &[u64] = &[32 << 20];

/// The part of the misses that is saved; 0 if there were none.
pub fn fewer(before: f64, after: f64) -> f64 {
    if before > 0.0 { 1.0 - after / before } else { 0.0 }
}

/// The amplification with some ways for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AmplificationByWays {
    /// The ways.
    pub io_ways: u32,
    /// Simulated, with random replacement.
    pub random: Option<f64>,
    /// The closed form of random replacement.
    pub closed_form: f64,
    /// Simulated, with LRU.
    pub lru: Option<f64>,
}

/// One chunk size of figures 5a and 5b.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OffloadRow {
    /// The rates.
    pub rates: OffloadPoint,
    /// The media's bytes for each of the engine's, if as many buffers as requests are used again.
    pub reused: DcaPoint,
}

/// Figures 5a and 5b.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DcaFigure {
    /// The parameters.
    pub setup: DcaSetup,
    /// The inputs of the rates.
    pub rates: OffloadRates,
    /// The engine's writes through the cache.
    pub through: DcaPoint,
    /// The engine's writes past the cache.
    pub past: DcaPoint,
    /// The amplification by ways.
    pub by_ways: Vec<AmplificationByWays>,
    /// The rates by chunk size.
    pub rows: Vec<OffloadRow>,
}

/// Simulates figure 5 with a setup.
///
/// # Errors
/// Those of [`dca::simulate`] and [`offload::figure`].
pub fn dca_figure(setup: &DcaSetup, rates: &OffloadRates, chunks: &[u64]) -> Result<DcaFigure> {
    // What makes no sense is told before anything is simulated.
    for chunk_bytes in chunks {
        DcaSetup { chunk_bytes: *chunk_bytes, ..*setup }.reusing_buffers().check()?;
    }
    offload::figure(rates, chunks, MediaBytes { dca: 1.0, past: 1.0 })?;
    let through = dca::simulate(setup)?;
    let past = dca::simulate(&DcaSetup { io_ways: 0, ..*setup })?;
    let mut ways = vec![1, 2, 4, 8, 11, setup.llc.ways, setup.io_ways];
    ways.retain(|ways| (1..=setup.llc.ways).contains(ways));
    ways.sort_unstable();
    ways.dedup();
    let by_ways = ways.into_iter().map(|io_ways| amplification(setup, io_ways)).collect::<Result<_>>()?;
    let media = MediaBytes { dca: through.media_bytes_per_byte, past: past.media_bytes_per_byte };
    let points = offload::figure(rates, chunks, media)?;
    let row = |rates: OffloadPoint| {
        let setup = DcaSetup { chunk_bytes: rates.chunk_bytes, ..*setup };
        Ok(OffloadRow { rates, reused: dca::simulate(&setup.reusing_buffers())? })
    };
    let rows = points.into_iter().map(row).collect::<Result<_>>()?;
    Ok(DcaFigure { setup: *setup, rates: *rates, through, past, by_ways, rows })
}

fn amplification(setup: &DcaSetup, io_ways: u32) -> Result<AmplificationByWays> {
    let with = |replacement| {
        let llc = LlcShape { replacement, ..setup.llc };
        dca::simulate(&DcaSetup { io_ways, llc, ..*setup }).map(|point| point.amplification)
    };
    let lines = (setup.pmem.block_bytes / setup.llc.line_bytes) as u32;
    Ok(AmplificationByWays {
        io_ways,
        random: with(Replacement::Random)?,
        closed_form: dca::closed_form_amplification(io_ways, lines),
        lru: with(Replacement::Lru)?,
    })
}

/// Returns what the paper says of figures 5a and 5b, with the numbers of a figure.
///
/// # Errors
/// Those of [`offload::figure`].
pub fn dca_findings(figure: &DcaFigure) -> Result<Vec<Finding>> {
    let finding = |source, what: &str, unit, numbers: (Option<f64>, Option<f64>), standing, why| Finding {
        source,
        what: what.to_owned(),
        unit,
        published: numbers.0,
        ours: numbers.1,
        standing,
        why,
    };
    let setup = &figure.setup;
    let media = MediaBytes { dca: figure.through.media_bytes_per_byte, past: figure.past.media_bytes_per_byte };
    let points = offload::figure(&figure.rates, &dca::CHUNKS, media)?;
    let times = points.iter().map(|point| point.times).reduce(f64::max);
    let largest = points.last();
    let held = |row: &&OffloadRow| row.reused.media_bytes_per_byte < 0.5;
    let held = figure.rows.iter().filter(held).map(|row| row.rates.chunk_bytes as f64 / 1024.0).reduce(f64::max);
    let mut findings = vec![
        finding(
            "4.2, figure 5a",
            "engine's rate over one core's copies, from PMem to DRAM: up to",
            "times",
            (Some(published::ENGINE_TIMES), times),
            Agreement::Calibrated,
            "the lines that the engine has under way are chosen for it; the core's follow from 10 buffers and 169 ns",
        ),
        finding(
            "4.2",
            "cores that copy as fast as the engine",
            "cores",
            (Some(published::CORES), times.map(f64::ceil)),
            Agreement::Exact,
            "the next whole number above 2.57",
        ),
        finding(
            "4.3",
            "largest write amplification: lines of a block",
            "times",
            (Some(published::MAX_AMPLIFICATION), Some((setup.pmem.block_bytes / setup.llc.line_bytes) as f64)),
            Agreement::Exact,
            "256 bytes of a block over 64 of a line",
        ),
        finding(
            "4.3, figure 5b",
            "write amplification with DCA",
            "times",
            (Some(published::AMPLIFICATION), figure.through.amplification),
            Agreement::Calibrated,
            "the engine's ways are chosen for it; 2 and 11 ways bracket it, and LRU would give about 1",
        ),
        finding(
            "4.3",
            "write amplification past the cache",
            "times",
            (None, figure.past.amplification),
            Agreement::Unpublished,
            "the authors could not switch DCA off; the engine writes lines of a block after each other",
        ),
        finding(
            "4.3, figure 5b",
            "engine's writes over its reads",
            "times",
            (
                Some(published::WRITE_OVER_READ),
                largest.map(|p| p.engine_write_dca_bytes_per_s / p.engine_read_bytes_per_s),
            ),
            Agreement::Calibrated,
            "not fitted itself: it follows from 10 GiB/s, the amplification, and the engine's read rate",
        ),
        finding(
            "4.3",
            "engine's writes past the cache, over those with DCA",
            "times",
            (None, largest.map(|p| p.engine_write_past_bytes_per_s / p.engine_write_dca_bytes_per_s)),
            Agreement::Unpublished,
            "what the missing switch costs, if nothing but the media limits the engine",
        ),
        finding(
            "4.3, figure 5b",
            "largest chunk at which the engine still writes faster than a core",
            "KiB",
            (Some(published::FASTER_UP_TO_BYTES as f64 / 1024.0), held),
            Agreement::OutOfReach,
            "here: the largest whose 8 buffers stay in the engine's ways, if they are used again. With 2 ways it is 512, \
             with the calibrated 4 it is 1024; the text has neither the buffers nor the core's write rate",
        ),
        finding(
            "4.3, figure 5b",
            "bytes that the engine writes a second with DCA",
            "GiB/s",
            (None, largest.map(|p| p.engine_write_dca_bytes_per_s / GIB)),
            Agreement::Unpublished,
            "the media's 10 GiB/s, an input from the text, over the amplification",
        ),
    ];
    if setup.io_ways == 0 {
        // Nothing is written with DCA.
        findings.retain(|finding| !finding.what.contains("DCA"));
    }
    let is_papers = *setup == DcaSetup { seed: setup.seed, ..DcaSetup::paper() };
    Ok(standing_of(findings, is_papers && figure.rates == OffloadRates::paper()))
}

const GIB: f64 = (1u64 << 30) as f64;

/// What a trace caused with some ways for devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReplayPoint {
    /// Ways of devices; 0 is DDIO or DCA off.
    pub io_ways: u32,
    /// What the cache counted.
    pub llc: LlcCounts,
    /// Lines that memory read.
    pub memory_reads: u64,
    /// Lines that memory wrote.
    pub memory_writes: u64,
    /// Dirty lines that were still in the cache at the end.
    pub dirty_lines_left: u64,
    /// What persistent memory counted, if all addresses are there.
    pub pmem: PmemCounts,
    /// The bytes that its media wrote for each that reached it; nothing if none did.
    pub amplification: Option<f64>,
}

/// Replays a trace in an empty cache, once for each number of ways.
///
/// # Errors
/// Shapes that their own checks refuse.
pub fn replay(trace: &AccessTrace, llc: LlcShape, pmem: PmemShape, io_ways: &[u32]) -> Result<Vec<ReplayPoint>> {
    llc.check()?;
    pmem.check(llc.line_bytes)?;
    let point = |&io_ways: &u32| {
        let mut cache = LastLevelCache::new(llc, WayMask::upper(io_ways, llc.ways), 1);
        let mut media = PmemMedia::new(pmem, llc.line_bytes);
        trace.replay(&mut cache, llc.line_bytes, |line, outcome| {
            outcome.written_back.into_iter().for_each(|old| media.write(old));
            if outcome.is_written_past {
                media.write(line);
            }
        });
        media.flush();
        let counts = cache.counts();
        ReplayPoint {
            io_ways,
            llc: counts,
            memory_reads: counts.memory_reads(),
            memory_writes: counts.memory_writes(),
            dirty_lines_left: cache.dirty_lines(),
            pmem: media.counts(),
            amplification: media.amplification(),
        }
    };
    Ok(io_ways.iter().map(point).collect())
}
