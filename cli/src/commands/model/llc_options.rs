//! What `dpipe model ddio` and `dpipe model dca` share: the cache's options, traces, and what the
//! paper says.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use datapipes::{Error, ErrorKind, Result};
use datapipes_models::io_cache::report::{ReplayPoint, replay};
use datapipes_models::io_cache::{AccessTrace, AgentCounts, Finding, LlcShape, PmemShape, Replacement};
use datapipes_models::pipette::report::Agreement;
use serde::Serialize;

use super::pipette::{digits, mark, wrapped};
use crate::arguments::units::{self, parse_size};
use crate::outcome::{print, print_json, shown_path};
use crate::table::Table;

/// The cache.
#[derive(Debug, clap::Args)]
pub(super) struct CacheOptions {
    /// Size of the last-level cache, rounded down to whole sets (the paper's: 35.75M)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    llc_size: Option<u64>,
    /// Ways of the last-level cache
    #[arg(long, default_value_t = LlcShape::paper().ways, value_parser = clap::value_parser!(u32).range(1..=32))]
    ways: u32,
    /// The line that leaves a full set: random or lru
    #[arg(long, default_value = "random", value_name = "NAME")]
    replacement: Replacement,
    /// Put what the core reads from memory into the last-level cache, too
    #[arg(long)]
    inclusive: bool,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
}

impl CacheOptions {
    pub(super) fn shape(&self) -> Result<LlcShape> {
        let paper = LlcShape { replacement: self.replacement, is_inclusive: self.inclusive, ..LlcShape::paper() };
        paper.resized(self.llc_size.unwrap_or(paper.size_bytes()), self.ways)
    }
}

/// A line that says what the cache is.
pub(super) fn told(llc: &LlcShape) -> String {
    format!(
        "{} of cache{}: {} sets of {} ways of {} bytes, replacement {}",
        units::memory(llc.size_bytes()),
        if llc.is_inclusive { ", inclusive" } else { "" },
        llc.sets,
        llc.ways,
        llc.line_bytes,
        llc.replacement.name()
    )
}

/// The numbers of ways, checked.
pub(super) fn checked_ways(io_ways: &[u32], llc: &LlcShape) -> Result<Vec<u32>> {
    match io_ways.iter().find(|ways| **ways > llc.ways) {
        Some(ways) => Err(Error::new(ErrorKind::InvalidInput, "model", format!("{ways} ways of {}", llc.ways))
            .with_advice(format!("give --io-ways 0 (off) to {}", llc.ways))),
        None => Ok(io_ways.to_vec()),
    }
}

/// What a trace caused.
#[derive(Debug, Serialize)]
struct Replayed {
    trace: PathBuf,
    accesses: usize,
    bytes: u64,
    llc: LlcShape,
    pmem: PmemShape,
    points: Vec<ReplayPoint>,
}

/// What is replayed, and how it is shown.
pub(super) struct Replay<'a> {
    pub(super) file: &'a Path,
    pub(super) llc: LlcShape,
    pub(super) pmem: PmemShape,
    pub(super) io_ways: &'a [u32],
    pub(super) json: bool,
}

/// Replays a trace with each number of ways.
pub(super) fn show_trace(given: &Replay<'_>) -> Result<()> {
    let Replay { file, llc, pmem, io_ways, json } = *given;
    let opened = File::open(file).map_err(|e| Error::io("open", e, file.display().to_string()))?;
    let trace = AccessTrace::read(BufReader::new(opened)).map_err(|e| e.within(file.display()))?;
    let points = replay(&trace, llc, pmem, io_ways)?;
    let (accesses, bytes) = (trace.accesses().len(), trace.bytes());
    if json {
        return print_json(&Replayed { trace: file.to_owned(), accesses, bytes, llc, pmem, points });
    }
    print(&format!(
        "A MODEL: {accesses} accesses of {} to {} bytes, in an empty cache\n  {}\n\nMisses of accesses in lines, and \
         lines of memory, by ways of the device\n",
        shown_path(file),
        bytes,
        told(&llc)
    ))?;
    let mut table = Table::default();
    table.row([
        "ways",
        "device",
        "core",
        "memory reads",
        "memory writes",
        "left dirty",
        "PMem blocks",
        "amplification",
    ]);
    let missed = |counts: AgentCounts| format!("{} of {}", counts.misses, counts.accesses());
    for point in &points {
        table.row([
            ways_name(point.io_ways),
            missed(point.llc.device),
            missed(point.llc.core),
            point.memory_reads.to_string(),
            point.memory_writes.to_string(),
            point.dirty_lines_left.to_string(),
            point.pmem.blocks.to_string(),
            point.amplification.map_or("-".into(), |a| format!("{a:.2}")),
        ]);
    }
    table.print(2)?;
    print(&wrapped(
        "PMem: blocks that the media wrote, if all addresses are persistent memory. Lines that are still dirty in the \
         cache at the end have not reached it.",
    ))
}

/// The name of a number of ways.
pub(super) fn ways_name(io_ways: u32) -> String {
    if io_ways == 0 { "off".into() } else { io_ways.to_string() }
}

/// Prints what the paper says beside what the model has.
pub(super) fn show_findings(findings: &[Finding]) -> Result<()> {
    print(
        "\nWhat the paper says\n  = exact   ~ calibrated   ! out of reach of the text   * not in the text, or other options than the \
         paper's\n\n",
    )?;
    let mut table = Table::default();
    table.row(["", "ours", "the paper", "section"]);
    let number = |value: Option<f64>, unit: &str| match value {
        Some(value) => format!("{} {unit}", digits(value)).trim_end().to_owned(),
        None => "-".into(),
    };
    for finding in findings {
        let sign = if finding.standing == Agreement::Unpublished { '*' } else { mark(finding.standing) };
        table.row([
            format!("{sign} {}", finding.what),
            number(finding.ours, finding.unit),
            number(finding.published, finding.unit),
            finding.source.to_owned(),
        ]);
    }
    table.print(2)?;
    print("\nWhy\n")?;
    findings.iter().try_for_each(|finding| print(&wrapped(&format!("{}: {}.", finding.what, finding.why))))
}
