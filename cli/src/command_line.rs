//! The command line of `dpipe`, except that of `sort`, which is parsed as GNU sort does.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::arguments::ending::Ending;
use crate::commands::data::{check, copy, explain, generate};
use crate::commands::durable::{checkpoint, log};
use crate::commands::host::{calibrate, counters, knobs, machine};
use crate::commands::shell::{completions, man};
use crate::commands::{demo, experiment, fine, model, sort, stream, top};
use crate::objects;
use crate::outcome::{self, CommandStatus, exit_code, exit_code_in_words, harmless, print, print_error};
use crate::remote_memory;

const ENDING: Ending = Ending {
    notes: "",

    zero: "done",
    one: Some("what was checked does not hold (disorder, a difference, damage)"),
    examples: &["dpipe demo --size 20MB --memory 16M", "dpipe sort lines.txt -o sorted.txt", "dpipe man man1"],
};

const PLACES: &str = "\
Places are paths, ssd:PATH[?access=auto|direct|cached], dram:SIZE[?node=N], cache:l2/coreN or
cache:l3/coreN, pmem:PATH[?emulated] (a file on DAX or a DAX device; emulated: any file),
numa:NODE[?len=SIZE]; for copy and explain also hbm:DEVICE[?len=SIZE] (memory of a GPU); for
copy, sort and explain also objects (s3://BUCKET/KEY, gs://, az://,
https://), where dpipe was built with them; for copy and explain also memory of other processes
(remote://TICKET). Sizes are numbers with K, M, G, T (1024) or KB, MB, GB,
TB (1000).
Start with `dpipe demo`. Each command explains itself with --help. A command that a signal ends
leaves nothing half-written.";

/// Moves, sorts, checks and explains bytes, through data pipes.
#[derive(Debug, Parser)]
#[command(name = "dpipe", version, about, after_help = ENDING.after(PLACES), arg_required_else_help = true, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write records, sort them in a fraction of their size, check the result, and compare with the
    /// system's sort
    Demo(demo::Args),
    /// Sort files or the standard input, as GNU sort in the C locale does, or binary records and
    /// numbers
    #[command(disable_help_flag = true)]
    Sort {
        /// See `dpipe sort --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Write data to sort: sort-benchmark records, numbers, lines
    Gen(generate::Args),
    /// Check the order of a file, count its records and duplicates, and add up their checksum
    Check(check::Args),
    /// Move the bytes of one place to another, and show how they went
    Copy(copy::Args),
    /// Append records that are durable when they are acknowledged, and read them
    Log(log::Args),
    /// Save regions of memory as a whole or not at all, and restore them
    Checkpoint(checkpoint::Args),
    /// Show which way bytes would take from one place to another, and why not another
    Explain(explain::Args),
    /// Read a few bytes at random through a cache that holds no whole pages: metrics under a load,
    /// two applications
    Fine(fine::Args),
    /// Show what this machine has: cores, caches, memory, storage, primitives
    Machine(machine::Args),
    /// Measure what the processor's primitives cost here, and set the knobs
    Calibrate(calibrate::Args),
    /// Show the machine's settings that decide how bytes move, and set some while a command runs
    Knobs(knobs::Args),
    /// Count what the processor, the memory and the disks do while a command runs
    Counters(counters::Args),
    /// Stream from a network source through transforms to a file, by isolated processes, under each
    /// placement of the protocol
    Stream(stream::Args),
    /// Show what processes of this user and the service are moving now
    Top(top::Args),
    /// Show models of hardware in virtual time, beside what the papers published
    Model(model::Args),
    /// Repeat experiments of the papers on this machine, as far as it can
    Experiment(experiment::Args),
    /// Print a script that completes the command line in a shell
    Completions(completions::Args),
    /// Write a man page for each command into a folder
    Man(man::Args),
}

/// Returns the definition of the whole command line, with the options of `sort`.
fn definition() -> clap::Command {
    CommandLine::command().mut_subcommand("sort", |_| sort::help::command())
}

/// Arguments, and values of options, that have line ends or the like: clap repeats what it does not
/// understand, as it is.
fn odd_words(arguments: &[OsString]) -> Vec<String> {
    let words = arguments.iter().map(|word| word.to_string_lossy());
    let words = words.flat_map(|word| {
        let value = word.split_once('=').map(|(_, value)| value.to_owned());
        std::iter::once(word.into_owned()).chain(value)
    });
    words.filter(|word| word.contains(char::is_control)).collect()
}

/// Parses and runs.
pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    objects::hide(&arguments, |words| harmless(words, usize::MAX));
    // Before clap sees them: it would take `-k1 -k2` and `+1 -2` for its own.
    if arguments.get(1).is_some_and(|first| first == "sort") {
        return sort::run(arguments.into_iter().skip(2).collect());
    }
    if arguments.len() == 3 && arguments[1] == "help" && arguments[2] == "sort" {
        return sort::run(vec!["--help".into()]);
    }
    let texts: Vec<String> = arguments.iter().skip(2).filter_map(|text| text.to_str().map(str::to_owned)).collect();
    let odd = odd_words(&arguments);
    let mut all = CommandLine::command();
    let matches = all.try_get_matches_from_mut(arguments);
    if let Ok(matches) = &matches
        && let Some((command, object)) = objects::among_options(&all, matches, "")
    {
        let error = objects::refusal("parse", &command, &object);
        return exit_code_in_words(&command, Err(error), |error| outcome::shown("parse", error));
    }
    let parsed = match matches.and_then(|matches| CommandLine::from_arg_matches(&matches)) {
        Ok(parsed) => parsed,
        Err(error) => {
            // Help and version are errors to clap.
            let text = error.render().to_string();
            let text = odd.iter().fold(text, |text, word| text.replace(word, &harmless(word, usize::MAX)));
            if error.use_stderr() {
                print_error(&text);
                return ExitCode::from(2);
            }
            return exit_code("help", print(&text).map(|()| CommandStatus::Good));
        }
    };
    let words: Vec<&str> = texts.iter().map(String::as_str).collect();
    let accepted = match parsed.command {
        Command::Demo(_) => objects::refuse("demo", &words),
        Command::Log(_) => objects::refuse("log", &words),
        Command::Stream(_) => objects::refuse("stream", &words),
        Command::Man(_) => objects::refuse("man", &words),
        // These take objects, and no memory of other processes.
        Command::Gen(_) => remote_memory::refuse("gen", &words),
        Command::Check(_) => remote_memory::refuse("check", &words),
        Command::Checkpoint(_) => remote_memory::refuse("checkpoint", &words),
        Command::Fine(_) => remote_memory::refuse("fine", &words),
        _ => Ok(()),
    };
    if let Err(error) = accepted {
        return exit_code(error.operation(), Err(error));
    }
    match parsed.command {
        Command::Demo(args) => exit_code("demo", demo::run(&args)),
        Command::Sort { arguments } => sort::run(arguments),
        Command::Gen(args) => exit_code("gen", generate::run(&args)),
        Command::Check(args) => exit_code("check", check::run(&args)),
        Command::Copy(args) => exit_code("copy", copy::run(&args)),
        Command::Log(args) => exit_code("log", log::run(&args)),
        Command::Checkpoint(args) => exit_code("checkpoint", checkpoint::run(&args)),
        Command::Explain(args) => exit_code("explain", explain::run(&args)),
        Command::Fine(args) => exit_code("fine", fine::run(&args)),
        Command::Machine(args) => exit_code("machine", machine::run(&args)),
        Command::Calibrate(args) => exit_code("calibrate", calibrate::run(&args)),
        Command::Knobs(args) => exit_code("knobs", knobs::run(&args)),
        Command::Counters(args) => exit_code("counters", counters::run(&args)),
        Command::Top(args) => exit_code("top", top::run(&args)),
        Command::Stream(args) => exit_code("stream", stream::run(&args)),
        Command::Model(args) => exit_code("model", model::run(&args)),
        Command::Experiment(args) => exit_code("experiment", experiment::run(&args)),
        Command::Completions(args) => exit_code("completions", completions::run(&args, definition())),
        Command::Man(args) => exit_code("man", man::run(&args, definition())),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_definition_holds() {
        super::definition().debug_assert();
    }
}
