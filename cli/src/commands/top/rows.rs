//! Rows: what two pages of a process say of its pipes, devices, caches, logs and channels.
//!
//! What is not known is left out of a row.

use std::collections::HashMap;

use datapipes::service::ClientStatus;
use serde::Serialize;

use super::figures::{CLIENT, Figures, RowKey};
use super::look::{Look, ProcessLook};
use super::words::printable;

/// A line of the view. What is not known is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ActivityRow {
    pub(super) pid: u32,
    pub(super) program: String,
    /// `pipe`, `device`, `flow`, `transfers`, `cache`, `log`, `channel`, `client` or `exports`.
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) class: String,
    pub(super) bytes_per_second: Option<f64>,
    /// Transfers, reads, records or blocks a second.
    pub(super) per_second: Option<f64>,
    /// What waits or is under way.
    pub(super) queue: Option<u64>,
    /// Bytes that are at a device.
    pub(super) queue_bytes: Option<u64>,
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

/// The rows of a look, with the rates between each page and the one before it.
pub(super) fn rows(now: &Look) -> Vec<ActivityRow> {
    let mut rows = Vec::new();
    for process in &now.processes {
        // What a process that is late does now, its last two pages do not say.
        let earlier = process.earlier.as_ref().filter(|_| !process.is_late);
        let seconds = earlier.map_or(0.0, |earlier| process.written.saturating_sub(earlier.written).as_secs_f64());
        let then = |key: &RowKey| earlier.and_then(|earlier| earlier.figures.get(key));
        let mut of_it: Vec<ActivityRow> =
            process.figures.iter().map(|(key, now)| row(process, key, then(key), now, seconds)).collect();
        share(&mut of_it);
        if of_it.is_empty() {
            let name = "nothing yet".to_owned();
            of_it.push(ActivityRow {
                pid: process.pid(),
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
    now.clients.iter().for_each(|(pid, client)| name_client(&mut rows, *pid, client));
    rows
}

/// Names the rows of a client of a service, or adds one where it has transferred nothing yet.
fn name_client(rows: &mut Vec<ActivityRow>, pid: u32, client: &ClientStatus) {
    let number = client.number.to_string();
    let name = format!("{number} {} (process {})", printable(&client.name), client.pid);
    let mut is_there = false;
    for row in rows.iter_mut().filter(|row| row.pid == pid && row.kind == CLIENT && row.name == number) {
        row.name.clone_from(&name);
        is_there = true;
    }
    if !is_there {
        let program = "dpiped".to_owned();
        rows.push(ActivityRow { pid, program, kind: CLIENT, name, ..ActivityRow::default() });
    }
}

fn row(process: &ProcessLook, key: &RowKey, before: Option<&Figures>, now: &Figures, seconds: f64) -> ActivityRow {
    let grew = |of: fn(&Figures) -> Option<f64>| {
        let (then, now) = (before.and_then(of)?, of(now)?);
        // A counter that went back belongs to something new with the same name.
        let rate = (now - then) / seconds;
        // Sums of values from outside may be beyond all numbers.
        (seconds > 0.0 && now >= then && rate.is_finite()).then_some(rate)
    };
    let hits = |figures: &Figures| figures.outcomes.map(|_| figures.hits);
    let reads = grew(|figures| figures.outcomes);
    let recent = grew(hits).zip(reads).filter(|(_, reads)| *reads > 0.0).map(|(hits, reads)| hits / reads);
    let (kind, name, class) = key.clone();
    ActivityRow {
        pid: process.pid(),
        program: process.program.clone(),
        kind,
        name,
        class,
        bytes_per_second: grew(|figures| figures.bytes),
        per_second: grew(|figures| figures.count).or(reads),
        queue: now.queue,
        queue_bytes: now.queue_bytes,
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
    use std::time::Duration;

    use datapipes::metrics::{Document, Label, Recorder, Sample, vocabulary};

    /// A page that was written so many seconds after the boot.
    fn page(number: u32, written: u64, samples: &[Sample]) -> ProcessLook {
        let measurements = serde_json::to_value(Document(samples)).unwrap();
        let mut page = ProcessLook::new((7, 1, number), "p".into(), Duration::from_secs(written));
        page.figures = figures(&measurements).rows.into();
        page
    }

    fn look(processes: Vec<ProcessLook>) -> Look {
        Look { processes, clients: Vec::new(), troubles: Vec::new() }
    }

    /// The rows of the last of looks in turn.
    fn rows_of(looks: Vec<Look>) -> Vec<ActivityRow> {
        let follow = |before: Look, mut now: Look| {
            now.follow(&before);
            now
        };
        rows(&looks.into_iter().reduce(follow).unwrap())
    }

    fn samples(bytes: u64, hits: u64, misses: u64) -> Vec<Sample> {
        let pipe = |n: u64, role: &str| {
            let sample = Sample::new(&vocabulary::PIPE_BYTES, n).label(Label::Product, "sort");
            sample.label(Label::Pipe, role).label(Label::Primitive, "uring-direct")
        };
        let client = |sample: Sample| sample.label(Label::Client, "3").label(Label::Class, "bulk");
        let reads = |n: u64, outcome: &str| Sample::new(&vocabulary::CACHE_READS, n).label(Label::Outcome, outcome);
        vec![
            pipe(bytes, "input"),
            pipe(3 * bytes, "output"),
            reads(hits, "hit"),
            reads(misses, "miss"),
            client(Sample::new(&vocabulary::CLIENT_BYTES, bytes / 2)),
            client(Sample::new(&vocabulary::CLIENT_UNDER_WAY, 2u64)),
            client(Sample::new(&vocabulary::CLIENT_TRANSFER_TIME, Recorder::default().histogram())),
            Sample::new(&vocabulary::CHANNEL_CREDITS, 4u64).label(Label::Pipe, "1"),
            Sample::new(&vocabulary::CHANNEL_OUTSTANDING, 3u64).label(Label::Pipe, "1"),
        ]
    }

    #[test]
    fn a_pipe_of_several_steps_is_one_row_with_what_has_arrived() {
        let step = |n: u64, step: &str| {
            let sample =
                Sample::new(&vocabulary::PIPE_BYTES, n).label(Label::Product, "pipe").label(Label::Pipe, "copy");
            let sample = sample.label(Label::Route, "uring-direct > uring-direct").label(Label::Step, step);
            sample.label(Label::Primitive, "uring-direct")
        };
        let page = |written, read, arrived| {
            // A step that the route does not have is of no row.
            page(0, written, &[step(read, "1"), step(arrived, "2"), step(9, "3"), step(9, "0"), step(9, "")])
        };
        let rows = rows_of(vec![look(vec![page(10, 5000, 1000)]), look(vec![page(12, 9000, 3000)])]);
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert_eq!(rows[0].name, "pipe copy uring-direct > uring-direct");
        assert_eq!((rows[0].bytes_per_second, rows[0].share), (Some(1000.0), Some(1.0)));
    }

    #[test]
    fn rates_shares_and_recent_hits_come_from_two_looks() {
        let before = || look(vec![page(0, 10, &samples(1000, 100, 100))]);
        let now = || look(vec![page(0, 12, &samples(3000, 190, 110))]);
        let rows = rows_of(vec![before(), now()]);
        assert_eq!(rows.len(), 5, "{rows:?}");
        let find =
            |kind: &str, name: &str| rows.iter().find(|row| row.kind == kind && row.name.starts_with(name)).unwrap();
        assert_eq!(find("pipe", "sort input uring-direct").bytes_per_second, Some(1000.0));
        assert_eq!(find("pipe", "sort output").share, Some(0.75));
        // 90 of the last 100 reads were hits.
        assert_eq!((find("cache", "").hit_ratio, find("cache", "").per_second), (Some(0.9), Some(50.0)));
        // Of the client, the class and what is under way; of times that nobody measured, nothing.
        let client = find("client", "3");
        assert_eq!((client.class.as_str(), client.bytes_per_second, client.queue), ("bulk", Some(500.0), Some(2)));
        assert_eq!((client.share, client.p50_ns, client.p99_ns), (Some(1.0), None, None));
        assert_eq!((find("channel", "1 out").credits_used, find("channel", "1").credits), (Some(3), Some(4)));
        // A counter that went back has no rate.
        let rows = rows_of(vec![now(), look(vec![page(0, 13, &samples(10, 0, 0))])]);
        assert!(rows.iter().all(|row| row.bytes_per_second.is_none()));
    }

    #[test]
    fn rates_are_by_the_time_between_pages_however_often_somebody_looks() {
        let at = |written: u64| look(vec![page(0, written, &samples(written * 1000, 0, 0))]);
        let rate = |rows: Vec<ActivityRow>| {
            rows.iter().find(|row| row.name == "sort input uring-direct").unwrap().bytes_per_second
        };
        assert_eq!(rate(rows_of(vec![at(10)])), None);
        // The same page again, and again, and the next one.
        assert_eq!(rate(rows_of(vec![at(10), at(10)])), None);
        assert_eq!(rate(rows_of(vec![at(10), at(10), at(12)])), Some(1000.0));
        assert_eq!(rate(rows_of(vec![at(10), at(12), at(12), at(12)])), Some(1000.0));
        // What a process that is late does now is not known.
        let mut late = at(12);
        late.processes[0].is_late = true;
        assert_eq!(rate(rows_of(vec![at(10), late])), None);
    }

    #[test]
    fn pages_of_one_process_are_not_taken_for_each_other() {
        let both = |written: u64, bytes: u64| {
            look(vec![page(0, written, &samples(1 << 40, 0, 0)), page(1, written, &samples(bytes, 0, 0))])
        };
        let rows = rows_of(vec![both(10, 1000), both(11, 2000)]);
        let rates: Vec<_> = rows.iter().filter(|row| row.name == "sort input uring-direct").collect();
        assert_eq!(rates.iter().map(|row| row.bytes_per_second).collect::<Vec<_>>(), [Some(0.0), Some(1000.0)]);
    }

    #[test]
    fn a_look_waits_only_for_pages_that_are_due() {
        let at = |written: u64, age: u64| {
            let mut look = look(vec![page(0, written, &[])]);
            (look.processes[0].every, look.processes[0].age) = (Duration::from_millis(200), Duration::from_millis(age));
            look
        };
        assert_eq!(at(10, 150).until_written_again(&at(10, 50)), Duration::from_millis(50));
        assert_eq!(at(11, 0).until_written_again(&at(10, 50)), Duration::ZERO);
        let mut late = at(10, 150);
        late.processes[0].is_late = true;
        assert_eq!(late.until_written_again(&at(10, 50)), Duration::ZERO);
    }

    #[test]
    fn odd_measurements_make_no_odd_rows() {
        let odd = serde_json::json!([
            null, 5, {"name": 3}, {"name": "datapipes_pipe_bytes_total"},
            {"name": "datapipes_pipe_bytes_total", "samples": [null, {"value": -5}, {"value": 1e308}, {"labels": {"pipe": "\u{1b}[2J"}, "value": 5}]},
            {"name": "datapipes_cache_read_seconds", "samples": [{"histogram": {"p50_ns": "x"}}]},
        ]);
        let process = ProcessLook {
            is_late: true,
            figures: figures(&odd).rows.into(),
            ..ProcessLook::new((1, 1, 0), "p".into(), Duration::ZERO)
        };
        let rows = rows(&look(vec![process]));
        assert!(rows.iter().all(|row| !row.name.contains('\u{1b}') && row.age_seconds.is_some()), "{rows:?}");
        let many: Vec<serde_json::Value> =
            (0..10_000).map(|n| serde_json::json!({"labels": {"pipe": n.to_string()}, "value": n})).collect();
        let many = serde_json::json!([{"name": "datapipes_pipe_bytes_total", "samples": many}]);
        let found = figures(&many);
        assert_eq!((found.rows.len(), found.left_out), (MAX_ROWS, 10_000 - MAX_ROWS));
        let mut crowded = look(Vec::new());
        crowded.add(ProcessLook::new((9, 1, 0), "p".into(), Duration::ZERO), found);
        let trouble = &crowded.troubles[0];
        assert!(trouble.place == "p 9" && trouble.why.starts_with("9744 of its rows are left out"), "{trouble:?}");
        crowded.add(ProcessLook::new((9, 1, 0), "p".into(), Duration::ZERO), figures(&odd));
        assert_eq!(crowded.troubles.len(), 1);
    }

    #[test]
    fn a_channel_has_its_credits_and_the_times_of_its_blocks() {
        let recorder = Recorder::default();
        recorder.record_ns(5_000_000);
        let channel = |blocks: u64| {
            let of = |sample: Sample| sample.label(Label::Pipe, "distributed 1");
            vec![
                of(Sample::new(&vocabulary::CHANNEL_BLOCKS, blocks)).label(Label::Direction, "out"),
                of(Sample::new(&vocabulary::CHANNEL_CREDITS, 4u64)),
                of(Sample::new(&vocabulary::CHANNEL_OUTSTANDING, 2u64)),
                of(Sample::new(&vocabulary::CHANNEL_BLOCK_TIME, recorder.histogram())),
            ]
        };
        let rows = rows_of(vec![look(vec![page(0, 10, &channel(10))]), look(vec![page(0, 12, &channel(30))])]);
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert_eq!((rows[0].name.as_str(), rows[0].per_second), ("distributed 1 out", Some(10.0)));
        assert_eq!((rows[0].credits_used, rows[0].credits), (Some(2), Some(4)));
        assert!(rows[0].p50_ns.unwrap() >= 5_000_000 && rows[0].p99_ns.is_some());
    }

    #[test]
    fn what_is_shown_is_measured() {
        for (name, ..) in SHOWN {
            assert!(vocabulary::ALL.iter().any(|(_, measurement)| measurement.name == name), "{name}");
        }
    }
}
