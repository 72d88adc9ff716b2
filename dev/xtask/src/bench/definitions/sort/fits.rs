//! 1 GB that fits into the memory budget: ASCII records, text lines and numbers, file to file.

use crate::TaskResult;
use crate::bench::contestants::sort_job::SortJob;
use crate::bench::context::Context;
use crate::bench::measuring::turns;
use crate::bench::measuring::verify::Order;
use crate::bench::records::record::{Record, Target};

pub(in crate::bench) const ABOUT: &str =
    "1 GB that fits into 8 GiB: dpipe, GNU sort, DuckDB, Polars, ClickHouse, uutils; u64: numpy, ClickHouse";

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let bytes = context.size(1_000_000_000);
    context.need_free(bytes * 6)?;
    let ascii = context.generate("records-ascii", bytes)?;
    let lines = context.generate("lines", bytes)?;
    let numbers = context.generate("u64", bytes)?;
    let budget_bytes = 8 << 30; // a limit, not a wish: --small leaves it
    let job = |label, input, crlf| SortJob { context, input, label, order: Order::Lines, crlf, budget_bytes };
    let of_text = [job("ASCII records", &ascii, true), job("lines", &lines, false)];
    let of_numbers = SortJob { order: Order::U64, ..job("u64", &numbers, false) };
    let mut contestants = Vec::new();
    let mut record = context.record();
    for job in &of_text {
        contestants.extend([job.dpipe(&[]), job.dpipe_without_sync(&[])]);
        contestants.extend([job.gnu(), job.duckdb(), job.polars(), job.clickhouse(), job.uutils()]);
        record.inputs.push(job.describe(job.label)?);
    }
    let as_records = SortJob { order: Order::Records, label: "ASCII as records", ..job("", &ascii, true) };
    contestants.push(as_records.dpipe(&["--records"]));
    contestants.extend([of_numbers.dpipe(&["--u64"]), of_numbers.dpipe_without_sync(&["--u64"])]);
    contestants.extend([of_numbers.numpy(), of_numbers.clickhouse_numbers()]);
    record.inputs.push(of_numbers.describe(of_numbers.label)?);
    turns::run(context, &contestants, None, &mut record)?;

    const OF_TEXT: [&str; 5] = ["GNU sort", "DuckDB", "Polars", "ClickHouse", "uutils sort"];
    let peers_of_text = of_text.iter().map(|job| (job.label, &OF_TEXT[..]));
    for (label, peers) in peers_of_text.chain([(of_numbers.label, &["numpy", "ClickHouse"][..])]) {
        let name = |who: &str| format!("{who}, {label}");
        let peers: Vec<String> = peers.iter().map(|who| name(who)).collect();
        let wall = |peer: &String| record.median(peer, "wall_s").unwrap_or(f64::INFINITY);
        let best = peers.iter().min_by(|a, b| wall(a).total_cmp(&wall(b))).cloned().unwrap_or_default();
        for peer in &peers {
            // The target is against the best of them.
            record.compare("wall_s", peer, &name("dpipe"), (*peer == best).then_some(Target::AtLeast(3.0)));
            // Peers exit before their output is on the disk. So like is compared with like twice.
            record.compare("wall_s", peer, &name("dpipe --no-sync"), None);
            record.compare("durable_s", peer, &name("dpipe"), None);
            record.compare("cpu_s", peer, &name("dpipe"), None);
        }
    }
    Ok(record)
}
