//! Memory to a durable file and back: `dpipe checkpoint`, with checksums, sync and rename in its
//! time, against others that end as durable: programs by hand (`plain_save`: write, fsync, rename,
//! fsync of the folder; through the page cache and past it, with checksums and without), and fio's
//! direct writes with an fsync at the end, which has neither checksums nor a rename.

use crate::bench::contestants::fio::{Clocks, Direction, Fio, Setting};
use crate::bench::context::{Context, Example, Input};
use crate::bench::measuring::measure::measure;
use crate::bench::measuring::page_cache::make_cold;
use crate::bench::measuring::turns::order;
use crate::bench::records::record::{Better, Entry, Figures, Record, Run, Target};
use crate::{TaskResult, steps};
use serde_json::{Map, Value};
use std::path::Path;
use std::process::Command;

pub(in crate::bench) const ABOUT: &str =
    "4 regions, 4 GiB, to a durable file and back: dpipe checkpoint, programs by hand, fio (direct, 2 MiB, fsync)";

const SETTING: Setting = Setting { block_kib: 2048, depth: 16, jobs: 1, clocks: Clocks::Few };
const OURS: &str = "dpipe checkpoint";
const FIO: &str = "fio, fsync at the end";
/// The ways of `plain_save`, and what they are called here.
const BY_HAND: [(&str, &str); 3] = [
    ("cached", "by hand, page cache"),
    ("direct", "by hand, direct, a thread a region"),
    ("direct-crc", "by hand, direct, a thread a region, CRC-32"),
];
const PROGRAM: Example = Example { package: "datapipes-durable", name: "plain_save" };
const REGIONS: u64 = 4;

/// How a contestant is run.
enum How<'a> {
    Ours(&'a Path),
    Fio(&'a Fio),
    ByHand(&'a Path, &'static str),
}

pub(in crate::bench) fn run(context: &Context) -> TaskResult<Record> {
    // Whole requests of each region.
    let bytes = context.size(4 << 30).next_multiple_of((REGIONS * u64::from(SETTING.block_kib)) << 10);
    context.need_free(bytes * 2)?;
    let dir = &context.options.dir;
    let path = context.file("checkpoint.data");
    let (fio, by_hand) = (Fio::find_if_wanted(context), context.example(PROGRAM));
    let mut contestants = vec![(
        Entry { name: OURS.into(), version: "this commit".into(), note: "with checksums".into(), ..Entry::default() },
        context.dpipe.as_ref().map(|dpipe| How::Ours(dpipe)).map_err(String::clone),
    )];
    let version = fio.as_ref().map(|fio| fio.version.clone()).unwrap_or_default();
    let note = fio.as_ref().map(|fio| format!("{}; a new file, space reserved", fio.note())).unwrap_or_default();
    contestants.push((
        Entry { name: FIO.into(), version, note, ..Entry::default() },
        fio.as_ref().map(How::Fio).map_err(String::clone),
    ));
    for (way, name) in BY_HAND {
        let how = by_hand.as_ref().map(|program| How::ByHand(program, way)).map_err(String::clone);
        contestants.push((Entry { name: name.into(), version: "this commit".into(), ..Entry::default() }, how));
    }
    for turn in 1..=context.options.runs {
        for at in order(turn, contestants.len()) {
            let (entry, how) = &mut contestants[at];
            match how {
                Ok(how) => {
                    let mut command = how.command(dir, &path, bytes);
                    entry.command = steps::shown(&command);
                    entry.runs.push(noted(&entry.name, turn, how.measured(&mut command, &path)));
                }
                Err(why) => entry.not_measured = Some(why.clone()),
            }
        }
    }
    let mut record = context.record();
    record.inputs = vec![format!("{:.2} GiB of random bytes in memory", bytes as f64 / (1u64 << 30) as f64)];
    record.contestants = contestants.into_iter().map(|(entry, _)| entry).collect();
    record.contestants.iter_mut().for_each(Entry::take_medians);
    let peers: Vec<&str> = BY_HAND.iter().map(|(_, name)| *name).chain([FIO]).collect();
    for word in ["write", "read"] {
        let (rate, cpu) = (format!("{word}_gib_s"), format!("cpu_ms_per_gib_{word}"));
        record.compare_best((&rate, Better::More), OURS, &peers, Some(Target::AtLeast(0.95)));
        record.compare_best((&cpu, Better::Less), OURS, &peers, None);
        // The same work: checksums of all bytes.
        record.compare(&rate, OURS, BY_HAND[2].1, None);
        record.compare(&cpu, OURS, BY_HAND[2].1, None);
    }
    Ok(record)
}

impl How<'_> {
    fn command(&self, dir: &Path, path: &Path, bytes: u64) -> Command {
        match self {
            Self::Fio(fio) => fio.durable_write(SETTING, path, bytes),
            Self::Ours(dpipe) => {
                let mut command = Command::new(dpipe);
                command.args(["checkpoint", "bench", "--json", "--regions", &REGIONS.to_string(), "--dir"]).arg(dir);
                command.args(["--size", &bytes.to_string()]);
                command
            }
            Self::ByHand(program, way) => {
                let mut command = Command::new(program);
                command.arg(path).args([bytes.to_string(), REGIONS.to_string()]).arg(way);
                command
            }
        }
    }

    /// Each run writes a file that was not there.
    fn measured(&self, command: &mut Command, path: &Path) -> TaskResult<Figures> {
        let file = Input::temporary(path);
        make_cold(&[])?;
        let figures = match self {
            Self::Ours(_) => of_dpipe(command),
            Self::Fio(fio) => fio.run(command, Direction::Write),
            Self::ByHand(..) => {
                let row: Map<String, Value> = serde_json::from_str(&measure(command)?.stdout)?;
                Ok(row.into_iter().filter_map(|(key, value)| Some((key, value.as_f64()?))).collect())
            }
        };
        drop(file);
        figures
    }
}

fn of_dpipe(command: &mut Command) -> TaskResult<Figures> {
    let json: Value = serde_json::from_str(&measure(command)?.stdout)?;
    if json["same"] != true {
        return Err("what was restored is not what was saved".into());
    }
    let number = |value: &Value| value.as_f64().ok_or("the JSON of dpipe checkpoint lacks a number");
    let gib = number(&json["saved"]["bytes"])? / (1u64 << 30) as f64;
    let figures = [
        ("write_gib_s", number(&json["save_bytes_per_second"])? / (1u64 << 30) as f64),
        ("cpu_ms_per_gib_write", number(&json["save_cpu_seconds"])? * 1000.0 / gib),
        ("publish_s", number(&json["saved"]["publish_seconds"])?),
        ("read_gib_s", number(&json["restore_bytes_per_second"])? / (1u64 << 30) as f64),
        ("cpu_ms_per_gib_read", number(&json["restore_cpu_seconds"])? * 1000.0 / gib),
    ];
    Ok(figures.map(|(name, value)| (name.to_string(), value)).into())
}

fn noted(name: &str, turn: usize, result: TaskResult<Figures>) -> Run {
    let (figures, verified) = match result {
        Ok(figures) if name == FIO => (figures, "rate only".to_string()),
        Ok(figures) => (figures, "right (restored and compared byte by byte)".to_string()),
        Err(why) => (Figures::new(), format!("FAILED: {why}")),
    };
    println!("    turn {turn} {name}: {figures:.3?} {verified}");
    Run { turn, figures, verified }
}
