//! What a runtime keeps for those in a hurry beside bulk work, in memory and on a disk.
//!
//! With and without classes, everything else is the same: the same runtime, the same lengths of
//! parts, every transfer through the scheduler. What the library does besides is in rows of its
//! own: a short copy that its caller makes at once, past the scheduler (the default in memory), and
//! a runtime that cuts nothing and holds nothing back.

use super::by_example;
use crate::TaskResult;
use crate::bench::contestants::rows;
use crate::bench::context::Context;
use crate::bench::records::record::{Record, Target};

pub(in crate::bench) const ABOUT: &str =
    "4 KiB beside endless bulk, in memory and on disk: with classes, in one class, and with nothing held back";

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let example =
        by_example("qos", "latency and rate only (shares are checked by the scheduler's tests in virtual time)");
    let mut record = rows::run(context, &example)?;
    let memory = |way: &str| format!("4 KiB copy beside copies of 64 MiB: {way}");
    let disk = |way: &str| format!("4 KiB read beside reads of 1 MiB at depth 32: {way}");
    // A chunk of 64 KiB at the rate of the bulk work, and 10 us.
    if let Some(gb_s) = record.median(&memory("bulk alone"), "bulk_gb_s") {
        for way in ["both, by class, scheduled", "both, by class, copied by the caller"] {
            record.limit("p99_us", &memory(way), Target::AtMost(65.536 / gb_s + 10.0));
            record.limit("bulk_of_alone", &memory(way), Target::AtLeast(0.95));
        }
    }
    record.compare("p50_us", &disk("both, by class"), &disk("alone"), Some(Target::AtMost(2.0)));
    record.limit("bulk_of_alone", &disk("both, by class"), Target::AtLeast(0.7));
    let pairs = [
        (memory("both, by class, scheduled"), memory("both, one class, scheduled")),
        (disk("both, by class"), disk("both, one class")),
    ];
    for (with, without) in pairs {
        for figure in ["p50_us", "p99_us", "bulk_gb_s", "cores"] {
            record.compare(figure, &with, &without, None);
        }
    }
    Ok(record)
}
