//! I/O priorities, where the kernel's scheduler of the device honours them (mq-deadline and bfq do,
//! none does not).
//!
//! mq-deadline sends nothing of a lower class to the device while a request of a higher one is
//! under way: one reader that asks again at once leaves a bulk reader 7% of its rate. So a mover is
//! urgent for a quarter of the time at most.

use std::time::{Duration, Instant};

/// `IOPRIO_CLASS_RT`, level 4.
const REAL_TIME: u16 = (1 << 13) | 4;
/// `IOPRIO_CLASS_BE`, level 0: before those that did not ask.
const FIRST_OF_MANY: u16 = 2 << 13;
/// `CAP_SYS_ADMIN` and `CAP_SYS_NICE`: with either a process may ask for the real-time class.
const MAY_RAISE: u64 = (1 << 21) | (1 << 23);

/// The priority of urgent requests: as high as this process may ask for.
pub(crate) fn urgent() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if capabilities(&status) & MAY_RAISE != 0 { REAL_TIME } else { FIRST_OF_MANY }
}

/// The effective capabilities in the text of `/proc/self/status`; none where it does not say.
fn capabilities(status: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    value.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// The most of the time in which urgent requests may be under way.
const MAX_SHARE: f64 = 0.25;
/// Over which that is taken.
const WINDOW: Duration = Duration::from_millis(100);

/// How much of the time a mover has urgent requests under way.
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

    /// Whether a request may be urgent now; it is under way then.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.begun);
        if elapsed > WINDOW {
            // What is long past counts half.
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

    /// An urgent request is done.
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
