//! Memory to a durable file: `dpipe checkpoint`, with checksums, sync and rename in its time,
//! against fio's sequential direct writes of 1 MiB to a new file of the same size, which has none
//! of these.

use crate::bench::contestants::fio::{Direction, Fio, Setting};
use crate::bench::context::{Context, Input};
use crate::bench::measuring::measure::measure;
use crate::bench::measuring::page_cache::make_cold;
use crate::bench::records::record::{Entry, Figures, Record, Run, Target};
use crate::{TaskResult, steps};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

pub(in crate::bench) const ABOUT: &str = "4 regions, 4 GiB, to a durable file: dpipe checkpoint, fio (direct, 1 MiB)";

const SETTING: Setting = Setting { block_kib: 1024, depth: 16, jobs: 1 };
const OURS: &str = "dpipe checkpoint";
const FIO: &str = "fio";

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let bytes = context.size(4 << 30) >> 22 << 22;
    context.need_free(bytes * 2)?;
    let path = context.file("checkpoint.data");
    let fio = Fio::find_if_wanted(context);
    let mut ours = Entry { name: OURS.into(), version: "this commit".into(), ..Entry::default() };
    let mut theirs = Entry { name: FIO.into(), ..Entry::default() };
    ours.not_measured = context.dpipe.as_ref().err().cloned();
    theirs.not_measured = fio.as_ref().err().cloned();
    for turn in 1..=context.options.runs {
        if let Ok(fio) = &fio {
            theirs.version.clone_from(&fio.version);
            theirs.note = format!("{}; a new file, space reserved; no sync in its time", fio.note());
            theirs.command = steps::shown(&fio.command(SETTING, Direction::Write, &path, bytes));
            theirs.runs.push(noted(FIO, turn, by_fio(fio, &path, bytes)));
        }
        if let Ok(dpipe) = &context.dpipe {
            let mut command = Command::new(dpipe);
            command.args(["checkpoint", "bench", "--json", "--regions", "4", "--dir"]).arg(&context.options.dir);
            command.args(["--size", &bytes.to_string()]);
            ours.command = steps::shown(&command);
            make_cold(&[])?;
            ours.runs.push(noted(OURS, turn, by_dpipe(&mut command)));
        }
    }
    let mut record = context.record();
    record.inputs = vec![format!("{:.2} GiB of random bytes in memory", bytes as f64 / (1u64 << 30) as f64)];
    for mut entry in [ours, theirs] {
        entry.take_medians();
        record.contestants.push(entry);
    }
    record.compare("write_gib_s", OURS, FIO, Some(Target::AtLeast(0.95)));
    Ok(record)
}

/// Each run writes a file that was not there.
fn by_fio(fio: &Fio, path: &Path, bytes: u64) -> TaskResult<Figures> {
    let file = Input::temporary(path);
    make_cold(&[])?;
    let figures = fio.run(SETTING, Direction::Write, path, bytes);
    drop(file);
    figures
}

fn by_dpipe(command: &mut Command) -> TaskResult<Figures> {
    let json: Value = serde_json::from_str(&measure(command)?.stdout)?;
    if json["same"] != true {
        return Err("what was restored is not what was saved".into());
    }
    let number = |value: &Value| value.as_f64().ok_or("the JSON of dpipe checkpoint lacks a number");
    let gib = number(&json["saved"]["bytes"])? / (1u64 << 30) as f64;
    let figures = [
        ("write_gib_s", number(&json["save_gib_s"])?),
        ("cpu_ms_per_gib_write", number(&json["save_cpu_seconds"])? * 1000.0 / gib),
        ("publish_s", number(&json["saved"]["publish_seconds"])?),
        ("read_gib_s", number(&json["restore_gib_s"])?),
        ("cpu_ms_per_gib_read", number(&json["restore_cpu_seconds"])? * 1000.0 / gib),
    ];
    Ok(figures.map(|(name, value)| (name.to_string(), value)).into())
}

fn noted(name: &str, turn: usize, result: TaskResult<Figures>) -> Run {
    let (figures, verified) = match result {
        Ok(figures) if name == OURS => (figures, "right (restored and compared byte by byte)".to_string()),
        Ok(figures) => (figures, "rate only".to_string()),
        Err(why) => (Figures::new(), format!("FAILED: {why}")),
    };
    println!("    turn {turn} {name}: {figures:.3?} {verified}");
    Run { turn, figures, verified }
}
