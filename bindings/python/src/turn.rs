//! How long an event loop has had no turn, because reads were done at once.
//!
//! A thread runs one loop at a time, so this is counted for each thread.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Reads that are done at once take so long together, about, until the loop has a turn.
const MAX_HELD: Duration = Duration::from_millis(1);

thread_local! {
    static HELD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Whether the loop of this thread can be kept from its turn for a little longer.
pub(crate) fn may_hold() -> bool {
    HELD.get() < MAX_HELD
}

/// Counts a read that was done at once. Returns whether the loop should have a turn now, and counts
/// anew then.
pub(crate) fn is_due(begun: Instant) -> bool {
    let held = HELD.get().saturating_add(begun.elapsed());
    let is_due = held >= MAX_HELD;
    HELD.set(if is_due { Duration::ZERO } else { held });
    is_due
}

/// Counts a read that was started: it is done, or else the loop has a turn before it is.
pub(crate) fn note(begun: Instant, is_done: bool) {
    HELD.set(if is_done { HELD.get().saturating_add(begun.elapsed()) } else { Duration::ZERO });
}
