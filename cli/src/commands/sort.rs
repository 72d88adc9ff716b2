//! `dpipe sort`: GNU sort's command line over the engine.

mod annotate;
mod check;
mod disorder;
pub(crate) mod help;
mod locale;
mod names;
mod places;
mod random;
pub(crate) mod routes;
mod warnings;
mod words;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use datapipes::Result;
use datapipes_metrics::{Label, Sample, vocabulary};
use datapipes_sort::{
    Control, Input, NumberKind, Output, RecordFormat, SmallInput, SmallOutcome, SortJob, SortProgress, SortReport,
    SpillFiles,
};

use crate::arguments::sort_args::{self, Action, Parsed, SortArgs};
use crate::metrics_file::{CommandMetrics, told};
use crate::outcome::{CommandStatus, exit_code_in_words, json, note, print, print_error};
use crate::progress::{self, State};
use crate::system::afterwards::close_afterwards;
use crate::system::signals::{self, WaitsFor};

/// Sorts as the arguments say; they are those behind the word `sort`.
pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    let mut parsed = match SortArgs::parse(arguments.into_iter(), |name| std::env::var_os(name), names::listed) {
        Ok(parsed) => parsed,
        Err(error) => {
            print_error(&format!("{error}\n"));
            return ExitCode::from(error.exit_code);
        }
    };
    let outcome = prepare(&mut parsed).and_then(|()| match parsed.action {
        Action::Help => print(help::TEXT).map(|()| CommandStatus::Good),
        Action::Version => print(concat!("dpipe sort ", env!("CARGO_PKG_VERSION"), "\n")).map(|()| CommandStatus::Good),
        Action::Check { quiet } => {
            told(file_of_metrics(&parsed), "sort", |metrics| metrics.during(Vec::new, || check::run(&parsed, quiet)))
        }
        Action::Sort | Action::Merge => {
            told(file_of_metrics(&parsed), "sort", |metrics| sort(&parsed, metrics).map(|()| CommandStatus::Good))
        }
    });
    exit_code_in_words("sort", outcome, |error| words::words(error, &places::folders(&parsed)))
}

fn file_of_metrics(parsed: &Parsed) -> Option<&Path> {
    parsed.metrics.as_deref().map(Path::new)
}

/// Prints warnings and reads the salt of a random order, before any input is read.
fn prepare(parsed: &mut Parsed) -> Result<()> {
    if let Some(text) = &parsed.collation_note {
        if locale::is_installed() {
            note(&format!("dpipe sort: note: {text}\n"));
        } else if parsed.debug {
            print_error("dpipe sort: failed to set locale\n");
        }
    }
    if parsed.debug {
        warnings::warnings(&parsed.options).iter().for_each(|text| print_error(&format!("dpipe sort: {text}\n")));
    }
    if parsed.options.is_random() {
        parsed.options.salt = random::salt(parsed.random_source.as_deref())?;
        parsed.order = parsed.options.compile()?;
    }
    Ok(())
}

fn sort(parsed: &Parsed, metrics: &CommandMetrics<'_>) -> Result<()> {
    let names = names::to_sort(parsed)?;
    let output = places::output(parsed)?;
    let spill = places::spill(parsed)?;
    let Some(output) = small(parsed, &names, output)? else { return Ok(()) };
    let machine = datapipes::discover();
    let memory_bytes = places::memory_bytes(&machine, parsed)?;
    allow_many_files();
    if parsed.compress_program.is_some() {
        signals::keep_children();
    }
    let inputs = names.iter().map(|name| Input::deferred(Path::new(name))).collect::<Result<Vec<_>>>()?;
    let streams = inputs.iter().any(Input::may_block)
        || matches!(output, Output::Stream { .. })
        || parsed.compress_program.is_some();
    if parsed.explain {
        for way in routes::ways(&machine, &inputs, &output, &spill, parsed.spill_order)? {
            print_error(&way.to_string());
        }
        print_error(routes::compression(parsed.compression, parsed.compress_program.is_some()));
    }
    let (annotator, output) = match parsed.debug {
        true => annotate::start(parsed, output).map(|(annotator, output)| (Some(annotator), output))?,
        false => (None, output),
    };
    let control = signals::catch(if streams { WaitsFor::Streams } else { WaitsFor::Places });
    let spill_files = SpillFiles::default();
    let job = SortJob::between(&machine, format(parsed), inputs, output)
        .memory_bytes(memory_bytes)
        .spill(spill)
        .spill_order(parsed.spill_order)
        .method(parsed.method)
        .threads(places::threads(&machine, parsed, memory_bytes))
        .unique(parsed.options.unique)
        .compress_program(parsed.compress_program.as_ref().map(PathBuf::from))
        .compression(parsed.compression)
        .fan_in(parsed.batch_size.unwrap_or(0))
        .spill_files(Some(spill_files.clone()))
        .control(control.clone());
    let counters = control.progress.clone();
    let sorts = || {
        watched(parsed, &control, || match parsed.action {
            Action::Merge => datapipes_sort::merge(&machine, job),
            _ => datapipes_sort::sort(&machine, job),
        })
    };
    let sorted = metrics.during(|| so_far(&counters), sorts);
    let report = match annotator {
        Some(annotator) => annotator.finish(sorted),
        None => sorted,
    }?;
    metrics.keep(report.samples());
    tell(parsed, &report)?;
    close_afterwards(spill_files.take());
    Ok(())
}

/// Sorts small files, without asking what machine this is. Returns the output if it did not.
fn small(parsed: &Parsed, names: &[OsString], output: Output) -> Result<Option<Output>> {
    // Whoever asks how it is done is told about pipes, and gets them.
    let reports = parsed.report || parsed.json || parsed.metrics.is_some();
    let asks = parsed.debug || parsed.explain || reports || parsed.progress == Some(true);
    // A percentage is taken of more than any machine has: what is asked for that way is not little.
    const MAX_MEMORY: u64 = 1 << 50;
    let Ok(memory) = parsed.buffer_bytes(MAX_MEMORY) else { return Ok(Some(output)) };
    let is_own = parsed.compress_program.is_some() || names.iter().any(|name| name == "-");
    if parsed.action != Action::Sort || asks || is_own {
        return Ok(Some(output));
    }
    let read = SmallInput::read(format(parsed), memory.unwrap_or(MAX_MEMORY), names.iter().map(Path::new));
    let Some(input) = read else { return Ok(Some(output)) };
    let streams = matches!(output, Output::Stream { .. });
    let control = signals::catch(if streams { WaitsFor::Streams } else { WaitsFor::Places });
    match input.sort_into(output, parsed.options.unique, &control)? {
        SmallOutcome::Sorted(_) => Ok(None),
        SmallOutcome::Declined(output) => Ok(Some(output)),
    }
}

/// Inputs that are merged are open at once; what the parent allows to be allowed is taken.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the limit cannot be raised, a small number of inputs still opens.
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
            note(&format!("dpipe sort: {plan}\n"));
        }
        state(&counters, merges)
    };
    progress::during(visible, look, work)
}

/// Reading and sorting overlap, so they are one phase; what is written after all was read is the
/// merge.
fn state(counters: &SortProgress, merges: bool) -> State {
    let [total, read, spilled, written] =
        [&counters.total, &counters.read, &counters.spilled, &counters.written].map(|counter| counter.load(Relaxed));
    if merges || written > 0 || (total > 0 && read >= total) {
        let phase = if spilled > 0 || merges { "merging" } else { "writing" };
        return State { phase, done: written, total: total.max(read) };
    }
    State { phase: "sorting", done: read, total }
}

/// What a sort that runs has read and written.
fn so_far(counters: &SortProgress) -> Vec<Sample> {
    let of = |counter: &AtomicU64, direction| {
        Sample::new(&vocabulary::SORT_BYTES, counter.load(Relaxed)).label(Label::Direction, direction)
    };
    let spilled = Sample::new(&vocabulary::SORT_SPILLED, counters.spilled.load(Relaxed));
    vec![of(&counters.read, "in"), of(&counters.written, "out"), spilled]
}

fn tell(parsed: &Parsed, report: &SortReport) -> Result<()> {
    if parsed.json {
        let text = json(report)? + "\n";
        // The standard output is free only where the records go elsewhere.
        if parsed.output.is_some() { print(&text)? } else { print_error(&text) }
    }
    if parsed.report {
        print_error(&report.to_string());
    }
    Ok(())
}

fn format(parsed: &Parsed) -> RecordFormat {
    let reverse = parsed.options.modifiers.reverse;
    let numbers = |kind| RecordFormat::Numbers { kind, reverse };
    match parsed.format {
        sort_args::Format::Lines => RecordFormat::Lines { order: parsed.order.clone(), terminator: parsed.terminator },
        sort_args::Format::Records(shape) => RecordFormat::Records {
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
