//! The time in which a command could not go on for reasons of its surroundings: it was stopped, it
//! had no core, or a quota kept it off the cores. Clocks of its own steps run on meanwhile, so
//! without this a disk would be blamed for it.

use super::bottleneck::{QUOTA, Share};
use super::recorder::Recording;

/// The share of a time in which threads had work and no core. Other work has the cores, or a limit
/// that is not seen from here keeps them off: that of a container around this one, for example.
pub(crate) const QUEUED: &str = "waiting for a core";

/// The share of a time in which nothing of the process ran, and nothing of it wanted to: it was
/// stopped, or the host of a virtual machine took the cores and does not count that for its guest.
pub(crate) const STOPPED: &str = "nothing of the process ran: it was stopped, or the host took its cores";

/// Divides the seconds that threads of this process were in the kernel's queues for cores, in so
/// many seconds: those under a quota, and those behind other work. A thread that a quota keeps off
/// its core stays in the queue, and the quota counts the threads of all processes that have it.
///
/// The quota counts once for each core, however many threads wait there. So while it counts, all
/// that waited in the queue is taken to have waited for it.
pub(crate) fn of_queue(queued: f64, throttled: f64, seconds: f64) -> [f64; 2] {
    let (queued, throttled) = (queued.max(0.0), throttled.max(0.0));
    let part_of_time = (throttled / seconds.max(1e-9)).min(1.0);
    let throttled = throttled.max(queued * part_of_time).min(queued);
    [throttled, queued - throttled]
}

/// Parts of a time, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct HeldUp {
    pub(crate) stopped: f64,
    pub(crate) queued: f64,
    pub(crate) throttled: f64,
}

impl HeldUp {
    /// What the recording says of the time between two points, for work that so many threads do.
    pub(crate) fn of(recording: &Recording, threads: f64, from: f64, to: f64) -> HeldUp {
        let seconds = (to - from).max(1e-9);
        if seconds < recording.course.every().as_secs_f64() {
            // Within one interval of the looks nothing is known.
            return HeldUp::default();
        }
        let grew = |column| recording.grew(column, from, to).max(0.0);
        let clocks = [recording.stopped(), recording.queued(), recording.throttled()].map(grew);
        HeldUp::of_seconds(seconds, threads, grew(recording.cpu()), clocks)
    }

    /// What is said first counts first: together the clocks may say a little too much. If more
    /// threads wanted a core than do the work, each second is shared by all of them: while one of
    /// them was on a core, not all was waiting.
    fn of_seconds(seconds: f64, threads: f64, cpu: f64, [stopped, queued, throttled]: [f64; 3]) -> HeldUp {
        let whole = (seconds * threads.max(1.0)).max(cpu + queued);
        let stopped = (stopped / seconds).clamp(0.0, 1.0);
        let [throttled, queued] = of_queue(queued, throttled, seconds).map(|seconds| seconds / whole);
        let throttled = throttled.clamp(0.0, 1.0 - stopped);
        let queued = queued.clamp(0.0, 1.0 - stopped - throttled);
        HeldUp { stopped, queued, throttled }
    }

    /// Takes this time off the steps, from each the same part of it, and says it as shares of its
    /// own. By whose clock it ran is not known.
    pub(crate) fn take_off(self, steps: impl IntoIterator<Item = Share>) -> Vec<Share> {
        let rest = 1.0 - self.stopped - self.queued - self.throttled;
        let mut shares: Vec<Share> = steps.into_iter().map(|share| Share::new(share.what, share.part * rest)).collect();
        let own = [(QUEUED, self.queued), (QUOTA, self.throttled), (STOPPED, self.stopped)];
        shares.extend(own.into_iter().filter(|(_, part)| *part >= 0.005).map(|(what, part)| Share::new(what, part)));
        shares
    }
}

/// What pages say where this time was taken off.
pub(crate) const NOTE: &str = "Time in which a thread had work and no core, or nothing of the process ran, is taken \
                               off the steps, from each the same part of it.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_not_blamed_for_time_without_a_core_or_stopped() {
        // Seconds as the kernel counted them beside four busy loops: 2.95 of 3.24 in the queue.
        let starved = HeldUp::of_seconds(3.24, 1.0, 0.2, [0.0, 2.95, 0.0]);
        let shares = starved.take_off([Share::new("the disk's syncs", 0.99)]);
        assert!(shares[0].part < 0.1 && shares[1].what == QUEUED && shares[1].part > 0.9, "{shares:?}");
        // Stopped for 4 of 4.7 s.
        let stopped = HeldUp::of_seconds(4.7, 2.0, 0.6, [4.0, 0.0, 0.0]).take_off([Share::new("writes", 1.0)]);
        assert!(stopped[0].part < 0.16 && stopped[1].what == STOPPED, "{stopped:?}");
        // Two threads that wait for half of their time each hold up half of the work.
        let half = HeldUp::of_seconds(2.0, 2.0, 1.0, [0.0, 2.0, 0.0]);
        assert_eq!(half, HeldUp { queued: 0.5, ..HeldUp::default() });
        let all = HeldUp::of_seconds(1.0, 1.0, 0.1, [0.7, 0.7, 0.7]);
        assert!((all.stopped + all.queued + all.throttled - 1.0).abs() < 1e-9 && all.queued == 0.0, "{all:?}");
        // A quota of a tenth of a core, as the kernel counted it: 3.33 s in the queue, 4.1 s
        // throttled in all, with those of others.
        let limited = HeldUp::of_seconds(3.71, 1.0, 0.37, [0.0, 3.33, 4.1]);
        assert!(limited.queued == 0.0 && (limited.throttled - 3.33 / 3.71).abs() < 1e-9, "{limited:?}");
        // Two threads on one core, under a quota for 1.52 of 1.91 s, as the kernel counted it.
        let two = HeldUp::of_seconds(1.91, 2.0, 0.2, [0.0, 2.6, 1.52]);
        assert!(two.throttled > 0.5 && two.queued < 0.15, "{two:?}");
        // Neighbours that are throttled while this process waits for its disk.
        let beside = HeldUp::of_seconds(3.0, 1.0, 0.3, [0.0, 0.2, 5.0]);
        assert!(beside.throttled < 0.07, "{beside:?}");
        // Four threads save a checkpoint beside six busy loops, as the kernel counted it.
        let saving = HeldUp::of_seconds(3.34, 1.0, 0.92, [0.0, 10.1, 0.0]);
        assert!((saving.queued - 10.1 / 11.02).abs() < 1e-9, "{saving:?}");
        let undisturbed = HeldUp::default().take_off([Share::new("writes", 0.5)]);
        assert_eq!(undisturbed, [Share::new("writes", 0.5)]);
    }
}
