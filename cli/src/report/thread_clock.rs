//! What the kernel counts of a thread: its time on a core, and its time in a queue for one. The
//! rest of the time it slept: it waited for a device or for another thread.

use std::collections::{HashMap, HashSet};
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

    /// Whether the system says nothing.
    pub(crate) fn is_blind(&self) -> bool {
        self.0.is_none()
    }

    /// Seconds on a core, and seconds in the queue for one, so far.
    pub(crate) fn read(&self) -> [f64; 2] {
        let mut text = [0; 128];
        let len = self.0.as_ref().and_then(|file| rustix::io::pread(file, &mut text[..], 0).ok()).unwrap_or(0);
        nanoseconds(text.get(..len).unwrap_or_default()).map(|ns| ns as f64 / 1e9)
    }
}

/// The first two numbers of a `schedstat`: nanoseconds on a core, and in the queue for one.
fn nanoseconds(text: &[u8]) -> [u64; 2] {
    let text = std::str::from_utf8(text).unwrap_or("");
    let mut numbers = text.split_whitespace().map(|n| n.parse::<u64>().unwrap_or(0));
    [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)]
}

/// The time for which all threads of this process together had work and waited for a core, but for
/// those that only look. What a thread waited between the last look and its end is missing.
#[derive(Debug, Default)]
pub(crate) struct QueueClock {
    /// What each thread that is there had waited at the last look.
    threads: HashMap<u64, u64>,
    /// What threads had waited that are gone.
    ended_ns: u64,
    /// Threads that only look, which hold up nothing.
    observers: HashSet<u64>,
}

/// The names of threads that look while others work.
const OBSERVERS: [&[u8]; 4] = [b"record", b"offer", b"metrics", b"progress"];

impl QueueClock {
    /// Looks at all threads; returns the seconds so far. Without /proc they are 0.
    pub(crate) fn seconds(&mut self) -> f64 {
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let now = tasks.filter_map(|task| {
            let number = task.file_name().to_str()?.parse().ok()?;
            if !self.threads.contains_key(&number) {
                let name = std::fs::read(task.path().join("comm")).unwrap_or_default();
                match OBSERVERS.contains(&name.trim_ascii_end()) {
                    true => self.observers.insert(number),
                    false => self.observers.remove(&number),
                };
            }
            if self.observers.contains(&number) {
                return None;
            }
            // A thread may end between the two.
            let text = std::fs::read(task.path().join("schedstat")).ok()?;
            Some((number, nanoseconds(&text)[1]))
        });
        let now = now.collect();
        self.take(now)
    }

    fn take(&mut self, now: HashMap<u64, u64>) -> f64 {
        for (number, waited) in &self.threads {
            // A number that comes again with less is another thread.
            if now.get(number).is_none_or(|now| now < waited) {
                self.ended_ns = self.ended_ns.saturating_add(*waited);
            }
        }
        self.threads = now;
        let all = self.threads.values().fold(self.ended_ns, |sum, waited| sum.saturating_add(*waited));
        all as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn threads_that_end_keep_what_they_waited() {
        let mut clock = QueueClock::default();
        let look = |waited: &[(u64, u64)]| waited.iter().copied().collect();
        assert_eq!(clock.take(look(&[(1, 1_000_000_000), (2, 500_000_000)])), 1.5);
        assert_eq!(clock.take(look(&[(1, 2_000_000_000)])), 2.5);
        // The number of the second one is given to a third.
        assert_eq!(clock.take(look(&[(1, 2_000_000_000), (2, 0)])), 2.5);
        assert_eq!(clock.take(look(&[(2, 250_000_000)])), 2.75);
        assert_eq!(clock.take(look(&[(2, 100_000_000)])), 2.85);
    }

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
