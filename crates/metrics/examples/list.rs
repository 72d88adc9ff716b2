//! Prints the tables of docs/metrics.md: `cargo run -p datapipes-metrics --example list`.

use datapipes_metrics::{Label, vocabulary};

fn main() {
    println!("| label | what it says |\n|---|---|");
    Label::ALL.iter().for_each(|label| println!("| `{}` | {} |", label.as_str(), label.help()));
    println!();
    println!("| name | kind | labels | what it is |\n|---|---|---|---|");
    for (_, measurement) in vocabulary::ALL {
        let labels: Vec<&str> = measurement.labels.iter().copied().map(Label::as_str).collect();
        println!(
            "| `{}` | {} | {} | {} |",
            measurement.name,
            measurement.kind.as_str(),
            labels.join(", "),
            measurement.help
        );
    }
}
