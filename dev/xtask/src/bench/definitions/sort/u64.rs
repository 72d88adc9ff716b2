//! 8 GB of little-endian u64 in 2 GiB of memory, against the I/O floor: no peer sorts such a file
//! to a file.

use crate::TaskResult;
use crate::bench::contestants::floor::Floor;
use crate::bench::contestants::sort_job::SortJob;
use crate::bench::context::Context;
use crate::bench::measuring::turns;
use crate::bench::measuring::verify::Order;
use crate::bench::records::record::{Record, Target};

pub(in crate::bench) const ABOUT: &str = "8 GB of u64 in 2 GiB: dpipe and the I/O floor";

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let bytes = context.size(8_000_000_000);
    context.need_free(bytes * 4)?;
    let input = context.generate("u64", bytes)?;
    let budget_bytes = context.budget(2 << 30);
    let job = SortJob { context, input: &input, label: "", order: Order::U64, crlf: false, budget_bytes };
    let contestants = [job.dpipe(&["--u64"])];
    let mut record = context.record();
    record.inputs = vec![job.describe("u64")?];
    let floor = Floor::new(context, &input.path, bytes);
    record.notes.extend(floor.as_ref().err().map(|why| format!("the floor was not measured: {why}")));
    turns::run(context, &contestants, floor.ok(), &mut record)?;

    let [dpipe] = contestants.map(|c| c.name);
    record.share_of_floor(&dpipe, Some(Target::AtLeast(80.0)));
    // 17 ns a key.
    record.limit("cpu_s", &dpipe, Target::AtMost(bytes as f64 / 8.0 * 17e-9));
    record.limit("peak_rss_mib", &dpipe, Target::AtMost((budget_bytes >> 20) as f64 * 1.05));
    Ok(record)
}
