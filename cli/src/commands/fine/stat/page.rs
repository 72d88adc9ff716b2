//! The page about a load over a cache: `--report-html`.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes::metrics::CourseColumn;
use datapipes_cache::Metrics;
use datapipes_cache::engine::RejectedWay;
use datapipes_picture::page::{
    BarList, HtmlPage, PageBlock, PageCheck, PageSection, PageTable, TimelineChart, TimelineForm, TimelineSeries,
};

use super::outcome::Outcome;
use crate::arguments::units;
use crate::objects::is_object;
use crate::report::bottleneck::{QUOTA, Share, headline, percent};
use crate::report::held_up::{self, STOPPED, of_queue};
use crate::report::parts::{self, MIB};
use crate::report::recorder::Recording;
use crate::report::thread_clock::ThreadClock;
use crate::system::files::is_in_memory;

const READS: usize = 0;
const HITS: usize = 1;
const ASKED: usize = 2;
const DEVICE: usize = 3;
const MEMORY: usize = 4;
const ON_CORE: usize = 5;
const QUEUED: usize = 6;
const LISTED: usize = 7;

pub(super) fn columns() -> Vec<CourseColumn> {
    let mut columns = vec![CourseColumn::Sum; 8];
    columns[MEMORY] = CourseColumn::Peak;
    columns
}

/// The present values; of the thread's times those since `before`.
pub(super) fn values(m: &Metrics, listed_ns: &AtomicU64, clock: &ThreadClock, before: [f64; 2]) -> Vec<f64> {
    let bytes = [m.reads, m.hits, m.asked_bytes, m.device_bytes].map(|n| n as f64);
    let [on_core, queued] = clock.read();
    let times = [on_core - before[0], queued - before[1], listed_ns.load(Relaxed) as f64 / 1e9];
    bytes.into_iter().chain([m.memory_bytes as f64]).chain(times).collect()
}

/// When each load began, and what was read of the counters meanwhile.
pub(super) struct Seen {
    pub(super) begins: Vec<(f64, String)>,
    pub(super) recording: Recording,
}

/// The page: all files, one after the other.
pub(super) fn page(outcomes: &[Outcome], seen: &[Seen]) -> HtmlPage {
    let mut page = parts::page("Reads through a fine-grained cache");
    let is_one = outcomes.len() == 1;
    let mut sentences = Vec::new();
    for (o, Seen { begins, recording }) in outcomes.iter().zip(seen) {
        let shares = shares(o, recording);
        let sentence = headline(&done(o), &shares);
        page.headline.tone = sentence.tone;
        sentences.push(if is_one { sentence.text } else { format!("{}: {}", o.file, sentence.text) });
        let mut sections = sections(o, begins, recording, &shares);
        if !is_one {
            sections.iter_mut().for_each(|section| section.title += &format!(": {}", o.file));
        }
        page.sections.extend(sections);
    }
    page.headline.text = sentences.join(" ");
    let lost = outcomes.iter().flat_map(|o| &o.rejected).find(|rejected| parts::is_fallback(&rejected.why));
    if let Some(RejectedWay { way, why }) = lost {
        parts::say_lost(&mut page, &format!("A fallback was used instead of {way}: {why}."));
    }
    if let [o] = outcomes {
        let m = &o.metrics;
        page.facts = [
            ("file", o.file.clone()),
            ("policy", m.policy.clone()),
            ("reads", o.reads.to_string()),
            ("hits", format!("{:.1}%", m.hit_percent())),
            ("bytes moved a byte asked", format!("{:.2}", m.amplification())),
            ("memory budget", units::memory(m.budget as u64)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
    }
    page
}

fn done(o: &Outcome) -> String {
    format!(
        "{} reads in {:.1} s ({:.0} a second), {:.1}% of them hits.",
        o.reads,
        o.seconds,
        o.reads_per_second,
        o.metrics.hit_percent()
    )
}

/// What the reading thread's time went into; nothing where the kernel does not count it.
fn shares(o: &Outcome, recording: &Recording) -> Vec<Share> {
    let seconds = recording.seconds().max(1e-9);
    let part = |column| recording.grew(column, 0.0, seconds) / seconds;
    let on_core = part(ON_CORE);
    if on_core <= 0.0 {
        return Vec::new();
    }
    let [throttled, queued] = of_queue(part(QUEUED), part(recording.throttled()), 1.0);
    let rest = (1.0 - on_core - queued - throttled).max(0.0);
    let stopped = part(recording.stopped()).min(rest);
    let listed = part(LISTED).min(rest - stopped);
    let source = match is_object(&o.file) {
        true => "the server's answers",
        false if is_in_memory(Path::new(&o.file)) => "reads of a file system in memory",
        false => "the device's reads",
    };
    let mut shares = vec![
        Share::new(source, rest - stopped - listed),
        Share::new("the processor", on_core),
        Share::new(held_up::QUEUED, queued),
    ];
    if listed > 0.0 {
        shares.push(Share::new("the list of reads on the standard input", listed));
    }
    if stopped > 0.0 {
        shares.push(Share::new(STOPPED, stopped));
    }
    if throttled > 0.0 {
        shares.push(Share::new(QUOTA, throttled));
    }
    shares
}

fn sections(o: &Outcome, begins: &[(f64, String)], recording: &Recording, shares: &[Share]) -> Vec<PageSection> {
    let m = &o.metrics;
    let mut sections = Vec::new();
    // The first load is there from the beginning.
    let marks: Vec<(f64, String)> = begins.iter().skip(1).cloned().collect();
    sections.push(PageSection {
        title: "Where the time went".into(),
        note:
            "The kernel counted when the reading thread had a core, and when it waited for one. The rest of the time \
               it slept until the device had read what was not cached, or until the list of reads had more."
                .into(),
        blocks: vec![
            parts::shares("Shares of the time of the reading thread", shares),
            PageBlock::Timeline(over_time(
                recording,
                &marks,
                "Reads",
                "reads a second",
                &[(READS, "reads"), (HITS, "hits")],
            )),
            PageBlock::Timeline(hits(recording, &marks)),
            parts::rates(recording, "Bytes a second", &[(ASKED, "asked for"), (DEVICE, "moved by the device")], &marks),
        ],
        ..PageSection::default()
    });
    let blocks = std::iter::once(memory_of_cache(recording, m.budget as u64)).chain(cache(m)).collect();
    sections.push(PageSection { title: "The cache".into(), blocks, ..PageSection::default() });
    // The budget is the cache's, not the process's.
    sections.push(parts::process(recording, None));
    sections.push(PageSection {
        title: "Bytes by primitive, and routes".into(),
        note: "How bytes were read, and why; each file is read in this one way.".into(),
        blocks: vec![
            PageBlock::Bars(BarList {
                caption: "Bytes".into(),
                bars: [("asked for", m.asked_bytes), ("moved by the device", m.device_bytes)]
                    .map(|(name, bytes)| (name.to_owned(), bytes as f64, units::bytes(bytes)))
                    .into(),
                top: None,
            }),
            PageBlock::Verbatim(o.explain.clone()),
            PageBlock::Table(PageTable {
                caption: "What was rejected, and why".into(),
                columns: ["way", "because"].map(str::to_owned).into(),
                rows: o.rejected.iter().map(|other| vec![other.way.clone(), other.why.clone()]).collect(),
                numbers: 0,
            }),
        ],
        ..PageSection::default()
    });
    sections.push(verified(o));
    sections.push(parts::printed(&format!("{}\n{}", m, o.explain)));
    sections
}

/// What a load says of the bytes that it read.
fn verified(o: &Outcome) -> PageSection {
    let m = &o.metrics;
    let checks = vec![
        PageCheck {
            text: format!(
                "{} reads were answered. The cache counted {} reads, of pieces that lie in one page: {} hits and {} \
                 misses.",
                o.reads, m.reads, m.hits, m.misses
            ),
            // A read across pages is several of the cache, and so is one that was repeated.
            holds: Some(m.reads >= o.reads),
        },
        PageCheck {
            text: "The bytes that were read were not compared with the file: a load looks at none of them.".into(),
            holds: None,
        },
    ];
    PageSection { title: "What was verified".into(), blocks: vec![PageBlock::Checks(checks)], ..PageSection::default() }
}

/// The memory of the cache beside its budget.
fn memory_of_cache(recording: &Recording, budget: u64) -> PageBlock {
    let used: Vec<f64> = recording.course.peaks(MEMORY).iter().map(|bytes| bytes / MIB).collect();
    let budget = vec![budget as f64 / MIB; used.len()];
    PageBlock::Timeline(TimelineChart {
        title: "Memory of the cache".into(),
        unit: "MiB".into(),
        seconds: recording.course.seconds().to_vec(),
        series: vec![TimelineSeries::new("in use", used), TimelineSeries::new("budget", budget)],
        ..TimelineChart::default()
    })
}

fn over_time(
    recording: &Recording,
    marks: &[(f64, String)],
    title: &str,
    unit: &str,
    columns: &[(usize, &str)],
) -> TimelineChart {
    let series = columns.iter().map(|(column, name)| TimelineSeries::new(*name, recording.course.rates(*column)));
    TimelineChart {
        title: title.to_owned(),
        unit: unit.to_owned(),
        form: TimelineForm::Lines,
        seconds: recording.course.seconds().to_vec(),
        series: series.collect(),
        marks: marks.to_vec(),
        ..TimelineChart::default()
    }
}

/// The part of the reads that were hits, from interval to interval; a gap where none ended.
fn hits(recording: &Recording, marks: &[(f64, String)]) -> TimelineChart {
    let mut chart = over_time(recording, marks, "Hits", "% of the reads", &[(HITS, "hits")]);
    let reads = recording.course.rates(READS);
    for series in &mut chart.series {
        series.gaps = reads.iter().enumerate().filter(|(_, reads)| **reads <= 0.0).map(|(at, _)| at).collect();
        let parts = series.values.iter_mut().zip(&reads).filter(|(_, reads)| **reads > 0.0);
        parts.for_each(|(hits, reads)| *hits = *hits * 100.0 / reads);
    }
    chart.top = Some(100.0);
    chart
}

fn cache(m: &Metrics) -> Vec<PageBlock> {
    let paths = ["bytes", "sectors", "blocks"].iter().zip(m.by_path).filter(|(_, count)| *count > 0);
    let paths = paths.map(|(name, count)| {
        ((*name).to_owned(), count as f64, format!("{count} ({})", percent(count as f64 / m.reads.max(1) as f64)))
    });
    let rows = m
        .classes
        .iter()
        .map(|class| vec![format!("{} B", class.capacity), class.slabs.to_string(), class.items.to_string()]);
    vec![
        PageBlock::Bars(BarList {
            caption: "Reads by the way to their bytes".into(),
            bars: paths.collect(),
            top: None,
        }),
        PageBlock::Table(PageTable {
            caption: "Size classes".into(),
            columns: ["items up to", "slabs", "items"].map(str::to_owned).into(),
            rows: rows.collect(),
            numbers: 2,
        }),
    ]
}
