//! The page about a copy: `--report-html`.

use datapipes::metrics::CourseColumn;
use datapipes::{Pipe, Route};
use datapipes_picture::page::{HtmlPage, PageBlock, PageCheck, PageSection, Tone};

use super::outcome::{Outcome, text};
use crate::arguments::units;
use crate::report::bottleneck::{Share, headline};
use crate::report::parts;
use crate::report::recorder::Recording;

/// Of each hop the bytes that it moved, and the seconds in which it had work.
pub(super) fn columns(hops: usize) -> Vec<CourseColumn> {
    vec![CourseColumn::Sum; 2 * hops]
}

pub(super) fn values(pipe: &Pipe) -> Vec<f64> {
    let hops = pipe.report().hops;
    hops.iter().flat_map(|hop| [hop.counters.bytes as f64, hop.counters.busy_ns as f64 / 1e9]).collect()
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
    let rate = units::rate(o.bytes, durable);
    let verdict = match o.verified {
        Some(true) => "Verified: both ends were read again, and are equal. ",
        Some(false) => "Both ends DIFFER, and the target was not kept. ",
        None => "",
    };
    let done = format!("{} were copied in {durable:.2} s ({rate}).", units::bytes(o.bytes));
    page.headline = headline(&done, &shares);
    page.headline.text.insert_str(0, verdict);
    let fallback = parts::fallback(&o.route);
    page.headline.tone = match (o.verified, &fallback) {
        (Some(false), _) => Tone::Bad,
        (_, Some(_)) => Tone::Warning,
        (Some(true), _) => Tone::Good,
        (None, _) => Tone::Neutral,
    };
    if let Some(why) = &fallback {
        page.headline.text = format!("{why} {}", page.headline.text);
    }
    page.facts = [
        ("from", o.route.source.clone()),
        ("to", o.route.target.clone()),
        ("bytes", units::bytes(o.bytes)),
        ("moved in", format!("{:.3} s", o.seconds)),
        ("synced in", format!("{:.3} s", o.sync_seconds)),
        ("processor time", format!("{:.3} s", o.cpu_seconds)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let names: Vec<(usize, &str)> = steps.iter().enumerate().map(|(at, step)| (2 * at, step.as_str())).collect();
    page.sections.push(PageSection {
        title: "Where the time went".into(),
        note: "A step is busy while it has work. Steps overlap, so their shares may add up to more than the whole."
            .into(),
        blocks: vec![
            parts::shares("Shares of the time until the bytes were durable", &shares),
            parts::rates(recording, "Bytes a second by step", &names, &[]),
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
        Some(false) => "Both ends were read again: they differ, and the target did not get its name.".to_owned(),
        None => "The bytes at both ends were not compared (--verify does that).".to_owned(),
    };
    let checks = vec![counted, PageCheck { text: compared, holds: o.verified }];
    PageSection { title: "What was verified".into(), blocks: vec![PageBlock::Checks(checks)], ..PageSection::default() }
}
