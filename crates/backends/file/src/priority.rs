//! I/O priorities, where the kernel's scheduler of the device honours them (mq-deadline and bfq do,
//! `none` does not).
//!
//! mq-deadline sends no request of a lower class to the device while one of a higher class is
//! outstanding. One reader that reads again at once leaves a bulk reader 7% of its rate. So a mover
//! is urgent for at most a quarter of the time.

use std::time::{Duration, Instant};

/// `IOPRIO_CLASS_RT`, level 4.
const REAL_TIME: u16 = (1 << 13) | 4;
/// `IOPRIO_CLASS_BE`, level 0: before requests without a priority.
const FIRST_OF_MANY: u16 = 2 << 13;
/// `CAP_SYS_ADMIN` and `CAP_SYS_NICE`: with either, a process may ask for the real-time class.
const MAY_RAISE: u64 = (1 << 21) | (1 << 23);

/// Returns the priority of urgent requests, the highest that this process may ask for.
pub(crate) fn urgent() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if capabilities(&status) & MAY_RAISE != 0 { REAL_TIME } else { FIRST_OF_MANY }
}

/// Reads the effective capabilities from the text of `/proc/self/status`; 0 where it does not tell.
fn capabilities(status: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    value.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// The largest share of time in which urgent requests may be outstanding.
const MAX_SHARE: f64 = 0.25;
/// The time over which the share is measured.
const WINDOW: Duration = Duration::from_millis(100);

/// The time during which a mover has urgent requests outstanding.
pub(crate) struct PriorityBudget {
    begun: Instant,
    used: Duration,
    under_way: u32,
    since: Instant,
}

impl PriorityBudget {
    pub(crate) fn new(now: Instant) -> PriorityBudget {
        PriorityBudget { begun: now, used: Duration::ZERO, under_way: 0, since: now }
    }

    /// Returns whether a request may be urgent now. If so, it counts as outstanding.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.begun);
        if elapsed > WINDOW {
            // Time before the window counts half.
            self.begun = now - elapsed / 2;
            self.used /= 2;
        }
        let mut used = self.used;
        if self.under_way > 0 {
            used += now.saturating_duration_since(self.since);
        }
        if used > WINDOW.max(elapsed).mul_f64(MAX_SHARE) {
            return false;
        }
        if self.under_way == 0 {
            self.since = now;
        }
        self.under_way += 1;
        true
    }

    /// Notes that an urgent request is done.
    pub(crate) fn end(&mut self, now: Instant) {
        self.under_way = self.under_way.saturating_sub(1);
        if self.under_way == 0 {
            self.used += now.saturating_duration_since(self.since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_for_a_quarter_of_the_time_at_most_and_always_where_it_is_less() {
        let begun = Instant::now();
        let share = |service_us: u64, pause_us: u64| {
            let (mut duty, mut now, mut urgent, mut all) = (PriorityBudget::new(begun), begun, Duration::ZERO, 0u32);
            let (service, pause) = (Duration::from_micros(service_us), Duration::from_micros(pause_us));
            let mut granted = 0u32;
            while now < begun + Duration::from_secs(3) {
                all += 1;
                let is_urgent = duty.begin(now);
                now += service;
                if is_urgent {
                    duty.end(now);
                    urgent += service;
                    granted += 1;
                }
                now += pause;
            }
            (urgent.as_secs_f64() / 3.0, f64::from(granted) / f64::from(all))
        };
        let (time, _) = share(80, 0);
        assert!((0.15..0.27).contains(&time), "{time}");
        let (_, granted) = share(80, 920);
        assert!(granted > 0.999, "{granted}");
    }

    #[test]
    fn capabilities_are_read() {
        assert_eq!(capabilities("Name:\tx\nCapPrm:\t00000000\nCapEff:\t000001ffffffffff\n"), 0x1ff_ffff_ffff);
        assert_eq!(capabilities("CapEff:\tnonsense\n"), 0);
        assert_eq!(capabilities(""), 0);
    }
}
