//! A record as files: JSON with everything, Markdown with the tables that a person reads.

use crate::bench::context::Context;
use crate::bench::records::record::{Comparison, Entry, Record, Target};
use crate::{TaskResult, steps};
use datapipes_picture::chart;
use std::fmt::Write;
use std::path::PathBuf;

/// The columns in the order a reader wants them; other figures follow by name.
const COLUMNS: [&str; 7] = ["wall_s", "durable_s", "cpu_s", "peak_rss_mib", "gb_per_s", "sync_after_s", "user_s"];

/// Writes the files; returns the path of the JSON one. An earlier result is never overwritten.
pub(in crate::bench) fn write(context: &Context, record: &Record) -> TaskResult<PathBuf> {
    let folder = if context.options.small { "target/bench-small" } else { "benchmarks/results" };
    let folder = steps::root().join(folder);
    std::fs::create_dir_all(&folder)?;
    let day = record.date.split(' ').next().unwrap_or_default();
    let names = (1..).map(|n| match n {
        1 => format!("{day}-{}", record.benchmark),
        n => format!("{day}-{}-{n}", record.benchmark),
    });
    let mut paths = names.map(|name| folder.join(name + ".json"));
    let json = paths.find(|path| !path.exists()).ok_or("no free name for the result")?;
    std::fs::write(&json, serde_json::to_string_pretty(record)? + "\n")?;
    let mut text = markdown(record);
    if !record.charts.is_empty() {
        let remark = format!("{}; {}; commit {}", record.machine.cpu, record.date, record.machine.git_commit);
        let picture = json.with_extension("svg");
        std::fs::write(&picture, chart::svg(&record.about, &remark, &record.charts))?;
        let name = picture.file_name().unwrap_or_default().display();
        let _ = write!(text, "\n![{}]({name})\n", record.about);
    }
    std::fs::write(json.with_extension("md"), text)?;
    Ok(json)
}

fn markdown(record: &Record) -> String {
    let mut text = format!("# {}\n\n{}\n\n", record.benchmark, record.about);
    let machine = &record.machine;
    let _ = writeln!(text, "{}, {} turns, medians. Commit {}.\n", record.date, record.turns, machine.git_commit);
    for objection in &record.objections {
        let _ = writeln!(text, "**Not a fair measurement: {objection}.**\n");
    }
    text += &markdown_summary(record);
    text += "\n## Facts\n\n";
    let hypervisor = if machine.hypervisor { ", in a virtual machine" } else { "" };
    let facts = [
        format!("CPU: {}, {} cores{hypervisor}; memory {} GiB", machine.cpu, machine.cores, machine.memory_gib),
        format!("{}, kernel {}, {}", machine.system, machine.kernel, machine.rustc),
        format!("disk: {}", machine.disk),
        format!("filesystem: {}", machine.filesystem),
        format!("huge pages (transparent): {}", machine.transparent_huge_pages),
        format!("load average before: {}", machine.load_average_before),
        format!("page cache: {}", record.page_cache),
        format!("measured: {}", record.measured_by),
    ];
    for line in facts.iter().chain(&record.inputs.iter().map(|i| format!("input: {i}")).collect::<Vec<_>>()) {
        let _ = writeln!(text, "- {line}");
    }
    text += "\n## Contestants\n\n";
    for entry in record.contestants.iter().chain(record.floor.iter().flat_map(|f| &f.settings)) {
        let _ = write!(text, "- **{}** ({})", entry.name, entry.version);
        if !entry.note.is_empty() {
            let _ = write!(text, ": {}", entry.note);
        }
        let _ = writeln!(text, "\n  `{}`", entry.command);
        for run in &entry.runs {
            let figures: Vec<String> = run.figures.iter().map(|(k, v)| format!("{k} {}", number(*v))).collect();
            let _ = writeln!(text, "  - turn {}: {}; {}", run.turn, figures.join(", "), run.verified);
        }
    }
    text
}

/// Medians, comparisons, floor, notes.
pub(in crate::bench) fn markdown_summary(record: &Record) -> String {
    let mut text = String::new();
    if record.small {
        text += "**--small: this proves that the runner works; it says nothing about speed.**\n\n";
    }
    text += &table("contestant", &record.contestants);
    if let Some(floor) = &record.floor {
        let _ = writeln!(text, "\n{}\n", floor.what);
        text += &table("direct I/O by fio", &floor.settings);
        let _ = writeln!(
            text,
            "\nFloor {} s (read: {}; write: {}); by the fastest single runs {} s.",
            number(floor.floor_s),
            floor.best_read,
            floor.best_write,
            number(floor.floor_fastest_s)
        );
    }
    if !record.comparisons.is_empty() {
        text += "\n| comparison | value | target | met |\n|---|---|---|---|\n";
        for comparison in &record.comparisons {
            text += &row(comparison);
        }
    }
    for note in &record.notes {
        let _ = writeln!(text, "\nNote: {note}");
    }
    text
}

fn row(comparison: &Comparison) -> String {
    let target = match comparison.target {
        Some(Target::AtLeast(least)) => format!("at least {least}"),
        Some(Target::AtMost(most)) => format!("at most {most}"),
        None => String::new(),
    };
    let met = comparison.met().map_or("", |met| if met { "yes" } else { "**no**" });
    format!("| {} | {}{} | {target} | {met} |\n", comparison.what, number(comparison.value), comparison.unit)
}

fn table(title: &str, entries: &[Entry]) -> String {
    let has = |column: &str| entries.iter().any(|e| e.medians.contains_key(column));
    let mut columns: Vec<&str> = COLUMNS.into_iter().filter(|c| has(c) && *c != "user_s").collect();
    for name in entries.iter().flat_map(|e| e.medians.keys()) {
        if !columns.contains(&name.as_str()) && name != "user_s" && name != "sys_s" {
            columns.push(name);
        }
    }
    let mut text = format!("| {title} | {} | output |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len() + 2));
    for entry in entries {
        let cells: Vec<String> =
            columns.iter().map(|c| entry.medians.get(*c).map_or_else(String::new, |v| number(*v))).collect();
        let _ = writeln!(text, "| {} | {} | {} |", entry.name, cells.join(" | "), verdict(entry));
    }
    text
}

fn verdict(entry: &Entry) -> String {
    if let Some(why) = &entry.not_measured {
        return format!("not measured: {}", why.replace(['|', '\n'], " "));
    }
    let bad = entry.runs.iter().find(|run| !run.is_good());
    let shown = bad.or(entry.runs.first()).map_or("", |run| run.verified.as_str());
    shown.replace(['|', '\n'], " ")
}

/// Three significant digits are all that a noisy machine can back.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
