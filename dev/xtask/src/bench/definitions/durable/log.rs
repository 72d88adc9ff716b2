//! Small records that are durable one after the other: `dpipe log` against fio at depth 1, over a
//! file that was written before (so that neither pays for allocation).
//!
//! fio makes a record durable in three ways: a write and an fdatasync, as the log does, a write to
//! a file opened with O_DSYNC, and the same past the page cache. Each figure of ours stands beside
//! the best of them. fio leaves the page cache as it is (`invalidate=0`): else it would drop the
//! file's pages and read them again for each write of part of a page, which the log does not do.

use crate::bench::contestants::fio::Fio;
use crate::bench::context::{Context, Input};
use crate::bench::measuring::measure::measure;
use crate::bench::measuring::turns::order;
use crate::bench::records::record::{Better, Entry, Figures, Record, Run, Target};
use crate::{TaskResult, steps};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

pub(in crate::bench) const ABOUT: &str =
    "records of 512 B and 4 KiB, durable one by one: dpipe log, fio (write + fdatasync, O_DSYNC, direct)";

const RECORDS: [(u32, &str); 2] = [(512, "512 B"), (4096, "4 KiB")];
/// Bytes of fio's file: it starts over at its end.
const FILE_BYTES: u64 = 64 << 20;

/// How fio makes a record durable.
struct Way {
    name: &'static str,
    options: &'static [&'static str],
}

const WAYS: [Way; 3] = [
    Way { name: "write + fdatasync", options: &["--fdatasync=1"] },
    Way { name: "O_DSYNC", options: &["--sync=dsync"] },
    Way { name: "direct, O_DSYNC", options: &["--sync=dsync", "--direct=1"] },
];

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let seconds = if context.options.small { 0.3 } else { 5.0 };
    context.need_free(FILE_BYTES * 4)?;
    let path = context.file("log.data");
    let file = Input::temporary(&path);
    write_zeros(&path)?;
    let fio = Fio::find_if_wanted(context);
    let mut record = context.record();
    record.inputs = vec![format!(
        "fio: {} MiB written before, which start over at their end; dpipe log: segments of 64 MiB, each written by \
         itself before it is used, within the time; {seconds} s a run",
        FILE_BYTES >> 20
    )];
    record.notes.push("a record of dpipe log carries 40 bytes of header; fio writes the bare bytes".into());
    record.notes.push("sync_p50_us is of a call of fdatasync; with O_DSYNC that work is part of write_p50_us".into());
    for (bytes, size) in RECORDS {
        let mut entries = vec![our_entry(context, bytes, seconds, size)];
        entries.extend(WAYS.iter().map(|way| fio_entry(&fio, way, size, &by_fio(way, &path, bytes, seconds))));
        for turn in 1..=context.options.runs {
            for at in order(turn, entries.len()) {
                let entry = &mut entries[at];
                if entry.not_measured.is_some() {
                    continue;
                }
                let figures = match (at.checked_sub(1), &context.dpipe) {
                    (Some(way), _) => of_fio(&mut by_fio(&WAYS[way], &path, bytes, seconds)),
                    (None, Ok(dpipe)) => of_dpipe(&mut by_dpipe(dpipe, &context.options.dir, bytes, seconds)),
                    (None, Err(_)) => continue,
                };
                entry.runs.push(noted(&entry.name, turn, figures));
            }
        }
        entries.iter_mut().for_each(Entry::take_medians);
        record.contestants.extend(entries);
    }
    drop(file);
    for (_, size) in RECORDS {
        let ours = our_name(size);
        let names = WAYS.map(|way| fio_name(&way, size));
        let peers = names.each_ref().map(String::as_str);
        record.compare_best(("records_per_s", Better::More), &ours, &peers, Some(Target::AtLeast(0.9)));
        record.compare_best(("cpu_us_per_record", Better::Less), &ours, &peers, None);
        // The same two system calls.
        record.compare("records_per_s", &ours, peers[0], None);
        record.compare("cpu_us_per_record", &ours, peers[0], None);
    }
    Ok(record)
}

fn our_name(size: &str) -> String {
    format!("dpipe log {size}")
}

fn fio_name(way: &Way, size: &str) -> String {
    format!("fio {size}, {}", way.name)
}

fn our_entry(context: &Context, bytes: u32, seconds: f64, size: &str) -> Entry {
    let version = "this commit".into();
    match &context.dpipe {
        Ok(dpipe) => {
            let command = steps::shown(&by_dpipe(dpipe, &context.options.dir, bytes, seconds));
            Entry { name: our_name(size), version, command, ..Entry::default() }
        }
        Err(why) => Entry { name: our_name(size), version, not_measured: Some(why.clone()), ..Entry::default() },
    }
}

fn fio_entry(fio: &Result<Fio, String>, way: &Way, size: &str, command: &Command) -> Entry {
    let name = fio_name(way, size);
    match fio {
        Ok(fio) => Entry { name, version: fio.version.clone(), command: steps::shown(command), ..Entry::default() },
        Err(why) => Entry { name, not_measured: Some(why.clone()), ..Entry::default() },
    }
}

fn by_dpipe(dpipe: &Path, dir: &Path, bytes: u32, seconds: f64) -> Command {
    let mut command = Command::new(dpipe);
    command.args(["log", "bench", "--json", "--dir"]).arg(dir);
    command.args(["--record-size", &bytes.to_string(), "--seconds", &seconds.to_string()]);
    command
}

fn by_fio(way: &Way, path: &Path, bytes: u32, seconds: f64) -> Command {
    let mut command = Command::new("fio");
    command.args(["--name=log", "--ioengine=psync", "--rw=write", "--overwrite=1", "--invalidate=0"]).args(way.options);
    command.args(["--time_based=1", "--output-format=json"]).arg(format!("--filename={}", path.display()));
    command.arg(format!("--bs={bytes}")).arg(format!("--size={FILE_BYTES}"));
    command.arg(format!("--runtime={}ms", (seconds * 1000.0) as u64));
    command
}

fn of_fio(command: &mut Command) -> TaskResult<Figures> {
    let usage = measure(command)?;
    let start = usage.stdout.find('{').ok_or("fio printed no JSON")?;
    let json: Value = serde_json::from_str(&usage.stdout[start..])?;
    let job = &json["jobs"][0];
    let number = |value: &Value| value.as_f64().ok_or("fio's JSON lacks a number");
    let (rate, count) = (number(&job["write"]["iops"])?, number(&job["write"]["total_ios"])?);
    let cpu_us = (number(&job["usr_cpu"])? + number(&job["sys_cpu"])?) / 100.0 * number(&job["job_runtime"])? * 1000.0;
    let p50 = |value: &Value| value["percentile"]["50.000000"].as_f64().map(|ns| ns / 1000.0);
    let (write, sync) = (p50(&job["write"]["clat_ns"]), p50(&job["sync"]["lat_ns"]));
    Ok(figures([Some(rate), Some(cpu_us / count), write, sync]))
}

fn of_dpipe(command: &mut Command) -> TaskResult<Figures> {
    let json: Value = serde_json::from_str(&measure(command)?.stdout)?;
    let number = |value: &Value| value.as_f64().ok_or("the JSON of dpipe log lacks a number");
    let cpu_us = number(&json["cpu_seconds"])? * 1e6 / number(&json["records"])?;
    let p50 = |value: &Value| Ok::<f64, &str>(number(&value["p50_ns"])? / 1000.0);
    let (write, sync) = (p50(&json["stats"]["write"])?, p50(&json["stats"]["sync"])?);
    Ok(figures([number(&json["records_per_second"])?, cpu_us, write, sync].map(Some)))
}

/// A way without a call of fdatasync has no time of one.
fn figures(values: [Option<f64>; 4]) -> Figures {
    let names = ["records_per_s", "cpu_us_per_record", "write_p50_us", "sync_p50_us"];
    names.map(String::from).into_iter().zip(values).filter_map(|(name, value)| Some((name, value?))).collect()
}

fn noted(name: &str, turn: usize, result: TaskResult<Figures>) -> Run {
    let (figures, verified) = match result {
        Ok(figures) => (figures, "rate only (what survives is checked by the crash tests)".to_string()),
        Err(why) => (Figures::new(), format!("FAILED: {why}")),
    };
    println!("    turn {turn} {name}: {figures:.1?} {verified}");
    Run { turn, figures, verified }
}

fn write_zeros(path: &Path) -> TaskResult<()> {
    let mut file = File::create(path)?;
    let block = vec![0; 1 << 20];
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}
