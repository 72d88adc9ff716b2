//! `dpipe machine`: the hardware and primitives of this machine.

mod analytics;
mod facts;
mod offload;
mod picture;
mod storage;

use std::fmt::Write as _;
use std::path::PathBuf;

use datapipes::Result;
use datapipes::backend::Backend;
use datapipes::topology::BlockDevice;
use datapipes_cpu::Calibration;
use datapipes_metrics::ByteRate;

use crate::arguments::ending::Ending;
use crate::arguments::units;
use crate::gpu_memory::GpuFacts;
use crate::outcome::{CommandStatus, print, print_json, with_names};
use crate::system::side_files::{CommandPlaces, SideFileArgument, SideFiles};
use crate::system::signals::{self, WaitsFor};
use analytics::AnalyticsEngines;
use facts::{BackendFacts, Facts};
use offload::KernelOffload;
use storage::StorageCost;

const ENDING: Ending = Ending {
    notes: "",

    zero: "the machine is shown",
    one: None,
    examples: &["dpipe machine", "dpipe machine --json", "dpipe machine --plot pyramid.svg --dir ."],
};

/// Shows what this machine has: cores, caches, memory, storage, primitives.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Print JSON: fingerprint, topology, storage, backends (name, primitives, tried_on, knobs),
    /// analytics, kernel_offload, gpus, io_uring, calibration, storage_cost
    #[arg(long)]
    json: bool,
    /// Measure, and draw the storage pyramid of this machine as SVG
    #[arg(long, alias = "svg", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<SideFileArgument>,
    /// Measure the processor, memory and storage for some seconds, and keep the calibration
    #[arg(long)]
    measure: bool,
    /// Folder on the storage to show and measure [default: the one for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let plot = SideFiles::beside(CommandPlaces::of("machine")).take("--plot", args.plot.as_ref())?;
    let machine = datapipes::discover();
    let topology = machine.topology();
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let measure = args.measure || args.plot.is_some();
    if measure {
        signals::catch(WaitsFor::Places);
    }
    let calibration = match (args.measure, measure) {
        (true, _) => {
            let calibration = Calibration::measure(topology)?;
            // A place where it cannot be kept is no reason not to show it.
            let _ = calibration.save(topology);
            calibration
        }
        (_, true) => Calibration::load_or_measure(topology)?,
        _ => Calibration::load_or_assumed(topology),
    };
    let storage_cost = if measure { Some(storage::measure(&machine, &dir)?) } else { None };
    let facts = Facts {
        fingerprint: topology.fingerprint(),
        topology,
        storage: BlockDevice::behind(&dir).ok(),
        backends: machine.backends().iter().map(|b| backend_facts(b.as_ref())).collect(),
        analytics: AnalyticsEngines::find(),
        kernel_offload: KernelOffload::find(),
        gpus: GpuFacts::find(),
        io_uring: datapipes_file::UringFacts::probe(),
        calibration,
        storage_cost,
    };
    if let Some(file) = &plot {
        file.write_text(&picture::draw(&facts))?;
    }
    if args.json {
        print_json(&facts)?
    } else {
        print(&with_names(text(&facts)?, [dir.as_path()]))?
    }
    Ok(CommandStatus::Good)
}

fn backend_facts(backend: &dyn Backend) -> BackendFacts {
    let primitives = backend.primitives();
    let tried_on = primitives.iter().map(|p| (p.name, datapipes::tried_on(p.name).words())).collect();
    BackendFacts { name: backend.name(), primitives, tried_on, knobs: backend.knobs() }
}

fn text(facts: &Facts<'_>) -> Result<String> {
    let mut out = facts.topology.to_string();
    // Writing to a String cannot fail, hence the discarded results.
    if let Some(storage) = &facts.storage {
        let _ = write!(out, "\n{storage}");
    }
    uring_text(&mut out, &facts.io_uring);
    for backend in &facts.backends {
        let _ = writeln!(out, "primitives of `{}`", backend.name);
        for p in &backend.primitives {
            let (has, why) = match &p.available {
                Ok(found) => ("yes", found),
                Err(absent) => ("no", absent),
            };
            let tried = datapipes::tried_on(p.name).words();
            let _ = writeln!(out, "  {:<18} {has:<4} {}; {why}; tried on {tried}", p.name, p.what);
        }
        let _ = writeln!(out);
    }
    out += &facts.analytics.text();
    out += &facts.kernel_offload.text();
    out += &facts.gpus.text();
    layers(&mut out, facts);
    if let Some(cost) = &facts.storage_cost {
        storage_text(&mut out, cost);
    }
    let count: usize = facts.backends.iter().map(|b| b.knobs.len()).sum();
    let _ = writeln!(
        out,
        "\n{count} knobs: `dpipe calibrate --show` lists them, `dpipe calibrate --set NAME=VALUE` turns one"
    );
    Ok(out)
}

fn layers(out: &mut String, facts: &Facts<'_>) {
    let c = &facts.calibration;
    let origin = if c.measured { "measured" } else { "assumed: `dpipe calibrate` measures them" };
    let _ = writeln!(out, "layers ({origin})");
    for layer in &c.layers {
        let size = layer.size_bytes.map_or_else(|| "unknown".into(), units::memory);
        let copy = layer.copy_bytes_per_s.map_or_else(String::new, |rate| format!(", copies {:.1} GB/s", rate / 1e9));
        let _ = writeln!(
            out,
            "  {:<5} {size:>10}  {:>9}  reads {:.1} GB/s{copy}",
            layer.name,
            units::nanoseconds(layer.latency_ns),
            layer.read_bytes_per_s / 1e9
        );
    }
}

fn storage_text(out: &mut String, cost: &StorageCost) {
    let _ = writeln!(
        out,
        "  SSD   {:>10}  {:>9}  reads {}, writes {}  ({}, {})",
        "",
        units::nanoseconds(cost.random_read_p50_ns),
        ByteRate(cost.read_bytes_per_second),
        ByteRate(cost.write_bytes_per_second),
        cost.dir,
        cost.access
    );
    for p in &cost.primitives {
        match &p.bytes_per_second {
            Ok(rate) => _ = writeln!(out, "    {:<18} {:<14} {}", p.name, p.between, ByteRate(*rate)),
            Err(why) => _ = writeln!(out, "    {:<18} {:<14} not measured: {why}", p.name, p.between),
        }
    }
}

fn uring_text(out: &mut String, facts: &datapipes_file::UringFacts) {
    let state = |verdict: &std::result::Result<(), String>| match verdict {
        Ok(()) => "yes".to_owned(),
        Err(why) => format!("no, {why}"),
    };
    let _ = writeln!(
        out,
        "\nio_uring\n  available     {}\n  registers     {}\n  features      {}\n  operations    {}\n",
        state(&facts.available),
        state(&facts.registered_memory),
        facts.features.join(", "),
        facts.operations.join(", ")
    );
}
