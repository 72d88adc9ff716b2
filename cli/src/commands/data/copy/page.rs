//! The page about a copy: `--report-html`.

use datapipes::metrics::CourseColumn;
use datapipes::{Pipe, Route};
use datapipes_picture::page::{HtmlPage, PageBlock, PageCheck, PageSection, TimelineChart, TimelineSeries, Tone};

use super::outcome::{Outcome, text};
use crate::arguments::units;
use crate::report::bottleneck::{IDLE, Share, headline};
use crate::report::held_up::{self, HeldUp};
use crate::report::parts;
use crate::report::recorder::Recording;

/// Of each hop the bytes that it moved, and the seconds in which it had work; then the bytes that
/// were compared.
pub(super) fn columns(hops: usize) -> Vec<CourseColumn> {
    vec![CourseColumn::Sum; 2 * hops + 1]
}

pub(super) fn values(pipe: &Pipe, compared: u64) -> Vec<f64> {
    let hops = pipe.report().hops;
    let of_hops = hops.iter().flat_map(|hop| [hop.counters.bytes as f64, hop.counters.busy_ns as f64 / 1e9]);
    of_hops.chain([compared as f64]).collect()
}

/// What the hops of a route do, in words.
fn steps(route: &Route) -> Vec<String> {
    let last = route.hops.len().saturating_sub(1);
    let is_file = |name: &str| !name.starts_with("dram:") && !name.starts_with("cache:") && !name.starts_with("numa:");
    let name = |at: usize, primitive: &str| match (is_file(&route.source), is_file(&route.target)) {
        (true, true) if last == 0 => format!("the kernel's copy ({primitive})"),
        (true, _) if at == 0 => format!("reads of the source ({primitive})"),
        (_, true) if at == last => format!("writes of the target ({primitive})"),
        _ => format!("copies by a core ({primitive})"),
    };
    route.hops.iter().enumerate().map(|(at, hop)| name(at, hop.primitive)).collect()
}

pub(super) fn page(o: &Outcome, recording: &Recording) -> HtmlPage {
    let mut page = parts::page("A copy");
    let steps = steps(&o.route);
    let durable = o.seconds + o.sync_seconds;
    let busy = steps
        .iter()
        .zip(&o.report.hops)
        .map(|(step, hop)| Share::new(format!("{step}, busy"), hop.counters.busy_ns as f64 / 1e9 / durable.max(1e-9)));
    let mut shares: Vec<Share> = busy.collect();
    if o.sync_seconds > 0.0 {
        shares.push(Share::new("the sync of the target", o.sync_seconds / durable.max(1e-9)));
    }
    // Steps overlap, so this is the least that is left of the time.
    let idle = 1.0 - shares.iter().map(|share| share.part).sum::<f64>();
    if idle > 0.005 {
        shares.push(Share::new(IDLE, idle));
    }
    let shares = HeldUp::of(recording, 1.0, 0.0, durable).take_off(shares);
    let rate = units::rate(o.bytes, durable);
    let verdict = match o.verified {
        Some(true) => "Verified: both ends were read again, and are equal. ",
        Some(false) if o.visible => "Both ends DIFFER, and the object is visible. ",
        Some(false) => "Both ends DIFFER, and the target was not kept. ",
        None => "",
    };
    let compared = match o.verified {
        Some(_) => format!("; the comparison took {:.2} s", o.verify_seconds),
        None => String::new(),
    };
    let done = format!("{} were copied in {durable:.2} s ({rate}){compared}.", units::bytes(o.bytes));
    page.headline = headline(&done, &shares);
    page.headline.text.insert_str(0, verdict);
    page.headline.tone = match o.verified {
        Some(false) => Tone::Bad,
        Some(true) => Tone::Good,
        None => Tone::Neutral,
    };
    parts::say_fallback(&mut page, [&o.route]);
    page.facts = [
        ("from", o.route.source.clone()),
        ("to", o.route.target.clone()),
        ("bytes", units::bytes(o.bytes)),
        ("moved in", format!("{:.3} s", o.seconds)),
        ("synced in", format!("{:.3} s", o.sync_seconds)),
        ("compared in", o.verified.map_or_else(|| "not compared".to_owned(), |_| format!("{:.3} s", o.verify_seconds))),
        ("processor time", format!("{:.3} s", o.cpu_seconds)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let mut names: Vec<(usize, &str)> = steps.iter().enumerate().map(|(at, step)| (2 * at, step.as_str())).collect();
    names.push((2 * steps.len(), "comparison of both ends"));
    let mut marks = Vec::new();
    if o.sync_seconds > 0.0 {
        marks.push((o.seconds, "sync".to_owned()));
    }
    if o.verified.is_some() {
        marks.push((durable, "comparison".to_owned()));
    }
    page.sections.push(PageSection {
        title: "Where the time went".into(),
        note: format!(
            "A step is busy while it has work. Steps overlap, so their shares may add up to more than the whole. {}",
            held_up::NOTE
        ),
        blocks: vec![
            parts::shares("Shares of the time until the bytes were durable", &shares),
            parts::rates(recording, "Bytes a second by step", &names, &marks),
            PageBlock::Timeline(at_work(recording, &steps)),
        ],
        ..PageSection::default()
    });
    page.sections.push(verified(o));
    let movements: Vec<_> = steps
        .iter()
        .zip(&o.report.hops)
        .map(|(step, hop)| (step.clone(), hop.primitive.to_owned(), hop.counters.clone()))
        .collect();
    page.sections.push(parts::primitives(&movements));
    page.sections.push(parts::routes(&[("copy".to_owned(), Ok(o.route.clone()))]));
    page.sections.push(parts::process(recording, None));
    page.sections.push(parts::printed(&text(o, |words, _| words.to_owned())));
    page
}

/// Which steps had work, from interval to interval. A step's time is counted when its work ends, so
/// an interval may have more of it than it lasted.
fn at_work(recording: &Recording, steps: &[String]) -> TimelineChart {
    let part = |at: usize| recording.course.rates(2 * at + 1).into_iter().map(|busy| (busy * 100.0).min(100.0));
    let series = steps.iter().enumerate().map(|(at, step)| TimelineSeries::new(step, part(at).collect()));
    TimelineChart {
        title: "Steps that had work".into(),
        unit: "% of the time".into(),
        top: Some(100.0),
        seconds: recording.course.seconds().to_vec(),
        series: series.collect(),
        ..TimelineChart::default()
    }
}

fn verified(o: &Outcome) -> PageSection {
    let moved = o.report.bytes();
    let counted = PageCheck {
        text: format!("{} bytes were asked for, and the pipe counted {moved} at the target.", o.bytes),
        holds: Some(moved == o.bytes),
    };
    let compared = match o.verified {
        Some(true) => format!(
            "Both ends were read again in {:.2} s, files past the page cache where that is possible, and every byte \
             was compared: {} bytes are equal.",
            o.verify_seconds, o.bytes
        ),
        Some(false) if o.visible => "Both ends were read again: they differ. The object is visible, in the place of \
                                     what was there, with bytes that are not the source's."
            .to_owned(),
        Some(false) => "Both ends were read again: they differ, and the target did not get its name.".to_owned(),
        None => "The bytes at both ends were not compared (--verify does that).".to_owned(),
    };
    let checks = vec![counted, PageCheck { text: compared, holds: o.verified }];
    PageSection { title: "What was verified".into(), blocks: vec![PageBlock::Checks(checks)], ..PageSection::default() }
}
