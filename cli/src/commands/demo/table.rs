//! What the demo prints.

use std::fmt::Write as _;

use datapipes::Route;
use serde_json::Value;

use super::outcome::{Checked, Outcome, Sorted};
use crate::arguments::units;
use crate::system::child::Usage;

pub(super) fn generated(input: &Checked, usage: &Usage) -> String {
    format!(
        "   {} records in {:.2} s ({}), checksum {}\n",
        input.records,
        usage.seconds,
        units::rate(input.bytes, usage.seconds),
        input.checksum
    )
}

/// The route of the bytes, hop by hop.
pub(super) fn sorted(sorted: &Sorted) -> String {
    let Some(report) = &sorted.report else { return String::new() };
    let mut out = String::new();
    let number = |value: &Value, name: &str| value[name].as_u64().unwrap_or(0);
    let phases = report["phases"].as_array().cloned().unwrap_or_default();
    let phases: Vec<String> = phases
        .iter()
        .map(|p| format!("{} {:.2} s", p["name"].as_str().unwrap_or("?"), p["seconds"].as_f64().unwrap_or(0.0)))
        .collect();
    // Writing to a String cannot fail, hence the discarded results.
    let _ = writeln!(
        out,
        "   {} sorted runs, {} merge passes, {} threads; {}",
        number(report, "runs"),
        number(report, "merge_passes"),
        number(report, "threads"),
        phases.join(", ")
    );
    let _ = writeln!(out, "   hop      by                    bytes      past the page cache   registered   bounces");
    for m in report["movements"].as_array().into_iter().flatten() {
        let c = &m["counters"];
        let (hits, misses) = (number(c, "fixed_buffer_hits"), number(c, "fixed_buffer_misses"));
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
        let _ = writeln!(
            out,
            "   {:<8} {:<18} {:>10} {:>19.1} % {:>10.1} % {:>9}",
            m["role"].as_str().unwrap_or("?"),
            m["primitive"].as_str().unwrap_or("?"),
            units::bytes(number(c, "bytes")),
            share(number(c, "direct_bytes"), number(c, "bytes")),
            share(hits, hits + misses),
            number(c, "bounces")
        );
    }
    out
}

/// Why the bytes went that way.
pub(super) fn routes(routes: &[Route]) -> String {
    let names = ["input", "spill", "merge", "output"];
    let line = |(name, route): (&str, &Route)| {
        let whys = route.hops.iter().map(|hop| format!("   {name:<8} {}: {}\n", hop.primitive, hop.why));
        whys.collect::<String>()
    };
    let lines: String = names.into_iter().zip(routes).map(line).collect();
    format!("   as planned, for places like these\n{lines}")
}

pub(super) fn checked(output: &Checked, kept: bool) -> String {
    let order = if output.sorted { "in order" } else { "NOT IN ORDER" };
    let same = if kept { "the same records as the input" } else { "NOT THE RECORDS OF THE INPUT" };
    format!(
        "   {} records {order}, {} duplicate keys, checksum {}: {same}\n",
        output.records, output.duplicates, output.checksum
    )
}

/// The two side by side, and whether it all holds.
pub(super) fn verdict(outcome: &Outcome) -> String {
    let mut out = String::new();
    let ours = Some(&outcome.dpipe);
    let theirs = outcome.system.as_ref();
    let _ =
        writeln!(out, "\n{:<28} {:>14} {:>16}", "", "dpipe sort", if theirs.is_some() { "system's sort" } else { "" });
    let mut row = |name: &str, figure: &dyn Fn(&Usage) -> String| {
        let cell = |sorted: Option<&Sorted>| sorted.map_or_else(String::new, |s| figure(&s.usage));
        let _ = writeln!(out, "{name:<28} {:>14} {:>16}", cell(ours), cell(theirs));
    };
    row("time", &|u| format!("{:.2} s", u.seconds));
    row("rate", &|u| units::rate(outcome.bytes, u.seconds));
    row("processor time", &|u| format!("{:.2} s", u.cpu_seconds()));
    row("peak memory", &|u| units::memory(u.peak_memory_bytes));
    if let Some(theirs) = theirs {
        let times = theirs.usage.seconds / outcome.dpipe.usage.seconds.max(1e-9);
        let _ = writeln!(out, "\ndpipe sort was {times:.1} times as fast as {}", theirs.name);
    }
    if let Some(why) = &outcome.system_absent {
        let _ = writeln!(out, "\nthe system's sort was not run: {why}");
    }
    match outcome.same {
        Some(true) => _ = writeln!(out, "both outputs are the same bytes"),
        Some(false) => _ = writeln!(out, "THE OUTPUTS DIFFER"),
        None => {}
    }
    let _ = writeln!(
        out,
        "{}",
        match outcome.holds {
            true => "everything holds: the output is in order and has the records of the input",
            false => "SOMETHING DOES NOT HOLD, see above",
        }
    );
    out
}
