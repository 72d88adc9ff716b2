//! How long the threads of a sort wait, by what they wait for.
//!
//! Each wait is for megabytes or longer, so two looks at the clock and a lock that nobody else
//! holds cost nothing that could be measured. A wait counts while it lasts, not only at its end:
//! on a slow disk one wait can take seconds.

use std::time::Instant;

use datapipes_core::locks::Mutex;
use serde::Serialize;

use crate::processor_time::thread_seconds;

/// What a thread of a sort waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SortWait {
    /// The reading thread waits for bytes of the input.
    Input,
    /// The reading thread waits until memory is sorted and free again.
    Memory,
    /// Sorting threads wait for records of the input.
    Records,
    /// Threads wait for writes of runs to the spill places.
    Spill,
    /// Merging threads wait for reads of runs from the spill places.
    Runs,
    /// Threads wait for writes to the output, or for its sync.
    Output,
    /// Threads wait until others have written what comes before.
    Turn,
    /// Threads have no part in the work that others do: a merge by one thread, or the rest of a
    /// step whose own part is done. It stands in nobody's way.
    Idle,
}

impl SortWait {
    /// Everything that a thread can wait for.
    pub const ALL: [SortWait; 8] = [
        SortWait::Input,
        SortWait::Memory,
        SortWait::Records,
        SortWait::Spill,
        SortWait::Runs,
        SortWait::Output,
        SortWait::Turn,
        SortWait::Idle,
    ];

    /// Whether it is a wait of the thread that reads the input, and not of one that sorts or
    /// merges.
    pub const fn is_of_reader(self) -> bool {
        matches!(self, SortWait::Input | SortWait::Memory)
    }

    /// What is waited for, in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            SortWait::Input => "the input's reads",
            SortWait::Memory => "sorted memory",
            SortWait::Records => "records of the input",
            SortWait::Spill => "writes of runs",
            SortWait::Runs => "reads of runs",
            SortWait::Output => "writes of the output",
            SortWait::Turn => "other threads",
            SortWait::Idle => "work that they can share",
        }
    }
}

/// The time that threads of a sort waited so far. Any thread may read it at any time.
#[derive(Debug)]
pub struct SortWaits {
    begin: Instant,
    clocks: [Mutex<WaitClock>; SortWait::ALL.len()],
}

/// The waits for one thing: time of those that ended, and those that have not.
#[derive(Debug, Default)]
struct WaitClock {
    /// The ends minus the begins, in nanoseconds since the first begin. While waits have not ended
    /// it is negative.
    balance_ns: i128,
    /// Threads that wait now.
    threads: i128,
}

impl Default for SortWaits {
    fn default() -> SortWaits {
        SortWaits { begin: Instant::now(), clocks: Default::default() }
    }
}

impl SortWaits {
    /// The seconds that threads waited for something, added up over the threads. Waits that have
    /// not ended count up to now.
    pub fn seconds(&self, what: SortWait) -> f64 {
        let clock = self.clocks[what as usize].lock();
        // Read under the lock: no begin is later than this.
        let now = self.now_ns();
        ((clock.balance_ns + clock.threads * now).max(0)) as f64 / 1e9
    }

    fn now_ns(&self) -> i128 {
        i128::try_from(self.begin.elapsed().as_nanos()).unwrap_or(i128::MAX >> 1)
    }

    /// Notes that so many threads wait from here on, until the value that is returned is dropped.
    pub(crate) fn begin(&self, what: SortWait, threads: usize) -> SortWaitGuard<'_> {
        let guard = SortWaitGuard { waits: self, what, threads: threads as i128, worked: None };
        guard.count(1);
        guard
    }

    /// As `begin`, for a call of this thread that copies bytes on its core and may sleep in
    /// between: the time on the core is no wait.
    pub(crate) fn begin_call(&self, what: SortWait) -> SortWaitGuard<'_> {
        let mut guard = self.begin(what, 1);
        guard.worked = Some(thread_seconds());
        guard
    }
}

/// A wait that has not ended.
pub(crate) struct SortWaitGuard<'a> {
    waits: &'a SortWaits,
    what: SortWait,
    threads: i128,
    /// What the thread had worked when a call began.
    worked: Option<f64>,
}

impl SortWaitGuard<'_> {
    fn count(&self, sign: i128) {
        let mut clock = self.waits.clocks[self.what as usize].lock();
        clock.balance_ns -= sign * self.threads * self.waits.now_ns();
        clock.threads += sign * self.threads;
    }
}

impl Drop for SortWaitGuard<'_> {
    fn drop(&mut self) {
        self.count(-1);
        if let Some(before) = self.worked {
            let worked = (thread_seconds() - before).max(0.0);
            self.waits.clocks[self.what as usize].lock().balance_ns -= (worked * 1e9) as i128;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn waits_count_while_they_last_and_by_threads() {
        let waits = SortWaits::default();
        let wait = waits.begin(SortWait::Spill, 2);
        std::thread::sleep(Duration::from_millis(20));
        let during = waits.seconds(SortWait::Spill);
        assert!(during >= 0.04, "{during}");
        drop(wait);
        let after = waits.seconds(SortWait::Spill);
        assert!(after >= during);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(waits.seconds(SortWait::Spill), after);
        assert_eq!(waits.seconds(SortWait::Output), 0.0);
        // What a call works is no wait.
        let begin = Instant::now();
        let call = waits.begin_call(SortWait::Runs);
        let before = thread_seconds();
        while thread_seconds() - before < 0.02 {}
        drop(call);
        let worked = waits.seconds(SortWait::Runs);
        let most = begin.elapsed().as_secs_f64() - 0.02;
        assert!(worked <= most + 0.001, "{worked}, at most {most}");
        let begin = Instant::now();
        let call = waits.begin_call(SortWait::Runs);
        std::thread::sleep(Duration::from_millis(20));
        drop(call);
        let slept = begin.elapsed().as_secs_f64();
        let waited = waits.seconds(SortWait::Runs) - worked;
        assert!((0.015..=slept).contains(&waited), "{waited} of {slept}");
        for (at, what) in SortWait::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, at);
        }
    }
}
