//! `dpipe model dca`: figures 5a and 5b of *Data Pipes: Declarative Control over Data Movement*.

use std::path::PathBuf;

use datapipes::Result;
use datapipes_models::io_cache::dca::{CHUNKS, DcaSetup};
use datapipes_models::io_cache::offload::OffloadRates;
use datapipes_models::io_cache::report::{DcaFigure, OffloadRow, dca_figure, dca_findings};
use datapipes_models::io_cache::{Finding, PmemShape};
use serde::Serialize;

use super::llc_options::{CacheOptions, Replay, checked_ways, show_findings, show_trace, told};
use super::pipette::wrapped;
use crate::arguments::ending::Ending;
use crate::arguments::units::{self, parse_size};
use crate::outcome::{CommandStatus, print, print_json};
use crate::system::side_files::{CommandPlaces, SideFileArgument, SideFiles};
use crate::table::{Table, save};
use datapipes_picture::chart::{Form, Panel, Series, svg};

const ENDING: Ending = Ending {
    notes: "\
An engine copies from DRAM to persistent memory. With DCA its lines wait in the cache, and leave it
in the order of replacement; the memory writes blocks of 256 bytes. The rates of figure 5a follow
from named inputs. The output says what is calibrated to the paper's 3.27 and 2.57.

A trace has one access a line, `device|core read|write ADDRESS BYTES`, and `#` before remarks. All
its addresses are taken to be persistent memory.",
    zero: "the figures are shown",
    one: None,
    examples: &[
        "dpipe model dca",
        "dpipe model dca --io-ways 2 --block-size 4K --entries 16 --json",
        "dpipe model dca --chunks 64K,512K,4M --plot dca.svg",
        "printf 'device write 0 4096\\n' > t; dpipe model dca --trace t",
    ],
};

/// Models a DMA engine that writes to persistent memory through the cache, and its rates.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    #[command(flatten)]
    cache: CacheOptions,
    /// Ways in which the engine's writes allocate [default: calibrated]
    #[arg(long, value_name = "N")]
    io_ways: Option<u32>,
    /// Sizes of chunks
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    chunks: Vec<u64>,
    /// Requests under way
    #[arg(long, default_value_t = DcaSetup::paper().depth, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Size of the target, which is written over and over again
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    region: u64,
    /// Bytes that the memory writes at once: a power of two
    #[arg(long, value_name = "SIZE", default_value = "256", value_parser = parse_size)]
    block_size: u64,
    /// Blocks that a module's buffer combines
    #[arg(long, default_value_t = PmemShape::paper().buffer_entries, value_parser = clap::value_parser!(u32).range(1..=4096))]
    entries: u32,
    /// Modules of persistent memory
    #[arg(long, default_value_t = PmemShape::paper().modules, value_parser = clap::value_parser!(u32).range(1..=64))]
    modules: u32,
    /// Lines that one core has under way
    #[arg(long, default_value_t = OffloadRates::paper().core_lines, value_parser = clap::value_parser!(u32).range(1..=65536))]
    core_lines: u32,
    /// Lines that the engine has under way (the default is calibrated)
    #[arg(long, default_value_t = OffloadRates::paper().engine_lines, value_parser = clap::value_parser!(u32).range(1..=65536))]
    engine_lines: u32,
    /// Nanoseconds of a read of persistent memory
    #[arg(long, value_name = "NS", default_value_t = 169, value_parser = clap::value_parser!(u32).range(1..))]
    latency: u32,
    /// Bytes a second that the media writes
    #[arg(long, value_name = "RATE", default_value = "10G", value_parser = parse_size)]
    media_write: u64,
    /// Replay the accesses of a file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["chunks", "depth", "region", "core_lines", "engine_lines", "latency", "media_write", "plot"])]
    trace: Option<PathBuf>,
    /// Print JSON: figure (setup, rates, through, past, by_ways, rows), findings; or of a trace
    #[arg(long)]
    json: bool,
    /// Draw the charts as SVG
    #[arg(long, alias = "svg", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<SideFileArgument>,
}

#[derive(Debug, Serialize)]
struct Shown {
    figure: DcaFigure,
    findings: Vec<Finding>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let places = CommandPlaces::of("model dca").files(&args.trace);
    let plot = SideFiles::beside(places).begin("--plot", args.plot.as_ref())?;
    let llc = args.cache.shape()?;
    let pmem = PmemShape {
        block_bytes: args.block_size,
        buffer_entries: args.entries,
        modules: args.modules,
        ..PmemShape::paper()
    };
    let paper = DcaSetup::paper();
    // A smaller cache has fewer ways than are calibrated.
    let io_ways = checked_ways(&[args.io_ways.unwrap_or(paper.io_ways.min(llc.ways))], &llc)?[0];
    if let Some(file) = &args.trace {
        let mut all = vec![0, io_ways];
        all.dedup();
        show_trace(&Replay { file, llc, pmem, io_ways: &all, json: args.json })?;
        return Ok(CommandStatus::Good);
    }
    let setup =
        DcaSetup { llc, io_ways, depth: args.depth, region_bytes: args.region, pmem, seed: args.cache.seed, ..paper };
    let rates = OffloadRates {
        core_lines: args.core_lines,
        engine_lines: args.engine_lines,
        read_latency_ns: f64::from(args.latency),
        media_write_bytes_per_s: args.media_write as f64,
        depth: args.depth,
        ..OffloadRates::paper()
    };
    let chunks = if args.chunks.is_empty() { &CHUNKS[..] } else { &args.chunks };
    let figure = dca_figure(&setup, &rates, chunks)?;
    let shown = Shown { findings: dca_findings(&figure)?, figure };
    if let Some(file) = plot {
        save(file, &picture(&shown))?;
    }
    if args.json {
        print_json(&shown)?;
    } else {
        show(&shown)?;
    }
    Ok(CommandStatus::Good)
}

fn show(shown: &Shown) -> Result<()> {
    let DcaFigure { setup, rates, by_ways, rows, .. } = &shown.figure;
    print(&format!(
        "A MODEL, in virtual time: {} requests under way, {} ways for the engine; {}\n  persistent memory: {} modules, \
         blocks of {} bytes, {} of them in the buffer of each\n",
        setup.depth,
        setup.io_ways,
        told(&setup.llc),
        setup.pmem.modules,
        setup.pmem.block_bytes,
        setup.pmem.buffer_entries
    ))?;
    print("\nWrite amplification with DCA, by ways of the engine and replacement\n")?;
    let mut table = Table::default();
    table.row(["ways", "random", "closed form", "lru"]);
    let times = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    for row in by_ways {
        let form = Some(row.closed_form);
        table.row([row.io_ways.to_string(), times(row.random), times(form), times(row.lru)]);
    }
    table.print(2)?;
    print(&wrapped(
        "The closed form is of an endless stream under random replacement; LRU evicts in the order of writing, so that \
         the buffer combines whole blocks.",
    ))?;
    print("\nFigures 5a and 5b: GiB/s, and bytes of the media for a byte if the buffers are used again\n")?;
    let mut table = Table::default();
    let written = format!("engine writes: {}", through_cache(setup.io_ways));
    table.row(["chunk", "core reads", "engine reads", "times", &written, "past cache", "media, reused"]);
    for OffloadRow { rates, reused } in rows {
        table.row([
            units::memory(rates.chunk_bytes),
            gib(rates.core_read_bytes_per_s),
            gib(rates.engine_read_bytes_per_s),
            format!("{:.2}", rates.times),
            gib(rates.engine_write_dca_bytes_per_s),
            gib(rates.engine_write_past_bytes_per_s),
            format!("{:.2}", reused.media_bytes_per_byte),
        ]);
    }
    table.print(2)?;
    print(&wrapped(&format!(
        "Inputs: {} lines of a core and {} of the engine under way, {} ns a read, {} ns a call, {} ns to submit, {} ns \
         before the first byte, media {} GiB/s read and {} written.",
        rates.core_lines,
        rates.engine_lines,
        rates.read_latency_ns,
        rates.call_ns,
        rates.submit_ns,
        rates.setup_ns,
        gib(rates.media_read_bytes_per_s),
        gib(rates.media_write_bytes_per_s),
    )))?;
    show_findings(&shown.findings)
}

fn gib(bytes_per_s: f64) -> String {
    let gib = bytes_per_s / f64::from(1u32 << 30);
    // What is there does not look like nothing.
    if gib > 0.0 && gib < 0.005 { "< 0.01".into() } else { format!("{gib:.2}") }
}

/// How the engine writes through the cache, if it has ways there.
fn through_cache(io_ways: u32) -> &'static str {
    if io_ways == 0 { "no ways" } else { "DCA" }
}

fn picture(shown: &Shown) -> String {
    let DcaFigure { setup, by_ways, rows, .. } = &shown.figure;
    let series = |name: &str, color, values: Vec<Option<f64>>| Series {
        name: name.to_owned(),
        color,
        is_published: false,
        values,
    };
    let amplification = shown.findings.iter().find(|f| f.source == "4.3, figure 5b").and_then(|f| f.published);
    let rate = |name: &str, color, of: fn(&OffloadRow) -> f64| {
        series(name, color, rows.iter().map(|row| Some(of(row) / f64::from(1u32 << 30))).collect())
    };
    let panels = [
        Panel {
            title: "Write amplification with DCA by ways of the engine".into(),
            unit: "bytes of the media for each byte".into(),
            form: Form::Lines,
            is_logarithmic: false,
            labels: by_ways.iter().map(|row| row.io_ways.to_string()).collect(),
            series: vec![
                series("random", 0, by_ways.iter().map(|row| row.random).collect()),
                series("LRU", 1, by_ways.iter().map(|row| row.lru).collect()),
                Series {
                    is_published: true,
                    ..series("the paper", 0, by_ways.iter().map(|_| amplification).collect())
                },
            ],
        },
        Panel {
            title: "Figures 5a and 5b: rates".into(),
            unit: "GiB/s".into(),
            form: Form::Lines,
            is_logarithmic: false,
            labels: rows.iter().map(|row| units::memory(row.rates.chunk_bytes)).collect(),
            series: vec![
                rate("core reads", 0, |row| row.rates.core_read_bytes_per_s),
                rate("engine reads", 1, |row| row.rates.engine_read_bytes_per_s),
                rate(&format!("engine writes, {}", through_cache(setup.io_ways)), 2, |row| {
                    row.rates.engine_write_dca_bytes_per_s
                }),
                rate("past the cache", 3, |row| row.rates.engine_write_past_bytes_per_s),
            ],
        },
    ];
    let remark = format!("{} ways for the engine; {}", setup.io_ways, told(&setup.llc));
    svg("An engine, the last-level cache and persistent memory (Data Pipes, CIDR 2023): a model", &remark, &panels)
}
