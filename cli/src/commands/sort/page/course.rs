//! What is read of a sort while it runs: columns of a recording, and samples.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes::metrics::{CourseColumn, Label, Sample, vocabulary};
use datapipes_sort::{MovementRole, SortProgress, SortReport, SortWait};

pub(super) const READ: usize = 0;
pub(super) const SPILLED: usize = 1;
pub(super) const MERGED: usize = 2;
pub(super) const WRITTEN: usize = 3;
/// The first of the columns with waits, in the order of `SortWait::ALL`.
const WAITS: usize = 4;

/// The columns that are recorded.
pub(in crate::commands::sort) fn columns() -> Vec<CourseColumn> {
    vec![CourseColumn::Sum; WAITS + SortWait::ALL.len()]
}

/// The present values of the columns.
pub(in crate::commands::sort) fn values(progress: &SortProgress) -> Vec<f64> {
    let counters = [&progress.read, &progress.spilled, &progress.merged, &progress.written];
    let bytes = counters.map(|counter| counter.load(Relaxed) as f64);
    bytes.into_iter().chain(SortWait::ALL.map(|what| progress.waits.seconds(what))).collect()
}

/// The progress as samples, for `dpipe top`: the primitives are known only at the end.
pub(in crate::commands::sort) fn samples(progress: &SortProgress) -> Vec<Sample> {
    let roles = [
        (MovementRole::Input, &progress.read),
        (MovementRole::Spill, &progress.spilled),
        (MovementRole::Merge, &progress.merged),
        (MovementRole::Output, &progress.written),
    ];
    let sample = |(role, counter): (MovementRole, &AtomicU64)| {
        let sample = Sample::new(&vocabulary::PIPE_BYTES, counter.load(Relaxed)).label(Label::Product, "sort");
        sample.label(Label::Pipe, role.as_str())
    };
    roles.map(sample).into()
}

/// The waits of threads that sort and merge.
pub(super) fn of_workers() -> impl Iterator<Item = SortWait> {
    SortWait::ALL.into_iter().filter(|what| !what.is_of_reader())
}

pub(super) fn column(what: SortWait) -> usize {
    WAITS + what as usize
}

/// A phase with the times between which it ran.
pub(super) struct PhaseSpan {
    pub(super) name: &'static str,
    pub(super) from: f64,
    pub(super) to: f64,
}

/// The phases follow each other; the first begins when the sort does.
pub(super) fn phases(report: &SortReport) -> Vec<PhaseSpan> {
    let known: f64 = report.phases.iter().map(|phase| phase.seconds).sum();
    // What precedes the first phase is opening files and taking memory.
    let mut at = (report.seconds - known).max(0.0);
    let span = |phase: &datapipes_sort::Phase| {
        let from = at;
        at += phase.seconds;
        PhaseSpan { name: phase.name, from, to: at }
    };
    report.phases.iter().map(span).collect()
}
