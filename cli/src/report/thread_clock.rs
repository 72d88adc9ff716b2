//! What the kernel counts of one thread: its time on a core, and its time in a queue for one. The
//! rest of the time it slept: it waited for a device or for another thread.

use std::fs::File;
use std::os::fd::OwnedFd;

/// The clock of the thread that made it; any thread may read it.
#[derive(Debug)]
pub(crate) struct ThreadClock(Option<OwnedFd>);

impl ThreadClock {
    /// The clock of the calling thread. Without /proc, or in a kernel that does not count it, it
    /// stands at 0.
    pub(crate) fn of_this_thread() -> ThreadClock {
        ThreadClock(File::open("/proc/thread-self/schedstat").ok().map(OwnedFd::from))
    }

    /// Seconds on a core, and seconds in the queue for one, so far.
    pub(crate) fn read(&self) -> [f64; 2] {
        let mut text = [0; 128];
        let len = self.0.as_ref().and_then(|file| rustix::io::pread(file, &mut text[..], 0).ok()).unwrap_or(0);
        let text = std::str::from_utf8(text.get(..len).unwrap_or_default()).unwrap_or("");
        let mut numbers = text.split_whitespace().map(|n| n.parse::<u64>().unwrap_or(0) as f64 / 1e9);
        [numbers.next().unwrap_or(0.0), numbers.next().unwrap_or(0.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn work_counts_and_sleep_does_not() {
        let clock = ThreadClock::of_this_thread();
        if clock.read() == [0.0; 2] {
            return println!("SKIPPED: thread clock: this kernel does not count it");
        }
        let before = clock.read()[0];
        std::thread::sleep(Duration::from_millis(50));
        let slept = clock.read()[0];
        assert!(slept - before < 0.045, "{before} {slept}");
        let begin = Instant::now();
        while clock.read()[0] - slept < 0.02 {
            assert!(begin.elapsed() < Duration::from_secs(60), "work did not count");
            std::hint::black_box((0..10_000).sum::<u64>());
        }
    }
}
