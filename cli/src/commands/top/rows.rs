//! Rows: what two looks at a process say of its pipes, devices, caches, logs and channels.
//!
//! Measurements are those of `datapipes_metrics`, as JSON. They may come from another version or
//! from a liar, so whatever is missing or odd is left out of its row.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::Value;

use super::look::{Look, ProcessLook, printable};

/// The most rows of a process.
const MAX_ROWS: usize = 256;

/// A line of the view. What is not known is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ActivityRow {
    pub(super) pid: u32,
    pub(super) program: String,
    /// `pipe`, `device`, `flow`, `transfers`, `cache`, `log`, `channel` or `client`.
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) class: String,
    pub(super) bytes_per_second: Option<f64>,
    /// Transfers, reads, records or blocks a second.
    pub(super) per_second: Option<f64>,
    /// What waits or is under way.
    pub(super) queue: Option<u64>,
    /// The part of its process's bytes of the same kind.
    pub(super) share: Option<f64>,
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
    pub(super) hit_ratio: Option<f64>,
    pub(super) credits_used: Option<u64>,
    pub(super) credits: Option<u64>,
    /// Seconds since the process wrote it, where that is too long.
    pub(super) age_seconds: Option<f64>,
}

/// How a measurement counts in a row.
#[derive(Clone, Copy, PartialEq)]
enum Field {
    /// Bytes that were moved so far.
    Bytes,
    /// Things that were done so far.
    Count,
    /// Things that wait or are under way.
    Queue,
    /// Hits, where the label `outcome` says so, of all.
    Outcomes,
    /// A distribution of times.
    Times,
    Credits,
    CreditsUsed,
}

/// Measurements that are shown, by the kind of their row.
const SHOWN: [(&str, &str, Field); 20] = [
    ("datapipes_pipe_bytes_total", "pipe", Field::Bytes),
    ("datapipes_pipe_transfers_total", "pipe", Field::Count),
    ("datapipes_device_bytes_total", "device", Field::Bytes),
    ("datapipes_device_chunks_total", "device", Field::Count),
    ("datapipes_device_outstanding_bytes", "device", Field::Queue),
    ("datapipes_flow_bytes_total", "flow", Field::Bytes),
    ("datapipes_flow_waiting_transfers", "flow", Field::Queue),
    ("datapipes_runtime_transfers_total", "transfers", Field::Count),
    ("datapipes_runtime_transfers_under_way", "transfers", Field::Queue),
    ("datapipes_runtime_transfer_seconds", "transfers", Field::Times),
    ("datapipes_cache_device_bytes_total", "cache", Field::Bytes),
    ("datapipes_cache_reads_total", "cache", Field::Outcomes),
    ("datapipes_cache_reads_under_way", "cache", Field::Queue),
    ("datapipes_cache_read_seconds", "cache", Field::Times),
    ("datapipes_log_payload_bytes_total", "log", Field::Bytes),
    ("datapipes_log_records_total", "log", Field::Count),
    ("datapipes_log_append_seconds", "log", Field::Times),
    ("datapipes_channel_bytes_total", "channel", Field::Bytes),
    ("datapipes_channel_credits", "channel", Field::Credits),
    ("datapipes_channel_outstanding_blocks", "channel", Field::CreditsUsed),
];

/// What tells the rows of a process apart: kind, name, class.
type Key = (&'static str, String, String);

/// What a look says of a row.
#[derive(Clone, Default)]
struct Figures {
    bytes: Option<f64>,
    count: Option<f64>,
    hits: f64,
    outcomes: Option<f64>,
    queue: Option<u64>,
    times: Option<(u64, u64)>,
    credits: Option<u64>,
    credits_used: Option<u64>,
}

/// The rows of a look, with the rates since the one before.
pub(super) fn rows(before: &Look, now: &Look) -> Vec<ActivityRow> {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    let mut rows = Vec::new();
    for process in &now.processes {
        let earlier = before.processes.iter().find(|p| p.pid == process.pid && p.program == process.program);
        let earlier = earlier.map(|p| figures(&p.measurements)).unwrap_or_default();
        let mut of_it: Vec<ActivityRow> = figures(&process.measurements)
            .into_iter()
            .take(MAX_ROWS)
            .map(|(key, now)| row(process, &key, earlier.get(&key), &now, seconds))
            .collect();
        share(&mut of_it);
        if of_it.is_empty() {
            let name = "nothing yet".to_owned();
            of_it.push(ActivityRow {
                pid: process.pid,
                program: process.program.clone(),
                name,
                ..ActivityRow::default()
            });
        }
        if process.is_late {
            of_it.iter_mut().for_each(|row| row.age_seconds = Some(process.age.as_secs_f64()));
        }
        rows.append(&mut of_it);
    }
    rows.extend(now.clients.iter().map(|(pid, client)| ActivityRow {
        pid: *pid,
        program: "dpiped".into(),
        kind: "client",
        name: format!("{} {} (process {})", client.number, printable(&client.name), client.pid),
        queue: Some(client.pipes),
        ..ActivityRow::default()
    }));
    rows
}

fn row(process: &ProcessLook, key: &Key, before: Option<&Figures>, now: &Figures, seconds: f64) -> ActivityRow {
    let grew = |of: fn(&Figures) -> Option<f64>| {
        let (then, now) = (before.and_then(of)?, of(now)?);
        // A counter that went back belongs to something new with the same name.
        (seconds > 0.0 && now >= then).then(|| (now - then) / seconds)
    };
    let hits = |figures: &Figures| figures.outcomes.map(|_| figures.hits);
    let reads = grew(|figures| figures.outcomes);
    let recent = match (grew(hits), reads) {
        (Some(hits), Some(reads)) if reads > 0.0 => Some(hits / reads),
        _ => now.outcomes.filter(|all| *all > 0.0).map(|all| now.hits / all),
    };
    let (kind, name, class) = key.clone();
    ActivityRow {
        pid: process.pid,
        program: process.program.clone(),
        kind,
        name,
        class,
        bytes_per_second: grew(|figures| figures.bytes),
        per_second: grew(|figures| figures.count).or(reads),
        queue: now.queue,
        share: None,
        p50_ns: now.times.map(|times| times.0),
        p99_ns: now.times.map(|times| times.1),
        hit_ratio: recent.map(|ratio| ratio.clamp(0.0, 1.0)),
        credits_used: now.credits_used,
        credits: now.credits,
        age_seconds: None,
    }
}

/// Sets what part each row has of the bytes of its process and kind.
fn share(rows: &mut [ActivityRow]) {
    let mut sums: HashMap<&'static str, f64> = HashMap::new();
    rows.iter().for_each(|row| *sums.entry(row.kind).or_default() += row.bytes_per_second.unwrap_or(0.0));
    for row in rows {
        let sum = sums.get(row.kind).copied().unwrap_or(0.0);
        row.share = row.bytes_per_second.filter(|_| sum > 0.0).map(|rate| rate / sum);
    }
}

/// The figures of a process by row, from its measurements.
fn figures(measurements: &Value) -> BTreeMap<Key, Figures> {
    let mut found: BTreeMap<Key, Figures> = BTreeMap::new();
    for family in measurements.as_array().into_iter().flatten() {
        let Some(name) = family["name"].as_str() else { continue };
        let Some((_, kind, field)) = SHOWN.iter().find(|(shown, ..)| *shown == name) else { continue };
        for sample in family["samples"].as_array().into_iter().flatten() {
            let labels = &sample["labels"];
            let (name, class) = (name_of(kind, labels), label(labels, "class"));
            if found.len() >= MAX_ROWS && !found.contains_key(&(*kind, name.clone(), class.clone())) {
                continue;
            }
            add(found.entry((kind, name, class)).or_default(), *field, labels, sample);
        }
    }
    found
}

fn add(figures: &mut Figures, field: Field, labels: &Value, sample: &Value) {
    let value = sample["value"].as_f64().filter(|value| value.is_finite() && *value >= 0.0);
    let sum = |old: &mut Option<f64>| {
        if let Some(value) = value {
            *old = Some(old.unwrap_or(0.0) + value);
        }
    };
    let integer = |old: &mut Option<u64>| {
        if let Some(value) = sample["value"].as_u64() {
            *old = Some(old.unwrap_or(0).saturating_add(value));
        }
    };
    match field {
        Field::Bytes => sum(&mut figures.bytes),
        Field::Count => sum(&mut figures.count),
        Field::Queue => integer(&mut figures.queue),
        Field::Credits => integer(&mut figures.credits),
        Field::CreditsUsed => integer(&mut figures.credits_used),
        Field::Outcomes => {
            sum(&mut figures.outcomes);
            if labels["outcome"] == "hit" {
                figures.hits += value.unwrap_or(0.0);
            }
        }
        Field::Times => {
            let times = &sample["histogram"];
            let (p50, p99) = (times["p50_ns"].as_u64(), times["p99_ns"].as_u64());
            if let (Some(p50), Some(p99)) = (p50, p99) {
                // Of several distributions (hits and misses) the slowest is what a user waits for.
                let (old50, old99) = figures.times.unwrap_or_default();
                figures.times = Some((p50.max(old50), p99.max(old99)));
            }
        }
    }
}

/// The words by which a row is known within its process.
fn name_of(kind: &str, labels: &Value) -> String {
    let wanted: &[&str] = match kind {
        "pipe" => &["product", "pipe", "primitive"],
        "device" => &["device"],
        "flow" => &["device", "pipe"],
        "channel" => &["pipe", "direction"],
        _ => &[],
    };
    // A channel's credits are not told by direction; they belong to its sender.
    let direction = if kind == "channel" && labels["direction"].is_null() { "out" } else { "" };
    let words: Vec<String> = wanted.iter().map(|name| label(labels, name)).filter(|word| !word.is_empty()).collect();
    let all = [words.join(" "), direction.to_owned()];
    all.iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>().join(" ")
}

fn label(labels: &Value, name: &str) -> String {
    printable(labels[name].as_str().unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    use datapipes::metrics::{Document, Label, Sample, vocabulary};

    fn process(samples: &[Sample]) -> ProcessLook {
        let measurements = serde_json::to_value(Document(samples)).unwrap();
        ProcessLook { pid: 7, program: "p".into(), age: Duration::ZERO, is_late: false, measurements }
    }

    fn look(at: Instant, processes: Vec<ProcessLook>) -> Look {
        Look { at, processes, clients: Vec::new(), troubles: Vec::new() }
    }

    fn samples(bytes: u64, hits: u64, misses: u64) -> Vec<Sample> {
        let pipe = |n: u64, role: &str| {
            let sample = Sample::new(&vocabulary::PIPE_BYTES, n).label(Label::Product, "sort");
            sample.label(Label::Pipe, role).label(Label::Primitive, "uring-direct")
        };
        let reads = |n: u64, outcome: &str| Sample::new(&vocabulary::CACHE_READS, n).label(Label::Outcome, outcome);
        vec![
            pipe(bytes, "input"),
            pipe(3 * bytes, "output"),
            reads(hits, "hit"),
            reads(misses, "miss"),
            Sample::new(&vocabulary::CHANNEL_CREDITS, 4u64).label(Label::Pipe, "1"),
            Sample::new(&vocabulary::CHANNEL_OUTSTANDING, 3u64).label(Label::Pipe, "1"),
        ]
    }

    #[test]
    fn rates_shares_and_recent_hits_come_from_two_looks() {
        let begin = Instant::now();
        let before = look(begin, vec![process(&samples(1000, 100, 100))]);
        let now = look(begin + Duration::from_secs(2), vec![process(&samples(3000, 190, 110))]);
        let rows = rows(&before, &now);
        assert_eq!(rows.len(), 4, "{rows:?}");
        let find =
            |kind: &str, name: &str| rows.iter().find(|row| row.kind == kind && row.name.starts_with(name)).unwrap();
        assert_eq!(find("pipe", "sort input uring-direct").bytes_per_second, Some(1000.0));
        assert_eq!(find("pipe", "sort output").share, Some(0.75));
        // 90 of the last 100 reads were hits.
        assert_eq!((find("cache", "").hit_ratio, find("cache", "").per_second), (Some(0.9), Some(50.0)));
        assert_eq!((find("channel", "1 out").credits_used, find("channel", "1").credits), (Some(3), Some(4)));
        // A counter that went back has no rate.
        let rows = super::rows(&now, &look(begin + Duration::from_secs(3), vec![process(&samples(10, 0, 0))]));
        assert!(rows.iter().all(|row| row.bytes_per_second.is_none()));
    }

    #[test]
    fn odd_measurements_make_no_odd_rows() {
        let odd = serde_json::json!([
            null, 5, {"name": 3}, {"name": "datapipes_pipe_bytes_total"},
            {"name": "datapipes_pipe_bytes_total", "samples": [null, {"value": -5}, {"value": 1e308}, {"labels": {"pipe": "\u{1b}[2J"}, "value": 5}]},
            {"name": "datapipes_cache_read_seconds", "samples": [{"histogram": {"p50_ns": "x"}}]},
        ]);
        let process =
            ProcessLook { pid: 1, program: "p".into(), age: Duration::ZERO, is_late: true, measurements: odd };
        let now = look(Instant::now(), vec![process]);
        let rows = rows(&now, &now);
        assert!(rows.iter().all(|row| !row.name.contains('\u{1b}') && row.age_seconds.is_some()), "{rows:?}");
        let many: Vec<Value> =
            (0..10_000).map(|n| serde_json::json!({"labels": {"pipe": n.to_string()}, "value": n})).collect();
        let many = serde_json::json!([{"name": "datapipes_pipe_bytes_total", "samples": many}]);
        assert!(figures(&many).len() <= MAX_ROWS);
    }

    #[test]
    fn what_is_shown_is_measured() {
        for (name, ..) in SHOWN {
            assert!(vocabulary::ALL.iter().any(|(_, measurement)| measurement.name == name), "{name}");
        }
    }
}
