//! The page about a load over a cache: `--report-html`.

use datapipes::metrics::CourseColumn;
use datapipes_cache::{FineGrained, Metrics};
use datapipes_picture::page::{
    BarList, HtmlPage, PageBlock, PageSection, PageTable, TimelineChart, TimelineForm, TimelineSeries,
};

use super::outcome::Outcome;
use crate::arguments::units;
use crate::report::bottleneck::{Share, headline, percent};
use crate::report::parts;
use crate::report::recorder::Recording;
use crate::report::thread_clock::ThreadClock;

const READS: usize = 0;
const HITS: usize = 1;
const ASKED: usize = 2;
const DEVICE: usize = 3;
const MEMORY: usize = 4;
const ON_CORE: usize = 5;
const QUEUED: usize = 6;

pub(super) fn columns() -> Vec<CourseColumn> {
    let mut columns = vec![CourseColumn::Sum; 7];
    columns[MEMORY] = CourseColumn::Peak;
    columns
}

pub(super) fn values(fine: &FineGrained, clock: &ThreadClock) -> Vec<f64> {
    let m: Metrics = fine.metrics();
    let bytes = [m.reads, m.hits, m.asked_bytes, m.device_bytes].map(|n| n as f64);
    bytes.into_iter().chain([m.memory_bytes as f64]).chain(clock.read()).collect()
}

pub(super) fn page(o: &Outcome, begins: &[(f64, String)], recording: &Recording) -> HtmlPage {
    let mut page = parts::page("Reads through a fine-grained cache");
    let seconds = recording.seconds().max(1e-9);
    let part = |column| recording.grew(column, 0.0, seconds) / seconds;
    let (on_core, queued) = (part(ON_CORE), part(QUEUED));
    let shares = if on_core > 0.0 {
        vec![
            Share::new("the device's reads", 1.0 - on_core - queued),
            Share::new("the processor", on_core),
            Share::new("waiting for a core that other work has", queued),
        ]
    } else {
        Vec::new()
    };
    let m = &o.metrics;
    let hit = m.hit_percent();
    let done = format!(
        "{} reads in {:.1} s ({:.0} a second), {hit:.1}% of them hits.",
        o.reads, o.seconds, o.reads_per_second
    );
    page.headline = headline(&done, &shares);
    page.facts = [
        ("file", o.file.clone()),
        ("policy", m.policy.clone()),
        ("reads", o.reads.to_string()),
        ("hits", format!("{hit:.1}%")),
        ("bytes moved a byte asked", format!("{:.2}", m.amplification())),
        ("memory budget", units::memory(m.budget as u64)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    // The first load is there from the beginning.
    let marks: Vec<(f64, String)> = begins.iter().skip(1).cloned().collect();
    page.sections.push(PageSection {
        title: "Where the time went".into(),
        note:
            "The kernel counted when the reading thread had a core, and when it waited for one. The rest of the time \
               it slept until the device had read what was not cached."
                .into(),
        blocks: vec![
            parts::shares("Shares of the time of the reading thread", &shares),
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
    page.sections.push(PageSection { title: "The cache".into(), blocks: cache(m), ..PageSection::default() });
    page.sections.push(parts::process(recording, Some(m.budget as u64)));
    page.sections.push(parts::printed(&format!("{}\n{}", m, o.explain)));
    page
}

fn over_time(
    recording: &Recording,
    marks: &[(f64, String)],
    title: &str,
    unit: &str,
    columns: &[(usize, &str)],
) -> TimelineChart {
    let series = columns
        .iter()
        .map(|(column, name)| TimelineSeries { name: (*name).to_owned(), values: recording.course.rates(*column) });
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

/// The part of the reads that were hits, from interval to interval.
fn hits(recording: &Recording, marks: &[(f64, String)]) -> TimelineChart {
    let mut chart = over_time(recording, marks, "Hits", "% of the reads", &[(HITS, "hits")]);
    let reads = recording.course.rates(READS);
    let parts = chart.series[0].values.iter_mut().zip(reads);
    parts.for_each(|(hits, reads)| *hits = if reads > 0.0 { *hits * 100.0 / reads } else { 0.0 });
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
        PageBlock::Bars(BarList { caption: "Reads by the way to their bytes".into(), bars: paths.collect() }),
        PageBlock::Table(PageTable {
            caption: "Size classes".into(),
            columns: ["items up to", "slabs", "items"].map(str::to_owned).into(),
            rows: rows.collect(),
            numbers: 2,
        }),
    ]
}
