//! The page about a demo: `--report-html`.

use datapipes_picture::page::{BarList, Headline, HtmlPage, PageBlock, PageCheck, PageSection, PageTable, Tone};

use super::outcome::{Outcome, Sorted};
use crate::arguments::units;
use crate::report::parts;

/// The demo's own account, and then the page of its sort.
pub(super) fn page(o: &Outcome, sort: Option<HtmlPage>) -> HtmlPage {
    let mut page = parts::page("A demo: records sorted, checked and compared");
    let ours = o.dpipe.usage.seconds;
    let compared = match &o.system {
        Some(system) => format!(
            " The system's sort took {:.2} s, {:.1} times as long.",
            system.usage.seconds,
            system.usage.seconds / ours.max(1e-9)
        ),
        None => String::new(),
    };
    page.headline = Headline {
        text: format!(
            "{} were sorted in {} of memory in {ours:.2} s ({}).{compared} {}",
            units::bytes(o.bytes),
            units::memory(o.memory_bytes),
            units::rate(o.bytes, ours),
            if o.holds { "Every check holds." } else { "A check DOES NOT HOLD." }
        ),
        tone: if o.holds { Tone::Good } else { Tone::Bad },
    };
    page.facts = [
        ("records", o.records.to_string()),
        ("bytes", units::bytes(o.bytes)),
        ("memory budget", units::memory(o.memory_bytes)),
        ("processor time of the sort", format!("{:.2} s", o.dpipe.usage.cpu_seconds())),
        ("its peak memory", units::memory(o.dpipe.usage.peak_memory_bytes)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    page.sections.push(contestants(o));
    page.sections.push(checks(o));
    if let Some(sort) = sort {
        page.sections.push(PageSection {
            title: "The sort".into(),
            note: format!(
                "What follows is the sort's own page. It counts from when the sort itself begins; the {ours:.2} s above \
                 are those of the whole process, with its start, its end, and the making of this page."
            ),
            blocks: vec![PageBlock::Text(sort.headline.text)],
            ..PageSection::default()
        });
        page.sections.extend(sort.sections);
    }
    page
}

fn contestants(o: &Outcome) -> PageSection {
    let all: Vec<&Sorted> = std::iter::once(&o.dpipe).chain(&o.system).collect();
    let bars = all.iter().map(|one| (one.name.clone(), one.usage.seconds, format!("{:.2} s", one.usage.seconds)));
    let mut blocks =
        vec![PageBlock::Bars(BarList { caption: "Time of the same job".into(), bars: bars.collect(), top: None })];
    let rows = all.iter().map(|one| {
        let usage = &one.usage;
        vec![
            one.name.clone(),
            format!("{:.2} s", usage.seconds),
            format!("{:.2} s", usage.cpu_seconds()),
            units::memory(usage.peak_memory_bytes),
        ]
    });
    blocks.push(PageBlock::Table(PageTable {
        caption: "What each used, as the kernel counted it".into(),
        columns: ["program", "time", "processor time", "peak memory"].map(str::to_owned).into(),
        rows: rows.collect(),
        numbers: 3,
    }));
    if let Some(why) = &o.system_absent {
        blocks.push(PageBlock::Text(format!("The system's sort was not run: {why}.")));
    }
    PageSection { title: "The same job".into(), blocks, ..PageSection::default() }
}

fn checks(o: &Outcome) -> PageSection {
    let (before, after) = (&o.input, &o.output);
    let kept = after.records == before.records && after.checksum == before.checksum;
    let checks = vec![
        PageCheck {
            text: format!("The {} records of the output are in order.", after.records),
            holds: Some(after.sorted),
        },
        PageCheck {
            text: format!(
                "The output has the records of the input: {} with the checksum {}, before {} with {}.",
                after.records, after.checksum, before.records, before.checksum
            ),
            holds: Some(kept),
        },
        PageCheck { text: "Both programs wrote the same bytes.".into(), holds: o.same },
    ];
    PageSection { title: "What was verified".into(), blocks: vec![PageBlock::Checks(checks)], ..PageSection::default() }
}
