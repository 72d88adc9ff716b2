//! Sections and charts that the pages of several commands have.

use std::collections::BTreeMap;

use datapipes::{Counters, HopReport, Route};
use datapipes_metrics::ByteRate;
use datapipes_picture::page::{
    BarList, HtmlPage, PageBlock, PageSection, PageTable, TimelineChart, TimelineForm, TimelineSeries, Tone,
};

use super::bottleneck::{Share, percent};
use super::recorder::Recording;
use crate::arguments::units;

/// A page with what all pages have.
pub(crate) fn page(title: &str) -> HtmlPage {
    let footer = format!(
        "dpipe {}. Times and counters were measured by the process that did the work; rates are means of the \
         intervals between two looks at its counters.",
        env!("CARGO_PKG_VERSION")
    );
    HtmlPage { title: title.to_owned(), footer, ..HtmlPage::default() }
}

pub(crate) const MIB: f64 = (1 << 20) as f64;

/// Rates of sums of bytes, by column and name. Columns in which nothing grew are left out.
pub(crate) fn rates(
    recording: &Recording,
    title: &str,
    columns: &[(usize, &str)],
    marks: &[(f64, String)],
) -> PageBlock {
    let rates: Vec<Vec<f64>> = columns.iter().map(|(column, _)| recording.course.rates(*column)).collect();
    let most = rates.iter().flatten().copied().fold(0.0, f64::max);
    let (unit, scale) = match most {
        5e8.. => ("GB/s", 1e9),
        5e5.. => ("MB/s", 1e6),
        _ => ("kB/s", 1e3),
    };
    let series = columns
        .iter()
        .zip(&rates)
        .map(|((_, name), rates)| TimelineSeries::new(*name, rates.iter().map(|rate| rate / scale).collect()));
    PageBlock::Timeline(TimelineChart {
        title: title.to_owned(),
        unit: unit.into(),
        seconds: recording.course.seconds().to_vec(),
        series: series.filter(|series| series.values.iter().any(|v| *v > 0.0)).collect(),
        marks: marks.to_vec(),
        ..TimelineChart::default()
    })
}

/// What a fixed number of threads did up to a time: waits by column, and the rest. Columns in which
/// nothing grew are left out.
pub(crate) fn threads(
    recording: &Recording,
    title: &str,
    count: f64,
    rest: &str,
    waits: &[(usize, &str)],
    marks: &[(f64, String)],
    until: f64,
) -> PageBlock {
    let seconds: Vec<f64> = recording.course.seconds().iter().copied().take_while(|at| *at <= until).collect();
    let mut left: Vec<f64> = vec![count; seconds.len().saturating_sub(1)];
    let mut series = vec![TimelineSeries::new(rest, Vec::new())];
    for (column, name) in waits {
        let values: Vec<f64> = recording.course.rates(*column);
        if values.iter().all(|v| *v < 1e-3) {
            continue;
        }
        // Counters are read one after the other: together they may say a little more than there is.
        let values = values.iter().zip(&mut left).map(|(value, left)| {
            let part = value.min(*left);
            *left -= part;
            part
        });
        series.push(TimelineSeries::new(*name, values.collect()));
    }
    series[0].values = left;
    PageBlock::Timeline(TimelineChart {
        title: title.to_owned(),
        unit: "threads".into(),
        form: TimelineForm::Areas,
        top: Some(count),
        marks: marks.iter().filter(|(at, _)| *at < until).cloned().collect(),
        seconds,
        series,
    })
}

/// The memory and the processor over time.
pub(crate) fn process(recording: &Recording, budget: Option<u64>) -> PageSection {
    let seconds = recording.course.seconds().to_vec();
    let used: Vec<f64> = recording.course.peaks(recording.memory()).iter().map(|bytes| bytes / MIB).collect();
    let mut series = Vec::new();
    if let Some(budget) = budget {
        series.push(TimelineSeries::new("budget", vec![budget as f64 / MIB; used.len()]));
    }
    series.insert(0, TimelineSeries::new("in use, without the program's file", used));
    let memory = TimelineChart {
        title: "Memory of the process".into(),
        unit: "MiB".into(),
        seconds: seconds.clone(),
        series,
        ..TimelineChart::default()
    };
    let cores = TimelineSeries::new("cores in use", recording.course.rates(recording.cpu()));
    let processor = TimelineChart {
        title: "Processor time of the process".into(),
        unit: "seconds a second: cores in use".into(),
        seconds,
        series: vec![cores],
        ..TimelineChart::default()
    };
    let is_known = recording.course.peaks(recording.memory()).iter().any(|bytes| *bytes > 0.0);
    let memory = match is_known {
        true => PageBlock::Timeline(memory),
        false => PageBlock::Text("The memory of the process is not known: /proc/self/statm cannot be read.".into()),
    };
    PageSection {
        title: "Memory and processor".into(),
        blocks: vec![memory, PageBlock::Timeline(processor)],
        ..PageSection::default()
    }
}

/// Shares of the time, as bars.
pub(crate) fn shares(caption: &str, shares: &[Share]) -> PageBlock {
    let bars = shares.iter().map(|share| (share.what.clone(), share.part, percent(share.part)));
    PageBlock::Bars(BarList { caption: caption.to_owned(), bars: bars.collect(), top: Some(1.0) })
}

/// What was moved for one purpose, by primitive.
pub(crate) fn movements(role: &str, hops: &[HopReport]) -> Vec<(String, String, Counters)> {
    hops.iter().map(|hop| (role.to_owned(), hop.primitive.to_owned(), hop.counters.clone())).collect()
}

/// Movements by primitive: the bytes as bars, the counters as a table.
pub(crate) fn primitives(movements: &[(String, String, Counters)]) -> PageSection {
    let bars = movements.iter().map(|(role, primitive, counters)| {
        (format!("{role}: {primitive}"), counters.bytes as f64, units::bytes(counters.bytes))
    });
    let bars = BarList { caption: "Bytes by primitive".into(), bars: bars.collect(), top: None };
    let columns =
        ["movement", "primitive", "bytes", "past the page cache", "requests", "bounces", "most at once", "busy"];
    let rows = movements.iter().map(|(role, primitive, c)| {
        vec![
            role.clone(),
            primitive.clone(),
            units::bytes(c.bytes),
            units::bytes(c.direct_bytes),
            c.requests.to_string(),
            c.bounces.to_string(),
            c.max_outstanding.to_string(),
            if c.busy_ns > 0 { format!("{:.2} s", c.busy_ns as f64 / 1e9) } else { "not timed".into() },
        ]
    });
    let table = PageTable {
        caption: "What each primitive counted".into(),
        columns: columns.map(str::to_owned).into(),
        rows: rows.collect(),
        numbers: 6,
    };
    let mut blocks = vec![PageBlock::Bars(bars), PageBlock::Table(table)];
    let notes = movements.iter().flat_map(|(role, primitive, c)| fallbacks(role, primitive, c));
    blocks.extend(notes.map(PageBlock::Text));
    PageSection { title: "Bytes by primitive".into(), blocks, ..PageSection::default() }
}

/// What a primitive could not do as it was asked, in words.
pub(crate) fn fallbacks(role: &str, primitive: &str, c: &Counters) -> Vec<String> {
    let facts = [
        (c.direct_refused, "requests were refused past the page cache, and made through it"),
        (c.queue_refused, "requests found no thread of the kernel, and were made by the caller"),
        (c.retries, "requests were repeated"),
        (c.short_finished, "requests moved less than was asked, and were finished by others"),
        (c.core_finished_bytes, "bytes were left by a device, and copied by a core"),
        (c.devices_lost, "devices were lost"),
        (c.failed, "transfers failed"),
    ];
    let said = facts.iter().filter(|(count, _)| *count > 0);
    said.map(|(count, what)| format!("{role}, {primitive}: {count} {what}.")).collect()
}

/// Routes: what was chosen and why, and what was rejected and why.
pub(crate) fn routes(routes: &[(String, Result<Route, String>)]) -> PageSection {
    let mut chosen = Vec::new();
    let (mut unable, mut slower) = (Vec::new(), Vec::new());
    for (title, route) in routes {
        match route {
            Ok(route) => {
                chosen.extend(route.hops.iter().map(|hop| {
                    let q = &hop.quality;
                    let promise = format!(
                        "{}, {:.1} us ({})",
                        ByteRate(q.bytes_per_s),
                        q.latency_ns / 1e3,
                        if q.measured { "measured" } else { "assumed" }
                    );
                    vec![title.clone(), hop.primitive.to_owned(), promise, hop.why.clone()]
                }));
                for r in &route.rejected {
                    // Where the planner knows what it would have been like, it was only slower.
                    let list = if r.quality.is_some() { &mut slower } else { &mut unable };
                    list.push(vec![title.clone(), r.primitive.to_owned(), r.why.clone()]);
                }
            }
            Err(why) => chosen.push(vec![title.clone(), String::new(), String::new(), why.clone()]),
        }
    }
    let (chosen, slower, unable) = (counted(chosen), counted(slower), counted(unable));
    let chosen = PageTable {
        caption: "What was chosen, and why".into(),
        columns: ["movement", "primitive", "expected", "because"].map(str::to_owned).into(),
        rows: chosen,
        numbers: 0,
    };
    let mut blocks = vec![PageBlock::Table(chosen)];
    let others = [("What would have been slower, as estimated", slower), ("What could not be used, and why", unable)];
    for (caption, rows) in others {
        if rows.is_empty() {
            continue;
        }
        blocks.push(PageBlock::Table(PageTable {
            caption: caption.into(),
            columns: ["movement", "primitive", "not taken because"].map(str::to_owned).into(),
            rows,
            numbers: 0,
        }));
    }
    PageSection { title: "Routes".into(), blocks, ..PageSection::default() }
}

/// Rows that are equal become one, which says how many they were.
fn counted(rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let mut counts: BTreeMap<&[String], usize> = BTreeMap::new();
    rows.iter().for_each(|row| *counts.entry(row).or_default() += 1);
    let mut different = Vec::new();
    for row in &rows {
        let Some(count) = counts.remove(row.as_slice()) else { continue };
        let mut row = row.clone();
        if count > 1
            && let Some(movement) = row.first_mut()
        {
            *movement += &format!(" ({count} of them)");
        }
        different.push(row);
    }
    different
}

/// The report that the command prints, as it is.
pub(crate) fn printed(text: &str) -> PageSection {
    PageSection {
        title: "The report as text".into(),
        blocks: vec![PageBlock::Verbatim(text.to_owned())],
        is_folded: true,
        ..PageSection::default()
    }
}

/// Puts before the headline that a usual primitive was not to be had, if one of the routes says so.
pub(crate) fn say_fallback<'r>(page: &mut HtmlPage, routes: impl IntoIterator<Item = &'r Route>) {
    if let Some(why) = routes.into_iter().find_map(fallback) {
        say_lost(page, &why);
    }
}

/// Puts a sentence about something that was not to be had before the headline.
pub(crate) fn say_lost(page: &mut HtmlPage, sentence: &str) {
    page.headline.text = format!("{sentence} {}", page.headline.text);
    if page.headline.tone != Tone::Bad {
        page.headline.tone = Tone::Warning;
    }
}

/// Whether a way was rejected because this system does not let it be used.
pub(crate) fn is_fallback(why: &str) -> bool {
    why.starts_with("no io_uring") || why.starts_with("it was offered and could not be opened")
}

/// The sentence that says that a usual primitive was not to be had, if that is so.
fn fallback(route: &Route) -> Option<String> {
    let lost = route.rejected.iter().find(|rejected| is_fallback(&rejected.why))?;
    let used: Vec<&str> = route.hops.iter().map(|hop| hop.primitive).collect();
    Some(format!("A fallback was used: {} instead of {}, because {}.", used.join(" and "), lost.primitive, lost.why))
}
