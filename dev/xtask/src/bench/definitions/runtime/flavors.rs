//! What the three flavors cost: 4 KiB reads at depth 1 and 32, and 64 bytes of memory. Processor
//! time stands beside time. Rings by hand are set up before the clock starts, with
//! `DEFER_TASKRUN`; the one that is polled without system calls cannot have it.

use super::by_example;
use crate::TaskResult;
use crate::bench::contestants::rows;
use crate::bench::context::Context;
use crate::bench::records::record::{Better, Record, Target};

pub(in crate::bench) const ABOUT: &str =
    "future, descriptor and blocking flavors against pread and rings by hand: latency, CPU, throughput";

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let example = by_example("flavors", "rate only (bytes are checked by the tests of the flavors)");
    let mut record = rows::run(context, &example)?;
    let read = |way: &str| format!("4 KiB read, depth 1: {way}");
    let polled = read("busy poll of a ring");
    let (waiting, pread) = (read("ring by hand, waits"), read("pread"));
    let flavors = [
        "blocking",
        "runtime, wait",
        "runtime, await (block_on)",
        "runtime, await (thread parks)",
        "descriptor, epoll",
    ];
    for way in flavors {
        record.compare("p50_us", &read(way), &polled, Some(Target::AtMost(1.2)));
        record.compare("cores", &read(way), &polled, Some(Target::AtMost(1.0 / 3.0)));
        record.compare_best(("p50_us", Better::Less), &read(way), &[&waiting, &pread], None);
        record.compare_best(("cpu_us_a_read", Better::Less), &read(way), &[&waiting, &pread], None);
    }
    let deep = |way: &str| format!("4 KiB reads, depth 32: {way}");
    let by_hand = [deep("ring by hand, waits for 1"), deep("ring by hand, waits for 8")];
    let by_hand = by_hand.each_ref().map(String::as_str);
    for way in ["blocking, started", "runtime, wait", "runtime, callbacks"] {
        record.compare_best(("reads_s", Better::More), &deep(way), &by_hand, Some(Target::AtLeast(0.9)));
        record.compare_best(("cpu_us_a_read", Better::Less), &deep(way), &by_hand, None);
    }
    record.limit("more_ns", "64 B, memory to memory", Target::AtMost(300.0));
    Ok(record)
}
