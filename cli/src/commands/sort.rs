//! `dpipe sort`: GNU sort's command line over the engine.

mod check;
mod disorder;
mod help;
pub(crate) mod routes;

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use datapipes::{Error, ErrorKind, Machine, Result, StagePlace};
use datapipes_sort::{Control, Format, Input, NumberKind, Output, Progress, SortJob, SortReport, default_memory};

use crate::outcome::{Verdict, complain, exit_code, json, print};
use crate::progress::{self, State};
use crate::signals::{self, WaitsFor};
use crate::sort_args::{self, Action, Parsed, SortArgs};

/// Sorts as the arguments say; they are those behind the word `sort`.
pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    let parsed = match SortArgs::parse(arguments.into_iter(), |name| std::env::var_os(name)) {
        Ok(parsed) => parsed,
        Err(error) => {
            complain(&format!("{error}\n"));
            return ExitCode::from(error.exit_code);
        }
    };
    if let Some(note) = &parsed.collation_note {
        complain(&format!("dpipe sort: note: {note}\n"));
    }
    let outcome = match parsed.action {
        Action::Help => print(help::TEXT).map(|()| Verdict::Good),
        Action::Version => print(concat!("dpipe sort ", env!("CARGO_PKG_VERSION"), "\n")).map(|()| Verdict::Good),
        Action::Check { quiet } => check::run(&parsed, quiet),
        Action::Sort | Action::Merge => sort(&parsed).map(|()| Verdict::Good),
    };
    exit_code("sort", outcome)
}

fn sort(parsed: &Parsed) -> Result<()> {
    let machine = Machine::discover();
    let names = names(parsed)?;
    allow_many_files();
    let inputs = names.iter().map(|name| Input::later(Path::new(name))).collect::<Result<Vec<_>>>()?;
    let streams = inputs.iter().any(Input::may_wait);
    let output = output(parsed)?;
    let memory_bytes = memory_bytes(&machine, parsed);
    let spill = spill_places(parsed)?;
    if parsed.explain {
        for way in routes::ways(&machine, &inputs, &output, &spill, parsed.spill_order)? {
            complain(&way.to_string());
        }
    }
    let control = signals::catch(if streams { WaitsFor::Streams } else { WaitsFor::Places });
    let job = SortJob {
        format: format(parsed),
        inputs,
        output,
        memory_bytes,
        spill,
        spill_order: parsed.spill_order,
        threads: threads(&machine, parsed, memory_bytes),
        unique: parsed.options.unique,
        compress_program: None,
        fan_in: parsed.batch_size.unwrap_or(0),
        control: control.clone(),
    };
    let report = watched(parsed, &control, || match parsed.action {
        Action::Merge => datapipes_sort::merge(&machine, job),
        _ => datapipes_sort::sort(&machine, job),
    })?;
    tell(parsed, &report)
}

/// All inputs are open at once; what the parent allows to be allowed is taken.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it is refused, few inputs still open.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Shows how far it is, where somebody watches.
fn watched<T>(parsed: &Parsed, control: &Control, work: impl FnOnce() -> T) -> T {
    let visible = parsed.progress.unwrap_or_else(progress::wanted);
    let counters = control.progress.clone();
    let merges = parsed.action == Action::Merge;
    let told = AtomicBool::new(false);
    let look = move || {
        if let Some(plan) = counters.plan.get()
            && !told.swap(true, Relaxed)
        {
            complain(&format!("dpipe sort: {plan}\n"));
        }
        state(&counters, merges)
    };
    progress::during(visible, look, work)
}

/// Reading and sorting overlap, so they are one phase; what is written after all was read is the merge.
fn state(counters: &Progress, merges: bool) -> State {
    let [total, read, spilled, written] =
        [&counters.total, &counters.read, &counters.spilled, &counters.written].map(|counter| counter.load(Relaxed));
    if merges || written > 0 || (total > 0 && read >= total) {
        let phase = if spilled > 0 || merges { "merging" } else { "writing" };
        return State { phase, done: written, total: total.max(read) };
    }
    State { phase: "sorting", done: read, total }
}

fn tell(parsed: &Parsed, report: &SortReport) -> Result<()> {
    if parsed.json {
        let text = json(report)? + "\n";
        // The standard output is free only where the records go elsewhere.
        if parsed.output.is_some() { print(&text)? } else { complain(&text) }
    }
    if parsed.report {
        complain(&report.to_string());
    }
    Ok(())
}

/// The inputs' names, those of `--files0-from` if it is given.
fn names(parsed: &Parsed) -> Result<Vec<OsString>> {
    let Some(list) = &parsed.files0_from else { return Ok(parsed.inputs.clone()) };
    let shown = Path::new(list).display().to_string();
    let fail = |e: std::io::Error| Error::io("read", &e, shown.clone());
    let mut bytes = Vec::new();
    if list == "-" {
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map_err(fail)?;
    } else {
        bytes = std::fs::read(list).map_err(fail)?;
    }
    let bad = |why: &str| Error::new(ErrorKind::InvalidInput, "read", format!("{shown}: {why}"));
    let body = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if bytes.is_empty() {
        return Err(bad("no input from it"));
    }
    let names: Vec<OsString> = body.split(|b| *b == 0).map(|name| OsString::from_vec(name.to_vec())).collect();
    if names.iter().any(|name| name.is_empty()) {
        return Err(bad("a name in it has no bytes"));
    }
    if list == "-" && names.iter().any(|name| name == "-") {
        return Err(bad("when the names come from the standard input, it cannot be one of the files"));
    }
    Ok(names)
}

fn output(parsed: &Parsed) -> Result<Output> {
    match &parsed.output {
        Some(path) => Output::to(Path::new(path)),
        None => {
            let name = PathBuf::from("standard output");
            let fd = std::io::stdout().as_fd().try_clone_to_owned();
            let file = File::from(fd.map_err(|e| Error::io("open", &e, name.display().to_string()))?);
            Ok(Output::Stream { name, file })
        }
    }
}

fn format(parsed: &Parsed) -> Format {
    let reverse = parsed.options.modifiers.reverse;
    let numbers = |kind| Format::Numbers { kind, reverse };
    match parsed.format {
        sort_args::Format::Lines => Format::Lines { order: parsed.order.clone(), terminator: parsed.terminator },
        sort_args::Format::Records(shape) => Format::Records {
            len: shape.len_bytes,
            key_at: shape.key_offset_bytes,
            key_len: shape.key_len_bytes,
            reverse,
        },
        sort_args::Format::U32 => numbers(NumberKind::U32),
        sort_args::Format::U64 => numbers(NumberKind::U64),
        sort_args::Format::I64 => numbers(NumberKind::I64),
        sort_args::Format::F64 => numbers(NumberKind::F64),
    }
}

/// -S, a part of physical memory where it is in percent; half of what is available without one.
fn memory_bytes(machine: &Machine, parsed: &Parsed) -> u64 {
    let topology = machine.topology();
    let physical = topology.memory.limit_bytes.into_iter().chain(topology.memory.total_bytes).min();
    parsed
        .buffer_bytes(physical.unwrap_or(1 << 30))
        .unwrap_or_else(|| default_memory(topology))
        .max(datapipes_sort::MIN_MEMORY)
}

/// All cores, or as told; fewer where the memory has no room for so many threads' buffers.
fn threads(machine: &Machine, parsed: &Parsed, memory_bytes: u64) -> usize {
    const EACH: u64 = 640 << 10;
    const PROGRAM: u64 = 10 << 20;
    let cores = machine.topology().usable_cores().count().max(1);
    let wanted = parsed.parallel.unwrap_or(cores).min(cores.max(8));
    let room = usize::try_from(memory_bytes.saturating_sub(PROGRAM) / EACH).unwrap_or(usize::MAX);
    wanted.min(room).max(1)
}

/// -T, else $TMPDIR, else /tmp, as GNU has it. The places of one list come one after the other, lists beside each other.
fn spill_places(parsed: &Parsed) -> Result<Vec<StagePlace>> {
    if parsed.temp_dirs.is_empty() {
        let variable = std::env::var_os("TMPDIR").filter(|dir| !dir.as_bytes().is_empty());
        return Ok(vec![StagePlace::folder(variable.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from))]);
    }
    let mut places = Vec::new();
    for list in &parsed.temp_dirs {
        match list.to_str() {
            Some(list) => places.append(&mut StagePlace::parse_list(list)?),
            None => places.push(StagePlace::folder(list)),
        }
    }
    Ok(places)
}
