//! What the three flavors cost: 4 KiB reads at depth 1 and 32, and 64 bytes of memory.

use crate::TaskResult;
use crate::bench::contestants::rows::{self, Rows};
use crate::bench::context::Context;
use crate::bench::records::record::{Record, Target};

pub(in crate::bench) const ABOUT: &str =
    "future, descriptor and blocking flavors against a polled ring: latency, CPU, throughput";

const ROWS: Rows = Rows {
    package: ("datapipes", "datapipes"),
    example: "flavors",
    on_disk: true,
    name: rows::words,
    figures: rows::numbers,
    verified: "rate only (bytes are checked by the tests of the flavors)",
};

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let mut record = rows::run(context, &ROWS)?;
    let read = |way: &str| format!("4 KiB read, depth 1: {way}");
    let polled = read("busy poll of a ring");
    for way in ["runtime, await (block_on)", "runtime, await (thread parks)", "descriptor, epoll", "runtime, wait"] {
        record.compare("p50_us", &read(way), &polled, Some(Target::AtMost(1.2)));
        record.compare("cores", &read(way), &polled, Some(Target::AtMost(1.0 / 3.0)));
    }
    let deep = |way: &str| format!("4 KiB reads, depth 32: {way}");
    for way in ["runtime, wait", "runtime, callbacks"] {
        record.compare("reads_s", &deep(way), &deep("ring by hand"), Some(Target::AtLeast(0.9)));
    }
    record.limit("more_ns", "64 B, memory to memory", Target::AtMost(300.0));
    Ok(record)
}
