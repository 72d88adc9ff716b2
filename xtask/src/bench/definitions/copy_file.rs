//! SSD to DRAM and back: a pipe against fio with registered buffers in huge pages, over the same
//! existing file.

use crate::bench::contestants::fio::{Direction, Fio, Setting};
use crate::bench::context::{Context, Input};
use crate::bench::measuring::measure::measure;
use crate::bench::measuring::page_cache::make_cold;
use crate::bench::records::record::{Entry, Figures, Record, Run, Target};
use crate::{TaskResult, steps};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

pub(in crate::bench) const ABOUT: &str = "SSD to DRAM and back, 4 GiB: a pipe against fio (fixed buffers, huge pages)";

const SETTING: Setting = Setting { block_kib: 1024, depth: 16, jobs: 1 };
const PIPE: &str = "dpipe (move_rate)";
const FIO: &str = "fio";

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let bytes = context.size(4 << 30) >> 20 << 20;
    context.need_free(bytes * 2)?;
    let path = context.file("copy-file.data");
    let file = Input::temporary(&path);
    fill(&path, bytes)?;
    let program = context.example(("datapipes-file", "backends/file"), "move_rate");
    let fio = Fio::find_if_wanted(context);
    let mut ours = Entry { name: PIPE.into(), version: "this commit".into(), ..Entry::default() };
    let mut theirs = Entry { name: FIO.into(), ..Entry::default() };
    ours.not_measured = program.as_ref().err().cloned();
    theirs.not_measured = fio.as_ref().err().cloned();
    if let Ok(fio) = &fio {
        theirs.version.clone_from(&fio.version);
        theirs.note = format!("{}; over the same existing file", fio.note());
        theirs.command = steps::shown(&fio.command(SETTING, Direction::Read, &path, bytes));
    }
    for turn in 1..=context.options.runs {
        if let Ok(program) = &program {
            let mut command = Command::new(program);
            command.arg(&path).arg(bytes.to_string());
            ours.command = steps::shown(&command);
            make_cold(&[&path])?;
            ours.runs.push(noted(PIPE, turn, pipe(&mut command)));
        }
        if let Ok(fio) = &fio {
            theirs.runs.push(noted(FIO, turn, by_fio(fio, &path, bytes)));
        }
    }
    drop(file);
    let mut record = context.record();
    record.inputs = vec![format!("{:.2} GiB, written before (not sparse, not unwritten extents)", gib(bytes))];
    for mut entry in [ours, theirs] {
        entry.take_medians();
        record.contestants.push(entry);
    }
    for word in ["read", "write"] {
        record.compare(&format!("{word}_gib_s"), PIPE, FIO, Some(Target::AtLeast(0.97)));
        record.limit(&format!("cpu_ms_per_gib_{word}"), PIPE, Target::AtMost(10.0));
    }
    Ok(record)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

fn noted(name: &str, turn: usize, result: TaskResult<Figures>) -> Run {
    let (figures, verified) = match result {
        Ok(figures) => (figures, "rate only (what arrives is checked by the conformance tests)".to_string()),
        Err(why) => (Figures::new(), format!("FAILED: {why}")),
    };
    println!("    turn {turn} {name}: {figures:.2?} {verified}");
    Run { turn, figures, verified }
}

/// The example measures by its own clocks, as fio does; it prints one JSON object.
fn pipe(command: &mut Command) -> TaskResult<Figures> {
    let usage = measure(command)?;
    let line = usage.stdout.lines().rev().find(|l| l.starts_with('{')).ok_or("move_rate printed no JSON")?;
    let values: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line)?;
    let mut figures: Figures = values.into_iter().filter_map(|(k, v)| v.as_f64().map(|v| (k, v))).collect();
    figures.insert("peak_rss_mib".into(), usage.peak_rss_mib);
    Ok(figures)
}

fn by_fio(fio: &Fio, path: &Path, bytes: u64) -> TaskResult<Figures> {
    let mut figures = Figures::new();
    for direction in [Direction::Read, Direction::Write] {
        make_cold(&[path])?;
        figures.extend(fio.run(SETTING, direction, path, bytes)?);
    }
    Ok(figures)
}

/// Bytes that no layer below can compress or share.
fn fill(path: &Path, bytes: u64) -> TaskResult<()> {
    let mut file = File::create(path)?;
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut block = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        for word in block.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}
