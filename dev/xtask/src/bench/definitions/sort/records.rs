//! 10 GB of sort-benchmark records in 2 GiB of memory.
//!
//! Binary records have newlines inside, so line sorters cannot take them. They are sorted by dpipe
//! alone, beside the I/O floor. The ASCII form (98 printable bytes and CRLF) is sorted by all as
//! lines; dpipe also sorts it as records of 100 bytes, which compares less of each (its first 10
//! bytes), so that row stands beside no peer.

use crate::TaskResult;
use crate::bench::contestants::floor::Floor;
use crate::bench::contestants::sort_job::SortJob;
use crate::bench::context::Context;
use crate::bench::measuring::turns;
use crate::bench::measuring::verify::Order;
use crate::bench::records::record::{Record, Target};

pub(in crate::bench) const ABOUT: &str =
    "10 GB of 100-byte records in 2 GiB: dpipe, GNU sort, DuckDB, Polars, ClickHouse, uutils, the I/O floor";

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let bytes = context.size(10_000_000_000);
    // An input, spills of up to an input and a half, the output.
    context.need_free(bytes / 2 * 7)?;
    let budget_bytes = context.budget(2 << 30);
    let job = |label, input, order| SortJob { context, input, label, order, crlf: true, budget_bytes };
    let mut record = context.record();

    // The forms come one after the other: a disk that holds both need be twice as large.
    let ascii = context.generate("records-ascii", bytes)?;
    let as_lines = job("ASCII as lines", &ascii, Order::Lines);
    let contestants = [
        as_lines.dpipe(&[]),
        as_lines.gnu(),
        as_lines.duckdb(),
        as_lines.polars(),
        as_lines.clickhouse(),
        as_lines.uutils(),
        job("ASCII as records", &ascii, Order::Records).dpipe(&["--records"]),
    ];
    record.inputs.push(as_lines.describe("ASCII records (CRLF lines)")?);
    turns::run(context, &contestants, None, &mut record)?;
    let [lines, gnu, duckdb, polars, clickhouse, uutils, _] = contestants.map(|c| c.name);
    ascii.remove();

    let binary = context.generate("records", bytes)?;
    let as_records = job("binary records", &binary, Order::Records);
    record.inputs.push(as_records.describe("binary records")?);
    let floor = Floor::new(context, &binary.path, bytes);
    record.notes.extend(floor.as_ref().err().map(|why| format!("the floor was not measured: {why}")));
    let contestants = [as_records.dpipe(&["--records"])];
    turns::run(context, &contestants, floor.ok(), &mut record)?;
    let [records] = contestants.map(|c| c.name);

    record.compare("wall_s", &gnu, &lines, Some(Target::AtLeast(9.0)));
    record.compare("wall_s", &duckdb, &lines, Some(Target::AtLeast(6.0)));
    for peer in [&polars, &clickhouse, &uutils] {
        record.compare("wall_s", peer, &lines, None);
    }
    for peer in [&gnu, &duckdb, &polars, &clickhouse, &uutils] {
        record.compare("cpu_s", peer, &lines, None);
    }
    record.share_of_floor(&records, Some(Target::AtLeast(85.0)));
    record.limit("cpu_s", &records, Target::AtMost(bytes as f64 / 1e9));
    record.limit("peak_rss_mib", &records, Target::AtMost((budget_bytes >> 20) as f64 * 1.05));
    Ok(record)
}
