//! What is wrong with a command line, and the shape of records.

use std::fmt;

/// The sizes behind `--records`; the key lies inside the record and is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordShape {
    pub(crate) len_bytes: usize,
    pub(crate) key_offset_bytes: usize,
    pub(crate) key_len_bytes: usize,
}

/// A command line that makes none. `Display` is all that goes to stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsageError {
    pub(crate) message: String,
    pub(crate) exit_code: u8,
    /// Whether the message ends with a pointer to --help.
    pub(crate) try_help: bool,
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dpipe sort: {}", self.message)?;
        if self.try_help {
            write!(f, "\nTry 'dpipe sort --help' for more information.")?;
        }
        Ok(())
    }
}

impl std::error::Error for UsageError {}

pub(crate) fn trouble(message: impl Into<String>) -> UsageError {
    UsageError { message: message.into(), exit_code: 2, try_help: false }
}

pub(super) fn misuse(message: impl Into<String>) -> UsageError {
    UsageError { try_help: true, ..trouble(message) }
}
