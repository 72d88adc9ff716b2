//! Rows: what two looks at a process say of its pipes, devices, caches, logs and channels.
//!
//! What is not known is left out of a row.

use std::collections::HashMap;

use serde::Serialize;

use super::figures::{Figures, RowKey};
use super::look::{Look, ProcessLook};
use super::words::printable;

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

/// The rows of a look, with the rates since the one before.
pub(super) fn rows(before: &Look, now: &Look) -> Vec<ActivityRow> {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    let mut rows = Vec::new();
    for process in &now.processes {
        let earlier = before.processes.iter().find(|p| p.pid == process.pid && p.program == process.program);
        let then = |key: &RowKey| earlier.and_then(|earlier| earlier.figures.get(key));
        let mut of_it: Vec<ActivityRow> =
            process.figures.iter().map(|(key, now)| row(process, key, then(key), now, seconds)).collect();
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

fn row(process: &ProcessLook, key: &RowKey, before: Option<&Figures>, now: &Figures, seconds: f64) -> ActivityRow {
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

#[cfg(test)]
mod tests {
    use super::super::figures::{MAX_ROWS, SHOWN, figures};
    use super::*;
    use std::time::{Duration, Instant};

    use datapipes::metrics::{Document, Label, Sample, vocabulary};

    fn process(samples: &[Sample]) -> ProcessLook {
        let measurements = serde_json::to_value(Document(samples)).unwrap();
        ProcessLook {
            pid: 7,
            program: "p".into(),
            age: Duration::ZERO,
            is_late: false,
            figures: figures(&measurements),
        }
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
            ProcessLook { pid: 1, program: "p".into(), age: Duration::ZERO, is_late: true, figures: figures(&odd) };
        let now = look(Instant::now(), vec![process]);
        let rows = rows(&now, &now);
        assert!(rows.iter().all(|row| !row.name.contains('\u{1b}') && row.age_seconds.is_some()), "{rows:?}");
        let many: Vec<serde_json::Value> =
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
