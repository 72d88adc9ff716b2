//! SSD to DRAM and back: a pipe against fio with registered buffers in huge pages, over the same
//! existing file.
//!
//! The pipe cuts into the longest requests that the device takes, up to 2 MiB, has up to 32 at
//! once, and looks at no clock for each. So fio runs with requests of 1 MiB and of 2 MiB, 16 and 32
//! at once, with its clocks and with few, and each figure of ours stands beside the best of its
//! settings.

use crate::bench::contestants::fio::{Clocks, Direction, Fio, Setting};
use crate::bench::context::{Context, Example, Input};
use crate::bench::measuring::measure::measure;
use crate::bench::measuring::page_cache::make_cold;
use crate::bench::measuring::turns::order;
use crate::bench::records::record::{Better, Entry, Figures, Record, Run, Target};
use crate::{TaskResult, steps};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

pub(in crate::bench) const ABOUT: &str =
    "SSD to DRAM and back, 4 GiB: a pipe against fio (fixed buffers, huge pages, 1 and 2 MiB)";

const fn setting(block_kib: u32, depth: u32, clocks: Clocks) -> Setting {
    Setting { block_kib, depth, jobs: 1, clocks }
}

const SETTINGS: [Setting; 6] = [
    setting(1024, 16, Clocks::All),
    setting(2048, 16, Clocks::All),
    setting(1024, 16, Clocks::Few),
    setting(2048, 16, Clocks::Few),
    setting(1024, 32, Clocks::Few),
    setting(2048, 32, Clocks::Few),
];
const PIPE: &str = "dpipe (move_rate)";
const PROGRAM: Example = Example { package: "datapipes-file", name: "move_rate" };
/// Both programs move whole pieces of this length, so that they move the same bytes.
const PIECE_BYTES: u64 = 64 << 20;

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    let bytes = context.size(4 << 30).next_multiple_of(PIECE_BYTES);
    context.need_free(bytes * 2)?;
    let path = context.file("copy-file.data");
    let file = Input::temporary(&path);
    fill(&path, bytes)?;
    let mut pipe = Command::new(context.example(PROGRAM)?);
    pipe.arg(&path).arg(bytes.to_string());
    let fio = Fio::find_if_wanted(context);
    let version = "this commit".into();
    let mut entries = vec![Entry { name: PIPE.into(), version, command: steps::shown(&pipe), ..Entry::default() }];
    entries.extend(SETTINGS.map(|setting| by_fio_entry(&fio, setting, &path, bytes)));
    for turn in 1..=context.options.runs {
        for at in order(turn, entries.len()) {
            let figures = match (at.checked_sub(1), &fio) {
                (None, _) => {
                    make_cold(&[&path])?;
                    by_pipe(&mut pipe)
                }
                (Some(at), Ok(fio)) => by_fio(fio, SETTINGS[at], &path, bytes),
                (Some(_), Err(_)) => continue,
            };
            let run = noted(&entries[at].name, turn, figures);
            entries[at].runs.push(run);
        }
    }
    drop(file);
    let mut record = context.record();
    record.inputs = vec![format!("{:.2} GiB, written before (not sparse, not unwritten extents)", gib(bytes))];
    record.notes.push(
        "processor time: of the whole process while it moves bytes (dpipe), of fio's job thread with its setup (fio)"
            .into(),
    );
    entries.iter_mut().for_each(Entry::take_medians);
    record.contestants = entries;
    let names = SETTINGS.map(fio_name);
    let peers = names.each_ref().map(String::as_str);
    for word in ["read", "write"] {
        let (rate, cpu) = (format!("{word}_gib_s"), format!("cpu_ms_per_gib_{word}"));
        record.compare_best((&rate, Better::More), PIPE, &peers, Some(Target::AtLeast(0.97)));
        record.compare_best((&cpu, Better::Less), PIPE, &peers, None);
        record.limit(&cpu, PIPE, Target::AtMost(10.0));
    }
    Ok(record)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

fn fio_name(setting: Setting) -> String {
    format!("fio, {}", setting.name())
}

fn by_fio_entry(fio: &Result<Fio, String>, setting: Setting, path: &Path, bytes: u64) -> Entry {
    let name = fio_name(setting);
    match fio {
        Ok(fio) => Entry {
            name,
            version: fio.version.clone(),
            note: format!("{}; over the same existing file", fio.note()),
            command: steps::shown(&fio.command(setting, Direction::Read, path, bytes)),
            ..Entry::default()
        },
        Err(why) => Entry { name, not_measured: Some(why.clone()), ..Entry::default() },
    }
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
fn by_pipe(command: &mut Command) -> TaskResult<Figures> {
    let usage = measure(command)?;
    let line = usage.stdout.lines().rev().find(|l| l.starts_with('{')).ok_or("move_rate printed no JSON")?;
    let values: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line)?;
    let mut figures: Figures = values.into_iter().filter_map(|(k, v)| v.as_f64().map(|v| (k, v))).collect();
    figures.insert("peak_rss_mib".into(), usage.peak_rss_mib);
    Ok(figures)
}

fn by_fio(fio: &Fio, setting: Setting, path: &Path, bytes: u64) -> TaskResult<Figures> {
    let mut figures = Figures::new();
    for direction in [Direction::Read, Direction::Write] {
        make_cold(&[path])?;
        figures.extend(fio.run(&mut fio.command(setting, direction, path, bytes), direction)?);
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
