//! Definitions whose turns an example program takes inside one process: it prints one JSON object a
//! row.

use crate::TaskResult;
use crate::bench::context::{Context, Example};
use crate::bench::measuring::measure::measure;
use crate::bench::records::record::{Entry, Figures, Record, Run};
use serde_json::{Map, Value};
use std::process::Command;

/// An example program that prints rows.
pub(in crate::bench) struct Rows {
    pub(in crate::bench) example: Example,
    /// Give it the data folder as an argument.
    pub(in crate::bench) on_disk: bool,
    /// What a row is called, from its fields.
    pub(in crate::bench) name: fn(&Map<String, Value>) -> String,
    /// The figures of a row.
    pub(in crate::bench) figures: fn(&Map<String, Value>) -> Figures,
    /// How the work was found right.
    pub(in crate::bench) verified: &'static str,
}

/// Runs the example as often as asked, and files its rows.
///
/// # Errors
/// Where it cannot be built, or fails: all its rows are ours.
pub(in crate::bench) fn run(context: &Context, rows: &Rows) -> TaskResult<Record> {
    let mut record = context.record();
    record.notes.push("one entry a row; the figures are the example's own (in turns inside one process)".into());
    let program = context.example(rows.example)?;
    for turn in 1..=context.options.runs {
        let mut command = Command::new(&program);
        // The example decides what small means; it must end in seconds then.
        command.args(context.options.small.then_some("--small"));
        if rows.on_disk {
            command.arg(&context.options.dir);
        }
        let stdout = measure(&mut command)?.stdout;
        print!("{stdout}");
        for line in stdout.lines().filter(|line| line.starts_with('{')) {
            let row: Map<String, Value> = serde_json::from_str(line)?;
            let name = (rows.name)(&row);
            let at = record.contestants.iter().position(|e| e.name == name).unwrap_or_else(|| {
                let version = "this commit".to_string();
                // The folder is a temporary one of this machine.
                let command = format!("{}{}", rows.example.name, if context.options.small { " --small" } else { "" });
                record.contestants.push(Entry { name, version, command, ..Entry::default() });
                record.contestants.len() - 1
            });
            let (figures, verified) = ((rows.figures)(&row), rows.verified.to_string());
            record.contestants[at].runs.push(Run { turn, figures, verified });
        }
    }
    record.contestants.iter_mut().for_each(Entry::take_medians);
    Ok(record)
}

/// All words of a row, in the order of their fields' names.
pub(in crate::bench) fn words(row: &Map<String, Value>) -> String {
    let mut words: Vec<&str> = row.values().filter_map(Value::as_str).collect();
    words.reverse();
    words.join(": ")
}

/// All numbers of a row.
pub(in crate::bench) fn numbers(row: &Map<String, Value>) -> Figures {
    row.iter().filter_map(|(key, value)| Some((key.clone(), value.as_f64()?))).collect()
}
