//! `dpipe sort`: GNU sort's command line over the engine.

mod annotate;
mod check;
mod disorder;
pub(crate) mod help;
mod locale;
mod names;
mod objects;
mod page;
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
    Control, Input, NumberKind, Output, RecordFormat, SmallInput, SmallOutcome, SmallStandardInput, SortJob,
    SortProgress, SortReport, SpillFiles,
};
use serde::Serialize;

use crate::arguments::sort_args::{self, Action, Parsed, SortArgs};
use crate::metrics_file::{CommandMetrics, told};
use crate::objects::{ObjectAccount, refuse};
use crate::offering;
use crate::outcome::{
    CommandStatus, exit_code_in_words, json, note, print, print_as_it_is, print_error, print_error_as_it_is, with_names,
};
use crate::progress::{self, State};
use crate::remote_memory;
use crate::report::options::PageFile;
use crate::report::recorder::record;
use crate::system::afterwards::close_afterwards;
use crate::system::side_files::{SideFile, SideFiles};
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
    let outcome = refuse_objects(&parsed).and_then(|()| prepare(&mut parsed)).and_then(|()| act(&parsed));
    exit_code_in_words("sort", outcome, |error| words::words(error, &places::folders(&parsed)))
}

fn act(parsed: &Parsed) -> Result<CommandStatus> {
    let mut side_files = SideFiles::beside(places::all(parsed)).synced(parsed.sync);
    let metrics = side_files.take("--metrics", parsed.metrics.as_ref())?;
    let page = side_files.take("--report-html", parsed.report_html.as_ref())?;
    match parsed.action {
        Action::Help => print(help::TEXT).map(|()| CommandStatus::Good),
        Action::Version => print(concat!("dpipe sort ", env!("CARGO_PKG_VERSION"), "\n")).map(|()| CommandStatus::Good),
        Action::Check { quiet } => told(metrics.as_ref(), "sort", |_| check::run(parsed, quiet)),
        Action::Sort | Action::Merge => {
            told(metrics.as_ref(), "sort", |metrics| sort(parsed, metrics, page).map(|()| CommandStatus::Good))
        }
    }
}

/// Refuses objects where files are read beside the records, and memory of other processes.
fn refuse_objects(parsed: &Parsed) -> Result<()> {
    let files = [&parsed.random_source, &parsed.compress_program];
    let names: Vec<&str> = files.into_iter().flatten().filter_map(|name| name.to_str()).collect();
    refuse("sort", &names)?;
    let places = parsed.inputs.iter().chain(&parsed.temp_dirs).filter_map(|name| name.to_str());
    remote_memory::refuse("sort", &places.collect::<Vec<_>>())
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

fn sort(parsed: &Parsed, metrics: &CommandMetrics<'_>, page: Option<SideFile>) -> Result<()> {
    let names = names::to_sort(parsed)?;
    let spill = places::spill(parsed)?;
    let objects = objects::SortObjects::of(parsed, &names)?;
    let (mut output, mut begun) = (None, None);
    if !objects.has_output() {
        let Some((its, read)) = small(parsed, &names, places::output(parsed)?)? else { return Ok(()) };
        (output, begun) = (Some(its), read);
    }
    let machine = datapipes::discover();
    let memory_bytes = places::memory_bytes(&machine, parsed)?;
    allow_many_files();
    if parsed.compress_program.is_some() {
        signals::keep_children();
    }
    let inputs = match begun {
        Some(begun) => vec![begun],
        None => objects.inputs(&names)?,
    };
    let threads = places::threads(&machine, parsed, memory_bytes);
    let output = match output {
        Some(output) => output,
        None => objects.output(&inputs, threads)?,
    };
    let streams = inputs.iter().any(Input::may_block)
        || matches!(output, Output::Stream { .. })
        || parsed.compress_program.is_some();
    let page_file = PageFile::open(page)?;
    let mut ways = Vec::new();
    if parsed.explain || page_file.is_some() {
        ways = routes::ways(&machine, &inputs, &output, &spill, parsed.spill_order)?;
    }
    if parsed.explain {
        let folders = places::folders(parsed);
        let names = || folders.iter().map(PathBuf::as_path);
        ways.iter().for_each(|way| print_error(&with_names(way.to_string(), names())));
        print_error(routes::compression(parsed.compression, parsed.compress_program.is_some()));
    }
    let (annotator, output) = match parsed.debug {
        true => annotate::start(parsed, output).map(|(annotator, output)| (Some(annotator), output))?,
        false => (None, output),
    };
    let control = signals::catch(if streams { WaitsFor::Streams } else { WaitsFor::Places });
    signals::undo_says(match &parsed.output {
        Some(_) => "the output is as it was before, and runs were removed",
        None => "what is on the standard output is not all; runs were removed",
    });
    let spill_files = SpillFiles::default();
    let job = SortJob::between(&machine, format(parsed), inputs, output)
        .memory_bytes(memory_bytes)
        .spill(spill)
        .spill_order(parsed.spill_order)
        .method(parsed.method)
        .threads(parsed.parallel.map(|_| threads))
        .max_threads(threads)
        .unique(parsed.options.unique)
        .compress_program(parsed.compress_program.as_ref().map(PathBuf::from))
        .compression(parsed.compression)
        .fan_in(parsed.batch_size.unwrap_or(0))
        .spill_files(Some(spill_files.clone()))
        .control(control.clone());
    let columns = page_file.is_some().then(page::columns);
    let sorts = || match parsed.action {
        Action::Merge => datapipes_sort::merge(&machine, job),
        _ => datapipes_sort::sort(&machine, job),
    };
    let counters = &control.progress;
    let work = || offering::during("dpipe sort", || page::samples(counters), || watched(parsed, &control, sorts));
    let work = || metrics.during(|| so_far(counters), work);
    let (sorted, recording) = record(columns, || page::values(&control.progress), work);
    let mut report = match annotator {
        Some(annotator) => annotator.finish(sorted),
        None => sorted,
    }?;
    if !close_afterwards(spill_files.take()) {
        (report.spill_left_bytes, report.output.left_bytes) = (0, 0);
    }
    metrics.keep(report.samples());
    tell(parsed, &report, objects.accounts())?;
    if let (Some(file), Some(recording)) = (page_file, recording) {
        file.write(&page::page(&report, ways, &recording))?;
    }
    Ok(())
}

/// Sorts a small input, without asking what machine this is. If it did not, it returns the output
/// and, if some of the standard input was read, the input in its place.
fn small(parsed: &Parsed, names: &[OsString], output: Output) -> Result<Option<(Output, Option<Input>)>> {
    // Whoever asks how it is done is told about pipes, and gets them.
    let is_told = parsed.report || parsed.report_html.is_some() || parsed.json || parsed.metrics.is_some();
    let asks = is_told || parsed.debug || parsed.explain || parsed.progress == Some(true);
    // A percentage is taken of more than any machine has: what is asked for that way is not little.
    const MAX_MEMORY: u64 = 1 << 50;
    let Ok(memory) = parsed.buffer_bytes(MAX_MEMORY) else { return Ok(Some((output, None))) };
    let memory = memory.unwrap_or(MAX_MEMORY);
    if parsed.action != Action::Sort || asks || parsed.compress_program.is_some() {
        return Ok(Some((output, None)));
    }
    let input = match names {
        [only] if only == "-" => match SmallInput::read_standard_input(format(parsed), memory)? {
            SmallStandardInput::Small(input) => Some(input),
            SmallStandardInput::Other(begun) => return Ok(Some((output, Some(begun)))),
        },
        names if names.iter().any(|name| name == "-") => None,
        names => SmallInput::read(format(parsed), memory, names.iter().map(Path::new))?,
    };
    let Some(input) = input else { return Ok(Some((output, None))) };
    let streams = matches!(output, Output::Stream { .. });
    let control = signals::catch(if streams { WaitsFor::Streams } else { WaitsFor::Places });
    let spill_files = SpillFiles::default();
    match input.spill_files(spill_files.clone()).sort_into(output, parsed.options.unique, &control)? {
        SmallOutcome::Sorted(_) => {
            close_afterwards(spill_files.take());
            Ok(None)
        }
        SmallOutcome::Declined(output, begun) => Ok(Some((output, begun))),
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
    if counters.publishes.load(Relaxed) {
        return State::of("syncing");
    }
    let [total, read, spilled, written] =
        [&counters.total, &counters.read, &counters.spilled, &counters.written].map(|counter| counter.load(Relaxed));
    if merges || written > 0 || (total > 0 && read >= total) {
        let phase = if spilled > 0 || merges { "merging" } else { "writing" };
        return State { phase, done: written, total: total.max(read), later: 0 };
    }
    // What is read is written once more: to runs that are merged, or to the output.
    State { phase: "sorting", done: read, total, later: total }
}

/// What a sort that runs has read and written.
fn so_far(counters: &SortProgress) -> Vec<Sample> {
    let of = |counter: &AtomicU64, direction| {
        Sample::new(&vocabulary::SORT_BYTES, counter.load(Relaxed)).label(Label::Direction, direction)
    };
    let mut samples = vec![of(&counters.read, "in"), of(&counters.written, "out")];
    samples.extend(page::samples(counters));
    samples
}

/// The output of `--json`.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    report: &'a SortReport,
    /// What was asked of servers: for all inputs together, and for the output.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    objects: Vec<ObjectAccount>,
}

fn tell(parsed: &Parsed, report: &SortReport, objects: Vec<ObjectAccount>) -> Result<()> {
    let lines = objects.iter().map(|account| format!("  {account}\n")).collect::<String>();
    if parsed.json {
        let text = json(&Told { report, objects })? + "\n";
        // The standard output is free only where the records go elsewhere.
        if parsed.output.is_some() { print_as_it_is(&text)? } else { print_error_as_it_is(&text) }
    }
    if parsed.report {
        let folders = places::folders(parsed);
        print_error(&with_names(report.to_string(), folders.iter().map(PathBuf::as_path)));
        print_error(&lines);
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
