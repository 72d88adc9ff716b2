//! `dpipe model ddio`: figures 3 and 4 of *Data Pipes: Declarative Control over Data Movement*.

use std::path::PathBuf;

use datapipes::Result;
use datapipes_models::io_cache::ddio::{CHUNKS, DdioFigure, DdioPoint, DdioSetup, MAX_DEPTH, figure};
use datapipes_models::io_cache::report::{MIN_MISSES, ddio_findings, fewer};
use datapipes_models::io_cache::{Finding, PmemShape};
use serde::Serialize;

use super::llc_options::{CacheOptions, Replay, checked_ways, show_findings, show_trace, told, ways_name};
use crate::arguments::ending::Ending;
use crate::arguments::units::{self, parse_size};
use crate::outcome::{CommandStatus, print, print_json};
use crate::system::side_files::{CommandPlaces, SideFileArgument, SideFiles};
use crate::table::{Table, save};
use datapipes_picture::chart::{Form, Panel, Series, svg};

const ENDING: Ending = Ending {
    notes: "\
A device fills chunks at a queue depth, a core sums each when it is complete, and a load brings
other lines into the cache. The device's writes allocate only in some ways (IIO_LLC_WAYS). The
output says what is calibrated to the paper's 41 %.

A trace has one access a line, `device|core read|write ADDRESS BYTES`, and `#` before remarks:
  device write 0x10000 4096
  core read 0x10000 4096",
    zero: "the figures are shown",
    one: None,
    examples: &[
        "dpipe model ddio",
        "dpipe model ddio --load 0 --replacement lru --json",
        "dpipe model ddio --chunks 64K,256K,1M --io-ways 0,2,11 --plot ddio.svg",
        "printf 'device write 0 4096\\ncore read 0 4096\\n' > t; dpipe model ddio --trace t",
    ],
};

/// Models a device that writes into some ways of the cache, beside a load and a core that sums.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    #[command(flatten)]
    cache: CacheOptions,
    /// Ways in which the device's writes allocate, each number a curve; 0 is DDIO off
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    io_ways: Vec<u32>,
    /// Sizes of chunks
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    chunks: Vec<u64>,
    /// Requests under way, each with a buffer
    #[arg(long, default_value_t = DdioSetup::paper().depth, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEPTH)))]
    depth: u32,
    /// Requests that the device serves at the same time [default: all that are under way]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEPTH)))]
    served: Option<u32>,
    /// Bytes a second that the load brings into the cache; 0 is no load [default: calibrated]
    #[arg(long, value_name = "RATE", value_parser = parse_size)]
    load: Option<u64>,
    /// Bytes a second that the device writes [default: 3.5GB]
    #[arg(long, value_name = "RATE", value_parser = parse_size)]
    device: Option<u64>,
    /// Bytes a second that the core sums [default: 10GB]
    #[arg(long, value_name = "RATE", value_parser = parse_size)]
    core: Option<u64>,
    /// Replay the accesses of a file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["chunks", "depth", "served", "load", "device", "core", "plot"])]
    trace: Option<PathBuf>,
    /// Print JSON: figure (setup, io_ways, rows of points), findings; for a trace: llc, points
    #[arg(long)]
    json: bool,
    /// Draw the charts as SVG
    #[arg(long, alias = "svg", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<SideFileArgument>,
}

/// The ways that are shown.
const WAYS: [u32; 6] = [0, 2, 4, 6, 8, 11];

#[derive(Debug, Serialize)]
struct Shown {
    figure: DdioFigure,
    findings: Vec<Finding>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let places = CommandPlaces::of("model ddio").files(&args.trace);
    let plot = SideFiles::beside(places).begin("--plot", args.plot.as_ref())?;
    let llc = args.cache.shape()?;
    let io_ways = match &args.io_ways[..] {
        [] => WAYS.into_iter().filter(|ways| *ways <= llc.ways).collect(),
        given => checked_ways(given, &llc)?,
    };
    if let Some(file) = &args.trace {
        show_trace(&Replay { file, llc, pmem: PmemShape::paper(), io_ways: &io_ways, json: args.json })?;
        return Ok(CommandStatus::Good);
    }
    let paper = DdioSetup::paper();
    let rate = |given: Option<u64>, default: f64| given.map_or(default, |bytes| bytes as f64);
    let setup = DdioSetup {
        llc,
        depth: args.depth,
        served_at_once: args.served.unwrap_or(args.depth),
        device_bytes_per_s: rate(args.device, paper.device_bytes_per_s),
        core_bytes_per_s: rate(args.core, paper.core_bytes_per_s),
        load_bytes_per_s: rate(args.load, paper.load_bytes_per_s),
        seed: args.cache.seed,
    };
    let chunks = if args.chunks.is_empty() { &CHUNKS[..] } else { &args.chunks };
    let shown = Shown { figure: figure(&setup, chunks, &io_ways)?, findings: ddio_findings(&setup)? };
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
    let DdioFigure { setup, rows, .. } = &shown.figure;
    print(&format!(
        "A MODEL, in virtual time: {} chunks under way, {} served at once; {}\n  device {:.1}, core {:.1}, load {:.1} \
         GB/s\n",
        setup.depth,
        setup.served_at_once,
        told(&setup.llc),
        setup.device_bytes_per_s / 1e9,
        setup.core_bytes_per_s / 1e9,
        setup.load_bytes_per_s / 1e9,
    ))?;
    print(
        "\nFigures 3b and 4: % of the core's reads that missed, by ways of the device (off: without DDIO), and the \
         change where misses are not too few to tell\n",
    )?;
    let mut table = Table::default();
    let compared = compared(&shown.figure);
    let name = compared.map(|(low, high)| {
        let ways = &shown.figure.io_ways;
        format!("{} to {}", ways[low], ways[high])
    });
    let names = shown.figure.io_ways.iter().map(|ways| ways_name(*ways));
    table.row(["chunk".to_owned()].into_iter().chain(names).chain(name));
    for row in rows {
        let Some(first) = row.first() else { continue };
        let cells = row.iter().map(|point| percent(point.core_misses));
        let gain = compared.map(|(low, high)| match gain(row, low, high) {
            Some(gain) => format!("{:+.1} %", -100.0 * gain),
            None => String::new(),
        });
        table.row([units::memory(first.chunk_bytes)].into_iter().chain(cells).chain(gain));
    }
    table.print(2)?;
    show_counts(&shown.figure)?;
    show_findings(&shown.findings)
}

/// Who missed, with the fewest ways.
fn show_counts(figure: &DdioFigure) -> Result<()> {
    let Some(at) = figure.io_ways.iter().position(|ways| *ways > 0) else { return Ok(()) };
    print(&format!(
        "\nWith {} ways: % of each one's accesses that missed, and lines of memory for a line of a chunk, the load's \
         included\n",
        figure.io_ways[at]
    ))?;
    let mut table = Table::default();
    table.row(["chunk", "device", "core", "load", "memory reads", "memory writes"]);
    for point in figure.rows.iter().map(|row| &row[at]) {
        let of_line = |count: u64| format!("{:.2}", count as f64 / point.counts.core.reads.max(1) as f64);
        table.row([
            units::memory(point.chunk_bytes),
            percent(point.counts.device.miss_part()),
            percent(point.counts.core.miss_part()),
            percent(point.counts.load.miss_part()),
            of_line(point.counts.memory_reads()),
            of_line(point.counts.memory_writes()),
        ]);
    }
    table.print(2)
}

/// The places of the fewest and the most ways with DDIO, if they differ.
fn compared(figure: &DdioFigure) -> Option<(usize, usize)> {
    let on = || figure.io_ways.iter().enumerate().filter(|(_, ways)| **ways > 0);
    let (low, fewest) = on().min_by_key(|(_, ways)| **ways)?;
    let (high, most) = on().max_by_key(|(_, ways)| **ways)?;
    (fewest < most).then_some((low, high))
}

/// The part of the misses that more ways save; nothing where there are too few misses to tell.
fn gain(row: &[DdioPoint], low: usize, high: usize) -> Option<f64> {
    let (before, after) = (row[low].core_misses, row[high].core_misses);
    (before >= MIN_MISSES).then(|| fewer(before, after))
}

fn percent(part: f64) -> String {
    format!("{:.1}", part * 100.0)
}

fn picture(shown: &Shown) -> String {
    let DdioFigure { setup, io_ways, rows } = &shown.figure;
    let labels: Vec<String> = rows.iter().map(|row| units::memory(row[0].chunk_bytes)).collect();
    let curve = |at: usize| Series {
        name: if io_ways[at] == 0 { "DDIO off".into() } else { format!("{} ways", io_ways[at]) },
        color: at,
        is_published: false,
        values: rows.iter().map(|row| Some(row[at].core_misses * 100.0)).collect(),
    };
    let mut panels = vec![Panel {
        title: "Figures 3b and 4: the core's reads that missed".into(),
        unit: "%".into(),
        form: Form::Lines,
        is_logarithmic: false,
        labels: labels.clone(),
        series: (0..io_ways.len()).map(curve).collect(),
    }];
    if let Some((low, high)) = compared(&shown.figure) {
        let finding = shown.findings.iter().find_map(|finding| finding.published);
        let below = |row: &Vec<DdioPoint>| finding.filter(|_| row[0].chunk_bytes < 1 << 20);
        panels.push(Panel {
            title: format!("Figure 4: fewer misses from {} to {} ways", io_ways[low], io_ways[high]),
            unit: "%".into(),
            form: Form::Lines,
            is_logarithmic: false,
            labels,
            series: vec![
                Series {
                    name: "the model".into(),
                    color: 0,
                    is_published: false,
                    values: rows.iter().map(|row| gain(row, low, high).map(|gain| gain.max(0.0) * 100.0)).collect(),
                },
                Series {
                    name: "the paper: up to, below 1 MiB".into(),
                    color: 0,
                    is_published: true,
                    values: rows.iter().map(below).collect(),
                },
            ],
        });
    }
    let remark = format!("depth {}, load {:.1} GB/s; {}", setup.depth, setup.load_bytes_per_s / 1e9, told(&setup.llc));
    svg("Devices, cores and the last-level cache (Data Pipes, CIDR 2023): a model", &remark, &panels)
}
