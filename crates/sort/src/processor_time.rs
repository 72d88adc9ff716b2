//! The time of the processor that this process or thread took so far, in seconds, and the time for
//! which it had to wait for a core.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// The seconds of all threads of this process.
pub(crate) fn processor_seconds() -> f64 {
    seconds_of(ClockId::ProcessCPUTime)
}

/// The seconds of this thread.
pub(crate) fn thread_seconds() -> f64 {
    seconds_of(ClockId::ThreadCPUTime)
}

/// The seconds for which the threads of this process that still run could have gone on, but had no
/// core: others had it. 0 where the kernel does not say.
pub(crate) fn queued_seconds() -> f64 {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return 0.0 };
    // A thread that ended meanwhile has no figures.
    threads.flatten().filter_map(|thread| queued(&fs::read_to_string(thread.path().join("schedstat")).ok()?)).sum()
}

/// The second number of a `schedstat`, which is nanoseconds in the queue for a core.
fn queued(schedstat: &str) -> Option<f64> {
    Some(schedstat.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()? as f64 / 1e9)
}

fn seconds_of(clock: ClockId) -> f64 {
    let used = clock_gettime(clock);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_for_a_core_is_the_second_number() {
        assert_eq!(queued("7000000 250000000 12\n"), Some(0.25));
        assert_eq!(queued("7000000"), None);
        assert_eq!(queued("7 ? 12"), None);
    }
}
