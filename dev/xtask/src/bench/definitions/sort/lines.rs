//! 6 GB of text lines in 2 GiB of memory.

use crate::TaskResult;
use crate::bench::contestants::sort_job::SortJob;
use crate::bench::context::Context;
use crate::bench::measuring::turns;
use crate::bench::measuring::verify::Order;
use crate::bench::records::record::{Record, Target};

pub(in crate::bench) const ABOUT: &str =
    "6 GB of text lines in 2 GiB: dpipe, GNU sort, DuckDB, Polars, ClickHouse, uutils";

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let bytes = context.size(6_000_000_000);
    context.need_free(bytes * 4)?;
    let input = context.generate("lines", bytes)?;
    let budget_bytes = context.budget(2 << 30);
    let job = SortJob { context, input: &input, label: "", order: Order::Lines, crlf: false, budget_bytes };
    let contestants = [job.dpipe(&[]), job.gnu(), job.duckdb(), job.polars(), job.clickhouse(), job.uutils()];
    let mut record = context.record();
    record.inputs = vec![job.describe("text lines")?];
    turns::run(context, &contestants, None, &mut record)?;

    let [dpipe, gnu, duckdb, polars, clickhouse, uutils] = contestants.map(|c| c.name);
    record.compare("wall_s", &gnu, &dpipe, Some(Target::AtLeast(6.5)));
    record.compare("wall_s", &duckdb, &dpipe, Some(Target::AtLeast(4.5)));
    for peer in [&polars, &clickhouse, &uutils] {
        record.compare("wall_s", peer, &dpipe, None);
    }
    for peer in [&gnu, &duckdb, &polars, &clickhouse, &uutils] {
        record.compare("cpu_s", peer, &dpipe, None);
    }
    record.limit("cpu_s", &dpipe, Target::AtMost(bytes as f64 / 1e9 * 3.3));
    record.limit("peak_rss_mib", &dpipe, Target::AtMost((budget_bytes >> 20) as f64 * 1.05));
    Ok(record)
}
