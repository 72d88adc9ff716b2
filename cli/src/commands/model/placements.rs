//! `dpipe model placements`: figure 3 of *Towards Disaggregation-Native Data Streaming between
//! Devices*, and beyond.

use datapipes::{Error, ErrorKind, Result};
use datapipes_models::placements::{
    Figure3, ParameterSet, Parameters, PublishedRanges, Scenario, SimulatedPlacement, Steps, WhatIf, figure_3,
    published, sets, what_ifs,
};
use datapipes_models::time::Time;
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::arguments::units::{self, parse_size};
use crate::outcome::{CommandStatus, print, print_json};
use crate::system::side_files::{CommandPlaces, SideFileArgument, SideFiles};
use crate::table::{Table, save};
use datapipes_picture::chart::{Form, Panel, Series, svg};

const ENDING: Ending = Ending {
    notes: "\
It gives the latency of a block through a chain of devices and back, where the protocol runs on the
application's machine, on a CPU of the resource pool, or on the devices. The paper publishes
ranges, not the bars. The output says what is calibrated.",
    zero: "the figures are shown",
    one: None,
    examples: &[
        "dpipe model placements",
        "dpipe model placements --devices 4 --credits 8 --json",
        "dpipe model placements --costs closed-form --plot placements.svg",
    ],
};

/// Models data channels between devices under three placements of the protocol.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Set of costs: closed-form, free-steps, calibrated-2 or calibrated
    #[arg(long, alias = "set", default_value = "calibrated", value_name = "NAME")]
    costs: String,
    /// Nanoseconds of a command's round trip between machines
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(..=MAX_ROUND_TRIP_NS))]
    across: Option<u64>,
    /// Nanoseconds of a command's round trip within a pool
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(..=MAX_ROUND_TRIP_NS))]
    within: Option<u64>,
    /// Bytes of the largest write
    #[arg(long, alias = "packet", value_name = "SIZE", value_parser = parse_size)]
    packet_size: Option<u64>,
    /// Number of devices in a row
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    devices: u16,
    /// Number of machines that the devices are spread over
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pools: u16,
    /// Blocks under way on a channel
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    credits: u32,
    /// Print JSON: set, shape, published, figure_3 (rows, ranges), sets, what_ifs; times in us
    #[arg(long)]
    json: bool,
    /// Draw the charts as SVG
    #[arg(long, alias = "svg", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<SideFileArgument>,
}

/// A second. A model of much longer times says nothing of machines in one room.
const MAX_ROUND_TRIP_NS: u64 = 1_000_000_000;

/// The shortest write. The model has an event for each.
const MIN_PACKET: u64 = 64;

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Report {
    set: ParameterSet,
    shape: Scenario,
    published: PublishedRanges,
    figure_3: Figure3,
    /// The ranges that every set gives for the paper's shape.
    sets: Vec<(ParameterSet, PublishedRanges)>,
    what_ifs: Vec<WhatIf>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let places = CommandPlaces::of("model placements");
    let plot = SideFiles::beside(places).begin("--plot", args.plot.as_ref())?;
    let report = report(args)?;
    if let Some(file) = plot {
        save(file, &picture(&report))?;
    }
    if args.json {
        print_json(&report)?;
    } else {
        show(&report)?;
    }
    Ok(CommandStatus::Good)
}

fn report(args: &Args) -> Result<Report> {
    let Some(mut set) = sets().into_iter().find(|s| s.name == args.costs) else {
        let names: Vec<_> = sets().iter().map(|s| s.name).collect();
        let error = Error::new(ErrorKind::InvalidInput, "model", format!("there is no set `{}`", args.costs));
        return Err(error.with_advice(format!("take one of {}", names.join(", "))));
    };
    if let Some(bytes) = args.packet_size.filter(|bytes| *bytes < MIN_PACKET) {
        let error = Error::new(ErrorKind::InvalidInput, "model", format!("packets of {bytes} bytes"));
        return Err(error.with_advice(format!("give --packet-size {MIN_PACKET} or more")));
    }
    if args.pools > args.devices {
        let why = format!("{} devices in {} machines", args.devices, args.pools);
        return Err(
            Error::new(ErrorKind::InvalidInput, "model", why).with_advice("give at most a machine for each device")
        );
    }
    let parameters = &mut set.parameters;
    args.across.into_iter().for_each(|ns| parameters.across.round_trip = Time::ns(ns));
    args.within.into_iter().for_each(|ns| parameters.within.round_trip = Time::ns(ns));
    args.packet_size.into_iter().for_each(|bytes| parameters.packet_bytes = bytes);
    let shape = Scenario {
        devices: usize::from(args.devices),
        pools: usize::from(args.pools),
        credits: args.credits,
        in_flight: args.credits,
        ..Scenario::paper(0)
    };
    let ranges = |set: ParameterSet| (set, figure_3(&set.parameters, &Scenario::paper(0)).ranges);
    Ok(Report {
        set,
        shape,
        published: published(),
        figure_3: figure_3(&set.parameters, &shape),
        sets: sets().map(ranges).into(),
        what_ifs: what_ifs(&set.parameters, &shape),
    })
}

fn show(report: &Report) -> Result<()> {
    let ParameterSet { name, parameters, origin } = &report.set;
    let Scenario { devices, pools, credits, .. } = report.shape;
    print(&format!(
        "A MODEL, in virtual time: {devices} devices in {pools} pool(s), {credits} credit(s), costs `{name}`\n  {origin}\n"
    ))?;
    print(&costs(parameters))?;
    print("\nFigure 3: latency of a block in us (sizes with * are not in the paper)\n")?;
    let mut table = Table::default();
    table.row(["block", "application", "central", "distributed", "vs application", "vs central"]);
    for row in &report.figure_3.rows {
        let star = if row.is_published { "" } else { "*" };
        let [a, c, d] = row.outcomes.map(|o| format!("{:.2}", o.latency.as_us()));
        let block = format!("{}{star}", units::memory(row.block_bytes));
        table.row([block, a, c, d, percent(row.than_application), percent(row.than_central)]);
    }
    table.print(2)?;
    print("\nHow much faster the distributed placement is, over 1 to 32 KiB\n")?;
    let mut table = Table::default();
    table.row(["", "than application-side", "than central"]);
    let range = |r: &PublishedRanges| {
        let text = |low, high| format!("{} .. {}", percent(low), percent(high));
        let (a, c) = (r.than_application, r.than_central);
        [text(a.low, a.high), text(c.low, c.high)]
    };
    let [a, c] = range(&report.published);
    table.row(["the paper".to_owned(), a, c]);
    let [a, c] = range(&report.figure_3.ranges);
    table.row(["as chosen here".to_owned(), a, c]);
    for (set, ranges) in &report.sets {
        let [a, c] = range(ranges);
        table.row([format!("set {}", set.name), a, c]);
    }
    table.print(2)?;
    for what_if in &report.what_ifs {
        show_what_if(what_if)?;
    }
    print(KNOWN)
}

const KNOWN: &str = "
From the paper: 4 KiB packets, two devices, one block under way, the two ranges. Calibrated: all step costs and rates of
the sets named so. Unknown: every absolute latency, for the paper prints no bar; several sets fit equally well.
";

fn costs(parameters: &Parameters) -> String {
    let Steps { receive, fetch_reply, write, send, reply } = parameters.device;
    let rate = |bytes_per_s: f64| match bytes_per_s.is_finite() {
        true => format!("{:.0} GB/s", bytes_per_s / 1e9),
        false => "no limit of rate".to_owned(),
    };
    let ns = |t: Time| t.as_ps() / 1000;
    format!(
        "  round trip across {} ns ({}), within {} ns ({}); packets of {}\n  device: receive {}, fetch reply {}, \
         write {}, send {}, reply {} ns\n",
        ns(parameters.across.round_trip),
        rate(parameters.across.bytes_per_s),
        ns(parameters.within.round_trip),
        rate(parameters.within.bytes_per_s),
        units::memory(parameters.packet_bytes),
        ns(receive),
        ns(fetch_reply),
        ns(write),
        ns(send),
        ns(reply)
    )
}

fn show_what_if(what_if: &WhatIf) -> Result<()> {
    let unit = if what_if.is_about_rate { "GB/s" } else { "latency in us" };
    print(&format!("\nWhat if: {} ({unit})\n", what_if.question))?;
    let mut table = Table::default();
    let cells = |name: String, cell: &dyn Fn(usize) -> String| {
        std::iter::once(name).chain((0..what_if.points.len()).map(cell)).collect::<Vec<_>>()
    };
    table.row(cells(what_if.axis.to_owned(), &|at| what_if.points[at].choice.clone()));
    for (nth, placement) in SimulatedPlacement::ALL.into_iter().enumerate() {
        table.row(cells(placement.name().to_owned(), &|at| format!("{:.2}", value(what_if, at, nth))));
    }
    table.print(2)
}

fn value(what_if: &WhatIf, at: usize, placement: usize) -> f64 {
    let outcome = what_if.points[at].outcomes[placement];
    if what_if.is_about_rate { outcome.bytes_per_s / 1e9 } else { outcome.latency.as_us() }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn picture(report: &Report) -> String {
    let rows = &report.figure_3.rows;
    let published: Vec<_> = rows.iter().filter(|r| r.is_published).collect();
    let series = |nth: usize, values: Vec<f64>| Series {
        name: SimulatedPlacement::ALL[nth].name().to_owned(),
        color: nth,
        is_published: false,
        values: values.into_iter().map(Some).collect(),
    };
    let latency = |nth: usize| published.iter().map(|r| r.outcomes[nth].latency.as_us()).collect();
    let mut panels = vec![
        Panel {
            title: "Figure 3: latency of a block".into(),
            unit: "us (the paper prints no heights)".into(),
            form: Form::Bars,
            is_logarithmic: false,
            labels: published.iter().map(|r| units::memory(r.block_bytes)).collect(),
            series: (0..3).map(|nth| series(nth, latency(nth))).collect(),
        },
        faster(report),
    ];
    panels.extend(report.what_ifs.iter().map(|what_if| {
        Panel {
            title: format!("What if: {}", what_if.question),
            unit: if what_if.is_about_rate { "GB/s".into() } else { format!("us, over {}", what_if.axis) },
            form: Form::Lines,
            is_logarithmic: false,
            labels: what_if.points.iter().map(|p| p.choice.clone()).collect(),
            series: (0..3)
                .map(|nth| series(nth, (0..what_if.points.len()).map(|at| value(what_if, at, nth)).collect()))
                .collect(),
        }
    }));
    let title = "Three placements of the data channel protocol: a model in virtual time";
    svg(title, &format!("costs `{}`: {}", report.set.name, report.set.origin), &panels)
}

/// The speedups, with the published ranges as dashed lines.
fn faster(report: &Report) -> Panel {
    let rows = &report.figure_3.rows;
    let ours = |name: &str, color, value: fn(&datapipes_models::placements::PlacementRow) -> f64| Series {
        name: name.to_owned(),
        color,
        is_published: false,
        values: rows.iter().map(|r| Some(value(r) * 100.0)).collect(),
    };
    let bound = |name: &str, color, value: f64| Series {
        name: name.to_owned(),
        color,
        is_published: true,
        values: rows.iter().map(|r| r.is_published.then_some(value * 100.0)).collect(),
    };
    let PublishedRanges { than_application: a, than_central: c } = report.published;
    Panel {
        title: "How much faster the distributed placement is".into(),
        unit: "%".into(),
        form: Form::Lines,
        is_logarithmic: false,
        labels: rows.iter().map(|r| units::memory(r.block_bytes)).collect(),
        series: vec![
            ours("than application", 0, |r| r.than_application),
            ours("than central", 1, |r| r.than_central),
            bound("paper 45", 0, a.low),
            bound("67", 0, a.high),
            bound("21", 1, c.low),
            bound("28 %", 1, c.high),
        ],
    }
}
