//! How a command ends.

use std::process::ExitCode;

use datapipes::{Error, ErrorKind, Result};
use rustix::stdio::stderr;
use serde::Serialize;

use crate::{system::signals, system::standard_streams};

/// The result of a command that met no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandStatus {
    /// Done, and everything holds.
    Good,
    /// A check does not hold.
    Bad,
}

/// The exit code of a command; an error is printed as `dpipe COMMAND: ...`.
pub(crate) fn exit_code(command: &str, outcome: Result<CommandStatus>) -> ExitCode {
    exit_code_in_words(command, outcome, |error| shown(command, error))
}

/// Returns the same as `exit_code`. The caller chooses the text behind `dpipe COMMAND: `.
pub(crate) fn exit_code_in_words(
    command: &str,
    outcome: Result<CommandStatus>,
    words: impl FnOnce(&Error) -> String,
) -> ExitCode {
    let code = match outcome {
        Ok(CommandStatus::Good) => 0,
        Ok(CommandStatus::Bad) => 1,
        Err(error) => {
            // Everything was cleaned up on the way here: now the signal may do what it does to
            // others.
            if let Some(text) = signals::undone(command)
                && rustix::termios::isatty(stderr())
            {
                note(&text);
            }
            signals::die_of_signal();
            if is_abandoned_output(&error) && !standard_streams::sigpipe_was_ignored() {
                signals::die_of(libc::SIGPIPE);
            }
            print_error(&format!("dpipe {command}: {}\n", words(&error)));
            2
        }
    };
    // A message that could not be printed must show in the exit code.
    ExitCode::from(if standard_streams::unheard() { 2 } else { code })
}

/// Whether the reader of the standard output went away. Of other outputs that is an error with a
/// word.
fn is_abandoned_output(error: &Error) -> bool {
    error.errno() == Some(libc::EPIPE) && error.context().ends_with(standard_streams::OUTPUT)
}

/// An error for people: without the number behind the system's words, and without saying the
/// command twice.
pub(crate) fn shown(command: &str, error: &Error) -> String {
    let mut text = error.to_string();
    if let Some(errno) = error.errno() {
        text = text.replace(&format!(" (os error {errno})"), "");
    }
    if error.kind() == ErrorKind::EndOfFile && !text.contains("end of file") {
        text += ": end of file; it became shorter while it was read";
    }
    text.strip_prefix(&format!("{command}: ")).map(str::to_owned).unwrap_or(text)
}

/// The system's words for an error, without their number.
pub(crate) fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(errno) => text.replace(&format!(" (os error {errno})"), ""),
        None => text,
    }
}

/// Prints to the standard error what has to be known: where that fails, the exit code is 2.
pub(crate) fn print_error(text: &str) {
    standard_streams::print_error(text.as_bytes());
}

/// Prints to the standard error what nobody misses where it cannot be printed.
pub(crate) fn note(text: &str) {
    standard_streams::note(text.as_bytes());
}

/// Words of others, such as names of files, without what a terminal would obey or hide, and with
/// at most `most` characters.
pub(crate) fn harmless(words: &str, most: usize) -> String {
    let shown = words.chars().map(|c| {
        let hides = matches!(c,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}');
        if c.is_control() || hides { '\u{fffd}' } else { c }
    });
    shown.take(most).collect()
}

/// Prints to the standard output; a reader that went away is an error like others, not a panic.
pub(crate) fn print(text: &str) -> Result<()> {
    use std::io::Write;
    standard_streams::output()?.write_all(text.as_bytes()).map_err(|e| Error::io("write", e, standard_streams::OUTPUT))
}

/// Prints a value as JSON, on the standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&(json(value)? + "\n"))
}

/// A value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value)
        .map_err(|e| Error::new(ErrorKind::System, "write", format!("the report as JSON: {e}")).with_source(e))
}
