//! Counters as text for Prometheus.

use std::fmt::Write as _;

use crate::set::{CounterReading, CounterScope};

/// Returns readings in Prometheus' text format (version 0.0.4). Absent ones are remarks: a value of
/// 0 would be a lie.
pub fn prometheus(readings: &[CounterReading]) -> String {
    let mut text = String::new();
    for reading in readings {
        let scope = match reading.scope {
            CounterScope::Thread => "thread",
            CounterScope::Machine => "machine",
        };
        let unit = if reading.unit == "events" { String::new() } else { format!("_{}", reading.unit) };
        let (kind, end) = if reading.is_gauge { ("gauge", "") } else { ("counter", "_total") };
        let name = format!("datapipes_{}{unit}{end}", reading.name);
        // Writing to a String cannot fail, hence the discarded results.
        let _ = match (reading.value, &reading.absent) {
            (Some(value), _) => writeln!(
                text,
                "# HELP {name} {what}\n# TYPE {name} {kind}\n{name}{{scope=\"{scope}\"}} {value}",
                what = reading.what
            ),
            (None, why) => {
                writeln!(text, "# {name} is absent: {}", why.as_deref().unwrap_or("unknown").replace('\n', " "))
            }
        };
    }
    text
}
