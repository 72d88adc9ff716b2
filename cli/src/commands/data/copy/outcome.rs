//! What a copy finds.

use datapipes::{PipeReport, Route};
use serde::Serialize;

use crate::arguments::units;
use crate::colors::Color;
use crate::objects::ObjectAccount;
use crate::outcome::{CommandStatus, clean, harmless};
use crate::report::recorder::Recording;

/// The output of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    /// Bytes moved.
    pub(super) bytes: u64,
    /// Seconds from the first transfer's start to the last one's end.
    pub(super) seconds: f64,
    /// Seconds after that until the bytes would survive a power failure; 0 for memory.
    pub(super) sync_seconds: f64,
    /// Bytes by `seconds`.
    pub(super) bytes_per_second: f64,
    /// Processor time of the process during `seconds`.
    pub(super) cpu_seconds: f64,
    /// Whether both ends are equal; null without --verify.
    pub(super) verified: Option<bool>,
    /// The route, with reasons.
    pub(super) route: Route,
    /// The report of the pipe.
    pub(super) report: PipeReport,
    /// What was asked of servers, for each object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) objects: Vec<ObjectAccount>,
    /// Whether the target is an object, which is published before it can be compared.
    #[serde(skip)]
    pub(super) visible: bool,
    /// Seconds in which both ends were compared.
    #[serde(skip)]
    pub(super) verify_seconds: f64,
    /// What was read of the counters meanwhile, where a page is to be made.
    #[serde(skip)]
    pub(super) recording: Option<Recording>,
}

impl Outcome {
    pub(super) fn status(&self) -> CommandStatus {
        if self.verified == Some(false) { CommandStatus::Bad } else { CommandStatus::Good }
    }
}

/// What counts of an outcome, as a line, of which `paint` colours the words that count most.
pub(super) fn headline(outcome: &Outcome, paint: impl Fn(&str, Color) -> String) -> String {
    let o = outcome;
    let rate = units::rate(o.bytes, o.seconds);
    let mut text =
        format!("{} in {:.3} s ({rate}), {:.3} s of processor time", units::bytes(o.bytes), o.seconds, o.cpu_seconds);
    if o.sync_seconds > 0.0005 {
        text += &format!(", synced in {:.3} s", o.sync_seconds);
    }
    match o.verified {
        Some(true) => text += &format!(", {}: both ends are equal", paint("verified", Color::Good)),
        Some(false) if o.visible => {
            let what = "the object is visible, in the place of what was there, with bytes that are not the source's";
            text += &format!(", {}: {what}", paint("DIFFERENT", Color::Bad));
        }
        Some(false) => text += &format!(", {}: the target was not kept", paint("DIFFERENT", Color::Bad)),
        None => {}
    }
    text
}

/// The outcome in words.
pub(super) fn text(outcome: &Outcome, paint: impl Fn(&str, Color) -> String) -> String {
    let (o, text) = (outcome, headline(outcome, paint));
    let whys = o.route.hops.iter().map(|hop| format!("  {} because {}\n", hop.primitive, hop.why));
    let objects = o.objects.iter().map(|object| format!("  {object}\n"));
    let mut report = o.report.clone();
    for name in [&mut report.source, &mut report.target] {
        *name = harmless(name, usize::MAX);
    }
    let rest = format!("{report}{}{}", whys.collect::<String>(), objects.collect::<String>());
    // Colours are ours, so what names of others are in is cleaned here.
    format!("{text}\n{}", clean(&rest))
}
