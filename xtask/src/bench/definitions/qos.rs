//! What a runtime keeps for those in a hurry beside bulk work, in memory and on a disk, with
//! classes and without.

use crate::TaskResult;
use crate::bench::contestants::rows::{self, Rows};
use crate::bench::context::Context;
use crate::bench::records::record::{Record, Target};

pub(in crate::bench) const ABOUT: &str =
    "4 KiB beside endless bulk, in memory and on disk: with classes, and without QoS";

const ROWS: Rows = Rows {
    package: ("datapipes", "datapipes"),
    example: "qos",
    on_disk: true,
    name: rows::words,
    figures: rows::numbers,
    verified: "latency and rate only (shares are checked by the scheduler's tests in virtual time)",
};

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let mut record = rows::run(context, &ROWS)?;
    let memory = |way: &str| format!("4 KiB copy beside copies of 64 MiB: {way}");
    let disk = |way: &str| format!("4 KiB read beside reads of 1 MiB at depth 32: {way}");
    // A chunk of 64 KiB at the rate of the bulk work, and 10 us.
    if let Some(gb_s) = record.median(&memory("bulk alone"), "bulk_gb_s") {
        record.limit("p99_us", &memory("both, by class"), Target::AtMost(65.536 / gb_s + 10.0));
    }
    record.limit("bulk_of_alone", &memory("both, by class"), Target::AtLeast(0.95));
    record.compare("p50_us", &disk("both, by class"), &disk("alone"), Some(Target::AtMost(2.0)));
    record.limit("bulk_of_alone", &disk("both, by class"), Target::AtLeast(0.7));
    Ok(record)
}
