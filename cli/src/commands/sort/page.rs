//! The page about a sort: `--report-html`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes::metrics::{CourseColumn, Label, Sample, vocabulary};
use datapipes_picture::page::{HtmlPage, PageBlock, PageCheck, PageSection, PageTable};
use datapipes_sort::{MovementRole, SortProgress, SortReport, SortWait};

use super::routes::Way;
use crate::arguments::units;
use crate::report::bottleneck::{Share, headline, percent};
use crate::report::parts;
use crate::report::recorder::Recording;

const READ: usize = 0;
const SPILLED: usize = 1;
const MERGED: usize = 2;
const WRITTEN: usize = 3;
/// The first of the columns with waits, in the order of `SortWait::ALL`.
const WAITS: usize = 4;

/// The columns that are recorded.
pub(super) fn columns() -> Vec<CourseColumn> {
    vec![CourseColumn::Sum; WAITS + SortWait::ALL.len()]
}

/// The present values of the columns.
pub(super) fn values(progress: &SortProgress) -> Vec<f64> {
    let counters = [&progress.read, &progress.spilled, &progress.merged, &progress.written];
    let bytes = counters.map(|counter| counter.load(Relaxed) as f64);
    bytes.into_iter().chain(SortWait::ALL.map(|what| progress.waits.seconds(what))).collect()
}

/// The progress as samples, for `dpipe top`: the primitives are known only at the end.
pub(super) fn samples(progress: &SortProgress) -> Vec<Sample> {
    let roles = [
        ("input", &progress.read),
        ("runs written", &progress.spilled),
        ("runs read", &progress.merged),
        ("output", &progress.written),
    ];
    let sample = |(role, counter): (&str, &AtomicU64)| {
        let sample = Sample::new(&vocabulary::PIPE_BYTES, counter.load(Relaxed)).label(Label::Product, "sort");
        sample.label(Label::Pipe, role)
    };
    roles.map(sample).into()
}

/// The waits of threads that sort and merge.
fn of_workers() -> impl Iterator<Item = SortWait> {
    SortWait::ALL.into_iter().filter(|what| !what.is_of_reader())
}

fn column(what: SortWait) -> usize {
    WAITS + what as usize
}

pub(super) fn page(report: &SortReport, ways: Vec<Way>, recording: &Recording) -> HtmlPage {
    let mut page = parts::page("A sort");
    let threads = report.threads.max(1) as f64;
    let phases = phases(report);
    let shares = shares(report, recording, 0.0, recording.seconds());
    let done = format!(
        "{} records, {}, were sorted in {:.2} s ({}).",
        report.records,
        units::bytes(report.bytes),
        report.seconds,
        units::rate(report.bytes, report.seconds)
    );
    page.headline = headline(&done, &grouped(&shares));
    let cpu = recording.grew(recording.cpu(), 0.0, recording.seconds());
    page.facts = [
        ("records", report.records.to_string()),
        ("bytes", units::bytes(report.bytes)),
        ("time", format!("{:.2} s", report.seconds)),
        ("processor time", format!("{cpu:.2} s")),
        ("memory budget", units::memory(report.memory_bytes)),
        ("threads", report.threads.to_string()),
        ("method", report.method.name.to_owned()),
        ("runs", report.runs.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let marks: Vec<(f64, String)> = phases.iter().skip(1).map(|phase| (phase.from, phase.name.to_owned())).collect();
    page.sections.push(time(report, recording, &phases, &marks, threads, &shares));
    let rates = [
        (READ, "read from the input"),
        (SPILLED, "written as runs"),
        (MERGED, "merged from runs"),
        (WRITTEN, "written to the output"),
    ];
    page.sections.push(PageSection {
        title: "Rates".into(),
        blocks: vec![parts::rates(recording, "Bytes a second by movement", &rates, &marks)],
        ..PageSection::default()
    });
    page.sections.push(verified(report));
    page.sections.push(parts::process(recording, Some(report.memory_bytes)));
    let movements = report
        .movements
        .iter()
        .map(|m| (format!("{}, {}", role(m.role), m.between), m.primitive.clone(), m.counters.clone()));
    page.sections.push(parts::primitives(&movements.collect::<Vec<_>>()));
    let routes: Vec<_> = ways.into_iter().map(|way| (way.title, way.route)).collect();
    page.sections.push(parts::routes(&routes));
    page.sections.push(decisions(report));
    page.sections.push(parts::printed(&report.to_string()));
    page
}

fn role(role: MovementRole) -> &'static str {
    match role {
        MovementRole::Input => "input",
        MovementRole::Spill => "runs written",
        MovementRole::Merge => "runs read",
        MovementRole::Output => "output",
    }
}

/// A phase with the times between which it ran.
struct PhaseSpan {
    name: &'static str,
    from: f64,
    to: f64,
}

/// The phases follow each other; the first begins when the sort does.
fn phases(report: &SortReport) -> Vec<PhaseSpan> {
    let known: f64 = report.phases.iter().map(|phase| phase.seconds).sum();
    // What precedes the first phase is opening files and taking memory.
    let mut at = (report.seconds - known).max(0.0);
    let span = |phase: &datapipes_sort::Phase| {
        let from = at;
        at += phase.seconds;
        PhaseSpan { name: phase.name, from, to: at }
    };
    report.phases.iter().map(span).collect()
}

/// What the threads' time went into between two times, as shares of it.
fn shares(report: &SortReport, recording: &Recording, from: f64, to: f64) -> Vec<Share> {
    let whole = (to - from).max(1e-9) * report.threads.max(1) as f64;
    let waited = |what: SortWait| recording.grew(column(what), from, to);
    let mut left = 1.0;
    let mut shares: Vec<Share> = of_workers()
        .map(|what| {
            let part = (waited(what) / whole).clamp(0.0, left);
            left -= part;
            Share::new(bottleneck(report, what, waited(SortWait::Input), to - from), part)
        })
        .collect();
    // What is left was work, as far as the process had processor time.
    let cpu = (recording.grew(recording.cpu(), from, to) / whole).clamp(0.0, left);
    shares.push(Share::new("the processor: threads sorted, merged and copied", cpu));
    shares.push(Share::new("threads that wanted to work and had no core: other programs had it", left - cpu));
    shares.retain(|share| share.part > 0.0005);
    shares
}

/// The same with all writes of the disk as one share, and all its reads: they are one disk, as far
/// as is known.
fn grouped(shares: &[Share]) -> Vec<Share> {
    let mut grouped = Vec::new();
    let mut rest = shares.to_vec();
    for of_disk in ["the disk's writes of ", "the disk's reads of "] {
        let (same, others): (Vec<Share>, Vec<Share>) = rest.into_iter().partition(|s| s.what.starts_with(of_disk));
        rest = others;
        if same.len() < 2 {
            rest.extend(same);
            continue;
        }
        let whole: f64 = same.iter().map(|share| share.part).sum();
        let parts: Vec<String> = same
            .iter()
            .map(|share| format!("of {} {}", share.what.trim_start_matches(of_disk), percent(share.part)))
            .collect();
        grouped.push(Share::new(format!("{} ({})", of_disk.trim_end_matches(" of "), parts.join(", ")), whole));
    }
    grouped.extend(rest);
    grouped
}

/// What stands in the way while threads wait for something.
fn bottleneck(report: &SortReport, what: SortWait, reader_waited: f64, seconds: f64) -> String {
    let by = |wanted: MovementRole| {
        let streams = report.movements.iter().filter(|m| m.role == wanted);
        let mut primitives = streams.map(|m| m.primitive.as_str());
        match primitives.next() {
            Some("read" | "write") => "the other program's",
            Some(_) => "the disk's",
            None => "the",
        }
    };
    match what {
        // The threads wait for the reading thread, and that one mostly waits for the input.
        SortWait::Records if reader_waited > 0.5 * seconds || report.method.name == "distribution" => {
            format!("{} reads of the input", by(MovementRole::Input))
        }
        SortWait::Records => "the thread that reads and cuts the input into records".to_owned(),
        SortWait::Spill => format!("{} writes of runs", by(MovementRole::Spill)),
        SortWait::Runs => format!("{} reads of runs: the merge was starved", by(MovementRole::Merge)),
        SortWait::Output => format!("{} writes of the output", by(MovementRole::Output)),
        other => format!("waiting for {}", other.as_str()),
    }
}

fn time(
    report: &SortReport,
    recording: &Recording,
    phases: &[PhaseSpan],
    marks: &[(f64, String)],
    threads: f64,
    whole: &[Share],
) -> PageSection {
    let waits: Vec<(usize, &str)> = of_workers().map(|what| (column(what), waits_for(what))).collect();
    let mut blocks = vec![
        parts::shares("Shares of the time of all sorting threads", whole),
        parts::threads(recording, "Threads that sort and merge", threads, "work", &waits, marks, f64::INFINITY),
    ];
    let of_reader = [SortWait::Input, SortWait::Memory].map(|what| (column(what), waits_for(what)));
    let reading = phases.iter().find(|phase| matches!(phase.name, "runs" | "sort"));
    if let Some(phase) = reading
        && recording.grew(column(SortWait::Input), 0.0, phase.to)
            + recording.grew(column(SortWait::Memory), 0.0, phase.to)
            > 0.0
    {
        let title = "The thread that reads the input, until it ends";
        blocks.push(parts::threads(recording, title, 1.0, "work", &of_reader, marks, phase.to));
    }
    let mut columns = vec!["phase".to_owned(), "seconds".to_owned(), "work".to_owned()];
    let used: Vec<SortWait> =
        of_workers().filter(|what| recording.grew(column(*what), 0.0, recording.seconds()) > 0.0).collect();
    columns.extend(used.iter().map(|what| waits_for(*what).to_owned()));
    let rows = phases.iter().map(|phase| {
        let time = (phase.to - phase.from).max(1e-9) * report.threads.max(1) as f64;
        let parts: Vec<f64> =
            used.iter().map(|what| (recording.grew(column(*what), phase.from, phase.to) / time).min(1.0)).collect();
        let work = (1.0 - parts.iter().sum::<f64>()).max(0.0);
        let cells = std::iter::once(work).chain(parts).map(percent);
        [phase.name.to_owned(), format!("{:.2}", phase.to - phase.from)].into_iter().chain(cells).collect()
    });
    blocks.push(PageBlock::Table(PageTable {
        caption: "Phases, and what the threads' time went into".into(),
        numbers: columns.len() - 1,
        rows: rows.collect(),
        columns,
    }));
    PageSection {
        title: "Where the time went".into(),
        note: "In the pictures, work is what is left when measured waits are taken off: it includes time in which \
               another program had the core."
            .into(),
        blocks,
        ..PageSection::default()
    }
}

fn waits_for(what: SortWait) -> &'static str {
    match what {
        SortWait::Input => "waits for the input's reads",
        SortWait::Memory => "waits for free memory",
        SortWait::Records => "waits for records of the input",
        SortWait::Spill => "waits for writes of runs",
        SortWait::Runs => "waits for reads of runs",
        SortWait::Output => "waits for writes of the output",
        SortWait::Turn => "waits for other threads",
        _ => "waits",
    }
}

fn verified(report: &SortReport) -> PageSection {
    let dropped = report.records.saturating_sub(report.records_out);
    let counts = format!(
        "{} records of {} bytes were read; {} of {} bytes were written, and {dropped} were dropped as duplicates",
        report.records, report.bytes, report.records_out, report.bytes_out
    );
    let checks = match &report.record_sum {
        Some(sum) => vec![
            PageCheck {
                text: format!("{counts}: their number, their bytes and the sum of their hashes ({sum}) agree."),
                holds: Some(true),
            },
            PageCheck {
                text: "Each block of a run was read with the checksum that it was written with.".into(),
                holds: (report.runs > 0).then_some(true),
            },
        ],
        None => vec![PageCheck { text: format!("{counts}."), holds: None }],
    };
    let published = match (report.output.way, &report.output.why) {
        ("stream", _) => "The output is a stream: what its reader made of it is not known here.".to_owned(),
        (_, Some(why)) => format!("The output was written in place, because {why}."),
        (way, None) => format!("The output was synced, and got its name when it was complete ({way})."),
    };
    let mut blocks = vec![PageBlock::Checks(checks)];
    if !published.is_empty() {
        blocks.push(PageBlock::Text(published));
    }
    PageSection { title: "What was verified".into(), blocks, ..PageSection::default() }
}

fn decisions(report: &SortReport) -> PageSection {
    let mut rows = vec![vec!["method".to_owned(), report.method.to_string()]];
    if let Some(compression) = &report.compression {
        rows.push(vec!["compression of runs".into(), compression.why.clone()]);
    }
    rows.extend(report.spill.iter().map(|place| {
        vec![
            format!("runs in {}", place.place),
            format!("{} ({}), {}", units::bytes(place.bytes), place.order, place.why),
        ]
    }));
    let table = PageTable {
        caption: "What the sort decided, and why".into(),
        columns: ["what", "decision"].map(str::to_owned).into(),
        rows,
        numbers: 0,
    };
    PageSection { title: "Decisions".into(), blocks: vec![PageBlock::Table(table)], ..PageSection::default() }
}
