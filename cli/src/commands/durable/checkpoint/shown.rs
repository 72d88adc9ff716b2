//! What is shown of a checkpoint that is saved or restored.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes_durable::checkpoint::{CheckpointProgress, SavedCheckpoint};

use crate::arguments::units;
use crate::outcome::harmless;
use crate::progress::{self, State};
use crate::system::signals;

/// Does work that reports its progress, with a bar where somebody watches, until a signal stops it.
pub(super) fn watched<T>(
    phase: &'static str,
    work: impl FnOnce(&mut dyn FnMut(CheckpointProgress) -> ControlFlow<()>) -> T,
) -> T {
    let (done, total) = (AtomicU64::new(0), AtomicU64::new(0));
    let state = || State { phase, done: done.load(Relaxed), total: total.load(Relaxed), later: 0 };
    progress::during(progress::wanted(), state, || {
        work(&mut |p| {
            done.store(p.done, Relaxed);
            total.store(p.total, Relaxed);
            if signals::arrived() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    })
}

pub(super) fn shown(saved: &SavedCheckpoint) -> String {
    let seconds = saved.write_seconds + saved.publish_seconds;
    let removed = match saved.removed.len() {
        0 => String::new(),
        n => format!("; {n} older ones were removed"),
    };
    let left = saved
        .removal_error
        .as_ref()
        .map_or_else(String::new, |why| format!("OLDER ONES ARE LEFT: {}\n", harmless(why, usize::MAX)));
    format!(
        "checkpoint {}: {} durable in {seconds:.3} s ({}), {:.3} s of it for the sync and the name{removed}\n{left}",
        saved.number,
        units::bytes(saved.bytes),
        units::rate(saved.bytes, seconds),
        saved.publish_seconds
    )
}
