//! Figures: what the measurements of a process say of each row at one moment.
//!
//! Measurements are those of `datapipes_metrics`, as JSON. They may come from another version or
//! from a liar, so whatever is missing or odd is left out, and only what is shown is kept.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::words::printable;

/// The most rows of a process.
pub(super) const MAX_ROWS: usize = 256;

/// The kind of rows of a service's clients.
pub(super) const CLIENT: &str = "client";

/// How a measurement counts in a row.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Field {
    /// Bytes that were moved so far.
    Bytes,
    /// Things that were done so far.
    Count,
    /// Things that wait or are under way.
    Queue,
    /// Bytes that are under way.
    QueueBytes,
    /// Hits, where the label `outcome` says so, of all.
    Outcomes,
    /// A distribution of times.
    Times,
    Credits,
    CreditsUsed,
}

/// Measurements that are shown, by the kind of their row.
pub(super) const SHOWN: [(&str, &str, Field); 27] = [
    ("datapipes_pipe_bytes_total", "pipe", Field::Bytes),
    ("datapipes_pipe_transfers_total", "pipe", Field::Count),
    ("datapipes_device_bytes_total", "device", Field::Bytes),
    ("datapipes_device_chunks_total", "device", Field::Count),
    ("datapipes_device_outstanding_bytes", "device", Field::QueueBytes),
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
    ("datapipes_channel_blocks_total", "channel", Field::Count),
    ("datapipes_channel_credits", "channel", Field::Credits),
    ("datapipes_channel_outstanding_blocks", "channel", Field::CreditsUsed),
    ("datapipes_channel_block_seconds", "channel", Field::Times),
    ("datapipes_client_bytes_total", CLIENT, Field::Bytes),
    ("datapipes_client_transfers_total", CLIENT, Field::Count),
    ("datapipes_client_transfers_under_way", CLIENT, Field::Queue),
    ("datapipes_client_transfer_seconds", CLIENT, Field::Times),
    ("datapipes_service_export_pipes", "exports", Field::Queue),
];

/// What tells the rows of a process apart: kind, name, class.
pub(super) type RowKey = (&'static str, String, String);

/// What a look says of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) bytes: Option<f64>,
    pub(super) count: Option<f64>,
    pub(super) hits: f64,
    pub(super) outcomes: Option<f64>,
    pub(super) queue: Option<u64>,
    pub(super) queue_bytes: Option<u64>,
    pub(super) times: Option<(u64, u64)>,
    pub(super) credits: Option<u64>,
    pub(super) credits_used: Option<u64>,
}

/// The figures of a process by row, and how many rows were left out.
#[derive(Debug, Default)]
pub(super) struct FoundRows {
    pub(super) rows: BTreeMap<RowKey, Figures>,
    pub(super) left_out: usize,
}

/// The figures of a process by row, from its measurements.
pub(super) fn figures(measurements: &Value) -> FoundRows {
    let mut found: BTreeMap<RowKey, Figures> = BTreeMap::new();
    let mut left_out: HashSet<RowKey> = HashSet::new();
    for family in measurements.as_array().into_iter().flatten() {
        let Some(name) = family["name"].as_str() else { continue };
        let Some((_, kind, field)) = SHOWN.iter().find(|(shown, ..)| *shown == name) else { continue };
        for sample in family["samples"].as_array().into_iter().flatten() {
            let labels = &sample["labels"];
            if !is_of_last_step(labels) {
                continue;
            }
            let (name, class) = (name_of(kind, labels), label(labels, "class"));
            let key = (*kind, name, class);
            if found.len() >= MAX_ROWS && !found.contains_key(&key) {
                left_out.insert(key);
                continue;
            }
            add(found.entry(key).or_default(), *field, labels, sample);
        }
    }
    FoundRows { rows: found, left_out: left_out.len() }
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
        Field::QueueBytes => integer(&mut figures.queue_bytes),
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
            // Where nothing was timed, no time is 0.
            let is_empty = times["count"].as_u64() == Some(0);
            if let (Some(p50), Some(p99), false) = (p50, p99, is_empty) {
                // Of several distributions (hits and misses) the slowest is what a user waits for.
                let (old50, old99) = figures.times.unwrap_or_default();
                figures.times = Some((p50.max(old50), p99.max(old99)));
            }
        }
    }
}

/// Whether a sample is of the last step of a route, or of none. Each step moves the same bytes;
/// those of the last one have arrived.
fn is_of_last_step(labels: &Value) -> bool {
    let (Some(route), Some(step)) = (labels["route"].as_str(), labels["step"].as_str()) else { return true };
    step.parse() == Ok(route.split(" > ").count())
}

/// The words by which a row is known within its process.
fn name_of(kind: &str, labels: &Value) -> String {
    let wanted: &[&str] = match kind {
        "pipe" if labels["route"].is_string() => &["product", "pipe", "route"],
        "pipe" => &["product", "pipe", "primitive"],
        "device" => &["device"],
        "flow" => &["device", "pipe"],
        "channel" => &["pipe", "direction"],
        CLIENT => &["client"],
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
