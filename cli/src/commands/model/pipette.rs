//! `dpipe model pipette`: tables 2 to 4 and figures 6 to 9 of *Pipette: Efficient Fine-Grained
//! Reads for SSDs*.

use datapipes::Result;
use datapipes_models::pipette::CachePolicy;
use datapipes_models::pipette::experiment::{FittedParameters, Scale};
use datapipes_models::pipette::figures::report;
use datapipes_models::pipette::report::{Agreement, Cell, Grid, ModelReport};
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::outcome::{CommandStatus, print, print_json};
use crate::system::side_files::{CommandPlaces, SideFileArgument, SideFiles};
use crate::table::{Table, save};
use datapipes_picture::chart::{Form, Panel, Series, svg};

const ENDING: Ending = Ending {
    notes: "\
It compares block I/O, 2B-SSD by MMIO and by DMA, Pipette without and with its cache, and
this project's cache on the same modelled device, beside the paper's figures. Each figure says
whether it is exact, calibrated, or out of reach of the text.",
    zero: "the figures are shown",
    one: None,
    examples: &[
        "dpipe model pipette --reads 5000 --nodes 2000",
        "dpipe model pipette --reads 5000 --nodes 2000 --json --plot pipette.svg",
    ],
};

/// Models reads of a few bytes from SSDs, by pages or by bytes, beside the published tables.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Reads of each workload and application (the paper: 2500000); tables 2 and 3 hold for the
    /// default only
    #[arg(long, default_value_t = Scale::default().reads, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    reads: u64,
    /// Nodes of the social graph
    #[arg(long, default_value_t = Scale::default().nodes, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    nodes: u64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = Scale::default().seed)]
    seed: u64,
    /// Policy of this project's cache: pipette (the paper's), adaptive, s3-fifo, sieve,
    /// w-tiny-lfu
    #[arg(long, default_value = "pipette", value_name = "NAME")]
    policy: CachePolicy,
    /// Print JSON: scale, fit, grids (title, unit, columns, rows of cells), relations
    #[arg(long)]
    json: bool,
    /// Draw the charts as SVG
    #[arg(long, alias = "svg", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<SideFileArgument>,
}

#[derive(Debug, Serialize)]
struct Shown {
    scale: Scale,
    fit: FittedParameters,
    #[serde(flatten)]
    report: ModelReport,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let places = CommandPlaces::of("model pipette");
    let plot = SideFiles::beside(places).begin("--plot", args.plot.as_ref())?;
    let scale = Scale { reads: args.reads, nodes: args.nodes, seed: args.seed };
    let fit = FittedParameters { policy: args.policy, ..FittedParameters::fitted() };
    let shown = Shown { scale, fit, report: report(&fit, &scale)? };
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
    print(&format!(
        "A MODEL, in virtual time: {} reads, seed {}, policy {}. Ours (the paper's):\n  = exact   ~ calibrated   \
         ! out of reach of the text\n",
        shown.scale.reads,
        shown.scale.seed,
        shown.fit.policy.name()
    ))?;
    for grid in &shown.report.grids {
        print(&format!("\n{} ({})\n", grid.title, grid.unit))?;
        let mut table = Table::default();
        table.row([String::new()].into_iter().chain(grid.columns.iter().cloned()));
        for row in &grid.rows {
            table.row([row.name.clone()].into_iter().chain(row.cells.iter().map(cell)));
        }
        table.print(2)?;
        print(&wrapped(grid.note))?;
    }
    print("\nWhat the text says of figure 8\n")?;
    let mut table = Table::default();
    table.row(["", "ours", "the paper"]);
    for r in &shown.report.relations {
        let range = |(low, high): (f64, f64)| match low == high {
            true => digits(low),
            false => format!("{} .. {}", digits(low), digits(high)),
        };
        table.row([r.what.to_owned(), range(r.ours), format!("{} {}", mark(r.standing), range(r.published))]);
    }
    table.print(2)
}

pub(super) fn mark(standing: Agreement) -> char {
    match standing {
        Agreement::Exact => '=',
        Agreement::Calibrated => '~',
        Agreement::OutOfReach => '!',
        Agreement::Unpublished => ' ',
    }
}

fn cell(cell: &Cell) -> String {
    match cell.published {
        Some(published) => format!("{} ({}{})", digits(cell.ours), mark(cell.standing), digits(published)),
        // The padding keeps the digits of a column aligned.
        None => format!("{}         ", digits(cell.ours)),
    }
}

pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A note in lines of up to 110 letters.
pub(super) fn wrapped(note: &str) -> String {
    let (mut out, mut line) = (String::new(), String::from(" "));
    for word in note.split_whitespace() {
        if line.len() + word.len() > 110 {
            out += &line;
            out.push('\n');
            line = " ".into();
        }
        line.push(' ');
        line += word;
    }
    out + &line + "\n"
}

fn picture(shown: &Shown) -> String {
    let panels: Vec<Panel> = shown.report.grids.iter().map(panel).collect();
    let remark = format!(
        "{} reads, seed {}; filled: the model, hollow or dashed: the paper's printed figures",
        shown.scale.reads, shown.scale.seed
    );
    svg("Fine-grained reads (Pipette, DAC 2022): a model in virtual time", &remark, &panels)
}

fn panel(grid: &Grid) -> Panel {
    let is_line = grid.title.starts_with("Figure 8");
    let mut series = Vec::new();
    for (nth, row) in grid.rows.iter().enumerate() {
        // The three without cache are one row of the tables of traffic.
        if grid.unit == "MiB" && (nth == 1 || nth == 2) {
            continue;
        }
        let published: Vec<Option<f64>> = row.cells.iter().map(|c| c.published).collect();
        // The same colour in every panel: Pipette's is that of row 4 of most, the library's of row
        // 5.
        let color = if grid.rows.len() < 5 && nth > 0 { nth + 3 } else { nth };
        let one = |is_published, values| Series { name: row.name.clone(), color, is_published, values };
        series.push(one(false, row.cells.iter().map(|c| Some(c.ours)).collect()));
        // The library's row repeats the paper's figures for Pipette.
        if published.iter().any(Option::is_some) && !row.name.contains("library") {
            series.push(Series { name: "paper".into(), ..one(true, published) });
        }
    }
    Panel {
        title: grid.title.to_owned(),
        unit: grid.unit.to_owned(),
        form: if is_line { Form::Lines } else { Form::Bars },
        is_logarithmic: true,
        labels: grid.columns.clone(),
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_notes_are_set() {
        let of = |published, standing| cell(&Cell { published, ours: 2972.29, standing });
        assert_eq!(of(Some(2973.6), Agreement::Calibrated), "2972.3 (~2973.6)");
        assert_eq!(of(None, Agreement::Unpublished).trim_end(), "2972.3");
        assert_eq!([0.044, 1.316, 305.17].map(digits), ["0.044", "1.32", "305.2"]);
        let lines = wrapped(&"word ".repeat(60));
        assert!(lines.lines().count() == 3 && lines.lines().all(|l| l.len() <= 112 && l.starts_with("  word")));
    }
}
