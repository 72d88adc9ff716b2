//! `dpipe model cloudsort`: a sort of many terabytes on a cluster, beside the published record.

use datapipes::{Error, ErrorKind, Result};
use datapipes_models::cloudsort::{
    CloudSortEstimate, CloudSortInputs, CloudSortWhatIf, InputInfluence, InputLevel, RECORD_DOLLARS, RECORD_SECONDS,
    estimate, influences, what_ifs,
};
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::arguments::units::{self, parse_size};
use crate::outcome::{CommandStatus, print, print_json};
use crate::table::Table;

const ENDING: Ending = Ending {
    notes: "\
It gives the time and the cost of a sort from objects to objects on a cluster, from measured and
published rates. Each input is shown with its range and its origin. Nothing was run on a cloud.
Beside it stands Exoshuffle-CloudSort: 100 TB on 40 nodes in 5378 s, for 97 dollars.",
    zero: "the estimate is shown",
    one: None,
    examples: &[
        "dpipe model cloudsort",
        "dpipe model cloudsort --nodes 80 --set network=1.17 --set losses=25",
        "dpipe model cloudsort --nodes 10 --bytes 1000g --json",
    ],
};

/// Models a sort of many terabytes on a cluster.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Number of nodes that sort
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    nodes: u64,
    /// Bytes to sort; without it 100 TB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    bytes: Option<u64>,
    /// Give an input of the table a value, without a range; repeat for several
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Print JSON: inputs, worst, likely, best (phases, seconds, dollars), what_ifs, influences
    #[arg(long)]
    json: bool,
}

/// No input is larger, whatever its unit, and no rate or price is smaller.
const MAX_VALUE: f64 = 1e9;
const MIN_RATE: f64 = 1e-6;

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Report {
    inputs: CloudSortInputs,
    worst: CloudSortEstimate,
    likely: CloudSortEstimate,
    best: CloudSortEstimate,
    record_seconds: f64,
    record_dollars: f64,
    what_ifs: Vec<CloudSortWhatIf>,
    influences: Vec<InputInfluence>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let inputs = inputs(args)?;
    let report = Report {
        worst: estimate(&inputs, InputLevel::Worst),
        likely: estimate(&inputs, InputLevel::Likely),
        best: estimate(&inputs, InputLevel::Best),
        record_seconds: RECORD_SECONDS,
        record_dollars: RECORD_DOLLARS,
        what_ifs: what_ifs(&inputs),
        influences: influences(&inputs),
        inputs,
    };
    if args.json {
        print_json(&report)?
    } else {
        show(&report)?
    }
    Ok(CommandStatus::Good)
}

fn inputs(args: &Args) -> Result<CloudSortInputs> {
    let record = CloudSortInputs::record();
    if args.bytes == Some(0) {
        let error = Error::new(ErrorKind::InvalidInput, "model", "--bytes 0: nothing is to be sorted");
        return Err(error.with_advice("say how much is, such as 100t"));
    }
    let mut inputs = CloudSortInputs { nodes: args.nodes, bytes: args.bytes.unwrap_or(record.bytes), ..record };
    for text in &args.set {
        let refuse = |why: String| {
            let names: Vec<_> = inputs.inputs.iter().map(|one| one.name).collect();
            Error::new(ErrorKind::InvalidInput, "model", format!("--set {text}: {why}"))
                .with_advice(format!("inputs are {}", names.join(", ")))
        };
        let Some((name, value)) = text.split_once('=') else { return Err(refuse("say NAME=VALUE".to_owned())) };
        let found = inputs.inputs.iter().find(|one| one.name == name).map(|one| one.input);
        let Some(input) = found else { return Err(refuse("there is no such input".to_owned())) };
        // Rates divide, and a slack of all of the time leaves none.
        let allowed = match name {
            "losses" | "detection" | "fixed" => 0.0..=MAX_VALUE,
            "slack" => 0.0..=0.99,
            _ => MIN_RATE..=MAX_VALUE,
        };
        let value = value.parse().ok().filter(|value: &f64| allowed.contains(value));
        let Some(value) = value else {
            return Err(refuse(format!("the value is no number from {} to {}", allowed.start(), allowed.end())));
        };
        inputs = inputs.with(input, value);
    }
    Ok(inputs)
}

fn show(report: &Report) -> Result<()> {
    let CloudSortInputs { nodes, bytes, inputs } = &report.inputs;
    print(&format!("A MODEL: {} from objects to objects on {nodes} nodes\n\n", units::bytes(*bytes)))?;
    let mut table = Table::default();
    table.row(["input", "worst", "likely", "best", "unit", "origin", "source"]);
    for one in inputs {
        let [worst, likely, best] = [one.worst, one.likely, one.best].map(|value| value.to_string());
        table.row([one.name, &worst, &likely, &best, one.unit, one.origin.name(), one.source]);
    }
    table.print(2)?;
    print("\nEstimate, with all inputs at once at their worst, as likely, at their best\n")?;
    let mut table = Table::default();
    table.row(["", "worst", "likely", "best", "the record"]);
    let all = [&report.worst, &report.likely, &report.best];
    for i in 0..report.likely.phases.len() {
        let of = |made: &CloudSortEstimate| {
            made.phases.get(i).map_or(String::new(), |phase| format!("{:.0} s ({})", phase.seconds, phase.bound.name()))
        };
        let [worst, likely, best] = all.map(of);
        let name = report.likely.phases.get(i).map_or("", |phase| phase.name);
        table.row([name, &worst, &likely, &best, ""]);
    }
    let [worst, likely, best] = all.map(|made| format!("{:.0} s", made.seconds));
    table.row(["all", &worst, &likely, &best, &format!("{:.0} s", report.record_seconds)]);
    let [worst, likely, best] = all.map(|made| format!("${:.0}", made.dollars));
    table.row(["cost", &worst, &likely, &best, &format!("${:.0}", report.record_dollars)]);
    table.print(2)?;
    print("\nWhat if, all else as likely\n")?;
    let mut table = Table::default();
    table.row(["change", "seconds", "dollars", "map is bound by", "reduce"]);
    for CloudSortWhatIf { change, estimate } in &report.what_ifs {
        let bound = |i: usize| estimate.phases.get(i).map_or("", |phase| phase.bound.name());
        let (seconds, dollars) = (format!("{:.0}", estimate.seconds), format!("{:.0}", estimate.dollars));
        table.row([change, &seconds, &dollars, bound(0), bound(1)]);
    }
    table.print(2)?;
    print("\nInputs whose range matters, all else as likely: seconds\n")?;
    let mut table = Table::default();
    table.row(["input", "at its worst", "at its best"]);
    for one in &report.influences {
        table.row([one.name, &format!("{:.0}", one.worst_seconds), &format!("{:.0}", one.best_seconds)]);
    }
    table.print(2)?;
    print(KNOWN)
}

const KNOWN: &str = "
The record stands for the record's 100 TB on 40 nodes only. The phases are those of the record, which
merges on each node before it writes to its disk. `datapipes.ray` does not, and refuses so many blocks.
";
