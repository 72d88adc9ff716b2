//! Looks for one set of costs for all figures of Pipette, and prints what remains out.
//!
//! ```text
//! cargo run --release -p datapipes-models --example pipette_fit -- [READS]
//! ```

use datapipes_models::pipette::experiment::Scale;
use datapipes_models::pipette::fit::{FitCounters, FitGoal, StepCosts, figures_with, search};

/// The 1.4 of figure 7.
const CONTRADICTS: usize = 2;

fn main() {
    let reads = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let scale = Scale { reads: reads.unwrap_or(Scale::default().reads), ..Scale::default() };
    let counted = FitCounters::run(&scale);
    let sets = [
        ("the model", StepCosts::of_the_model()),
        ("nearest to all but figure 7, E", search(&counted, FitGoal::NearestWithout(CONTRADICTS), 40_000)),
        ("nearest to all", search(&counted, FitGoal::Nearest, 40_000)),
    ];
    for (name, costs) in sets {
        println!("{name}: {costs:.3?}");
        for figure in figures_with(&costs, &counted) {
            let ((low, high), (least, most)) = (figure.published, figure.ours);
            let out = figure.deviation() * 100.0;
            println!("  {:<50} {low:>6.2} {high:>6.2}   {least:>7.2} {most:>7.2}   out by {out:.1} %", figure.what);
        }
    }
}
