//! `dpipe calibrate`: what the processor's primitives cost here, and the knobs.

use std::path::Path;

use datapipes::topology::Topology;
use datapipes::{Error, ErrorKind, Result};
use datapipes_cpu::Calibration;
use datapipes_dma::{DsaBackend, MoveCost};
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::arguments::units;
use crate::outcome::{CommandStatus, print, print_json};

const ENDING: Ending = Ending {
    notes: "\
Without options it measures this machine unless that was done before, keeps the result, and
shows it.",
    zero: "the calibration is shown",
    one: None,
    examples: &[
        "dpipe calibrate --show",
        "dpipe calibrate --show --json",
        "dpipe calibrate  # needs some seconds",
        "dpipe calibrate --set kernel_1M=memcpy  # needs a calibration",
    ],
};

/// Measures what the processor's primitives cost here, and sets the knobs.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Show what is known, without measuring
    #[arg(long, conflicts_with_all = ["redo", "set"])]
    show: bool,
    /// Set a knob, whatever was measured, and keep it (may be repeated)
    #[arg(long, value_name = "KNOB=VALUE", value_parser = knob)]
    set: Vec<(String, String)>,
    /// Measure again, and forget the knobs that were set
    #[arg(long)]
    redo: bool,
    /// Print JSON: path, fingerprint, measured, took_ms, copies, classes, prefetch_bytes, lines,
    /// layers, set, knobs, engine, dmadev
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown<'a> {
    path: String,
    #[serde(flatten)]
    calibration: &'a Calibration,
    knobs: Vec<datapipes::backend::Knob>,
    /// What the DMA engine costs, where there is one.
    engine: Option<MoveCost>,
    /// What the first engine of DPDK costs, where DPDK was asked for.
    dmadev: Option<MoveCost>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let machine = datapipes::discover();
    let topology = machine.topology();
    let path = Calibration::path(topology)?;
    let mut calibration = match (args.show, args.redo) {
        (true, _) => Calibration::load_or_assumed(topology),
        (_, true) => Calibration::measure(topology)?,
        _ => Calibration::load_or_measure(topology)?,
    };
    for (knob, value) in &args.set {
        calibration.set(knob, value)?;
    }
    if args.redo || !args.set.is_empty() {
        calibration.save(topology)?;
    }
    let engine = engine_cost(args, topology)?;
    let dmadev = dmadev_cost(args, topology)?;
    let shown = Shown {
        path: path.display().to_string(),
        calibration: &calibration,
        knobs: calibration.knobs(),
        engine,
        dmadev,
    };
    if args.json {
        print_json(&shown)?
    } else {
        print(&text(&shown))?
    }
    Ok(CommandStatus::Good)
}

/// Loads or measures what the engine costs; `None` where there is no engine.
fn engine_cost(args: &Args, topology: &Topology) -> Result<Option<MoveCost>> {
    let engine = DsaBackend::new(topology);
    let path = datapipes_bundle::engine_cost_path(topology).filter(|_| !engine.queues().usable.is_empty());
    path.map(|path| kept_cost(args, &path, || engine.measure())).transpose()
}

/// Loads or measures what the first engine of DPDK costs; `None` where there is none.
fn dmadev_cost(args: &Args, topology: &Topology) -> Result<Option<MoveCost>> {
    let backend = datapipes_bundle::dmadev(topology);
    let Some(device) = backend.devices().usable.first() else { return Ok(None) };
    let path = datapipes_bundle::dmadev_cost_path(topology, &device.name);
    path.map(|path| kept_cost(args, &path, || backend.measure())).transpose()
}

fn kept_cost(args: &Args, path: &Path, measure: impl FnOnce() -> Result<MoveCost>) -> Result<MoveCost> {
    match MoveCost::load_from(path) {
        Ok(cost) if !args.redo => Ok(cost),
        _ if args.show => Ok(MoveCost::ASSUMED),
        _ => {
            let cost = measure()?;
            cost.save_as(path)?;
            Ok(cost)
        }
    }
}

fn text(shown: &Shown<'_>) -> String {
    let c = shown.calibration;
    let mut out = match c.measured {
        true => format!("measured in {} ms, kept in {}\n", c.took_ms, shown.path),
        false => "assumed, not measured: `dpipe calibrate` measures\n".to_owned(),
    };
    out += "\nlayers          size    latency   read GB/s   copy GB/s\n";
    for l in &c.layers {
        let size = l.size_bytes.map_or_else(|| "?".into(), units::memory);
        let copy = l.copy_bytes_per_s.map_or_else(|| "-".into(), |rate| format!("{:.1}", rate / 1e9));
        let latency = units::nanoseconds(l.latency_ns);
        out += &format!("{:<8} {size:>11} {latency:>10} {:>11.1} {copy:>11}\n", l.name, l.read_bytes_per_s / 1e9);
    }
    out += "\nlines\n";
    out += &format!("load-into-cache   {:.1} GB/s\n", c.lines.load_bytes_per_s / 1e9);
    for (name, ns) in
        [("cldemote", c.lines.cldemote_ns), ("clwb", c.lines.clwb_ns), ("clflushopt", c.lines.clflushopt_ns)]
    {
        out += &match ns {
            Some(ns) => format!("{name:<17} {ns:.1} ns a line\n"),
            None => format!("{name:<17} absent\n"),
        };
    }
    for (cost, names) in
        [(shown.engine, ["dsa-move", "dsa-and-core"]), (shown.dmadev, ["dmadev-move", "dmadev-and-core"])]
    {
        let Some(cost) = cost else { continue };
        let [alone, shared] = names;
        let origin = if cost.measured { "measured" } else { "assumed" };
        let latency = units::nanoseconds(cost.latency_ns);
        out += &format!("{alone:<17} {latency}, {:.1} GB/s ({origin})\n", cost.bytes_per_s / 1e9);
        if let Some(split) = cost.split {
            let (both, core) = (split.bytes_per_s / 1e9, split.core_bytes_per_s / 1e9);
            out += &format!("{shared:<17} {both:.1} GB/s, of a core alone {core:.1} GB/s ({origin})\n");
        }
    }
    out += "\nknob                      value          origin\n";
    for knob in &shown.knobs {
        out += &format!("{:<25} {:<14} {}\n", knob.name, knob.value, knob.origin);
    }
    out
}

fn knob(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| {
        let error = Error::new(ErrorKind::InvalidInput, "set", format!("`{text}`"));
        error.with_advice("write KNOB=VALUE").to_string()
    })?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
