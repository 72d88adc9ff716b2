//! The page about a stream: `--report-html`.

use std::collections::BTreeMap;

use datapipes_fabric::placement::Placement;
use datapipes_picture::page::{
    HtmlPage, PageBlock, PageCheck, PageSection, PageTable, TimelineChart, TimelineSeries, Tone,
};

use super::meters::COLUMNS;
use super::one::Run;
use super::table;
use crate::arguments::units;
use crate::commands::stream::job::Job;
use crate::report::bottleneck::{Share, headline};
use crate::report::parts;
use crate::report::recorder::Recording;

pub(in crate::commands::stream) fn page(job: &Job, runs: &[Run]) -> HtmlPage {
    let mut page = parts::page("A stream");
    let best = runs.iter().max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second));
    if let Some(run) = best {
        let done = format!(
            "{} went from the source to the sink in {:.2} s ({}), {}.",
            units::bytes(run.sent.bytes),
            run.seconds,
            units::rate(run.sent.bytes, run.seconds),
            run.placement.name()
        );
        page.headline = headline(&done, &shares(run));
        if runs.iter().all(|run| run.verified == Some(true)) {
            page.headline.text = format!("Verified: the disk has what it must. {}", page.headline.text);
        }
        page.headline.tone = match runs.iter().map(|run| run.verified).collect::<Vec<_>>() {
            all if all.contains(&Some(false)) => Tone::Bad,
            all if all.iter().all(|verified| *verified == Some(true)) => Tone::Good,
            _ => Tone::Neutral,
        };
        page.facts = [
            ("bytes", units::bytes(run.sent.bytes)),
            ("transforms", job.steps.len().to_string()),
            ("time", format!("{:.2} s", run.seconds)),
            ("processor time of all processes", format!("{:.2} s", run.cpu_seconds)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
    }
    for run in runs {
        page.sections.push(section(run, runs.len() > 1));
        page.sections.push(parts::printed(&table::run(job, run)));
    }
    if runs.len() > 1 {
        page.sections.push(parts::printed(&table::comparison(runs)));
    }
    page
}

/// The device that the others waited for, as shares of the looks at the channels. The last channel
/// on the way that is full is full because of its receiver. Where none is, the source is the
/// slowest, as long as it sends; afterwards it is the first device that still has something to do.
fn shares(run: &Run) -> Vec<Share> {
    let Some(recording) = &run.recording else { return Vec::new() };
    let under_way: Vec<Vec<f64>> =
        (0..run.edges.len()).map(|edge| recording.course.values(edge * COLUMNS + 2)).collect();
    let blocks: Vec<Vec<f64>> = (0..run.edges.len()).map(|edge| recording.course.values(edge * COLUMNS)).collect();
    let looks = recording.course.seconds().len();
    let last = |edge: usize| blocks[edge].last().copied().unwrap_or(0.0);
    // Looks at which blocks moved: before and after there is nothing to wait for.
    let moving = (0..looks).filter(|at| (0..run.edges.len()).any(|e| blocks[e][*at] > 0.0 && blocks[e][*at] < last(e)));
    let mut counts: BTreeMap<Waited, usize> = BTreeMap::new();
    for at in moving {
        let full = |edge: &usize| under_way[*edge][at] * 4.0 >= f64::from(run.edges[*edge].credits) * 3.0;
        let source_sends = blocks.first().is_some_and(|sent| sent[at] < last(0));
        let waited = match (0..run.edges.len()).rev().find(full) {
            Some(edge) => Waited::FullChannelTo(edge),
            None if source_sends => Waited::Source,
            // A device holds blocks that it has not answered, or sends less than it will have sent.
            None => {
                match (0..run.edges.len()).find(|edge| under_way[*edge][at] > 0.0 || blocks[*edge][at] < last(*edge)) {
                    Some(edge) if under_way[edge][at] > 0.0 => Waited::RestBehind(edge),
                    Some(edge) => Waited::RestBehind(edge.saturating_sub(1)),
                    None => Waited::Source,
                }
            }
        };
        *counts.entry(waited).or_default() += 1;
    }
    let all = counts.values().sum::<usize>().max(1) as f64;
    let shares = counts.iter().map(|(waited, count)| Share::new(waited.words(run), *count as f64 / all));
    shares.collect()
}

/// Who was waited for at a look, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waited {
    Source,
    /// The receiver of a channel that is full.
    FullChannelTo(usize),
    /// The receiver of a channel, after the source had sent everything.
    RestBehind(usize),
}

impl Waited {
    fn words(self, run: &Run) -> String {
        let to = |edge: usize| run.edges.get(edge).map_or("the sink", |edge| edge.to.as_str());
        match self {
            Waited::Source => {
                let source = run.edges.first().map_or("the source", |edge| edge.from.as_str());
                // There the application moves every block, and no channel tells how busy it is.
                let or = if run.placement == Placement::ApplicationSide { ", or the application" } else { "" };
                format!("{source}{or}: no channel was full")
            }
            Waited::FullChannelTo(edge) => format!("{}: the channel to it was full", to(edge)),
            Waited::RestBehind(edge) => format!("{}: what was left after the source's last byte", to(edge)),
        }
    }
}

fn section(run: &Run, is_one_of_several: bool) -> PageSection {
    let title = match is_one_of_several {
        true => format!("Where the time went: {}", run.placement.name()),
        false => "Where the time went".to_owned(),
    };
    let mut blocks = Vec::new();
    let names: Vec<String> = run.edges.iter().map(|edge| format!("{} to {}", edge.from, edge.to)).collect();
    if let Some(recording) = &run.recording {
        blocks.push(parts::shares("Who was waited for, as shares of the looks at the channels", &shares(run)));
        let columns: Vec<(usize, &str)> =
            names.iter().enumerate().map(|(at, name)| (at * COLUMNS + 1, name.as_str())).collect();
        blocks.push(parts::rates(recording, "Bytes a second by channel", &columns, &[]));
        blocks.push(PageBlock::Timeline(credits(run, recording, &names)));
    }
    blocks.push(PageBlock::Table(PageTable {
        caption: format!("Channels under the placement {}", run.placement.name()),
        columns: ["channel", "blocks", "bytes", "credits"].map(str::to_owned).into(),
        rows: run
            .edges
            .iter()
            .zip(&names)
            .map(|(edge, name)| {
                vec![name.clone(), edge.blocks.to_string(), units::bytes(edge.bytes), edge.credits.to_string()]
            })
            .collect(),
        numbers: 3,
    }));
    if let Some(choice) = &run.choice {
        blocks.push(PageBlock::Verbatim(choice.to_string()));
    }
    let on_disk = match run.on_disk {
        Some(sum) => format!("the disk has {} bytes with the CRC-32 {:08x}", sum.bytes, sum.crc32),
        None => "the disk was not read back".to_owned(),
    };
    let text = format!(
        "{} bytes with the CRC-32 {:08x} were sent; due are {} bytes with the CRC-32 {:08x} ({}); {on_disk}.",
        run.sent.bytes, run.sent.crc32, run.due.bytes, run.due.crc32, run.due_from
    );
    blocks.push(PageBlock::Checks(vec![PageCheck { text, holds: run.verified }]));
    PageSection {
        title,
        note: "Each device tells how many blocks it sent and how many of them were not answered yet. A channel is \
               called full when three quarters of its credits are in use."
            .into(),
        blocks,
        ..PageSection::default()
    }
}

/// The part of the credits that is in use.
fn credits(run: &Run, recording: &Recording, names: &[String]) -> TimelineChart {
    let series = run.edges.iter().zip(names).enumerate().map(|(at, (edge, name))| {
        let used = recording.course.values(at * COLUMNS + 2);
        let part = used.iter().skip(1).map(|used| used * 100.0 / f64::from(edge.credits.max(1)));
        TimelineSeries { name: name.clone(), values: part.collect() }
    });
    TimelineChart {
        title: "Credits in use".into(),
        unit: "% of the channel's credits".into(),
        top: Some(100.0),
        seconds: recording.course.seconds().to_vec(),
        series: series.collect(),
        ..TimelineChart::default()
    }
}
