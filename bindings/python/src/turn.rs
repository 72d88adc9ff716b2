//! How long an event loop has had no turn, because reads were done at once.
//!
//! A thread runs one loop at a time, so this is counted for each thread.

use std::cell::Cell;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Reads that are done at once take so long together, about, until the loop has a turn.
const MAX_HELD: Duration = Duration::from_millis(1);

thread_local! {
    static HELD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Whether the loop of this thread can be kept from its turn for a little longer.
pub(crate) fn may_hold() -> bool {
    HELD.get() < MAX_HELD
}

/// Counts a read that was done at once.
pub(crate) fn add(begun: Instant) {
    HELD.set(HELD.get().saturating_add(begun.elapsed()));
}

/// Whether the loop of this thread should have a turn now. Then it is counted anew.
#[pyfunction(name = "_turn_is_due")]
pub(crate) fn is_due() -> bool {
    let is_due = !may_hold();
    if is_due {
        HELD.set(Duration::ZERO);
    }
    is_due
}

/// Counts a read that was started: it is done, or else the loop has a turn before it is.
pub(crate) fn note(begun: Instant, is_done: bool) {
    if is_done { add(begun) } else { HELD.set(Duration::ZERO) }
}
