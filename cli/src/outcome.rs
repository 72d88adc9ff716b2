//! How a command ends.

use std::process::ExitCode;

use datapipes::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::signals;

/// What a command that met no error found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Done, and everything holds.
    Good,
    /// What was checked does not hold.
    Bad,
}

/// The exit code of a command; an error is printed as `dpipe COMMAND: ...`.
pub(crate) fn exit_code(command: &str, outcome: Result<Verdict>) -> ExitCode {
    match outcome {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Bad) => ExitCode::from(1),
        Err(error) => {
            // Everything was cleaned up on the way here: now the signal may do what it does to others.
            signals::die_of_signal();
            if error.raw_os_error() == Some(libc::EPIPE) {
                signals::die_of(libc::SIGPIPE);
            }
            complain(&format!("dpipe {command}: {}\n", shown(command, &error)));
            ExitCode::from(2)
        }
    }
}

/// An error for people: without the number behind the system's words, and without saying the command twice.
fn shown(command: &str, error: &Error) -> String {
    let mut text = error.to_string();
    if let Some(errno) = error.raw_os_error() {
        text = text.replace(&format!(" (os error {errno})"), "");
    }
    text.strip_prefix(&format!("{command}: ")).map(str::to_owned).unwrap_or(text)
}

/// Prints to the standard error. That it is closed is nothing that could be told.
pub(crate) fn complain(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Prints to the standard output; a reader that went away is an error like others, not a panic.
pub(crate) fn print(text: &str) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Error::io("write", &e, "standard output"))
}

/// Prints a value as JSON, on the standard output.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&(json(value)? + "\n"))
}

/// A value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value)
        .map_err(|e| Error::new(ErrorKind::System, "write", format!("the report as JSON: {e}")))
}

/// The error of a signal that arrived.
pub(crate) fn interrupted(operation: &'static str) -> Error {
    Error::new(ErrorKind::Interrupted, operation, "a signal arrived; nothing was left behind")
}
