//! DRAM to DRAM: our copy against libc, `rep movsb` and non-temporal stores, from 64 B to 256 MiB,
//! and what a blocking transfer of 64 B costs over memcpy. The example takes turns inside one
//! process; we repeat the process.

use crate::TaskResult;
use crate::bench::contestants::rows::{self, Rows};
use crate::bench::context::{Context, Example};
use crate::bench::records::record::{Figures, Record, Target};
use serde_json::{Map, Value};

pub(in crate::bench) const ABOUT: &str = "DRAM to DRAM, 64 B to 256 MiB: our copy, libc, rep movsb, non-temporal";

const ROWS: Rows = Rows {
    example: Example { package: "datapipes-cpu", name: "copy_rate" },
    on_disk: false,
    name,
    figures,
    verified: "rate only (copies are checked by the property tests)",
};

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let mut record = rows::run(context, &ROWS)?;
    let names: Vec<String> = record.contestants.iter().map(|e| e.name.clone()).collect();
    for name in names {
        record.limit("ours_over_best", &name, Target::AtLeast(1.0));
        record.limit("overhead_ns", &name, Target::AtMost(30.0));
    }
    Ok(record)
}

/// What the row is about: its size, or its only words.
fn name(row: &Map<String, Value>) -> String {
    let size = ["size", "size_bytes", "bytes"].iter().find_map(|key| row.get(*key)?.as_u64());
    let words: Vec<&str> = row.values().filter_map(Value::as_str).collect();
    match size {
        Some(size) => [&[size_name(size).as_str()], words.as_slice()].concat().join(", "),
        None => words.join(", "),
    }
}

fn size_name(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// The numbers of a row; where rates of ours and of others are there, also ours over the best of
/// the others.
fn figures(row: &Map<String, Value>) -> Figures {
    let numbers = row.iter().filter_map(|(key, value)| value.as_f64().map(|v| (key.clone(), v)));
    let mut figures: Figures =
        numbers.filter(|(k, _)| !["size", "size_bytes", "bytes"].contains(&k.as_str())).collect();
    let best = |prefixes: &[&str]| {
        let rates = figures.iter().filter(|(key, _)| key.ends_with("_s"));
        let wanted = rates.filter(|(key, _)| prefixes.iter().any(|p| key.starts_with(p)));
        wanted.map(|(_, v)| *v).reduce(f64::max)
    };
    if let (Some(ours), Some(others)) = (best(&["ours"]), best(&["libc", "rep", "nt", "non_temporal", "avx"])) {
        figures.insert("ours_over_best".into(), ours / others);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_figures() {
        let text =
            r#"{"size": 65536, "libc_gib_s": 50.0, "rep_movsb_gib_s": 58.0, "nt_gib_s": 20.0, "ours_gib_s": 58.0}"#;
        let row: Map<String, Value> = serde_json::from_str(text).unwrap();
        assert_eq!(name(&row), "64 KiB");
        assert_eq!(figures(&row)["ours_over_best"], 1.0);
        assert!(!figures(&row).contains_key("size"));
    }
}
