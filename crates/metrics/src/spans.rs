//! Every span and event, once. `docs/metrics.md` lists them for people.
//!
//! Their fields are the labels of measurements, sums that end with their unit, and counts. They
//! name no files and no users.

use crate::trace::TraceLevel;

/// A span, which lasts, or an event, which happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpanDefinition {
    /// Its name.
    pub name: &'static str,
    /// Whether it lasts. Then it has a field `outcome` besides: `completed` or `failed`.
    pub lasts: bool,
    /// Its level.
    pub level: TraceLevel,
    /// Its fields.
    pub fields: &'static [&'static str],
    /// What it is, in a line.
    pub help: &'static str,
}

const fn span(
    level: TraceLevel,
    name: &'static str,
    fields: &'static [&'static str],
    help: &'static str,
) -> SpanDefinition {
    SpanDefinition { name, lasts: true, level, fields, help }
}

const fn event(
    level: TraceLevel,
    name: &'static str,
    fields: &'static [&'static str],
    help: &'static str,
) -> SpanDefinition {
    SpanDefinition { name, lasts: false, level, fields, help }
}

use TraceLevel::{Debug, Info, Trace};

/// Every span and event.
pub static ALL: &[SpanDefinition] = &[
    span(Debug, "connect", &["route"], "Two places are connected; the route is known at the end"),
    span(Trace, "transfer", &["route", "len_bytes"], "A pipe moves a span, and the caller waits"),
    span(Trace, "hop", &["number", "len_bytes"], "A step of a transfer whose steps follow each other"),
    event(Trace, "submit", &["class", "len_bytes"], "A transfer is given to a runtime; its end is in the histograms"),
    span(Info, "sort", &["memory_bytes", "threads"], "A sort or a merge of inputs, as a whole"),
    span(Debug, "merge_pass", &["runs"], "Runs are merged, into one run or the output"),
    event(Debug, "evictions", &["items"], "Items that a cache evicted for others since it told of them last"),
    event(Debug, "slabs_reassigned", &["slabs"], "A cache emptied slabs of some size classes for others"),
    span(Debug, "revoke", &[], "A capability of a fabric is withdrawn, with all that was made of it"),
    event(Debug, "log_rotation", &["segments"], "A log began segments"),
    span(Info, "checkpoint_save", &["regions", "len_bytes"], "A checkpoint is written and gets its name"),
    span(Info, "checkpoint_restore", &["number"], "A checkpoint is read and checked"),
];
