//! What is shown of a checkpoint that is saved or restored.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapipes_durable::checkpoint::{CheckpointProgress, SavedCheckpoint};

use crate::arguments::units;
use crate::outcome::harmless;
use crate::progress::{self, State};
use crate::system::signals;

/// What is done with a checkpoint.
#[derive(Clone, Copy)]
pub(super) struct CheckpointPhase {
    pub(super) name: &'static str,
    /// Whether a sync follows when all bytes are done.
    pub(super) is_synced: bool,
    /// Bytes of a phase that follows.
    pub(super) later: u64,
}

impl CheckpointPhase {
    pub(super) const CHECKING: CheckpointPhase = CheckpointPhase { name: "checking", is_synced: false, later: 0 };
    pub(super) const RESTORING: CheckpointPhase = CheckpointPhase { name: "restoring", is_synced: false, later: 0 };
    pub(super) const SAVING: CheckpointPhase = CheckpointPhase { name: "saving", is_synced: true, later: 0 };
}

/// Does work that reports its progress, with a bar where somebody watches, until a signal stops it.
pub(super) fn watched<T>(
    phase: CheckpointPhase,
    work: impl FnOnce(&mut dyn FnMut(CheckpointProgress) -> ControlFlow<()>) -> T,
) -> T {
    let (done, total) = (AtomicU64::new(0), AtomicU64::new(0));
    let state = || {
        let (done, total) = (done.load(Relaxed), total.load(Relaxed));
        let CheckpointPhase { name, is_synced, later } = phase;
        let is_done = total > 0 && done >= total;
        if is_synced && is_done { State::of("syncing") } else { State { phase: name, done, total, later } }
    };
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
