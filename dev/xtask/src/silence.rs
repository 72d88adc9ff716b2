//! Test programs that print nothing any more are ended.

use std::time::Duration;

/// How long test programs may print nothing. It is far more than a test takes (two minutes): a
/// test that waits for ever is ended, and fails.
pub(crate) const SILENCE: Duration = Duration::from_secs(8 * 60);

/// Kills a process and all that it started.
pub(crate) fn end(pid: u32) {
    let started = children(pid);
    if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    started.into_iter().for_each(end);
}

/// The processes that each thread of a process started.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}
