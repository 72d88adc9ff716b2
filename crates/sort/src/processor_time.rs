//! The time of the processor that this process or thread took so far, in seconds.

use rustix::time::{ClockId, clock_gettime};

/// The seconds of all threads of this process.
pub(crate) fn processor_seconds() -> f64 {
    seconds_of(ClockId::ProcessCPUTime)
}

/// The seconds of this thread.
pub(crate) fn thread_seconds() -> f64 {
    seconds_of(ClockId::ThreadCPUTime)
}

fn seconds_of(clock: ClockId) -> f64 {
    let used = clock_gettime(clock);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}
