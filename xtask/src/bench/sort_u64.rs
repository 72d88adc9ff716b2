//! 8 GB of little-endian u64 in 2 GiB of memory, against the I/O floor: no peer sorts such a file to a file.

use super::context::Context;
use super::floor::Floor;
use super::record::{Record, Target};
use super::sort_job::SortJob;
use super::turns;
use super::verify::Order;
use crate::TaskResult;

pub(super) const ABOUT: &str = "8 GB of u64 in 2 GiB: dpipe and the I/O floor";

pub(super) fn run(context: &Context) -> TaskResult<Record> {
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
    record.share_of_floor(&dpipe, Some(Target::AtLeast(85.0)));
    record.limit("peak_rss_mib", &dpipe, Target::AtMost((budget_bytes >> 20) as f64 * 1.05));
    Ok(record)
}
