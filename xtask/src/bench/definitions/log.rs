//! Small records that are durable one after the other: `dpipe log` against fio with the same
//! pattern, a write and an fdatasync for each record at depth 1, over a file that was written
//! before (so that neither pays for allocation).

use crate::bench::contestants::fio::Fio;
use crate::bench::context::{Context, Input};
use crate::bench::measuring::measure::measure;
use crate::bench::records::record::{Entry, Figures, Record, Run, Target};
use crate::{TaskResult, steps};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

pub(in crate::bench) const ABOUT: &str =
    "records of 512 B and 4 KiB, durable one by one: dpipe log, fio (write + fdatasync)";

const RECORDS: [(u32, &str); 2] = [(512, "512 B"), (4096, "4 KiB")];
/// Bytes of fio's file: it starts over at its end.
const FILE_BYTES: u64 = 64 << 20;

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let seconds = if context.options.small { 0.3 } else { 5.0 };
    context.need_free(FILE_BYTES * 4)?;
    let path = context.file("log.data");
    let file = Input::temporary(&path);
    write_zeros(&path)?;
    let fio = Fio::find_if_wanted(context);
    let mut record = context.record();
    record.inputs = vec![format!(
        "fio: {} MiB written before; dpipe log: segments of 64 MiB, written before by itself; {seconds} s a run",
        FILE_BYTES >> 20
    )];
    record.notes.push("a record of dpipe log carries 40 bytes of header; fio writes the bare bytes".into());
    let mut entries = Vec::new();
    for (bytes, name) in RECORDS {
        let mut ours = Entry { name: format!("dpipe log {name}"), version: "this commit".into(), ..Entry::default() };
        let mut theirs = Entry { name: format!("fio {name}"), ..Entry::default() };
        ours.not_measured = context.dpipe.as_ref().err().cloned();
        theirs.not_measured = fio.as_ref().err().cloned();
        for turn in 1..=context.options.runs {
            if let Ok(fio) = &fio {
                let mut command = by_fio(&path, bytes, seconds);
                theirs.version.clone_from(&fio.version);
                theirs.command = steps::shown(&command);
                theirs.runs.push(noted(&theirs.name, turn, of_fio(&mut command)));
            }
            if let Ok(dpipe) = &context.dpipe {
                let mut command = Command::new(dpipe);
                command.args(["log", "bench", "--json", "--dir"]).arg(&context.options.dir);
                command.args(["--record", &bytes.to_string(), "--seconds", &seconds.to_string()]);
                ours.command = steps::shown(&command);
                ours.runs.push(noted(&ours.name, turn, of_dpipe(&mut command)));
            }
        }
        entries.extend([ours, theirs]);
    }
    drop(file);
    for mut entry in entries {
        entry.take_medians();
        record.contestants.push(entry);
    }
    for (_, name) in RECORDS {
        let (ours, theirs) = (format!("dpipe log {name}"), format!("fio {name}"));
        record.compare("records_per_s", &ours, &theirs, Some(Target::AtLeast(0.9)));
        record.compare("cpu_us_per_record", &ours, &theirs, None);
    }
    Ok(record)
}

fn by_fio(path: &Path, bytes: u32, seconds: f64) -> Command {
    let mut command = Command::new("fio");
    command.args(["--name=log", "--ioengine=psync", "--rw=write", "--fdatasync=1", "--overwrite=1", "--time_based=1"]);
    command.args(["--output-format=json"]).arg(format!("--filename={}", path.display()));
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
    let p50 = |value: &Value| Ok::<f64, &str>(number(&value["percentile"]["50.000000"])? / 1000.0);
    let (write, sync) = (p50(&job["write"]["clat_ns"])?, p50(&job["sync"]["lat_ns"])?);
    Ok(figures([rate, cpu_us / count, write, sync]))
}

fn of_dpipe(command: &mut Command) -> TaskResult<Figures> {
    let json: Value = serde_json::from_str(&measure(command)?.stdout)?;
    let number = |value: &Value| value.as_f64().ok_or("the JSON of dpipe log lacks a number");
    let cpu_us = number(&json["cpu_seconds"])? * 1e6 / number(&json["records"])?;
    let p50 = |value: &Value| Ok::<f64, &str>(number(&value["p50_ns"])? / 1000.0);
    let (write, sync) = (p50(&json["stats"]["write"])?, p50(&json["stats"]["sync"])?);
    Ok(figures([number(&json["records_per_s"])?, cpu_us, write, sync]))
}

fn figures(values: [f64; 4]) -> Figures {
    let names = ["records_per_s", "cpu_us_per_record", "write_p50_us", "sync_p50_us"];
    names.map(String::from).into_iter().zip(values).collect()
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
