//! Memory of other processes on the command line: `remote://TICKET`, where TICKET is the file that
//! the exporter wrote. A program that was built without the feature `net` knows the form, and says
//! what it lacks.

use std::path::Path;

use datapipes::{Error, ErrorKind, Result};

#[cfg(not(feature = "net"))]
mod absent;
#[cfg(feature = "net")]
mod built;

#[cfg(not(feature = "net"))]
pub(crate) use absent::AnyRemote;
#[cfg(feature = "net")]
pub(crate) use built::AnyRemote;

const SCHEME: &str = "remote://";

/// Whether a text is meant as memory of another process.
pub(crate) fn is_remote(text: &str) -> bool {
    text.starts_with(SCHEME)
}

/// The ticket's file.
pub(crate) fn ticket_of(address: &str) -> &Path {
    let rest = address.strip_prefix(SCHEME).unwrap_or(address);
    Path::new(rest.split_once('?').map_or(rest, |(path, _)| path))
}

/// Refuses such memory where a command takes files alone.
pub(crate) fn refuse(command: &'static str, names: &[&str]) -> Result<()> {
    match names.iter().find(|name| is_remote(name)) {
        None => Ok(()),
        Some(name) => Err(refusal(command, command, name)),
    }
}

/// The error of a command that takes files alone.
pub(crate) fn refusal(operation: &'static str, command: &str, name: &str) -> Error {
    let why = format!("{name}: `dpipe {command}` takes no memory of other processes");
    Error::new(ErrorKind::Unsupported, operation, why).with_advice("copy the memory to a file first, by `dpipe copy`")
}
