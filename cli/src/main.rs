//! `dpipe`: move, sort, generate, check and look, through data pipes.
//!
//! Exit codes: 0 done; 1 what was checked does not hold (disorder, a difference); 2 an error, or a
//! command line that makes no sense. Ended by a signal, it dies of that signal.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod any_locator;
mod arguments;
mod colors;
mod columns;
mod command_line;
mod commands;
mod gpu_memory;
mod metrics_file;
mod objects;
mod offering;
mod outcome;
mod picture;
mod progress;
mod remote_memory;
mod report;
mod system;
mod table;

use std::process::ExitCode;

fn main() -> ExitCode {
    // The first argument decides. A sort of a small input is mostly its start, so it does not list
    // what only processes of `dpipe stream` need.
    if std::env::args_os().nth(1).is_none_or(|first| first != "sort") {
        // A controller or a device of `dpipe stream`: that, and nothing else. First of all, while
        // there is one thread.
        if let Some(code) = datapipes_fabric::process::enter(&commands::stream::functions()) {
            return code;
        }
        // The keeper of a program that is a stage of one.
        if let Some(code) = commands::stream::keeper() {
            return code;
        }
    }
    system::heap::give_back_what_is_large();
    system::standard_streams::guard();
    command_line::run(std::env::args_os().collect())
}
