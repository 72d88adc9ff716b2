//! `dpipe counters`: what the machine counts, while a command runs.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use datapipes::{Error, Result, threads};
use datapipes_counters::{CounterReading, CounterScope, CounterSet};
use datapipes_metrics::{Sample, prometheus};
use serde::Serialize;

use crate::arguments::ending::Ending;
use crate::arguments::folder;
use crate::arguments::units;
use crate::outcome::{CommandStatus, note, print, print_json};
use crate::system::signals::{self, WaitsFor};

const ENDING: Ending = Ending {
    notes: "\
Without a command it lists what this machine counts, and what it does not, with the reason. With
one it counts the command's threads and programs, and what the whole machine did meanwhile. What is
absent is never shown as 0.",
    zero: "counted; the command succeeded",
    one: Some("the command failed"),
    examples: &[
        "dpipe counters",
        "dpipe counters --json -- dpipe sort --u64 numbers.u64 -o sorted.u64",
        "dpipe counters --prometheus",
    ],
};

/// Counts what the processor, the memory and the disks do while a command runs.
#[derive(Debug, clap::Args)]
#[command(after_help = ENDING.text())]
pub(crate) struct Args {
    /// Print JSON: counters (name, what, unit, scope, is_gauge, value, absent, source,
    /// counted_part)
    #[arg(long)]
    json: bool,
    /// Print Prometheus' text format
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Use the files under this folder, a recorded or made tree, instead of the machine's
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = folder)]
    root: PathBuf,
    /// The command that is counted
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Serialize)]
struct Shown {
    counters: Vec<CounterReading>,
}

pub(crate) fn run(args: &Args) -> Result<CommandStatus> {
    let (counters, status) = match args.command.split_first() {
        None => (CounterSet::open_under(&args.root).read(), CommandStatus::Good),
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments);
            let (counters, ended) = counted(&args.root, command, program)?;
            if let Some(signal) = ended.signal() {
                note(&format!("the command died of signal {signal}\n"));
            }
            (counters, if ended.success() { CommandStatus::Good } else { CommandStatus::Bad })
        }
    };
    let shown = Shown { counters };
    if args.prometheus {
        let samples: Vec<Sample> = shown.counters.iter().map(CounterReading::sample).collect();
        print(&prometheus(&samples))?;
    } else if args.json {
        print_json(&shown)?;
    } else {
        print(&text(&shown.counters))?;
    }
    Ok(status)
}

/// Runs a command with our standard streams on a thread that does nothing else, so that hardly
/// anything of ours is counted. A signal that comes to us is passed on.
fn counted(root: &Path, mut command: Command, shown: &OsStr) -> Result<(Vec<CounterReading>, ExitStatus)> {
    let shown = shown.to_string_lossy().into_owned();
    signals::catch(WaitsFor::Places);
    signals::is_usual_end();
    signals::keep_children();
    let (started, start) = std::sync::mpsc::channel();
    let root = root.to_owned();
    let thread = threads::spawn("counted", move || {
        let lost = |e| Error::io("run", e, shown.clone());
        let set = CounterSet::open_under(root);
        let mut child = threads::start_program(&mut command).map_err(lost)?;
        // The child is not waited for yet, so the number is its own.
        let pid = rustix::process::Pid::from_child(&child);
        let _ = started.send(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()));
        let ended = child.wait().map_err(lost)?;
        Ok((set.read(), ended))
    })?;
    // A thread that started no child has gone, and its end of the channel with it.
    if let Ok(Ok(child)) = start.recv() {
        while !thread.is_finished() {
            if signals::arrived() {
                // It may have ended by itself; it is waited for all the same.
                let _ = rustix::process::pidfd_send_signal(&child, rustix::process::Signal::TERM);
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
    threads::join(thread).map_err(|none| none.error("count"))?
}

const LOOK_EVERY: Duration = Duration::from_millis(5);

fn text(counters: &[CounterReading]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail, hence the discarded results.
    for reading in counters {
        let Some(value) = reading.value else { continue };
        let value = match reading.unit {
            "bytes" => units::memory(value),
            "ns" => format!("{:.3} s", value as f64 / 1e9),
            _ => value.to_string(),
        };
        let scope = match reading.scope {
            CounterScope::Thread => "",
            CounterScope::Machine => " (of the machine)",
        };
        let part =
            reading.counted_part.map_or(String::new(), |part| format!(", counted {:.0} % of the time", part * 100.0));
        let _ = writeln!(out, "{:<24} {value:>16}  {}{scope}{part}", reading.name, reading.what);
    }
    if counters.iter().any(|reading| reading.value.is_none()) {
        out += "\nabsent here\n";
    }
    for reading in counters.iter().filter(|reading| reading.value.is_none()) {
        let why = reading.absent.as_deref().unwrap_or("unknown");
        let _ = writeln!(out, "  {}: {}\n    {why}", reading.name, reading.what);
    }
    out
}
