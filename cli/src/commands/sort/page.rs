//! The page about a sort: `--report-html`.

mod course;
mod shares;

use datapipes_picture::page::{HtmlPage, PageBlock, PageCheck, PageSection, PageTable};
use datapipes_sort::{MovementRole, SortReport, SortWait};

use self::course::{MERGED, PhaseSpan, READ, SPILLED, WRITTEN, column, of_workers, phases};
pub(super) use self::course::{columns, samples, values};
use self::shares::{grouped, shares};
use super::routes::Way;
use crate::arguments::units;
use crate::report::bottleneck::{Share, headline, percent};
use crate::report::parts;
use crate::report::recorder::Recording;

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
    parts::say_fallback(&mut page, ways.iter().filter_map(|way| way.route.as_ref().ok()));
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
        (READ, MovementRole::Input),
        (SPILLED, MovementRole::Spill),
        (MERGED, MovementRole::Merge),
        (WRITTEN, MovementRole::Output),
    ]
    .map(|(column, role)| (column, role.as_str()));
    page.sections.push(PageSection {
        title: "Rates".into(),
        note:
            "Runs that are compressed count here with the bytes that they had before. Reads that find where runs are \
               cut are in the table of primitives, and not here."
                .into(),
        blocks: vec![parts::rates(recording, "Bytes a second by movement", &rates, &marks)],
        ..PageSection::default()
    });
    page.sections.push(verified(report));
    page.sections.push(parts::process(recording, Some(report.memory_bytes)));
    let movements = report
        .movements
        .iter()
        .map(|m| (format!("{}, {}", m.role.as_str(), m.between), m.primitive.clone(), m.counters.clone()));
    page.sections.push(parts::primitives(&movements.collect::<Vec<_>>()));
    // Without runs nothing went to the spill places, or came back.
    let is_used = |way: &Way| report.runs > 0 || !(way.title.starts_with("spill in ") || way.title == "merge");
    let routes: Vec<_> = ways.into_iter().filter(is_used).map(|way| (way.title, way.route)).collect();
    page.sections.push(parts::routes(&routes));
    page.sections.push(decisions(report));
    page.sections.push(parts::printed(&report.to_string()));
    page
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
        parts::shares("Shares of the time", whole),
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
        // Within one interval of the looks nothing is known of a phase.
        let is_seen = phase.to - phase.from >= recording.course.every().as_secs_f64();
        let cells = std::iter::once(work).chain(parts);
        let cells = cells.map(|part| if is_seen { percent(part) } else { "too short".to_owned() });
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
        note:
            "At each look, shares are of the threads that had a part in the work then. In the pictures, work is what \
               is left when measured waits are taken off: it includes time in which another program had the core."
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
        SortWait::Idle => "has no part in the work",
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
        (way @ ("new" | "replaced"), None) => {
            let first = if report.output.synced { "was synced, and" } else { "was not synced, as asked for, and" };
            format!("The output {first} got its name when it was complete ({way}).")
        }
        (way, None) => format!("The output appeared when it was complete ({way})."),
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
