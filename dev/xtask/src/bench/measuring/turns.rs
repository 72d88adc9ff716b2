//! Contestants measured side by side: A B C, A B C, A B C. Whatever the machine's neighbours do,
//! they do it to all.

use crate::bench::contestants::floor::Floor;
use crate::bench::context::Context;
use crate::bench::measuring::measure::{Usage, measure};
use crate::bench::measuring::page_cache::make_cold;
use crate::bench::measuring::verify::{Order, Verifier};
use crate::bench::records::record::{DISPUTED, Entry, Figures, LEFT_OUT, Record, Run};
use crate::{TaskResult, steps};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A program that turns one file into another. The command is made anew for each run, given the
/// output's path.
pub(in crate::bench) struct Contestant {
    pub(in crate::bench) name: String,
    pub(in crate::bench) version: String,
    pub(in crate::bench) note: String,
    pub(in crate::bench) input: PathBuf,
    pub(in crate::bench) order: Order,
    pub(in crate::bench) command: Result<MakeCommand, String>,
}

pub(in crate::bench) type MakeCommand = Box<dyn Fn(&Path) -> Command>;

/// Runs all turns and puts contestants and floor into the record.
pub(in crate::bench) fn run(
    context: &Context,
    contestants: &[Contestant],
    mut floor: Option<Floor>,
    record: &mut Record,
) -> TaskResult<()> {
    let output = context.file("sorted.out");
    let mut entries: Vec<Entry> = contestants.iter().map(|c| entry(context, c, &output)).collect();
    let mut verifier = Verifier::default();
    for turn in 1..=context.options.runs {
        for at in order(turn, contestants.len()) {
            let (contestant, entry) = (&contestants[at], &mut entries[at]);
            let (None, Ok(command)) = (&entry.not_measured, &contestant.command) else {
                continue;
            };
            let run = one(context, contestant, &mut command(&output), &output, turn, &mut verifier)?;
            println!("    turn {turn} {}: {:.2?} {}", contestant.name, run.figures, run.verified);
            entry.runs.push(run);
        }
        if let Some(floor) = &mut floor {
            floor.measure(turn)?;
        }
    }
    entries.iter_mut().for_each(Entry::take_medians);
    record.contestants.extend(entries);
    record.floor = floor.and_then(Floor::finish);
    Ok(())
}

/// The order of a turn: each turn begins with another contestant, because the first one meets the
/// state that the turn before left behind.
pub(in crate::bench) fn order(turn: usize, contestants: usize) -> impl Iterator<Item = usize> {
    (0..contestants).map(move |at| (at + turn - 1) % contestants)
}

fn entry(context: &Context, contestant: &Contestant, output: &Path) -> Entry {
    let left_out = (!context.wants(&contestant.name)).then(|| LEFT_OUT.to_string());
    Entry {
        name: contestant.name.clone(),
        version: contestant.version.clone(),
        note: contestant.note.clone(),
        command: contestant.command.as_ref().map(|make| steps::shown(&make(output))).unwrap_or_default(),
        not_measured: left_out.or(contestant.command.as_ref().err().cloned()),
        ..Entry::default()
    }
}

fn one(
    context: &Context,
    contestant: &Contestant,
    command: &mut Command,
    output: &Path,
    turn: usize,
    verifier: &mut Verifier,
) -> TaskResult<Run> {
    let spill = spill_dir(context);
    std::fs::create_dir_all(&spill)?;
    make_cold(&[&contestant.input])?;
    let outcome = measure(command);
    // A peer that leaves its output in the page cache has not written it yet; the rest of that work
    // is timed here and shown beside, and it does not run into the next contestant's time.
    let start = Instant::now();
    rustix::fs::sync();
    let sync_s = start.elapsed().as_secs_f64();
    let run = match outcome {
        Ok(usage) => {
            let bytes = std::fs::metadata(&contestant.input)?.len();
            let mut verified = verifier
                .check(&contestant.input, output, contestant.order)
                .unwrap_or_else(|why| format!("WRONG: {why}"));
            if turn == 1 {
                verified += &opinion_of_dpipe(context, contestant, output);
            }
            Run { turn, figures: figures(&usage, bytes, sync_s), verified }
        }
        Err(why) => Run { turn, figures: Figures::new(), verified: format!("FAILED: {why}") },
    };
    let _ = std::fs::remove_file(output);
    let _ = std::fs::remove_dir_all(&spill);
    Ok(run)
}

/// The same disk for everybody's temporary files.
pub(in crate::bench) fn spill_dir(context: &Context) -> PathBuf {
    context.file("spill")
}

fn figures(usage: &Usage, bytes: u64, sync_s: f64) -> Figures {
    let figures = [
        ("wall_s", usage.wall_s),
        ("user_s", usage.user_s),
        ("sys_s", usage.sys_s),
        ("cpu_s", usage.user_s + usage.sys_s),
        ("peak_rss_mib", usage.peak_rss_mib),
        ("gb_per_s", bytes as f64 / 1e9 / usage.wall_s),
        ("sync_after_s", sync_s),
        // What a contestant takes until a power failure cannot undo it, whoever did the sync.
        ("durable_s", usage.wall_s + sync_s),
    ];
    figures.map(|(name, value)| (name.to_string(), value)).into()
}

/// `dpipe check` looks at the first outputs too: it must agree with our own examination.
fn opinion_of_dpipe(context: &Context, contestant: &Contestant, output: &Path) -> String {
    let Ok(dpipe) = &context.dpipe else {
        return String::new();
    };
    let kind = match contestant.order {
        Order::Records => "records",
        Order::U64 => "u64",
        Order::Lines => "lines",
    };
    match measure(Command::new(dpipe).args(["check", kind, "--json"]).arg(output)) {
        Ok(usage) => format!("; dpipe check: {}", usage.stdout.split_whitespace().collect::<Vec<_>>().join(" ")),
        Err(why) => format!("; {DISPUTED}: {why}"),
    }
}
