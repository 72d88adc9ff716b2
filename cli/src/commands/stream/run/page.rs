//! The page about a stream: `--report-html`.

use std::collections::BTreeMap;

use datapipes::metrics::Course;
use datapipes_fabric::placement::Placement;
use datapipes_picture::page::{
    HtmlPage, PageBlock, PageCheck, PageSection, PageTable, TimelineChart, TimelineSeries, Tone,
};

use super::meters::COLUMNS;
use super::one::Run;
use super::{routes, table};
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
        page.headline = headline(&done, &by_device(run));
        if runs.iter().all(|run| run.verified == Some(true)) {
            page.headline.text = format!("Verified: the file has what it must. {}", page.headline.text);
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
        if job.due.is_some() {
            let before = format!("{:.2} s", job.replay_seconds);
            page.facts.push(("before that, reading the origin and computing what is due".into(), before));
        }
    }
    let ran: Vec<Placement> = runs.iter().map(|run| run.placement).collect();
    for run in runs {
        page.sections.push(section(run, runs.len() > 1));
        page.sections.push(routes::section(job, run, &names(run), &ran));
        if let Some(recording) = &run.recording {
            let mut process = parts::process(recording, None);
            process.note = "Of this command alone: the devices are processes of their own.".into();
            page.sections.push(process);
        }
        page.sections.push(parts::printed(&table::run(job, run)));
    }
    if runs.len() > 1 {
        page.sections.push(parts::printed(&table::comparison(runs)));
    }
    page
}

/// The device that the others waited for, as shares of the looks at the channels. The last channel
/// on the way that is full is full because of its receiver. Where none is, it is the last device
/// that has had blocks all along, or else the first device on the way that has not sent everything
/// yet: the source as long as it sends, and in the end the last receiver.
fn shares(run: &Run) -> Vec<Share> {
    let Some(recording) = &run.recording else { return Vec::new() };
    let credits: Vec<u32> = run.edges.iter().map(|edge| edge.credits).collect();
    let counts = waited_for(&recording.course, &credits);
    let all = counts.values().sum::<usize>().max(1) as f64;
    let shares = counts.iter().map(|(waited, count)| Share::new(waited.words(run), *count as f64 / all));
    shares.collect()
}

/// The same with one share for each device: that it was slow shows in a full channel while the
/// source sends, and in what is left to do afterwards.
fn by_device(run: &Run) -> Vec<Share> {
    let Some(recording) = &run.recording else { return Vec::new() };
    let credits: Vec<u32> = run.edges.iter().map(|edge| edge.credits).collect();
    let counts = waited_for(&recording.course, &credits);
    let all = counts.values().sum::<usize>().max(1) as f64;
    let count = |waited| counts.get(&waited).copied().unwrap_or(0);
    let mut shares = vec![(Waited::Source.words(run), count(Waited::Source))];
    for edge in 0..credits.len() {
        let [full, busy, rest] = [Waited::FullChannelTo(edge), Waited::NeverIdle(edge), Waited::RestBehind(edge)];
        let words = match (count(full), count(busy), count(rest)) {
            (0, 0, _) => rest.words(run),
            (0, _, 0) => busy.words(run),
            (0, _, _) => format!("{}, or the rest to do", busy.words(run)),
            (_, _, 0) => full.words(run),
            _ => format!("{}, or it had the rest to do", full.words(run)),
        };
        shares.push((words, count(full) + count(busy) + count(rest)));
    }
    shares.retain(|(_, count)| *count > 0);
    shares.into_iter().map(|(words, count)| Share::new(words, count as f64 / all)).collect()
}

/// How many looks found that somebody was waited for, from the course of channels with so many
/// credits.
fn waited_for(course: &Course, credits: &[u32]) -> BTreeMap<Waited, usize> {
    let edges = 0..credits.len();
    let under_way: Vec<Vec<f64>> = edges.clone().map(|edge| course.values(edge * COLUMNS + 2)).collect();
    let blocks: Vec<Vec<f64>> = edges.clone().map(|edge| course.values(edge * COLUMNS)).collect();
    let ending: Vec<Vec<f64>> = edges.clone().map(|edge| course.values(edge * COLUMNS + 3)).collect();
    let looks = course.seconds().len();
    // A look tells of the time before it, so the first one tells nothing if no block was sent yet.
    // After all blocks were replied to, nobody is waited for.
    let tells = |at: &usize| *at > 0 || blocks.first().is_some_and(|sent| sent[*at] > 0.0);
    let is_over = |at: &usize| edges.clone().all(|edge| ending[edge][*at] > 0.0 && under_way[edge][*at] == 0.0);
    let never_idle: Vec<Vec<bool>> = edges.clone().map(|edge| busy_looks(&under_way[edge], &blocks[edge])).collect();
    let is_busy = |edge: usize, at: usize| never_idle[edge][at];
    let mut counts: BTreeMap<Waited, usize> = BTreeMap::new();
    for at in (0..looks).filter(|at| tells(at) && !is_over(at)) {
        let full = |edge: &usize| under_way[*edge][at] * 4.0 >= f64::from(credits[*edge]) * 3.0;
        let waited = match edges.clone().rev().find(full) {
            Some(edge) => Waited::FullChannelTo(edge),
            // The first device that has not sent all that it will send is what the others wait for,
            // also while one of them holds a block. After that it is who has blocks to answer.
            None => match edges.clone().find(|edge| ending[*edge][at] == 0.0) {
                // A device that has had blocks all along takes them more slowly than they
                // come, also while the channels have room.
                Some(0) => match edges.clone().rev().find(|edge| is_busy(*edge, at)) {
                    Some(edge) => Waited::NeverIdle(edge),
                    None => Waited::Source,
                },
                Some(edge) => Waited::RestBehind(edge - 1),
                None => Waited::RestBehind(edges.clone().rev().find(|edge| under_way[*edge][at] > 0.0).unwrap_or(0)),
            },
        };
        *counts.entry(waited).or_default() += 1;
    }
    counts
}

/// The looks within stretches in which a channel's receiver had blocks at each look, although
/// more of them came, and on average more than the one that it has in hand.
fn busy_looks(under_way: &[f64], sent: &[f64]) -> Vec<bool> {
    /// A block or two that a look happens to see say nothing.
    const MORE: f64 = 2.0;
    /// A device may keep the block that it has passed on until the next one comes.
    const ON_AVERAGE: f64 = 1.5;
    let mut busy = vec![false; under_way.len()];
    let mut begin = 0;
    while begin < under_way.len() {
        let stretch = under_way[begin..].split(|blocks| *blocks == 0.0).next().unwrap_or_default();
        let (len, blocks) = (stretch.len(), stretch.iter().sum::<f64>());
        let end = begin + len;
        if len > 0 && sent[end - 1] - sent[begin] >= MORE && blocks >= ON_AVERAGE * len as f64 {
            busy[begin..end].fill(true);
        }
        begin = end + 1;
    }
    busy
}

/// Who was waited for at a look, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waited {
    Source,
    /// The receiver of a channel that is full.
    FullChannelTo(usize),
    /// The receiver of a channel that never ran dry.
    NeverIdle(usize),
    /// The receiver of a channel, after the source had sent everything.
    RestBehind(usize),
}

impl Waited {
    fn words(self, run: &Run) -> String {
        // Of several devices of one name, the number of the channel tells which one it is.
        let is_repeated = |name: &str| run.edges.iter().filter(|edge| edge.to == name).count() > 1;
        let to = |at: usize| match run.edges.get(at) {
            Some(edge) if is_repeated(&edge.to) => format!("{} behind channel {}", edge.to, at + 1),
            Some(edge) => edge.to.clone(),
            None => "the sink".to_owned(),
        };
        match self {
            Waited::Source => {
                let source = run.edges.first().map_or("the source", |edge| edge.from.as_str());
                // There the application moves every block, and no channel tells how busy it is.
                let or = if run.placement == Placement::ApplicationSide { ", or the application" } else { "" };
                format!("{source}{or}: no channel was full")
            }
            Waited::FullChannelTo(edge) => format!("{}: the channel to it was full", to(edge)),
            Waited::NeverIdle(edge) => format!("{}: it had blocks all the time", to(edge)),
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
    let names = names(run);
    if let Some(recording) = &run.recording {
        let shown = fullest(run, recording);
        let of_all = match names.len() - shown.len() {
            0 => String::new(),
            _ => format!(", of the {} of {} that were fullest", shown.len(), names.len()),
        };
        let mut marks = Vec::new();
        if run.on_disk.is_some() {
            marks.push((run.read_back_at, "reading the file again".to_owned()));
        }
        blocks.push(match shares(run) {
            none if none.is_empty() => PageBlock::Text("It ended before anybody looked at its channels.".into()),
            shares => parts::shares("Who was waited for, as shares of the looks at the channels", &shares),
        });
        let columns: Vec<(usize, &str)> = shown.iter().map(|at| (at * COLUMNS + 1, names[*at].as_str())).collect();
        blocks.push(parts::rates(recording, &format!("Bytes a second by channel{of_all}"), &columns, &marks));
        let title = format!("Credits in use{of_all}");
        blocks.push(PageBlock::Timeline(TimelineChart { title, ..credits(run, recording, &names, &shown) }));
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
        Some(sum) => format!("the file has {} bytes with the CRC-32 {:08x}", sum.bytes, sum.crc32),
        None => "the file was not read back".to_owned(),
    };
    let text = format!(
        "{} bytes with the CRC-32 {:08x} were sent; due are {} bytes with the CRC-32 {:08x} ({}); {on_disk}.",
        run.sent.bytes, run.sent.crc32, run.due.bytes, run.due.crc32, run.due_from
    );
    blocks.push(PageBlock::Checks(vec![PageCheck { text, holds: run.verified }]));
    PageSection {
        title,
        note: "Each device tells how many blocks it sent and how many of them were not answered yet. A channel is \
               called full when three quarters of its credits are in use. Whether a device that is waited for works \
               or waits for a core itself is not known here: it is another process."
            .into(),
        blocks,
        ..PageSection::default()
    }
}

/// The channels by their ends; with a number where several have the same.
fn names(run: &Run) -> Vec<String> {
    let plain: Vec<String> = run.edges.iter().map(|edge| format!("{} to {}", edge.from, edge.to)).collect();
    let is_repeated = |name: &String| plain.iter().filter(|other| *other == name).count() > 1;
    let name = |(at, name): (usize, &String)| match is_repeated(name) {
        true => format!("{}: {name}", at + 1),
        false => name.clone(),
    };
    plain.iter().enumerate().map(name).collect()
}

/// As many lines as a chart has colours.
const SERIES: usize = 8;

/// The channels to be shown over time, in their order: all, or those that were fullest.
fn fullest(run: &Run, recording: &Recording) -> Vec<usize> {
    let used = |at: &usize| recording.course.values(at * COLUMNS + 2).iter().sum::<f64>();
    let part = |at: &usize| used(at) / f64::from(run.edges.get(*at).map_or(1, |edge| edge.credits).max(1));
    let mut all: Vec<usize> = (0..run.edges.len()).collect();
    all.sort_by(|one, other| part(other).total_cmp(&part(one)));
    all.truncate(SERIES);
    all.sort_unstable();
    all
}

/// The part of the credits that is in use.
fn credits(run: &Run, recording: &Recording, names: &[String], shown: &[usize]) -> TimelineChart {
    let series =
        shown.iter().filter_map(|at| Some((*at, run.edges.get(*at)?, names.get(*at)?))).map(|(at, edge, name)| {
            let used = recording.course.values(at * COLUMNS + 2);
            let part = used.iter().skip(1).map(|used| used * 100.0 / f64::from(edge.credits.max(1)));
            TimelineSeries::new(name, part.collect())
        });
    TimelineChart {
        unit: "% of the channel's credits".into(),
        top: Some(100.0),
        seconds: recording.course.seconds().to_vec(),
        series: series.collect(),
        ..TimelineChart::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use datapipes::metrics::CourseColumn;

    use super::*;

    /// The course of a source, a transform and a sink: at each look the blocks that were sent and
    /// those that are under way, of both channels. A sender that will send no more than so many
    /// blocks has then sent everything.
    fn course(looks: &[[f64; 4]], all: [f64; 2]) -> Course {
        let mut course = Course::new(vec![CourseColumn::Peak; 2 * COLUMNS], Duration::from_millis(50));
        for (nth, [sent, under_way, passed_on, last]) in looks.iter().enumerate() {
            let ending = |sent: f64, all: f64| if sent >= all { 1.0 } else { 0.0 };
            let first = [*sent, 0.0, *under_way, ending(*sent, all[0])];
            let second = [*passed_on, 0.0, *last, ending(*passed_on, all[1])];
            course.push(nth as f64 * 0.05, &[first, second].concat());
        }
        course
    }

    #[test]
    fn after_its_last_byte_the_source_is_not_waited_for() {
        // The source sends four blocks by the second look; the transform needs five more.
        let looks = [
            [0.0, 0.0, 0.0, 0.0],
            [2.0, 2.0, 0.0, 0.0],
            [4.0, 2.0, 1.0, 0.0],
            [4.0, 2.0, 2.0, 0.0],
            [4.0, 1.0, 3.0, 0.0],
            [4.0, 1.0, 3.0, 0.0],
            [4.0, 0.0, 4.0, 0.0],
        ];
        let four = [4.0, 4.0];
        let counts = waited_for(&course(&looks, four), &[8, 8]);
        assert_eq!(counts.get(&Waited::NeverIdle(0)), Some(&1), "{counts:?}");
        assert_eq!(counts.get(&Waited::RestBehind(0)), Some(&4), "{counts:?}");
        // A channel that is full is full because of its receiver, also when the source is done.
        let full = waited_for(&course(&looks, four), &[2, 8]);
        assert_eq!(full.get(&Waited::FullChannelTo(0)), Some(&3), "{full:?}");
        // The sink holds a block all the time; it is still the transform that has more to send, and
        // only at the end it is the sink.
        let held = looks.map(|[sent, under_way, passed_on, _]| [sent, under_way, passed_on, 1.0]);
        let held = waited_for(&course(&held, four), &[8, 8]);
        assert_eq!(held.get(&Waited::RestBehind(0)), Some(&4), "{held:?}");
        assert_eq!(held.get(&Waited::RestBehind(1)), Some(&1), "{held:?}");
        // A source that sends to the end is waited for to the end.
        let slow = [[0.0; 4], [1.0, 0.0, 1.0, 0.0], [2.0, 0.0, 2.0, 0.0], [3.0, 0.0, 3.0, 0.0]];
        let slow = waited_for(&course(&slow, [3.0, 3.0]), &[8, 8]);
        assert_eq!(slow.into_iter().collect::<Vec<_>>(), [(Waited::Source, 2)]);
    }

    #[test]
    fn a_device_that_always_has_blocks_is_waited_for_while_channels_have_room() {
        // The sink needs longer than the source, and no channel is full yet.
        let looks = [[1.0, 1.0, 0.0, 0.0], [2.0, 0.0, 2.0, 1.0], [3.0, 1.0, 2.0, 2.0], [4.0, 0.0, 4.0, 2.0]];
        let counts = waited_for(&course(&looks, [9.0, 9.0]), &[8, 8]);
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(Waited::Source, 1), (Waited::NeverIdle(1), 3)]);
        // The transform keeps what it has passed on until the next block comes.
        let looks = [[1.0, 1.0, 1.0, 0.0], [2.0, 1.0, 2.0, 0.0], [3.0, 2.0, 2.0, 0.0], [4.0, 1.0, 4.0, 0.0]];
        let counts = waited_for(&course(&looks, [9.0, 9.0]), &[8, 8]);
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(Waited::Source, 4)]);
        // Now and then the sink has a block, and nothing to do in between.
        let looks = [[1.0, 0.0, 1.0, 1.0], [2.0, 0.0, 2.0, 0.0], [3.0, 0.0, 3.0, 1.0], [3.0, 0.0, 3.0, 1.0]];
        let counts = waited_for(&course(&looks, [9.0, 9.0]), &[8, 8]);
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [(Waited::Source, 4)]);
    }

    #[test]
    fn a_device_that_collects_its_input_is_waited_for() {
        // All was sent and answered, and nothing comes out yet; of a filter nothing ever does.
        for passed_on in [1.0, 0.0] {
            let looks = [
                [1.0, 1.0, 0.0, 0.0],
                [3.0, 0.0, 0.0, 0.0],
                [3.0, 0.0, 0.0, 0.0],
                [3.0, 0.0, 0.0, 0.0],
                [3.0, 0.0, passed_on, 0.0],
            ];
            let mut course = course(&looks, [3.0, f64::MAX]);
            course.push(0.25, &[3.0, 0.0, 0.0, 1.0, passed_on, 0.0, 0.0, 1.0]);
            let counts = waited_for(&course, &[4, 4]);
            let wanted = [(Waited::Source, 1), (Waited::RestBehind(0), 4)];
            assert_eq!(counts.into_iter().collect::<Vec<_>>(), wanted, "{passed_on}");
        }
    }
}
