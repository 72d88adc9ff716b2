//! What the placement of the protocol costs: latency and throughput of streams between isolated
//! devices.
//!
//! Placements are compared over one carrier each. Shared memory beside sockets says what the
//! carrier saves, not what the placement does; it has rows of its own, without a target.

use crate::TaskResult;
use crate::bench::contestants::rows::{self, Rows};
use crate::bench::context::{Context, Example};
use crate::bench::records::record::{Record, Target};
use serde_json::{Map, Value};

pub(in crate::bench) const ABOUT: &str =
    "streams between devices: distributed, central and application-side, over shared memory, sockets and veth";

const ROWS: Rows = Rows {
    example: Example { package: "datapipes-fabric", name: "placements" },
    on_disk: false,
    name,
    figures: rows::numbers,
    verified: "blocks that came back are the same; the sum of all words of a stream is the same at both ends",
};

const DISTRIBUTED: &str = "distributed, shared memory";
const COPIES: &str = "distributed, shared memory, private copies";
const CENTRAL: &str = "central, shared memory";
const APPLICATION: &str = "application-side, shared memory";
/// The other carriers, under both placements.
const SOCKETS: [&str; 2] = ["Unix sockets", "TCP"];
const SIZES: [&str; 6] = ["4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB"];

fn name(row: &Map<String, Value>) -> String {
    let word = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    match row.get("skipped") {
        Some(_) => format!("{}: SKIPPED: {}", word("way"), word("skipped")),
        None => format!("{}: {}", word("way"), word("shape")),
    }
}

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let mut record = rows::run(context, &ROWS)?;
    for entry in &mut record.contestants {
        if let Some((way, why)) = entry.name.clone().split_once(": SKIPPED: ") {
            entry.name = way.to_owned();
            entry.not_measured = Some(format!("SKIPPED: {why}"));
            entry.runs.clear();
        }
    }
    record.notes.extend([
        "latency (p50_us, p99_us): application, devices, application, one block under way; whole blocks there and back".into(),
        "throughput (gb_s, cpu_s_per_gb): from device to device, 4 credits; the last one reads every word; processor time of all \
         processes"
            .into(),
        "ratio: median over turns of ours by what is written by hand, the two one right after the other; 1 is equal".into(),
        "\"private copies\" is how receivers are by default; the others process in place, which trusts the sender".into(),
    ]);
    compare(&mut record);
    Ok(record)
}

/// What the project holds itself to.
fn compare(record: &mut Record) {
    let at_most = |wanted: bool, value| wanted.then_some(Target::AtMost(value));
    for devices in [2, 3] {
        for (at, size) in SIZES.into_iter().enumerate() {
            let named = |way: &str| format!("{way}: {devices} devices, {size}");
            let (from_64_kib, from_256_kib) = (at >= 2, at >= 3);
            for carrier in SOCKETS {
                let over = |placement: &str| named(&format!("{placement}, {carrier}"));
                record.compare("p50_us", &over("distributed"), &over("application-side"), None);
                record.compare("gb_s", &over("distributed"), &over("application-side"), None);
                // Another carrier.
                record.compare("p50_us", &named(DISTRIBUTED), &over("application-side"), None);
            }
            record.compare("p50_us", &named(DISTRIBUTED), &named(APPLICATION), at_most(from_64_kib, 0.75));
            record.compare("p50_us", &named(DISTRIBUTED), &named(CENTRAL), None);
            let target = from_256_kib.then_some(Target::AtLeast(1.4));
            record.compare("gb_s", &named(DISTRIBUTED), &named(APPLICATION), target);
            record.compare("cpu_s_per_gb", &named(DISTRIBUTED), &named(APPLICATION), None);
            record.compare("gb_s", &named(DISTRIBUTED), &named(CENTRAL), None);
            record.compare("cpu_s_per_gb", &named(DISTRIBUTED), &named(CENTRAL), None);
            for figure in ["gb_s", "cpu_s_per_gb"] {
                record.compare(figure, &named(COPIES), &named(DISTRIBUTED), None);
            }
            let across = |placement: &str| named(&format!("{placement}, TCP across two network namespaces"));
            record.compare("p50_us", &across("distributed"), &across("application-side"), None);
        }
    }
    for (at, size) in SIZES.into_iter().enumerate() {
        let named = |way: &str| format!("ratio: {way}: 2 devices, {size}");
        record.limit("rate", &named("in place, by ring in place"), Target::AtLeast(0.95));
        if at >= 2 {
            record.limit("rate", &named("private copies, by ring, one copy"), Target::AtLeast(0.9));
        }
        record.limit("p50", &named("distributed, by application-side, shared memory"), Target::AtMost(0.75));
    }
    record.limit("gb_s", &format!("{DISTRIBUTED}: 2 devices, 1 MiB"), Target::AtLeast(12.0));
}
